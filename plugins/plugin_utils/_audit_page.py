# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Create the page of an audit: one file without external resources. Its policy lets it load none.

Private to this collection.
"""

from __future__ import annotations

import base64
import hashlib
import typing as t
from pathlib import Path

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit_markup import Markup, element, joined
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit_rows import COLUMNS, host_body, kind_of
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit_values import counted, rows, table

if t.TYPE_CHECKING:
    from collections.abc import Mapping

_TITLE = "GPU fleet audit"
# Each tile: the severity of a host's most severe finding, the class, and the text.
_TILES = (
    ("critical", "critical", "with a critical finding"),
    ("warning", "warning", "with a warning"),
    ("info", "info", "with info only"),
    ("none", "good", "with nothing found"),
)


def page_of(report: Mapping[str, t.Any]) -> str:
    """Return the whole page for a report of report_of(). Its texts need not be safe."""
    hosts, totals = rows(report["hosts"]), table(report["totals"])
    # These two files belong to this collection. The browser accepts no other style or script, because of their hashes.
    style, script = (
        Markup(Path(__file__).with_name(f"_audit_page.{kind}").read_text("utf-8")) for kind in ("css", "js")
    )
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
        element("main", _tools(hosts, totals), _fleet(hosts), _nobody(hosts)),
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


def _about(report: Mapping[str, t.Any], totals: Mapping[str, t.Any]) -> str:
    parts = [counted(totals["hosts"], "host"), counted(totals["gpus"], "GPU")]
    parts += [f"{totals[state]} {state}" for state in ("unreachable", "failed") if totals[state]]
    if report["generated"]:
        parts.append(str(report["generated"]))
    return " · ".join(parts)


def _tools(hosts: list[Mapping[str, t.Any]], totals: Mapping[str, t.Any]) -> Markup:
    tiles = [
        element(
            "button", element("b", str(totals["hosts_by_severity"][name])), element("span", about), type="button",
            class_=f"tile {tone}", value=name, aria_pressed="false",
        )
        for name, tone, about in _TILES
    ]  # fmt: skip
    kinds = sorted({kind_of(engine) for host in hosts for engine in host["engines"]})
    found = [(row["id"], f"{row['id']} ({counted(row['hosts'], 'host')})") for row in totals["by_finding"]]
    # The script uses the same order: numbers are sorted in descending order.
    orders = [
        (f"{number}{'-' if column.kind == 'number' else ''}", column.title) for number, column in enumerate(COLUMNS)
    ]
    reverse = [
        (f"{number}{'' if column.kind == 'number' else '-'}", f"{column.title}, reversed")
        for number, column in enumerate(COLUMNS)
    ]
    search = element("input", id="search", type="search", autocomplete="off", spellcheck="false")
    return element(
        "section",
        element("div", *tiles, class_="tiles", role="group", aria_label="Hosts by their worst finding"),
        element(
            "div",
            _field("Search", search, "search"),
            _field("Engine", _select("engine", [("", "All engines"), *((kind, kind) for kind in kinds)])),
            _field("Finding", _select("finding", [("", "All findings"), *found])),
            _field("Order", _select("order", orders + reverse), "order"),
            element("button", "Reset", id="reset", type="button"),
            element("button", "Unfold all", id="unfold", type="button"),
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


def _fleet(hosts: list[Mapping[str, t.Any]]) -> Markup:
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
        element("caption", "Hosts, the worst first"),
        element("thead", element("tr", *titles, role="row"), role="rowgroup"),
        *(joined(Markup("\n"), body) for body in bodies),
        id="fleet",
        role="table",
    )


def _nobody(hosts: list[Mapping[str, t.Any]]) -> Markup:
    return element("p", "No host matches.", id="nobody", class_="nobody", hidden=bool(hosts))
