# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The page of an audit: one HTML file in which all text is escaped, and which loads no other file.

Private to this collection. page.css and page.js beside this file are put into the page.
"""

from __future__ import annotations

import base64
import hashlib
import html
import typing as t
from pathlib import Path

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit.report import (
    OK,
    SEVERITIES,
    counted,
    natural,
    printable,
    rows,
    table,
)

if t.TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    # A part of the report.
    Row = Mapping[str, t.Any]


# -- markup ----------------------------------------------------------------------------------------------------------

# Elements without an end tag.
_EMPTY = ("br", "input", "link", "meta")


class Markup(str):
    """HTML that is already escaped."""

    __slots__ = ()


def element(tag: str, /, *content: str | None, **attributes: str | int | bool | None) -> Markup:
    """Return an element. Content that is None is omitted.

    The argument ``class_`` is the attribute ``class``, and other underscores become hyphens. An attribute that is True
    has no value; one that is False or None is omitted.
    """
    written = "".join(
        f" {_attribute(key)}" if value is True else f' {_attribute(key)}="{_escaped(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _EMPTY:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{joined(*content)}</{tag}>")


def joined(*content: str | None) -> Markup:
    """Return several pieces, one after the other."""
    return Markup("".join(item if isinstance(item, Markup) else _escaped(item) for item in content if item is not None))


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _escaped(text: str) -> str:
    return html.escape(printable(text))


# -- the rows of a host: a summary, and details that the script collapses --------------------------------------------

_CDI_CLASSES = {"fresh": "good", "stale": "critical", "invalid": "critical", "unknown": "warning", "none": "plain"}
_UNKNOWN = Markup('<span class="muted">&ndash;</span>')
# A break between cells, so that a search in the page does not match across two of them.
_BREAK = Markup("\n")


class Column(t.NamedTuple):
    """A column: its title, its kind for sorting, and the function that returns sort key and content of a host's cell.

    Numbers are sorted in descending order.
    """

    title: str
    kind: t.Literal["text", "number"]
    cell: t.Callable[[t.Any], tuple[str | int | None, Markup | None]]


def engine_label(engine: Row) -> str:
    """Return the engine with its flavor, such as containerd/k3s, by which hosts are filtered."""
    name, flavor = str(engine["engine"]), engine["flavor"]
    return name if flavor in (None, "system") else f"{name}/{flavor}"


def host_body(host: Row, number: int, rank: int) -> Markup:
    """Return both rows of the host with this number. Hosts are sorted by descending ``rank`` by default."""
    details = f"host-{number}"
    cells = [_name_cell(host, details), *(_cell(column, host) for column in COLUMNS[1:-1])]
    cells.append(
        element("td", element("div", _counts(host)), role="cell", data_sort=rank, data_label=COLUMNS[-1].title)
    )
    return element(
        "tbody",
        element("tr", _BREAK, *_separated(cells), class_="row", role="row"),
        _BREAK,
        element(
            "tr",
            element("td", *_details(host), role="cell", colspan=len(COLUMNS)),
            class_="details",
            role="row",
            id=details,
        ),
        class_="host",
        role="rowgroup",
        data_severity=host["severity"] or "none",
    )


def pill(text: str, class_: str) -> Markup:
    """Return a short highlighted text."""
    return element("span", text, class_=f"pill {class_}")


def _separated(items: Sequence[Markup]) -> list[Markup]:
    return [piece for item in items for piece in (item, _BREAK)]


def _name_cell(host: Row, details: str) -> Markup:
    toggle = element(
        "button", type="button", class_="toggle", aria_expanded="true", aria_controls=details,
        aria_label=f"Details of {host['host']}",
    )  # fmt: skip
    state = None if host["state"] == OK else joined(Markup(" "), pill(host["state"], "critical"))
    name = element("span", element("bdi", host["host"]), state)
    return element("th", toggle, name, role="rowheader", scope="row", data_sort=host["host"])


def _cell(column: Column, host: Row) -> Markup:
    key, content = column.cell(host)
    return element(
        "td", element("div", content or _UNKNOWN), role="cell", data_sort="" if key is None else key,
        data_label=column.title,
    )  # fmt: skip


def _driver(host: Row) -> tuple[str | None, Markup | None]:
    version = host["driver"]
    return version, None if version is None else element("bdi", version)


def _gpus(host: Row) -> tuple[int | None, Markup | None]:
    gpus = host["gpus"]
    if not gpus["count"]:
        return gpus["count"], element("span", "no GPU", class_="muted") if gpus["present"] is False else None
    models = [element("li", f"{number} \u00d7 ", element("bdi", model)) for model, number in gpus["models"].items()]
    warning = pill(f"{gpus['unhealthy']} unhealthy", "critical") if gpus["unhealthy"] else None
    return gpus["count"], joined(element("ul", *models), warning)


def _toolkit(host: Row) -> tuple[str | None, Markup | None]:
    toolkit = host["toolkit"]
    if toolkit["installed"] is False:
        return None, element("span", "not installed", class_="muted")
    versions = toolkit["versions"]
    lines = [element("li", element("bdi", version)) for version in versions]
    several = pill(f"{len(versions)} versions", "warning") if len(versions) > 1 else None
    known = toolkit["known_cves"]
    cves = element("div", pill(counted(len(known), "known CVE"), "critical")) if known else None
    content = joined(element("ul", *lines) if lines else None, several, cves)
    return versions[0] if versions else None, content


def _engines(host: Row) -> tuple[str | None, Markup | None]:
    lines = [
        element(
            "li",
            element("bdi", engine["target"]),
            joined(" ", element("bdi", engine["version"])) if engine["version"] else None,
            *_engine_pills(engine),
            data_engine=engine_label(engine),
        )
        for engine in host["engines"]
    ]
    key = " ".join(engine["target"] for engine in host["engines"])
    return key or None, element("ul", *lines) if lines else None


def _engine_pills(engine: Row) -> list[Markup]:
    pills = []
    if engine["installed"] is False:
        pills.append(pill("not installed", "plain"))
    elif engine["running"] is False and engine["engine"] in flavors.DAEMONS:
        pills.append(pill("stopped", "plain"))
    if engine["restart_pending"]:
        pills.append(pill("restart pending", "warning"))
    return [joined(Markup(" "), found) for found in pills]


def _default_runtimes(host: Row) -> tuple[str | None, Markup | None]:
    engines = host["engines"]
    names = [engine["default_runtime"] for engine in engines]
    lines = [
        element(
            "li",
            element("span", f"{engine['target']}: ", class_="muted") if len(engines) > 1 else None,
            element("bdi", name) if name else _UNKNOWN,
        )
        for engine, name in zip(engines, names)
    ]
    return " ".join(filter(None, names)) or None, element("ul", *lines) if any(names) else None


def _cdi(host: Row) -> tuple[str | None, Markup | None]:
    state, files = host["cdi"]["state"], host["cdi"]["files"]
    if state is None:
        return None, None
    versions = sorted({file["cdi_version"] for file in files if file["cdi_version"]}, key=natural)
    label = element("span", f"CDI {', '.join(versions)}", class_="muted nowrap") if versions else None
    return state, joined(pill(state, _CDI_CLASSES[state]), label)


def _counts(host: Row) -> Markup:
    counts = host["counts"]
    texts = {
        "critical": f"{counts['critical']} critical",
        "warning": counted(counts["warning"], "warning"),
        "info": f"{counts['info']} info",
    }
    pills = [pill(texts[severity], severity) for severity in SEVERITIES if counts[severity]]
    return joined(*pills) if pills else pill("none", "good")


def _details(host: Row) -> list[Markup]:
    found = [
        element(
            "li",
            element("div", pill(finding["severity"], finding["severity"]),
                    element("code", element("bdi", finding["subject"])), " ",
                    element("span", finding["id"], class_="name")),
            element("p", element("bdi", finding["text"])),
            element("p", element("bdi", finding["advice"]), class_="advice") if finding["advice"] else None,
            _BREAK,
            class_=f"finding {finding['severity']}", data_id=finding["id"], data_severity=finding["severity"],
        )
        for finding in host["findings"]
    ]  # fmt: skip
    facts = [
        joined(element("dt", label), element("dd", *_comma_separated(values)))
        for label, values in _facts(host)
        if values
    ]
    nothing = element("p", "No findings.", class_="muted")
    return [
        element("ul", *found, class_="findings", role="list") if found else nothing,
        *([element("dl", *_separated(facts), class_="facts")] if facts else []),
    ]


def _facts(host: Row) -> list[tuple[str, list[Markup]]]:
    return [
        ("Known CVEs", [element("bdi", name) for name in host["toolkit"]["known_cves"] or ()]),
        ("CDI", [_specification(file) for file in host["cdi"]["files"]]),
    ]


def _specification(file: Row) -> Markup:
    parts = [file["state"], file["kind"]]
    parts += [f"CDI {file['cdi_version']}" if file["cdi_version"] else None]
    parts += [f"driver {file['driver_version']}" if file["driver_version"] else None]
    return joined(element("code", element("bdi", file["path"] or "?")), f" ({', '.join(filter(None, parts))})")


def _comma_separated(values: Sequence[Markup]) -> list[Markup | str]:
    return [piece for value in values for piece in (", ", value)][1:]


COLUMNS = (
    # host_body() creates the first cell, which is the row's header, and the last, which is sorted by all findings.
    Column("Host", "text", lambda _host: (None, None)),
    Column("Driver", "text", _driver),
    Column("GPUs", "number", _gpus),
    Column("Toolkit", "text", _toolkit),
    Column("Engines", "text", _engines),
    Column("Default runtime", "text", _default_runtimes),
    Column("CDI", "text", _cdi),
    Column("Findings", "number", lambda _host: (None, None)),
)


# -- the page --------------------------------------------------------------------------------------------------------

_TITLE = "GPU fleet audit"
# Each tile: the severity of a host's most severe finding, the class, and the text.
_TILES = (
    ("critical", "critical", "with a critical finding"),
    ("warning", "warning", "with a warning"),
    ("info", "info", "with info only"),
    ("none", "good", "without findings"),
)


def page_of(report: Row) -> str:
    """Return the whole page for a report of report_of(). Its texts need not be safe."""
    hosts, totals = rows(report["hosts"]), table(report["totals"])
    # These two files belong to this collection. The browser accepts no other style or script, because of their hashes.
    style, script = (Markup(Path(__file__).with_name(name).read_text("utf-8")) for name in ("page.css", "page.js"))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="robots", content="noindex"),
        element("link", rel="icon", href="data:,"),
        element("title", _TITLE),
        element("style", style),
    )
    body = element(
        "body",
        element("header", element("h1", _TITLE), element("p", _about(report, totals), class_="about")),
        element("main", _tools(hosts, totals), _fleet(hosts), _no_hosts(hosts)),
        element("script", script),
    )
    return "<!DOCTYPE html>\n" + element("html", head, Markup("\n"), body, lang="en") + "\n"


def _policy(style: str, script: str) -> str:
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
        for text in (style, script)
    ]
    return (
        f"default-src 'none'; style-src {hashes[0]}; script-src {hashes[1]}; img-src data:; base-uri 'none';"
        " form-action 'none'"
    )


def _about(report: Row, totals: Row) -> str:
    parts = [counted(totals["hosts"], "host"), counted(totals["gpus"], "GPU")]
    parts += [f"{totals[state]} {state}" for state in ("unreachable", "failed") if totals[state]]
    if report["generated"]:
        parts.append(str(report["generated"]))
    return " · ".join(parts)


def _tools(hosts: list[Row], totals: Row) -> Markup:
    tiles = [
        element(
            "button", element("b", str(totals["hosts_by_severity"][name])), element("span", text), type="button",
            class_=f"tile {class_}", value=name, aria_pressed="false",
        )
        for name, class_, text in _TILES
    ]  # fmt: skip
    engines = sorted({engine_label(engine) for host in hosts for engine in host["engines"]})
    found = [(row["id"], f"{row['id']} ({counted(row['hosts'], 'host')})") for row in totals["by_finding"]]
    # As in the script, "-" is the descending order, in which numbers are sorted by default.
    signs = ["-" if column.kind == "number" else "" for column in COLUMNS]
    orders = [(f"{number}{sign}", COLUMNS[number].title) for number, sign in enumerate(signs)]
    orders += [
        (f"{number}{'' if sign else '-'}", f"{COLUMNS[number].title}, reversed") for number, sign in enumerate(signs)
    ]
    search = element("input", id="search", type="search", autocomplete="off", spellcheck="false")
    return element(
        "section",
        element("div", *tiles, class_="tiles", role="group", aria_label="Hosts by their most severe finding"),
        element(
            "div",
            _field("Search", search, "search"),
            _field("Engine", _select("engine", [("", "All engines"), *((label, label) for label in engines)])),
            _field("Finding", _select("finding", [("", "All findings"), *found])),
            _field("Order", _select("order", orders), "order"),
            element("button", "Reset", id="reset", type="button"),
            element("button", "Expand all", id="expand", type="button"),
            class_="fields",
        ),
        element("p", id="status", class_="status", role="status"),
        class_="tools",
        aria_label="Filter",
    )  # fmt: skip


def _field(label: str, field: Markup, class_: str | None = None) -> Markup:
    return element("label", label, field, class_=class_)


def _select(name: str, options: list[tuple[str, str]]) -> Markup:
    return element("select", *(element("option", text, value=value) for value, text in options), id=name)


def _fleet(hosts: list[Row]) -> Markup:
    titles = [
        element(
            "th", element("button", column.title, type="button", class_="sort"), scope="col", role="columnheader",
            data_kind=column.kind,
        )
        for column in COLUMNS
    ]  # fmt: skip
    bodies = [host_body(host, number, len(hosts) - number) for number, host in enumerate(hosts)]
    return element(
        "table",
        element("caption", "Hosts, the most severe findings first"),
        element("thead", element("tr", *titles, role="row"), role="rowgroup"),
        *(joined(Markup("\n"), body) for body in bodies),
        id="fleet",
        role="table",
    )


def _no_hosts(hosts: list[Row]) -> Markup:
    return element("p", "No host matches.", id="no-hosts", class_="no-hosts", hidden=bool(hosts))
