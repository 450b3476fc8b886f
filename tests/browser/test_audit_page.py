# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
import typing as t

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit.report import natural
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures.audit_fleet import HOSTILE

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.tests.browser.conftest import Page

# The lowest contrast of each kind of element with text, as WCAG 2 defines it.
CONTRAST = """
const channels = text => text.match(/[\\d.]+/g).map(Number);
const light = color => {
  const straight = c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = color.slice(0, 3).map(c => straight(c / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = element => {
  for (; element; element = element.parentElement) {
    const color = channels(getComputedStyle(element).backgroundColor);
    if (color.length < 4 || color[3] === 1) return color;
  }
  return [255, 255, 255];
};
const found = {};
for (const element of document.body.querySelectorAll('*')) {
  if (![...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
  if (!element.getClientRects().length) continue;
  const pair = [light(channels(getComputedStyle(element).color)), light(behind(element))];
  const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  const name = element.tagName.toLowerCase() + '.' + element.className;
  found[name] = Math.min(found[name] || 21, ratio);
}
return found;
"""


def names(report: dict[str, t.Any], wanted: t.Callable[[dict[str, t.Any]], object] = lambda _host: True) -> list[str]:
    return [host["host"] for host in report["hosts"] if wanted(host)]


def choose(page: Page, field: str, value: str) -> None:
    Select(page.one(f"#{field}")).select_by_value(value)


def headline(page: Page, title: str) -> t.Any:
    return next(head for head in page.all("thead th") if head.text.strip() == title)


def test_hosts_are_sorted_by_severity(page: Page, report: dict[str, t.Any]) -> None:
    assert page.hosts() == names(report)
    assert len(page.hosts()) == 30
    severities = [body.get_dom_attribute("data-severity") for body in page.all(".host")]
    assert severities == sorted(severities, key=["critical", "warning", "info", "none"].index)
    assert page.one(".about").text == "30 hosts · 4 GPUs · 1 unreachable · 1 failed · 2026-03-01"
    assert page.one(".origin").text == "gpufleet.nvidia 9.9.9 · ansible-playbook gpufleet.nvidia.audit -i inventory -b"
    assert page.status().startswith("30 of 30 hosts, ")
    assert page.open_hosts() == []


def test_tiles_count_each_host_once(page: Page, report: dict[str, t.Any]) -> None:
    counts = [int(tile.text) for tile in page.all(".tile b")]
    assert counts == list(report["totals"]["hosts_by_severity"].values())
    assert sum(counts) == 30


def test_search(page: Page) -> None:
    field = page.one("#search")
    field.send_keys("K3S")
    assert page.hosts() == ["k3s-01", "k3s-02"]
    assert page.status().startswith("2 of 30 hosts")
    # A host must contain all words, in any order.
    field.send_keys(" 02")
    assert page.hosts() == ["k3s-02"]
    field.send_keys(" nothing has this")
    assert page.hosts() == []
    assert page.one("#no-hosts").is_displayed()
    assert not page.one("#fleet").is_displayed()
    assert page.status() == "0 of 30 hosts, 0 findings: 0 critical, 0 warnings, 0 info"
    field.clear()
    field.send_keys("no route to host")
    assert page.hosts() == ["gone-01"]
    assert page.status() == "1 of 30 hosts, 1 finding: 1 critical, 0 warnings, 0 info"
    assert not page.one("#no-hosts").is_displayed()


def test_search_does_not_match_across_cells(page: Page) -> None:
    page.one("#search").send_keys("gpus-01580")
    assert page.hosts() == []


@pytest.mark.parametrize("severity", ["critical", "warning", "info", "none"])
def test_tiles_filter_by_severity(page: Page, report: dict[str, t.Any], severity: str) -> None:
    tile = page.one(f".tile[value={severity}]")
    tile.click()
    expected = names(report, lambda host: (host["severity"] or "none") == severity)
    assert page.hosts() == expected
    assert tile.get_dom_attribute("aria-pressed") == "true"
    # The other tiles still show their numbers.
    assert sum(int(each.text) for each in page.all(".tile b")) == 30
    tile.click()
    assert len(page.hosts()) == 30


