# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a row, a card, the printed page, a screen reader and an export contain, and what a search opens."""

from __future__ import annotations

import csv
import re
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit.report import needs_subject, report_of
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures.audit_fleet import (
    HOSTILE,
    READY,
    STOPPED,
    WITHOUT_ENGINE,
    WITHOUT_GPU,
)

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.tests.browser.conftest import Page

FORMULA = '=HYPERLINK("file:///x"; "a|b")'
FINDING = {"severity": "warning", "id": "x", "subject": "-1", "text": "@SUM(A1)", "advice": "`a`|<b>\\*c*"}


def cells(page: Page, name: str) -> list[str]:
    """Return the visible texts of the cells of a host."""
    row = page.row(name)
    return [cell.text for cell in row.find_elements("css selector", "td")]


def color(page: Page, name: str) -> str:
    return str(page.run("return getComputedStyle(arguments[0].querySelector('td .pill')).color", page.row(name)))


def until_filtered(page: Page, finding: str) -> None:
    """Wait until the page has followed a link."""
    page.until(lambda: page.one("#finding").get_property("value") == finding)


def test_row_shows_the_worst_finding(page: Page, report: dict[str, t.Any]) -> None:
    for name in ("docker-old-01", "gone-01", "podman-01"):
        worst, *others = next(host["findings"] for host in report["hosts"] if host["host"] == name)
        more = f" +{len(others)} more" if others else ""
        subject = f"{worst['subject']}: " if needs_subject(worst) else ""
        expected = f"{worst['severity']} {worst['id']}{more}\n{subject}{worst['text']}\n{worst['advice']}"
        assert cells(page, name)[0] == expected
    # The step is visible as a whole, without a click.
    steps = "[...document.querySelectorAll('.row .advice')]"
    assert page.run(f"return {steps}.length") > 5
    assert page.run(f"return {steps}.filter(each => each.scrollHeight > each.clientHeight + 1)") == []


@pytest.mark.parametrize("width", [1280, 1400, 1920])
def test_the_finding_has_the_widest_column(open_page: t.Callable[[object], Page], width: int) -> None:
    page = open_page(report_of({f"gpu-0001.rack-17.{'x' * 60}": {"engines": [], "findings": [FINDING]}}))
    page.open(width=width)
    host, finding, *others = page.run("return [...document.querySelectorAll('thead th')].map(each => each.offsetWidth)")
    assert finding > host > max(others)


def test_hosts_without_findings(page: Page) -> None:
    assert cells(page, READY)[0] == "OK"
    assert cells(page, WITHOUT_GPU)[0] == "no GPU"
    assert cells(page, WITHOUT_ENGINE)[0] == "no toolkit no engine"
    assert cells(page, STOPPED)[0] == "containerd stopped"
    assert cells(page, READY)[-1] == cells(page, WITHOUT_ENGINE)[-1] == "no spec"
    assert "none" not in page.one("#fleet").text
    # Only a host whose containers can use GPUs is green.
    red, green, blue = map(int, re.findall(r"\d+", color(page, READY)))
    assert green > max(red, blue)
    for name in (WITHOUT_GPU, WITHOUT_ENGINE, STOPPED):
        red, green, blue = map(int, re.findall(r"\d+", color(page, name)))
        assert green < max(red, blue)


def test_host_that_was_inspected_partly(open_page: t.Callable[[object], Page]) -> None:
    page = open_page(report_of({"a": {"engines": []}}))
    assert cells(page, "a")[0] == "partly inspected GPU unknown"


def test_top_problems_filter(page: Page, report: dict[str, t.Any]) -> None:
    for number, found in enumerate(report["totals"]["by_finding"][:8]):
        link = page.all(".top a")[number]
        count = "1 host" if found["hosts"] == 1 else f"{found['hosts']} hosts"
        assert link.text.split() == [found["severity"], found["id"], *count.split()]
        link.click()
        until_filtered(page, found["id"])
        assert page.fragment() == f"#finding={found['id']}"
        assert len(page.hosts()) == found["hosts"]
    # It replaces the filter.
    page.one(".tile[value=none]").click()
    assert page.hosts() == []
    page.all(".top a")[0].click()
    page.until(page.hosts)


