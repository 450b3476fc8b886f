# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The page of an audit: one HTML file in which all text is escaped, and which loads no other file.

Private to this collection. page.css and page.js beside this file are put into the page. The hosts are in the page as
JSON, and the script creates the elements of the hosts that it shows: the elements of 5,000 hosts would need 800 MB.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import typing as t
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import printable
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit.report import (
    counted,
    engine_state,
    lines_of,
    needs_subject,
    rows,
    table,
)

if t.TYPE_CHECKING:
    from collections.abc import Sequence

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
    return html.escape(printable.line(text))


# -- the data of the hosts, from which the script creates the rows that it shows ---------------------------------------


def engine_label(engine: Row) -> str:
    """Return the engine with its flavor, such as containerd/k3s, by which hosts are filtered."""
    name, flavor = str(engine["engine"]), engine["flavor"]
    return name if flavor in (None, "system") else f"{name}/{flavor}"


def _data(hosts: Sequence[Row]) -> Markup:
    """Return the hosts as JSON that cannot end the element which contains it."""
    values = _printable([_host_data(host) for host in hosts])
    return Markup(json.dumps(values, separators=(",", ":")).replace("<", "\\u003c"))


def _printable(value: t.Any) -> t.Any:
    """Return a value with all its texts as printable.line() returns them."""
    if isinstance(value, str):
        return printable.line(value)
    if isinstance(value, Mapping):
        return {key: _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, (list, tuple)) else value


def _host_data(host: Row) -> dict[str, t.Any]:
    unchanged = ("host", "state", "severity", "driver", "toolkit", "cdi", "remarks")
    return {
        **{key: host[key] for key in unchanged},
        "findings": [{**finding, "named": not needs_subject(finding)} for finding in host["findings"]],
        # Pairs, because names of hosts must not be keys.
        "gpus": {**host["gpus"], "models": list(host["gpus"]["models"].items())},
        "engines": [_engine_data(engine) for engine in host["engines"]],
    }


def _engine_data(engine: Row) -> dict[str, t.Any]:
    shown = ("target", "version", "default_runtime", "restart_pending")
    return {**{key: engine[key] for key in shown}, "label": engine_label(engine), "state": engine_state(engine)}


# -- the page --------------------------------------------------------------------------------------------------------

_TITLE = "GPU fleet audit"
# The element of the page that differs between two reports on the same findings.
TIME = re.compile(rb"<time>[^<]*</time>")
# Title and kind of each column, in the order of the cells of page.js. Numbers are sorted in descending order first.
COLUMNS = (
    ("Host", "text"),
    ("Worst finding", "number"),
    ("Driver", "text"),
    ("GPUs", "number"),
    ("Toolkit", "text"),
    ("Engines", "text"),
    ("Default runtime", "text"),
    ("CDI", "text"),
)
# Each tile: the severity of a host's most severe finding, the class, and the text. Hosts without findings may lack a
# GPU or the toolkit, so their tile has no color.
_TILES = (
    ("critical", "critical", "with a critical finding"),
    ("warning", "warning", "a warning at most"),
    ("info", "info", "info only"),
    ("none", "plain", "without findings"),
)
# The number of findings in the list of the most severe ones.
_TOP = 8
_NO_SCRIPT = "The table of hosts needs JavaScript. These are all findings:"
# Line breaks between elements, for people who read the source of the page.
_BREAK = Markup("\n")


def page_of(report: Row, time: str | None = None, version: str | None = None, command: str | None = None) -> str:
    """Return the whole page for a report of report_of(). Its texts need not be safe.

    Args:
        report: The report.
        time: The time of the report, which is used if the report has none.
        version: The version of the collection; None if it is unknown.
        command: The command that made the page; None if it is unknown.
    """
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
    about = element("p", *_about(report, totals, time), class_="about")
    body = element(
        "body",
        element("header", element("h1", _TITLE), about, _origin(version, command)),
        element("main", _summary(totals), _tools(hosts, totals), _fleet(), _without_script(report)),
        # Not a script: the browser does not run this type.
        element("script", _data(hosts), id="hosts", type="application/json"),
        element("script", script),
    )
    return "<!DOCTYPE html>\n" + element("html", head, _BREAK, body, lang="en") + "\n"


def _policy(style: str, script: str) -> str:
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
        for text in (style, script)
    ]
    return (
        f"default-src 'none'; style-src {hashes[0]}; script-src {hashes[1]}; img-src data:; base-uri 'none';"
        " form-action 'none'"
    )


