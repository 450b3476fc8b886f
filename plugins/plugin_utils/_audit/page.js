"use strict";
// The page of an audit: it filters, sorts and exports the hosts of the page's data, and creates the rows that are shown.
// Texts of hosts become text nodes and values of attributes, never markup.
(() => {
  // The number of rows that are created at once. More follow at the end of the page.
  const SLICE = 10;
  // The number of hosts that are printed. Chromium needs minutes for thousands.
  const PRINTED = 500;
  // A shorter search opens no details.
  const MIN_SEARCH = 3;
  const byId = (id) => document.getElementById(id);
  const table = byId("fleet");
  const [search, engine, finding, order] = ["search", "engine", "finding", "order"].map(byId);
  const tiles = Array.from(document.querySelectorAll(".tile"));
  const headers = Array.from(table.tHead.rows[0].cells);
  const titles = headers.map((header) => header.textContent);
  const numbers = new Intl.NumberFormat("en");
  const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  const defaultSort = { column: 1, descending: true };
  const sorted = { ...defaultSort };
  const counted = (number, noun) => `${numbers.format(number)} ${noun}${number === 1 ? "" : "s"}`;

  // -- elements ------------------------------------------------------------------------------------------------------

  const element = (tag, attributes, ...content) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...content);
    return made;
  };

  // A cell is a list of lines, and a line is a list of pieces: a text with an optional class.
  const plain = (text) => ({ text });
  const muted = (text) => ({ text, style: "muted" });
  const pill = (text, kind) => ({ text, style: `pill ${kind}` });
  const pieceElement = ({ text, style }) => (style ? element("span", { class: style }, text) : element("bdi", {}, text));
  const lineElement = (line) => element("div", {}, ...line.flatMap((piece) => [pieceElement(piece), " "]).slice(0, -1));

  // Returns the text with the words of the search marked.
  const marked = (text, words) => {
    if (!words.length) return [text];
    const escaped = words.map((word) => word.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"));
    const parts = text.split(new RegExp(`(${escaped.join("|")})`, "gi"));
    return parts.map((part, position) => (position % 2 ? element("mark", {}, part) : part));
  };

  // -- cells ---------------------------------------------------------------------------------------------------------

  const gpuLines = ({ gpus }) => {
    if (!gpus.count) return gpus.present === false ? [[muted("no GPU")]] : [];
    const models = gpus.models.map(([model, count]) => [plain(`${count} × ${model}`)]);
    return gpus.unhealthy ? [...models, [pill(`${gpus.unhealthy} unhealthy`, "critical")]] : models;
  };

  const toolkitLines = ({ toolkit: { installed, versions, known_cves: cves } }) => {
    if (installed === false) return [[muted("not installed")]];
    const lines = versions.map((version) => [plain(version)]);
    if (versions.length > 1) lines.push([pill(`${versions.length} versions`, "warning")]);
    if (cves && cves.length) lines.push([pill(counted(cves.length, "known CVE"), "critical")]);
    return lines;
  };

  const engineLine = (row) => [
    plain(row.target),
    ...(row.version ? [plain(row.version)] : []),
    ...(row.state ? [pill(row.state, "plain")] : []),
    ...(row.restart_pending ? [pill("restart pending", "warning")] : []),
  ];

  const runtimeLines = ({ engines }) => {
    if (!engines.some((row) => row.default_runtime)) return [];
    const runtime = (row) => (row.default_runtime ? plain(row.default_runtime) : muted("–"));
    return engines.map((row) => (engines.length > 1 ? [muted(`${row.target}:`), runtime(row)] : [runtime(row)]));
  };

  const cdiKinds = { fresh: "good", stale: "critical", invalid: "critical", unknown: "warning" };
  const cdiLines = ({ cdi: { state, files } }) => {
    if (!state) return [];
    if (state === "none") return [[muted("no spec")]];
    const versions = Array.from(new Set(files.map((file) => file.cdi_version).filter(Boolean))).sort(collator.compare);
    return [[pill(state, cdiKinds[state])], ...(versions.length ? [[muted(`CDI ${versions.join(", ")}`)]] : [])];
  };

  // Green only for a host whose containers can use GPUs. Others have remarks, such as "no GPU".
  const withoutFindings = ({ remarks }) =>
    remarks.length ? remarks.map((remark) => pill(remark, "plain")) : [pill("OK", "good")];

  // The text of the worst finding is no part of these lines, so that a search for it opens the details.
  const summaryLines = (host) => (host.findings.length ? [] : [withoutFindings(host)]);
  const nameLines = (host) => [[plain(host.host), ...(host.state === "ok" ? [] : [pill(host.state, "critical")])]];

  // In the order of the headers: the lines of a host, and the value by which it is sorted.
  const columns = [
    { lines: nameLines, key: (host) => host.host },
    { lines: summaryLines, key: (_host, position) => all.length - position },
    { lines: (host) => (host.driver ? [[plain(host.driver)]] : []), key: (host) => host.driver },
    { lines: gpuLines, key: (host) => host.gpus.count },
    { lines: toolkitLines, key: (host) => (host.toolkit.installed === false ? null : host.toolkit.versions[0]) },
    { lines: (host) => host.engines.map(engineLine), key: (host) => host.engines.map((row) => row.target).join(" ") },
    { lines: runtimeLines, key: (host) => host.engines.map((row) => row.default_runtime || "").join(" ").trim() },
    { lines: cdiLines, key: (host) => host.cdi.state },
  ];

  // -- hosts ---------------------------------------------------------------------------------------------------------

  const specification = ({ path, state, kind, cdi_version: version, driver_version: driver }) => {
    const parts = [state, kind, version && `CDI ${version}`, driver && `driver ${driver}`];
    return `${path || "?"} (${parts.filter(Boolean).join(", ")})`;
  };

  const lower = (texts) => texts.join("\n").toLowerCase();

  // The search uses lower-case texts. A line break separates cells, so that a word does not match across two of them.
  const all = JSON.parse(byId("hosts").textContent);
  const hosts = all.map((data, position) => {
    const lines = columns.flatMap((column) => column.lines(data));
    const facts = [
      ["Known CVEs", (data.toolkit.known_cves || []).join(", ")],
      ["CDI", data.cdi.files.map(specification).join(", ")],
    ].filter(([, text]) => text);
    return {
      data,
      position,
      facts,
      severity: data.severity || "none",
      engines: new Set(data.engines.map((row) => row.label)),
      ids: new Set(data.findings.map((item) => item.id)),
      summary: lower(lines.map((line) => line.map((piece) => piece.text).join(" "))),
      texts: [
        ...data.findings.map((item) => lower([item.severity, item.subject, item.id, item.text, item.advice])),
        lower(facts.flat()),
      ],
      keys: columns.map((column) => column.key(data, position)),
      // Whether the user has expanded or collapsed the details.
      open: undefined,
    };
  });
  // The hosts that the filter shows, in their order, and how many of them have a row.
  let shown = [];
  let limit = SLICE;
  let words = [];
  // A printed page shows all details.
  let printing = false;

  const inSummary = (host) => words.every((word) => host.summary.includes(word));
  const inTexts = (text) => words.every((word) => text.includes(word));
  const found = (host, word) => host.summary.includes(word) || host.texts.some((text) => text.includes(word));

  // Opens a host whose details contain what the search has found.
  const isOpen = (host) => host.open ?? (words.join(" ").length >= MIN_SEARCH && !inSummary(host));

  // -- rows ----------------------------------------------------------------------------------------------------------

  const findingElement = (item, text) => {
    const isFound = words.length > 0 && inTexts(text);
    const show = (content) => element("bdi", {}, ...marked(content, isFound ? words : []));
    const made = element(
      "li",
      { class: `finding ${item.severity}${isFound ? " found" : ""}` },
      element("div", {}, pieceElement(pill(item.severity, item.severity)), " ",
        ...(item.named ? [] : [element("code", {}, show(item.subject)), " "]),
        element("span", { class: "name" }, show(item.id))),
      element("p", {}, show(item.text)),
    );
    if (item.advice) made.append(element("p", { class: "advice" }, show(item.advice)));
    return made;
  };

  const details = ({ data, facts, texts }) => {
    const items = data.findings.map((item, position) => findingElement(item, texts[position]));
    const list = facts.flatMap(([label, text]) => [
      element("dt", {}, label),
      element("dd", {}, element("bdi", {}, ...marked(text, words))),
    ]);
    return [
      items.length ? element("ul", { class: "findings", role: "list" }, ...items) : element("p", { class: "muted" }, "No findings."),
      ...(list.length ? [element("dl", { class: "facts" }, ...list)] : []),
    ];
  };

  const worstFinding = ({ findings }) => {
    const [worst, ...others] = findings;
    const more = others.length ? [" ", element("span", { class: "others" }, `+${others.length} more`)] : [];
    return [
      element("div", {}, pieceElement(pill(worst.severity, worst.severity)), " ", pieceElement(muted(worst.id)), ...more),
      element("div", { class: "text" }, element("bdi", {}, worst.named ? worst.text : `${worst.subject}: ${worst.text}`)),
      ...(worst.advice ? [element("div", { class: "advice" }, element("bdi", {}, worst.advice))] : []),
    ];
  };

  const cellElement = (host, column, position) => {
    const lines = column.lines(host.data);
    const unknown = lines.length ? lines : [[muted("–")]];
    const content = position === 1 && host.data.findings.length ? worstFinding(host.data) : unknown.map(lineElement);
    return element("td", { role: "cell", "data-label": titles[position] }, element("div", {}, ...content));
  };

  const createRow = (host) => {
    const name = host.data.host;
    const id = `host-${host.position}`;
    host.toggle = element("button", {
      type: "button", class: "toggle", "aria-expanded": "false", "aria-controls": id, "aria-label": `Details of ${name}`,
    });
    const [line] = nameLines(host.data);
    const label = line.map((piece) => piece.text).join(", ");
    // The label keeps the name of the button out of the header that a screen reader reads with each cell.
    const header = element("th", { role: "rowheader", scope: "row", "aria-label": label, title: name }, host.toggle, lineElement(line));
    const cells = columns.slice(1).map((column, position) => cellElement(host, column, position + 1));
    host.cell = element("td", { role: "cell", colspan: columns.length });
    host.row = element("tr", { class: "row", role: "row" }, header, ...cells);
    host.details = element("tr", { class: "details", role: "row", id, hidden: "" }, host.cell);
    host.body = element("tbody", { class: "host", role: "rowgroup", "data-severity": host.severity }, host.row, host.details);
    byBody.set(host.body, host);
  };

  const byBody = new WeakMap();

  const update = (host) => {
    if (!host.body) createRow(host);
    const open = isOpen(host);
    const content = open || printing ? details(host) : [];
    if (content.length || host.cell.firstChild) host.cell.replaceChildren(...content);
    if (host.details.hidden === !open) return;
    host.details.hidden = !open;
    host.body.classList.toggle("open", open);
    host.toggle.setAttribute("aria-expanded", String(open));
  };

  // Shows the rows of the hosts from the position on.
  const draw = (position) => {
    if (printing) limit = PRINTED;
    const next = shown.slice(position, limit);
    next.forEach(update);
    const bodies = next.map((host) => host.body);
    const current = Array.from(table.tBodies).slice(position);
    if (current.length !== bodies.length || current.some((body, number) => body !== bodies[number])) {
      for (const body of current) body.remove();
      table.append(...bodies);
    }
    const rest = shown.length - limit;
    byId("more").hidden = rest <= 0;
    byId("more").textContent = printing
      ? `${counted(rest, "more host")} not printed. Use the filter or an export.`
      : `Show more (${counted(rest, "host")})`;
    // Observed anew, it reports again if the new rows do not fill the window.
    atEnd.unobserve(byId("more"));
    atEnd.observe(byId("more"));
  };

  const showMore = () => {
    const position = limit;
    limit += SLICE;
    draw(position);
  };

  const atEnd = new IntersectionObserver((entries) => {
    if (!printing && entries.some((entry) => entry.isIntersecting)) showMore();
  });

  // -- filter and order ----------------------------------------------------------------------------------------------

  const updateExpandButton = () => {
    byId("expand").textContent = shown.every(isOpen) ? "Collapse all" : "Expand all";
  };

  const severities = () => tiles.filter((tile) => tile.getAttribute("aria-pressed") === "true").map((tile) => tile.value);

  // Ignores the filter by severity, because the tiles show how many hosts each severity has.
  const matches = (host) =>
    (!engine.value || host.engines.has(engine.value)) &&
    (!finding.value || host.ids.has(finding.value)) &&
    words.every((word) => found(host, word));

  const filterHosts = () => {
    words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const pressed = severities();
    const perSeverity = {};
    const perFinding = { critical: 0, warning: 0, info: 0 };
    const candidates = hosts.filter(matches);
    for (const host of candidates) perSeverity[host.severity] = (perSeverity[host.severity] || 0) + 1;
    for (const tile of tiles) tile.querySelector("b").textContent = numbers.format(perSeverity[tile.value] || 0);
    shown = candidates.filter((host) => !pressed.length || pressed.includes(host.severity));
    for (const host of shown) for (const item of host.data.findings) perFinding[item.severity] += 1;
    const { critical, warning, info } = perFinding;
    byId("status").textContent =
      `${numbers.format(shown.length)} of ${counted(hosts.length, "host")}, ${counted(critical + warning + info, "finding")}: ` +
      `${numbers.format(critical)} critical, ${counted(warning, "warning")}, ${numbers.format(info)} info`;
    table.hidden = shown.length === 0;
    byId("no-hosts").hidden = shown.length !== 0;
    limit = SLICE;
    draw(0);
    updateExpandButton();
  };

  const sortHosts = () => {
    const numeric = headers[sorted.column].dataset.kind === "number";
    const direction = sorted.descending ? -1 : 1;
    hosts.sort((one, other) => {
      const [a, b] = [one.keys[sorted.column], other.keys[sorted.column]];
      const byPosition = one.position - other.position;
      // Unknown values come last in both directions.
      const [unknown, otherUnknown] = [a, b].map((key) => key === null || key === undefined || key === "");
      if (unknown || otherUnknown) return Number(unknown) - Number(otherUnknown) || byPosition;
      return direction * (numeric ? a - b : collator.compare(a, b)) || byPosition;
    });
    headers.forEach((header, position) => {
      if (position === sorted.column) header.setAttribute("aria-sort", sorted.descending ? "descending" : "ascending");
      else header.removeAttribute("aria-sort");
    });
    order.value = `${sorted.column}${sorted.descending ? "-" : ""}`;
  };

  // The filter is part of the address, so that a user can send it to others.
  const toAddress = () => {
    const parameters = new URLSearchParams();
    const pressed = severities();
    if (search.value.trim()) parameters.set("text", search.value.trim());
    if (pressed.length) parameters.set("severity", pressed.join(","));
    if (engine.value) parameters.set("engine", engine.value);
    if (finding.value) parameters.set("finding", finding.value);
    if (sorted.column !== defaultSort.column || sorted.descending !== defaultSort.descending) parameters.set("sort", order.value);
    const hash = parameters.toString();
    if (hash !== location.hash.slice(1)) history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  };

  const choose = (select, value) => {
    select.value = value;
    if (select.selectedIndex < 0) select.value = "";
  };

  const fromAddress = () => {
    const parameters = new URLSearchParams(location.hash.slice(1));
    search.value = parameters.get("text") || "";
    choose(engine, parameters.get("engine") || "");
    choose(finding, parameters.get("finding") || "");
    const pressed = (parameters.get("severity") || "").split(",");
    for (const tile of tiles) tile.setAttribute("aria-pressed", String(pressed.includes(tile.value)));
    const [, column, descending] = /^(\d)(-?)$/.exec(parameters.get("sort") || "") || [];
    Object.assign(sorted, column in headers ? { column: Number(column), descending: Boolean(descending) } : defaultSort);
    sortHosts();
    filterHosts();
  };

  const updateFilter = () => {
    filterHosts();
    toAddress();
  };

  const sortBy = (column, descending) => {
    Object.assign(sorted, { column, descending });
    sortHosts();
    updateFilter();
  };

  // -- export --------------------------------------------------------------------------------------------------------

  // One row for each finding of the hosts that the filter shows, and one for a host without findings.
  const exported = () => [
    ["host", "severity", "finding", "subject", "text", "advice", "driver", "toolkit", "engines"],
    ...shown.flatMap(({ data }) => {
      const facts = [data.driver, data.toolkit.versions.join(" "), data.engines.map((row) => row.target).join(" ")];
      const items = data.findings.length ? data.findings : [{}];
      return items.map((item) => [data.host, item.severity, item.id, item.subject, item.text, item.advice, ...facts]);
    }),
  ].map((row) => row.map((value) => value || ""));

  // A spreadsheet may run a text that begins with one of these characters as a formula. Some ignore spaces, quotes and
  // control characters before it, and take a semicolon, a tab or a newline as the end of a field, also in quotes.
  const csvText = (text) => text.replace(/(^|[;\t\n\r])([\s\p{Cc}\p{Cf}"]*[=+\-@＝＋－＠﹢﹣﹦﹫])/gu, "$1'$2");
  const csvField = (text) => `"${csvText(text).replaceAll('"', '""')}"`;
  const csv = () => exported().map((row) => `${row.map(csvField).join(",")}\r\n`).join("");

  const markdownField = (text) => text.replace(/[\\`*_~$|<>&#![\]]/g, "\\$&");
  const markdown = () => {
    const [header, ...rows] = exported().map((row) => `| ${row.map(markdownField).join(" | ")} |\n`);
    return [header, `${"| --- ".repeat(exported()[0].length)}|\n`, ...rows].join("");
  };

  const download = (name, type, text) => {
    const address = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
    element("a", { href: address, download: name }).click();
    // The download may not have begun yet.
    setTimeout(() => URL.revokeObjectURL(address), 60000);
  };

  // -- events --------------------------------------------------------------------------------------------------------

  search.addEventListener("input", () => {
    // A host that was collapsed opens again if a new search finds something in it.
    for (const host of hosts) if (host.open === false) host.open = undefined;
    updateFilter();
  });
  engine.addEventListener("change", updateFilter);
  finding.addEventListener("change", updateFilter);
  for (const tile of tiles) {
    tile.addEventListener("click", () => {
      tile.setAttribute("aria-pressed", String(tile.getAttribute("aria-pressed") !== "true"));
      updateFilter();
    });
  }
  headers.forEach((header, position) => {
    const numeric = header.dataset.kind === "number";
    const button = header.querySelector(".sort");
    button.addEventListener("click", () => sortBy(position, sorted.column === position ? !sorted.descending : numeric));
  });
  order.addEventListener("change", () => sortBy(parseInt(order.value, 10), order.value.endsWith("-")));
  byId("reset").addEventListener("click", () => {
    history.replaceState(null, "", location.pathname + location.search);
    fromAddress();
    search.focus();
  });
  byId("expand").addEventListener("click", () => {
    const open = !shown.every(isOpen);
    for (const host of shown) host.open = open;
    shown.slice(0, limit).forEach(update);
    updateExpandButton();
  });
  byId("csv").addEventListener("click", () => download("gpufleet-audit.csv", "text/csv", csv()));
  byId("markdown").addEventListener("click", () => download("gpufleet-audit.md", "text/markdown", markdown()));
  byId("more").addEventListener("click", showMore);
  table.addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    // Selecting a name to copy it must not collapse the row.
    if (!row || String(getSelection())) return;
    const host = byBody.get(row.parentElement);
    host.open = !isOpen(host);
    update(host);
    updateExpandButton();
  });
  addEventListener("hashchange", fromAddress);
  // The media type changes after the browser has counted the pages, and a preview of the media has no other event.
  const setPrinting = (value) => {
    if (printing === value) return;
    printing = value;
    filterHosts();
  };
  const paper = matchMedia("print");
  paper.addEventListener("change", () => setPrinting(paper.matches));
  addEventListener("beforeprint", () => setPrinting(true));
  addEventListener("afterprint", () => setPrinting(false));

  // The column of the hosts is as wide as the longest name, and narrower than that of the findings.
  const longest = hosts.reduce((length, host) => Math.max(length, host.data.host.length), 0);
  headers[0].style.width = `min(${longest * 9 + 50}px, 18vw)`;
  document.documentElement.classList.add("scripted");
  printing = paper.matches;
  fromAddress();
})();