@pytest.mark.parametrize("width", [420, 1280, 1400])
def test_names_are_on_one_line(open_page: t.Callable[[object], Page], width: int) -> None:
    names = ["gpu-1", "gpu-0001.rack-17.cluster-3.example.com", f"gpu {'name with spaces ' * 20}"]
    page = open_page(report_of({name: {"engines": []} for name in names}))
    page.open(width=width)
    heights = page.run("return [...document.querySelectorAll('.row th > div')].map(name => name.offsetHeight)")
    assert len(heights) == 3
    assert max(heights) < 2 * min(heights)
    assert page.run("return document.documentElement.scrollWidth") <= width
    # The full name is in the title, and in an expanded row.
    assert {row.get_dom_attribute("title") for row in page.all(".row th")} == {name.strip() for name in names}
    long = page.row(names[2].strip())
    long.find_element("css selector", ".toggle").click()
    assert page.run("return arguments[0].querySelector('th > div').offsetHeight", long) > 2 * min(heights)


def test_card_on_a_phone(page: Page) -> None:
    page.open(width=420)
    visible = [cell for cell in page.row("docker-old-01").find_elements("css selector", "td") if cell.is_displayed()]
    assert len(visible) == 1
    assert visible[0].text.startswith("critical known-cve\nThe toolkit 1.17.3 has 4 known vulnerabilities")
    assert "Install 1.19.1 or newer (fixes CVE-2025-23359, " in visible[0].text
    assert page.row("docker-old-01").find_element("css selector", "th").text == "docker-old-01"
    page.row("docker-old-01").find_element("css selector", ".toggle").click()
    assert "no spec" in page.row("docker-old-01").text
    assert "no spec" not in page.row("docker-old-02").text


def test_search_opens_and_highlights_findings(page: Page) -> None:
    page.one("#search").send_keys("cve-2025-23267")
    assert page.hosts() == page.open_hosts() == ["docker-old-01", "docker-old-02", "docker-old-03"]
    found = page.all(".finding.found")
    assert len(found) == 3
    assert all("CVE-2025-23267" in each.text for each in found)
    assert page.run("return getComputedStyle(arguments[0]).outlineStyle", found[0]) == "solid"
    # In the text and the advice of the finding, and in the list of the host's vulnerabilities.
    assert [mark.text for mark in page.all("mark")] == ["CVE-2025-23267"] * 9
    # The user can collapse it.
    page.row("docker-old-01").find_element("css selector", ".toggle").click()
    assert page.open_hosts() == ["docker-old-02", "docker-old-03"]
    # Another search opens it again.
    page.one("#search").send_keys(" link")
    assert page.open_hosts() == page.hosts()
    page.one("#reset").click()
    assert page.open_hosts() == []
    assert page.all("mark") == []


def test_search_for_a_name_opens_nothing(page: Page) -> None:
    page.one("#search").send_keys("docker-old")
    assert len(page.hosts()) == 3
    assert page.open_hosts() == []


def test_search_with_special_characters(page: Page) -> None:
    page.one("#search").send_keys("(enable-cuda-compat")
    assert {mark.text for mark in page.all("mark")} == {"(enable-cuda-compat"}


def test_printed_summary(page: Page) -> None:
    page.open("#text=docker-old", medium="print")
    assert [tile.text.split()[0] for tile in page.all(".tile") if tile.is_displayed()] == ["3", "0", "0", "0"]
    assert page.one(".top").is_displayed()
    assert page.status() == "3 of 30 hosts, 3 findings: 3 critical, 0 warnings, 0 info"
    assert not page.one("#search").is_displayed()


def test_printing_creates_all_rows(page: Page) -> None:
    # This listener runs after that of the page.
    page.run(
        "const count = selector => document.querySelectorAll(selector).length;"
        "addEventListener('beforeprint', () => { window.printed = [count('.host'), count('.details .findings')]; })"
    )
    assert len(page.all(".host")) == 10
    page.command("Page.printToPDF")
    hosts, lists = page.run("return window.printed")
    assert hosts == 30
    assert 9 < lists <= hosts
    # Afterwards the page is as before.
    page.until(lambda: len(page.all(".host")) == 10)
    assert page.all(".details .findings") == []