def test_filters_are_combined(page: Page, report: dict[str, t.Any]) -> None:
    for severity in ("critical", "info"):
        page.one(f".tile[value={severity}]").click()
    assert page.hosts() == names(report, lambda host: host["severity"] in ("critical", "info"))
    page.one("#search").send_keys("docker-")
    expected = names(
        report, lambda host: host["severity"] in ("critical", "info") and host["host"].startswith("docker-")
    )
    assert expected
    assert page.hosts() == expected
    shown = {tile.get_dom_attribute("value"): tile.text.split()[0] for tile in page.all(".tile")}
    docker = names(report, lambda host: host["severity"] == "critical" and host["host"].startswith("docker-"))
    assert shown["critical"] == str(len(docker))


def test_filters_by_engine_and_finding(page: Page, report: dict[str, t.Any]) -> None:
    choose(page, "engine", "containerd/k3s")
    assert page.hosts() == ["k3s-01", "k3s-02"]
    # The engine of the system is not that of K3s.
    choose(page, "engine", "containerd")
    found = page.hosts()
    assert found == names(report, lambda host: "containerd" in [engine["target"] for engine in host["engines"]])
    assert {"both-01", "containerd-01"} <= set(found)
    choose(page, "engine", "")
    choose(page, "finding", "host-unreachable")
    assert page.hosts() == ["gone-01"]
    # One finding has control characters in its name, which the page shows as text.
    offered = [option.get_dom_attribute("value") for option in page.all("#finding option")]
    assert offered == ["", *(re.sub(r"[\u2028]", " ", row["id"]).replace("\u202e", "\\u202e")
                             for row in report["totals"]["by_finding"])]  # fmt: skip


def test_filter_by_hostile_finding(page: Page) -> None:
    values = [option.get_dom_attribute("value") or "" for option in page.all("#finding option")]
    (index,) = (index for index, value in enumerate(values) if "\\u202e" in value)
    Select(page.one("#finding")).select_by_index(index)
    assert page.hosts() == [HOSTILE]
    page.open(page.fragment())
    assert page.hosts() == [HOSTILE]


def test_sorting_by_click(page: Page, report: dict[str, t.Any]) -> None:
    assert headline(page, "Worst finding").get_dom_attribute("aria-sort") == "descending"
    host = headline(page, "Host")
    # A click beside the button has no effect.
    host.click()
    host.find_element("css selector", "button").click()
    assert host.get_dom_attribute("aria-sort") == "ascending"
    assert len(page.all("[aria-sort]")) == 1
    expected = sorted((name for name in names(report) if name != HOSTILE), key=natural)
    assert [name for name in page.hosts() if name != HOSTILE] == expected
    host.find_element("css selector", "button").click()
    assert host.get_dom_attribute("aria-sort") == "descending"
    assert [name for name in page.hosts() if name != HOSTILE] == expected[::-1]


def test_sorting_by_keyboard(page: Page) -> None:
    headline(page, "GPUs").find_element("css selector", "button").send_keys(Keys.ENTER)
    # Numbers are sorted in descending order first.
    assert headline(page, "GPUs").get_dom_attribute("aria-sort") == "descending"
    assert page.hosts()[0] == "gpus-01"
    # Unknown values come last in both directions.
    assert set(page.hosts()[-2:]) == {"gone-01", "no-python-01"}
    headline(page, "GPUs").find_element("css selector", "button").send_keys(Keys.SPACE)
    assert headline(page, "GPUs").get_dom_attribute("aria-sort") == "ascending"
    assert set(page.hosts()[-2:]) == {"gone-01", "no-python-01"}
    assert page.hosts()[-3] == "gpus-01"


def test_versions_are_sorted_as_versions(page: Page, report: dict[str, t.Any]) -> None:
    headline(page, "Toolkit").find_element("css selector", "button").click()
    versions = {host["host"]: host["toolkit"]["version"] for host in report["hosts"]}
    shown = [versions[name] for name in page.hosts() if versions[name]]
    assert shown == sorted(shown, key=natural)
    assert set(shown) == {"1.17.3", "1.19.1", "1.20.0"}


