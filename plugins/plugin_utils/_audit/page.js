"use strict";
// The page of an audit: it filters and sorts the existing rows. It never turns text into markup.
(() => {
  const byId = (id) => document.getElementById(id);
  const table = byId("fleet");
  const [search, engine, finding, order] = ["search", "engine", "finding", "order"].map(byId);
  const tiles = Array.from(document.querySelectorAll(".tile"));
  const headers = Array.from(table.tHead.rows[0].cells);
  const numbers = new Intl.NumberFormat("en");
  const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  const defaultSort = { column: headers.length - 1, descending: true };
  const sorted = { ...defaultSort };

  const hosts = Array.from(table.tBodies, (body, position) => {
    const [row, details] = body.rows;
    const findings = Array.from(details.querySelectorAll(".finding"), (item) => ({
      id: item.dataset.id,
      severity: item.dataset.severity,
    }));
    return {
      body,
      row,
      details,
      findings,
      position,
      toggle: row.querySelector(".toggle"),
      severity: body.dataset.severity,
      engines: new Set(Array.from(row.querySelectorAll("[data-engine]"), (item) => item.dataset.engine)),
      ids: new Set(findings.map((item) => item.id)),
      keys: Array.from(row.cells, (cell) => cell.dataset.sort),
      text: body.textContent.toLowerCase(),
    };
  });

  const expand = (host, expanded) => {
    host.details.hidden = !expanded;
    host.toggle.setAttribute("aria-expanded", String(expanded));
  };

  const anyCollapsed = () => hosts.some((host) => !host.body.hidden && host.details.hidden);

  const updateExpandButton = () => {
    byId("expand").textContent = anyCollapsed() ? "Expand all" : "Collapse all";
  };

  const counted = (number, noun) => `${numbers.format(number)} ${noun}${number === 1 ? "" : "s"}`;

  const currentFilter = () => ({
    words: search.value.toLowerCase().split(/\s+/).filter(Boolean),
    engine: engine.value,
    finding: finding.value,
    severities: new Set(tiles.filter((tile) => tile.getAttribute("aria-pressed") === "true").map((tile) => tile.value)),
  });

  // Ignores the filter by severity, because the tiles show how many hosts each severity has.
  const matches = (host, filter) =>
    (!filter.engine || host.engines.has(filter.engine)) &&
    (!filter.finding || host.ids.has(filter.finding)) &&
    filter.words.every((word) => host.text.includes(word));

  const filterHosts = () => {
    const filter = currentFilter();
    const perSeverity = {};
    const perFinding = {};
    let shown = 0;
    for (const host of hosts) {
      const candidate = matches(host, filter);
      if (candidate) perSeverity[host.severity] = (perSeverity[host.severity] || 0) + 1;
      const visible = candidate && (!filter.severities.size || filter.severities.has(host.severity));
      host.body.hidden = !visible;
      if (!visible) continue;
      shown += 1;
      for (const item of host.findings) perFinding[item.severity] = (perFinding[item.severity] || 0) + 1;
    }
    for (const tile of tiles) tile.querySelector("b").textContent = numbers.format(perSeverity[tile.value] || 0);
    const [critical, warning, info] = ["critical", "warning", "info"].map((severity) => perFinding[severity] || 0);
    byId("status").textContent =
      `${numbers.format(shown)} of ${counted(hosts.length, "host")}, ${counted(critical + warning + info, "finding")}: ` +
      `${numbers.format(critical)} critical, ${counted(warning, "warning")}, ${numbers.format(info)} info`;
    table.hidden = shown === 0;
    byId("no-hosts").hidden = shown !== 0;
    updateExpandButton();
  };

  const sortHosts = () => {
    const numeric = headers[sorted.column].dataset.kind === "number";
    const direction = sorted.descending ? -1 : 1;
    const compare = (one, other) => {
      const [a, b] = [one.keys[sorted.column], other.keys[sorted.column]];
      // Unknown values come last in both directions.
      if (!a || !b) return Number(!a) - Number(!b) || one.position - other.position;
      return direction * (numeric ? Number(a) - Number(b) : collator.compare(a, b)) || one.position - other.position;
    };
    const current = Array.from(table.tBodies);
    const target = hosts.slice().sort(compare);
    if (target.some((host, position) => host.body !== current[position])) table.append(...target.map((host) => host.body));
    headers.forEach((header, position) => {
      if (position === sorted.column) header.setAttribute("aria-sort", sorted.descending ? "descending" : "ascending");
      else header.removeAttribute("aria-sort");
    });
    order.value = `${sorted.column}${sorted.descending ? "-" : ""}`;
  };

  // The filter is part of the address, so that a user can send it to others.
  const toAddress = () => {
    const filter = currentFilter();
    const parameters = new URLSearchParams();
    if (search.value.trim()) parameters.set("text", search.value.trim());
    if (filter.severities.size) parameters.set("severity", Array.from(filter.severities).join(","));
    if (filter.engine) parameters.set("engine", filter.engine);
    if (filter.finding) parameters.set("finding", filter.finding);
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
    const severities = (parameters.get("severity") || "").split(",");
    for (const tile of tiles) tile.setAttribute("aria-pressed", String(severities.includes(tile.value)));
    const [, column, descending] = /^(\d)(-?)$/.exec(parameters.get("sort") || "") || [];
    Object.assign(sorted, column in headers ? { column: Number(column), descending: Boolean(descending) } : defaultSort);
    sortHosts();
    filterHosts();
  };

  const updateFilter = () => {
    filterHosts();
    toAddress();
  };

  search.addEventListener("input", updateFilter);
  engine.addEventListener("change", updateFilter);
  finding.addEventListener("change", updateFilter);
  for (const tile of tiles) {
    tile.addEventListener("click", () => {
      tile.setAttribute("aria-pressed", String(tile.getAttribute("aria-pressed") !== "true"));
      updateFilter();
    });
  }
  const sortBy = (column, descending) => {
    Object.assign(sorted, { column, descending });
    sortHosts();
    toAddress();
  };
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
    const expanded = anyCollapsed();
    for (const host of hosts) if (!host.body.hidden) expand(host, expanded);
    updateExpandButton();
  });
  table.addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    // Selecting a name to copy it must not collapse the row.
    if (!row || String(getSelection())) return;
    const host = hosts.find((candidate) => candidate.row === row);
    expand(host, host.details.hidden);
    updateExpandButton();
  });
  addEventListener("hashchange", fromAddress);

  document.documentElement.classList.add("scripted");
  for (const host of hosts) expand(host, false);
  fromAddress();
})();