def test_names_for_screen_readers(page: Page) -> None:
    page.show_all()
    nodes = page.command("Accessibility.getFullAXTree")["nodes"]
    names: dict[str, list[str]] = {}
    for node in nodes:
        names.setdefault(node.get("role", {}).get("value", ""), []).append(node.get("name", {}).get("value", ""))
    titles = ["Host", "Worst finding", "Driver", "GPUs", "Toolkit", "Engines", "Default runtime", "CDI"]
    # Without the arrows that show the order.
    assert names["columnheader"] == titles
    assert {"docker-old-01", "gone-01, unreachable", "no-python-01, failed"} <= set(names["rowheader"])
    assert len(names["rowheader"]) == 30
    assert {head.get_dom_attribute("scope") for head in page.all("thead th")} == {"col"}
    assert {head.get_dom_attribute("scope") for head in page.all("tbody th")} == {"row"}


def exported(page: Page, kind: str, directory: Path) -> str:
    """Click the button of an export, and return the downloaded file."""
    suffix = {"csv": "csv", "markdown": "md"}[kind]
    path = directory / f"gpufleet-audit.{suffix}"
    page.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(directory))
    page.one(f"#{kind}").click()
    page.until(path.exists)
    return path.read_text(encoding="utf-8")


def test_export_contains_what_the_filter_shows(page: Page, report: dict[str, t.Any], tmp_path: Path) -> None:
    page.one("#search").send_keys("docker-")
    rows = list(csv.DictReader(exported(page, "csv", tmp_path).splitlines()))
    hosts = [host for host in report["hosts"] if host["host"] in page.hosts()]
    assert 3 < len(hosts) < 30
    expected = [(host["host"], found) for host in hosts for found in host["findings"] or [{}]]
    assert len(rows) == len(expected)
    for row, (name, found) in zip(rows, expected):
        names = {"severity": "severity", "finding": "id", "subject": "subject", "text": "text", "advice": "advice"}
        assert row["host"] == name
        assert {column: row[column] for column in names} == {
            column: found.get(key, "") for column, key in names.items()
        }
    lines = exported(page, "markdown", tmp_path).splitlines()
    assert lines[1] == "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    assert len(lines) == 2 + len(expected)
    assert "| docker-old-01 | critical | known-cve | toolkit | The toolkit 1.17.3 has" in "\n".join(lines)


def test_export_contains_hosts_without_rows(page: Page, tmp_path: Path) -> None:
    assert len(page.all(".host")) == 10
    rows = list(csv.DictReader(exported(page, "csv", tmp_path).splitlines()))
    assert len({row["host"] for row in rows}) == 30
    assert HOSTILE in {row["host"] for row in rows}


def test_export_escapes(open_page: t.Callable[[object], Page], tmp_path: Path) -> None:
    page = open_page(report_of({FORMULA: {"engines": [], "findings": [FINDING]}}))
    [row] = csv.DictReader(exported(page, "csv", tmp_path).splitlines())
    # A spreadsheet shows a text that begins with an apostrophe as text.
    assert (row["host"], row["subject"], row["text"]) == (f"'{FORMULA}", "'-1", "'@SUM(A1)")
    line = exported(page, "markdown", tmp_path).splitlines()[2]
    fields = re.split(r"(?<!\\) ?\| ?", line)
    assert fields[1] == '=HYPERLINK("file:///x"; "a\\|b")'
    assert fields[6] == r"\`a\`\|\<b\>\\\*c\*"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        # A spreadsheet with the semicolon as its separator divides these.
        ("x;=1+1", "x;'=1+1"),
        ("x; @SUM(A1)", "x;' @SUM(A1)"),
        ('x;"=1+1"', 'x;\'"=1+1"'),
        ("x;;-1", "x;;'-1"),
        ("x;\u3000=1", "x;'\u3000=1"),
        ("\uff1d1", "'\uff1d1"),
        ("\ufe661", "'\ufe661"),
        # Ordinary texts do not change.
        ("a=b; c-d; e@f", "a=b; c-d; e@f"),
        ("Set x, y; then run z -v.", "Set x, y; then run z -v."),
    ],
)
def test_export_of_formulas(open_page: t.Callable[[object], Page], tmp_path: Path, text: str, written: str) -> None:
    page = open_page(report_of({"host": {"engines": [], "findings": [{**FINDING, "advice": text}]}}))
    [row] = csv.DictReader(exported(page, "csv", tmp_path).splitlines())
    assert row["advice"] == written
