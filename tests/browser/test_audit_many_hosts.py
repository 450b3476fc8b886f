# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of 5,000 hosts: only some of them have rows, but filter, order and counts use all of them."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit.page import page_of
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit.report import natural, report_of
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures import audit_results

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.tests.browser.conftest import Page

HOSTS = 5000


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, t.Any]:
    return report_of(audit_results.many(tmp_path_factory.mktemp("trees"), HOSTS))


@pytest.fixture(scope="module")
def many_address(tmp_path_factory: pytest.TempPathFactory, fleet: dict[str, t.Any]) -> str:
    path = tmp_path_factory.mktemp("page") / "gpufleet-audit.html"
    path.write_text(page_of(fleet), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def many(open_page: t.Callable[[str], Page], many_address: str) -> Page:
    return open_page(many_address)


def rows(page: Page) -> list[str]:
    """Return the names of the hosts that have a row."""
    return [str(row.get_dom_attribute("title")) for row in page.all(".row th")]


def test_rows_are_created_at_the_end_of_the_page(many: Page, fleet: dict[str, t.Any]) -> None:
    names = [host["host"] for host in fleet["hosts"]]
    assert rows(many) == names[:10]
    assert many.status().startswith("5,000 of 5,000 hosts, ")
    assert many.one("#more").text == "Show more (4,990 hosts)"
    many.run("scrollTo(0, document.body.scrollHeight)")
    many.until(lambda: len(rows(many)) > 10)
    assert rows(many) == names[: len(rows(many))]
    # A new filter begins with few rows again.
    many.run("scrollTo(0, 0)")
    many.one("#search").send_keys("rack")
    assert rows(many) == names[:10]


def test_filter_of_many_hosts(many: Page, fleet: dict[str, t.Any]) -> None:
    many.one("#search").send_keys("rack17 k3s")
    expected = [host for host in fleet["hosts"] if "rack17" in host["host"] and "k3s" in host["host"]]
    assert len(expected) > 2
    assert many.hosts() == [host["host"] for host in expected]
    many.open("#text=rack17")
    expected = [host for host in fleet["hosts"] if "rack17" in host["host"]]
    assert many.status().startswith(f"{len(expected)} of 5,000 hosts, ")
    severities = [host["severity"] or "none" for host in expected]
    shown = {tile.get_dom_attribute("value"): int(tile.text.split()[0]) for tile in many.all(".tile")}
    assert shown == {severity: severities.count(severity) for severity in ("critical", "warning", "info", "none")}
    assert many.hosts() == [host["host"] for host in expected]


def test_order_of_many_hosts(many: Page, fleet: dict[str, t.Any]) -> None:
    many.open("#sort=0")
    assert rows(many) == sorted((host["host"] for host in fleet["hosts"]), key=natural)[:10]


def test_print_of_many_hosts(many: Page) -> None:
    many.open(medium="print")
    assert len(rows(many)) == 500
    assert many.one("#more").text == "4,500 more hosts not printed. Use the filter or an export."