def _about(report: Row, totals: Row, time: str | None) -> list[Markup | str]:
    parts: list[Markup | str] = [counted(totals["hosts"], "host"), counted(totals["gpus"], "GPU")]
    parts += [f"{totals[state]} {state}" for state in ("unreachable", "failed") if totals[state]]
    shown = report["generated"] or time
    parts += [element("time", shown)] if shown else []
    return [piece for part in parts for piece in (" · ", part)][1:]


def _origin(version: str | None, command: str | None) -> Markup | None:
    parts = [
        element("span", f"gpufleet.nvidia {version}") if version else None,
        " · " if version and command else None,
        element("code", command) if command else None,
    ]
    return element("p", *parts, class_="origin") if version or command else None


def _summary(totals: Row) -> Markup:
    """Return the numbers of hosts, and the most severe findings with links that filter the hosts."""
    tiles = [
        element(
            "button", element("b", str(totals["hosts_by_severity"][name])), element("span", text), type="button",
            class_=f"tile {class_}", value=name, aria_pressed="false",
        )
        for name, class_, text in _TILES
    ]  # fmt: skip
    top = [
        element(
            "li",
            element(
                "a",
                element("span", row["severity"], class_=f"pill {row['severity']}"),
                element("bdi", row["id"]), " ", element("span", counted(row["hosts"], "host"), class_="muted"),
                href=f"#{urllib.parse.urlencode({'finding': printable.line(row['id'])})}",
            ),
        )
        for row in totals["by_finding"][:_TOP]
    ]  # fmt: skip
    return element(
        "section",
        element("div", *tiles, class_="tiles", role="group", aria_label="Hosts by their most severe finding"),
        element("h2", "Most severe findings") if top else None,
        element("ol", *top, class_="top") if top else None,
        class_="summary",
        aria_label="Summary",
    )


def _tools(hosts: list[Row], totals: Row) -> Markup:
    engines = sorted({engine_label(engine) for host in hosts for engine in host["engines"]})
    found = [(row["id"], f"{row['id']} ({counted(row['hosts'], 'host')})") for row in totals["by_finding"]]
    search = element("input", id="search", type="search", autocomplete="off", spellcheck="false")
    buttons = (("reset", "Reset"), ("expand", "Expand all"), ("csv", "Export CSV"), ("markdown", "Export Markdown"))
    return element(
        "section",
        element(
            "div",
            _field("Search", search, "search"),
            _field("Engine", _select("engine", [("", "All engines"), *((label, label) for label in engines)])),
            _field("Finding", _select("finding", [("", "All findings"), *found])),
            _field("Order", _select("order", _orders()), "order"),
            *(element("button", label, id=name, type="button") for name, label in buttons),
            class_="fields",
        ),
        class_="tools",
        aria_label="Filter",
    )


def _orders() -> list[tuple[str, str]]:
    """Return the choices of the field that sorts: the number of a column, and as in the script "-" for descending."""
    signs = ["-" if kind == "number" else "" for _title, kind in COLUMNS]
    usual = [(f"{number}{sign}", COLUMNS[number][0]) for number, sign in enumerate(signs)]
    reversed_ = [
        (f"{number}{'' if sign else '-'}", f"{COLUMNS[number][0]}, reversed") for number, sign in enumerate(signs)
    ]
    return usual + reversed_


def _field(label: str, field: Markup, class_: str | None = None) -> Markup:
    return element("label", label, field, class_=class_)


def _select(name: str, options: list[tuple[str, str]]) -> Markup:
    return element("select", *(element("option", text, value=value) for value, text in options), id=name)


def _fleet() -> Markup:
    """Return the table without rows, and what is below it."""
    titles = [
        element(
            "th", element("button", title, type="button", class_="sort"), scope="col", role="columnheader",
            data_kind=kind,
        )
        for title, kind in COLUMNS
    ]  # fmt: skip
    return element(
        "div",
        element("p", id="status", class_="status", role="status"),
        element(
            "table",
            element("caption", "Hosts, the most severe findings first"),
            element("thead", element("tr", *titles, role="row"), role="rowgroup"),
            id="fleet",
            role="table",
        ),
        element("button", id="more", class_="more", type="button", hidden=True),
        element("p", "No host matches.", id="no-hosts", class_="no-hosts", hidden=True),
        class_="fleet",
    )


def _without_script(report: Row) -> Markup:
    """Return all findings as lines. A browser that runs the script creates no elements for them."""
    lines = lines_of(report, sum(report["totals"]["findings"].values()))
    text = joined(*(piece for line in lines for piece in (line, _BREAK)))
    return element("noscript", element("p", _NO_SCRIPT), element("pre", text))
