"use strict";
// The page of an audit: it filters and sorts the existing rows. It never turns text into markup.
(() => {
  const byId = (id) => document.getElementById(id);
  const table = byId("fleet");
  const [search, engine, finding, order] = ["search", "engine", "finding", "order"].map(byId);
  const tiles = Array.from(document.querySelectorAll(".tile"));
  const heads = Array.from(table.tHead.rows[0].cells);
  const numbers = new Intl.NumberFormat("en");
  const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  const usual = { sort: heads.length - 1, down: true };
  const sorted = { ...usual };

  const hosts = Array.from(table.tBodies, (body, place) => {
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
      place,
      toggle: row.querySelector(".toggle"),
      severity: body.dataset.severity,
      engines: new Set(Array.from(row.querySelectorAll("[data-engine]"), (item) => item.dataset.engine)),
      ids: new Set(findings.map((item) => item.id)),
      keys: Array.from(row.cells, (cell) => cell.dataset.sort),
      text: body.textContent.toLowerCase(),
    };
  });

  const open = (host, wanted) => {
    host.details.hidden = !wanted;
    host.toggle.setAttribute("aria-expanded", String(wanted));
  };

  const folded = () => hosts.some((host) => !host.body.hidden && host.details.hidden);

  const nameUnfold = () => {
    byId("unfold").textContent = folded() ? "Unfold all" : "Fold all";
  };

  const counted = (number, one, several) => `${numbers.format(number)} ${number === 1 ? one : several || one + "s"}`;

  const wanted = () => ({
    words: search.value.toLowerCase().split(/\s+/).filter(Boolean),
    engine: engine.value,
    finding: finding.value,
    severities: new Set(tiles.filter((tile) => tile.getAttribute("aria-pressed") === "true").map((tile) => tile.value)),
  });

  // Returns whether all filters but the severity match: the tiles show how many hosts each severity has.
  const matches = (host, filter) =>
    (!filter.engine || host.engines.has(filter.engine)) &&
    (!filter.finding || host.ids.has(filter.finding)) &&
    filter.words.every((word) => host.text.includes(word));

  const filterHosts = () => {
    const filter = wanted();
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
    byId("nobody").hidden = shown !== 0;
    nameUnfold();
  };

  const sortHosts = () => {
    const numeric = heads[sorted.sort].dataset.kind === "number";
    const direction = sorted.down ? -1 : 1;
    const compare = (one, other) => {
      const [a, b] = [one.keys[sorted.sort], other.keys[sorted.sort]];
      // Unknown values come last in both directions.
      if (!a || !b) return Number(!a) - Number(!b) || one.place - other.place;
      return direction * (numeric ? Number(a) - Number(b) : collator.compare(a, b)) || one.place - other.place;
    };
    const now = Array.from(table.tBodies);
    const then = hosts.slice().sort(compare);
    if (then.some((host, place) => host.body !== now[place])) table.append(...then.map((host) => host.body));
    heads.forEach((head, place) => {
      if (place === sorted.sort) head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    order.value = `${sorted.sort}${sorted.down ? "-" : ""}`;
  };

  // The filter is part of the address, so that a user can send it to others.
  const toAddress = () => {
    const filter = wanted();
    const parameters = new URLSearchParams();
    if (search.value.trim()) parameters.set("text", search.value.trim());
    if (filter.severities.size) parameters.set("severity", Array.from(filter.severities).join(","));
    if (filter.engine) parameters.set("engine", filter.engine);
    if (filter.finding) parameters.set("finding", filter.finding);
    if (sorted.sort !== usual.sort || sorted.down !== usual.down) parameters.set("sort", order.value);
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
    const [, column, down] = /^(\d)(-?)$/.exec(parameters.get("sort") || "") || [];
    Object.assign(sorted, column in heads ? { sort: Number(column), down: Boolean(down) } : usual);
    sortHosts();
    filterHosts();
  };

  const refine = () => {
    filterHosts();
    toAddress();
  };

  search.addEventListener("input", refine);
  engine.addEventListener("change", refine);
  finding.addEventListener("change", refine);
  for (const tile of tiles) {
    tile.addEventListener("click", () => {
      tile.setAttribute("aria-pressed", String(tile.getAttribute("aria-pressed") !== "true"));
      refine();
    });
  }
  const sortBy = (column, down) => {
    Object.assign(sorted, { sort: column, down });
    sortHosts();
    toAddress();
  };
  heads.forEach((head, place) => {
    const first = head.dataset.kind === "number";
    head.querySelector(".sort").addEventListener("click", () => sortBy(place, sorted.sort === place ? !sorted.down : first));
  });
  order.addEventListener("change", () => sortBy(parseInt(order.value, 10), order.value.endsWith("-")));
  byId("reset").addEventListener("click", () => {
    history.replaceState(null, "", location.pathname + location.search);
    fromAddress();
    search.focus();
  });
  byId("unfold").addEventListener("click", () => {
    const unfold = folded();
    for (const host of hosts) if (!host.body.hidden) open(host, unfold);
    nameUnfold();
  });
  table.addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    // A user who selects a name to copy it must not fold the row.
    if (!row || String(getSelection())) return;
    const host = hosts.find((candidate) => candidate.row === row);
    open(host, host.details.hidden);
    nameUnfold();
  });
  addEventListener("hashchange", fromAddress);

  document.documentElement.classList.add("live");
  for (const host of hosts) open(host, false);
  fromAddress();
})();