def test_details_are_expanded(page: Page) -> None:
    row = page.row("cdi-stale-01")
    toggle = row.find_element("css selector", ".toggle")
    details = page.one(f"#{toggle.get_dom_attribute('aria-controls')}")
    assert toggle.get_dom_attribute("aria-expanded") == "false"
    toggle.click()
    assert page.open_hosts() == ["cdi-stale-01"]
    assert toggle.get_dom_attribute("aria-expanded") == "true"
    assert "/etc/cdi/nvidia.json" in details.text
    toggle.send_keys(Keys.ENTER)
    assert page.open_hosts() == []
    toggle.send_keys(Keys.SPACE)
    assert page.open_hosts() == ["cdi-stale-01"]
    # A click anywhere in the row has the same effect.
    row.find_elements("css selector", "td")[2].click()
    assert page.open_hosts() == []
    # Sorting keeps the details below their host.
    toggle.click()
    headline(page, "Host").find_element("css selector", "button").click()
    following = page.run("return arguments[0].nextElementSibling.id", row)
    assert following == toggle.get_dom_attribute("aria-controls")


def test_expand_all(page: Page) -> None:
    page.one("#search").send_keys("k3s")
    button = page.one("#expand")
    button.click()
    assert page.open_hosts() == ["k3s-01", "k3s-02"]
    assert button.text == "Collapse all"
    page.one("#search").clear()
    # clear() sends no event to the page.
    page.one("#search").send_keys(Keys.SPACE)
    page.until(lambda: len(page.hosts()) == 30)
    assert page.open_hosts() == ["k3s-01", "k3s-02"]
    assert button.text == "Expand all"
    button.click()
    assert len(page.open_hosts()) == 30
    button.click()
    assert page.open_hosts() == []


def test_address_contains_the_filter(page: Page, report: dict[str, t.Any]) -> None:
    assert page.fragment() == ""
    page.one("#search").send_keys("docker")
    page.one(".tile[value=critical]").click()
    choose(page, "engine", "docker")
    headline(page, "Host").find_element("css selector", "button").click()
    fragment, hosts = page.fragment(), page.hosts()
    assert fragment == "#text=docker&severity=critical&engine=docker&sort=0"
    assert hosts
    page.open(fragment)
    assert page.hosts() == hosts
    assert page.one("#search").get_property("value") == "docker"
    assert page.one(".tile[value=critical]").get_dom_attribute("aria-pressed") == "true"
    assert headline(page, "Host").get_dom_attribute("aria-sort") == "ascending"
    page.one("#reset").click()
    assert page.fragment() == ""
    assert page.hosts() == names(report)
    assert page.one("#search").get_property("value") == ""
    # A link to the same page changes the filter.
    page.run("location.hash = 'engine=crio'")
    page.until(lambda: len(page.hosts()) < 30)
    assert page.hosts() == names(report, lambda host: "crio" in [engine["target"] for engine in host["engines"]])


# Addresses whose filter the page ignores, by what is wrong with them.
INVALID_ADDRESSES = {
    "the number of no column": "#sort=99",
    "the number of no column, descending": "#sort=8-",
    "no number, and the values of no host": "#sort=x&severity=&engine=unknown&finding=%00",
    "a percent sign without digits": "#%",
    "the name of a property of every JavaScript object": "#constructor=1",
}


@pytest.mark.parametrize("fragment", INVALID_ADDRESSES.values(), ids=INVALID_ADDRESSES.keys())
def test_invalid_address(page: Page, report: dict[str, t.Any], fragment: str) -> None:
    page.open(fragment)
    assert page.one("#status").text
    assert page.hosts() == names(report)


def test_invalid_encoding_in_address(page: Page, report: dict[str, t.Any]) -> None:
    """A browser decodes it to a text that no host contains."""
    page.open("#text=%E0%A4%A")
    assert page.hosts() == []
    page.one("#reset").click()
    assert page.hosts() == names(report)


