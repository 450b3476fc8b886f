# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Create the rows of an audit's page, two for each host.

Private to this collection. Without the script both rows are visible; the script folds the second one.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit_host import OK
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit_markup import Markup, element, joined
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit_values import SEVERITIES, counted, natural

if t.TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Row = Mapping[str, t.Any]

# The flavor of an engine from the packages of the operating system.
_SYSTEM = "system"
_TONES = {"fresh": "good", "stale": "critical", "invalid": "critical", "unknown": "warning", "none": "plain"}
_NOT_KNOWN = Markup('<span class="muted">&ndash;</span>')
# A break between cells, so that a search in the page does not match across two of them.
_BREAK = Markup("\n")


class Column(t.NamedTuple):
    """A column: its title, its kind for sorting, and the function that returns sort key and content of a host's cell.

    Numbers are sorted in descending order.
    """

    title: str
    kind: t.Literal["text", "number"]
    cell: t.Callable[[t.Any], tuple[str | int | None, Markup | None]]


def kind_of(engine: Row) -> str:
    """Return the engine with its flavor, such as containerd/k3s, by which hosts are filtered."""
    flavor = engine["flavor"]
    return str(engine["engine"]) if flavor in (None, _SYSTEM) else f"{engine['engine']}/{flavor}"


def host_body(host: Row, number: int, badness: int) -> Markup:
    """Return both rows of the host with this number. Hosts are sorted by descending ``badness`` by default."""
    details = f"host-{number}"
    cells = [_name_cell(host, details), *(_cell(column, host) for column in COLUMNS[1:-1])]
    cells.append(
        element("td", element("div", _counts(host)), role="cell", data_sort=badness, data_label=COLUMNS[-1].title)
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


def pill(text: str, tone: str) -> Markup:
    """Return a short highlighted text."""
    return element("span", text, class_=f"pill {tone}")


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
        "td", element("div", content or _NOT_KNOWN), role="cell", data_sort="" if key is None else key,
        data_label=column.title,
    )  # fmt: skip


def _driver(host: Row) -> tuple[str | None, Markup | None]:
    version = host["driver"]
    return version, None if version is None else element("bdi", version)


def _gpus(host: Row) -> tuple[int | None, Markup | None]:
    gpus = host["gpus"]
    if not gpus["count"]:
        absent = gpus["present"] is False
        return gpus["count"], element("span", "no GPU", class_="muted") if absent else None
    models = [element("li", f"{number} \u00d7 ", element("bdi", model)) for model, number in gpus["models"].items()]
    sick = gpus["unhealthy"]
    warning = pill(f"{sick} unhealthy", "critical") if sick else None
    return gpus["count"], joined(element("ul", *models), warning)


def _toolkit(host: Row) -> tuple[str | None, Markup | None]:
    toolkit = host["toolkit"]
    if toolkit["installed"] is False:
        return None, element("span", "not installed", class_="muted")
    versions = toolkit["versions"]
    lines = [element("li", element("bdi", version)) for version in versions]
    several = pill(f"{len(versions)} versions", "warning") if len(versions) > 1 else None
    vulnerable = counted(len(toolkit["known_cves"] or ()), "known CVE")
    cves = element("div", pill(vulnerable, "critical")) if toolkit["known_cves"] else None
    content = joined(element("ul", *lines) if lines else None, several, cves)
    return versions[0] if versions else None, content


def _engines(host: Row) -> tuple[str | None, Markup | None]:
    lines = [
        element(
            "li",
            element("bdi", engine["target"]),
            joined(" ", element("bdi", engine["version"])) if engine["version"] else None,
            *_engine_pills(engine),
            data_engine=kind_of(engine),
        )
        for engine in host["engines"]
    ]
    key = " ".join(engine["target"] for engine in host["engines"])
    return key or None, element("ul", *lines) if lines else None


def _engine_pills(engine: Row) -> list[Markup]:
    pills = []
    if engine["installed"] is False:
        pills.append(pill("not installed", "plain"))
    elif engine["running"] is False and engine["engine"] in engines_registry.DAEMONS:
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
            element("bdi", name) if name else _NOT_KNOWN,
        )
        for engine, name in zip(engines, names)
    ]
    return " ".join(filter(None, names)) or None, element("ul", *lines) if any(names) else None


def _cdi(host: Row) -> tuple[str | None, Markup | None]:
    state, files = host["cdi"]["state"], host["cdi"]["files"]
    if state is None:
        return None, None
    versions = sorted({file["cdi_version"] for file in files if file["cdi_version"]}, key=natural)
    said = element("span", f"CDI {', '.join(versions)}", class_="muted nowrap") if versions else None
    return state, joined(pill(state, _TONES[state]), said)


def _counts(host: Row) -> Markup:
    words = {"critical": "{} critical", "warning": "{} warning", "info": "{} info"}
    plural = {"critical": "", "warning": "s", "info": ""}
    pills = [
        pill(words[severity].format(number) + (plural[severity] if number != 1 else ""), severity)
        for severity in SEVERITIES
        for number in (host["counts"][severity],)
        if number
    ]
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
    nothing = element("p", "Nothing was found.", class_="muted")
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
    told = [file["state"]]
    if file["kind"]:
        told.append(file["kind"])
    if file["cdi_version"]:
        told.append(f"CDI {file['cdi_version']}")
    if file["driver_version"]:
        told.append(f"driver {file['driver_version']}")
    return joined(element("code", element("bdi", file["path"] or "?")), f" ({', '.join(told)})")


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
