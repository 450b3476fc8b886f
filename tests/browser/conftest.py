# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A page of thirty hosts, and Chromium without a network; the session "browser" of noxfile.py provides both."""

from __future__ import annotations

import json
import os
import shutil
import typing as t

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit.page import page_of
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit.report import report_of
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures import audit_results

if t.TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver.chrome.webdriver import WebDriver
    from selenium.webdriver.remote.webelement import WebElement

# In seconds, on a machine with other work.
TIMEOUT = 20
TITLE = "GPU fleet audit"
WIDE = 1400


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, t.Any]:
    return report_of(audit_results.thirty(tmp_path_factory.mktemp("trees")), "2026-03-01")


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory, report: dict[str, t.Any]) -> str:
    path = tmp_path_factory.mktemp("page") / "gpufleet-audit.html"
    command = "ansible-playbook gpufleet.nvidia.audit -i inventory -b"
    path.write_text(page_of(report, version="9.9.9", command=command), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="session")
def browser() -> Iterator[WebDriver]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in ("--headless=new", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        # Chromium has no sandbox for root.
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def log_of(driver: WebDriver, kind: str) -> list[dict[str, t.Any]]:
    """Return the new entries of the browser's log."""
    entries: list[dict[str, t.Any]] = driver.get_log(kind)  # type: ignore[no-untyped-call]
    return entries


class Page:
    """The page in the browser."""

    def __init__(self, driver: WebDriver, address: str) -> None:
        self.driver = driver
        self.address = address
        self._logged_errors: list[str] = []

    def open(self, address_hash: str = "", width: int = WIDE, script: bool = True, **media: str) -> None:
        """Load the page.

        ``media`` are media features such as prefers_color_scheme; ``medium`` is the media type, such as print.
        """
        self.driver.get("about:blank")
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        features = [
            {"name": name.replace("_", "-"), "value": value} for name, value in media.items() if name != "medium"
        ]
        self.command("Emulation.setEmulatedMedia", media=media.get("medium", ""), features=features)
        self.command("Emulation.setScriptExecutionDisabled", value=not script)
        self.driver.get(self.address + address_hash)

    def command(self, command: str, **parameters: object) -> t.Any:
        """Run a command of the Chrome DevTools Protocol."""
        return self.driver.execute_cdp_cmd(command, parameters)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def run(self, script: str, *arguments: object) -> t.Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, condition: t.Callable[[], object]) -> None:
        WebDriverWait(self.driver, TIMEOUT, 0.05).until(lambda _driver: condition())

    def show_all(self) -> None:
        """Create all rows. The page creates the later ones only when its end is shown."""
        self.run("const more = document.getElementById('more'); while (!more.hidden) more.click()")

    def hosts(self) -> list[str]:
        """Return the names of the hosts that the filter shows, in their order."""
        self.show_all()
        names: list[str] = self.run(
            "return [...document.querySelectorAll('.host:not([hidden]) .row th bdi')].map(item => item.textContent)"
        )
        return names

    def open_hosts(self) -> list[str]:
        self.show_all()
        names: list[str] = self.run(
            "return [...document.querySelectorAll('.host:not([hidden])')]"
            ".filter(host => host.querySelector('.details').getClientRects().length)"
            ".map(host => host.querySelector('th bdi').textContent)"
        )
        return names

    def row(self, name: str) -> WebElement:
        self.show_all()
        found: WebElement = self.run(
            "return [...document.querySelectorAll('.row')]"
            ".find(row => row.querySelector('th bdi').textContent === arguments[0])",
            name,
        )
        return found

    def status(self) -> str:
        return self.one("#status").text

    def fragment(self) -> str:
        return str(self.run("return location.hash"))

    @property
    def logged_errors(self) -> list[str]:
        """The errors that the browser has logged since the page was opened. They do not fail the fixture any more."""
        self._logged_errors += [str(entry["message"]) for entry in log_of(self.driver, "browser")]
        return self._logged_errors

    def requests(self) -> list[str]:
        """Return the addresses of the new requests."""
        messages = [json.loads(entry["message"])["message"] for entry in log_of(self.driver, "performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]


@pytest.fixture
def open_page(browser: WebDriver, tmp_path: Path) -> Iterator[t.Callable[[dict[str, t.Any] | str], Page]]:
    """Return a function that opens the page of a report, or the page at an address.

    After the test, the fixture checks that the page has its title, that the browser's log has no error, and that the
    browser requested no other file.
    """
    for kind in ("browser", "performance"):
        log_of(browser, kind)
    opened: list[Page] = []

    def open_page(source: dict[str, t.Any] | str) -> Page:
        if not isinstance(source, str):
            path = tmp_path / f"{len(opened)}.html"
            path.write_text(page_of(source), encoding="utf-8")
            source = path.as_uri()
        opened.append(Page(browser, source))
        opened[-1].open()
        return opened[-1]

    yield open_page
    assert browser.title == TITLE
    assert log_of(browser, "browser") == []
    requested = {url.partition("#")[0] for url in opened[0].requests() if not url.startswith(("about:", "blob:"))}
    assert requested <= {"data:,", *(page.address for page in opened)}


@pytest.fixture
def page(open_page: t.Callable[[str], Page], address: str) -> Page:
    """The page of the thirty hosts, just opened."""
    return open_page(address)