def test_hostile_names_are_text(page: Page) -> None:
    assert HOSTILE in page.hosts()
    assert page.row(HOSTILE).is_displayed()
    page.one("#expand").click()
    assert page.all("img, svg, iframe, object, embed, form") == []
    assert len(page.all("script")) == 2
    assert page.run("return document.body.innerText.includes('\u202e')") is False


def test_injected_markup_has_no_effect(page: Page) -> None:
    page.run(
        "document.body.insertAdjacentHTML('beforeend', arguments[0])",
        "<img src='https://example.invalid/i' onerror=\"document.title='ran'\">"
        "<a id=a onclick=\"document.title='ran'\">x</a><p id=p style='color:red'>y</p>",
    )
    page.run("const s = document.createElement('script'); s.textContent = 'document.title=1'; document.body.append(s)")
    page.run("document.getElementById('a').click(); fetch('https://example.invalid/x').catch(() => 0)")
    page.until(lambda: "connect-src" in str(page.logged_errors))
    assert all("Content Security Policy" in message for message in page.logged_errors)
    assert page.run("return document.title") == "GPU fleet audit"
    assert page.run("return getComputedStyle(document.getElementById('p')).color") != "rgb(255, 0, 0)"
    # Chromium lists refused requests too. The fixture sees no request of before this call.
    requested = {url for url in page.requests() if not url.startswith("about:")}
    assert requested <= {"data:,", page.address, "https://example.invalid/i", "https://example.invalid/x"}


@pytest.mark.parametrize("width", [320, 420, 768, 1000, 1279, 1280, 1400])
def test_every_width(page: Page, width: int) -> None:
    page.open(width=width)
    page.show_all()
    page.one("#expand").click()
    assert page.run("return document.documentElement.scrollWidth") <= width
    # A click reaches its target, so no elements overlap.
    page.one(".tile[value=critical]").click()
    assert page.hosts()
    assert page.one("#order").is_displayed() == (width < 1280)
    if width < 1280:
        choose(page, "order", "0")
        assert page.hosts() == sorted(page.hosts(), key=natural)
        assert page.row(page.hosts()[0]).find_element("css selector", "td").text
    else:
        assert headline(page, "Host").is_displayed()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(page: Page, scheme: str) -> None:
    page.open(prefers_color_scheme=scheme)
    page.show_all()
    page.one("#expand").click()
    contrasts = page.run(CONTRAST)
    assert len(contrasts) > 15
    assert {name: ratio for name, ratio in contrasts.items() if ratio < 4.5} == {}
    background = page.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) < 200) == (scheme == "dark")


def test_accessible_names(page: Page) -> None:
    fields = page.all(".tools input, .tools select, .tools button, thead button")
    assert len(fields) > 15
    assert [
        field.get_dom_attribute("id") for field in fields if field.is_displayed() and not field.accessible_name
    ] == []
    assert page.row("gone-01").find_element("css selector", ".toggle").accessible_name == "Details of gone-01"
    assert page.one("#search").accessible_name == "Search"
    assert page.one("#status").aria_role == "status"
    # A narrow page has cards, which are still a table for screen readers.
    page.open(width=400)
    assert page.one("#fleet").aria_role == "table"
    assert page.one(".row").aria_role == "row"


def test_without_the_script(page: Page) -> None:
    page.open(script=False)
    text = page.one("body").text
    assert "No route to host" in text
    assert "cdi-stale-01" in text
    assert not page.one("#search").is_displayed()
    assert not page.one("#fleet").is_displayed()
    assert page.one(".top a").is_displayed()
    # The fixture runs scripts in the page.
    page.open()


def test_printed_page(page: Page) -> None:
    page.open(medium="print", prefers_color_scheme="dark")
    assert not page.one("#search").is_displayed()
    assert len(page.open_hosts()) == 30
    assert page.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert {name: ratio for name, ratio in page.run(CONTRAST).items() if ratio < 4.5} == {}
