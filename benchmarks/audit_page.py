# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the audit page of many invented hosts in Chromium, and the time and memory that its report needs.

It needs Chromium, chromedriver and selenium. The times of the page end with the frame that shows the result. The memory
of its process is what the process does not share with others (RssAnon), at the end of the round.

usage: python3 benchmarks/audit_page.py [--hosts N] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import statistics
import tempfile
import time
import typing as t
from pathlib import Path

from cdi import make_importable
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ROOT = Path(__file__).resolve().parents[1]
# Each key is pressed once the previous one has been answered.
KEYS = "rack1 cve-2025-23266"
# Before the page: record when its first row has been on the screen for one frame.
FIRST_ROW = """
const look = () => {
  const box = document.querySelector(".host .row")?.getBoundingClientRect();
  if (box && box.height) setTimeout(() => { window.firstRow = performance.now(); });
  else requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
# Record the milliseconds from each key to the end of the frame that follows it.
KEY_TIMES = """
window.keyTimes = [];
addEventListener("keydown", () => {
  const begun = performance.now();
  requestAnimationFrame(() => setTimeout(() => keyTimes.push(performance.now() - begun)));
}, true);
document.getElementById("search").focus();
"""


class Round(t.NamedTuple):
    """The figures of one round. Times are in milliseconds, memory is in megabytes."""

    first_row: float
    loaded: float
    keys: list[float]
    processor: float
    nodes: float
    heap: float
    process: float


def build(hosts: int, path: Path) -> None:
    """Write the page of this many hosts, and print what the controller needs for it."""
    make_importable()
    # These imports need the packages above.
    from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit import page, report  # noqa: PLC0415
    from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures import audit_results  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="gpufleet-audit-") as directory:
        results = audit_results.many(Path(directory), hosts)
    begun = time.process_time()
    fleet = report.report_of(results, "2026-03-01")
    data = json.dumps(fleet, indent=2)
    text = page.page_of(fleet)
    spent = time.process_time() - begun
    path.write_text(text, encoding="utf-8")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"controller: {spent:.1f} s of CPU, at most {peak:.0f} MB in the process")
    print(f"JSON: {len(data) / 1e6:.1f} MB; page: {path.stat().st_size / 1e6:.1f} MB")


def browser() -> webdriver.Chrome:
    """Return Chromium without a network."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    arguments = ["--headless=new", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND"]
    # Chromium has no sandbox for root.
    arguments += ["--no-sandbox"] if os.geteuid() == 0 else []
    for argument in [*arguments, "--window-size=1400,900"]:
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def page_memory(driver: webdriver.Chrome) -> float:
    """Return the megabytes of the largest process of this browser that displays a page."""
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            status = (directory / "status").read_text(encoding="utf-8")
            command = (directory / "cmdline").read_bytes()
        except OSError:
            # The process has ended.
            continue
        fields = dict(re.findall(r"^(PPid|RssAnon):\s+(\d+)", status, re.MULTILINE))
        parents[int(directory.name)] = int(fields["PPid"])
        sizes[int(directory.name)] = int(fields.get("RssAnon", 0)) if b"--type=renderer" in command else 0
    own = {driver.service.process.pid}
    while more := {process for process, parent in parents.items() if parent in own} - own:
        own |= more
    return max(sizes.get(process, 0) for process in own) / 1024


def measure(path: Path) -> Round:
    """Open the page in a new browser, and type into the search field."""
    driver = browser()
    try:
        driver.execute_cdp_cmd("Performance.enable", {})
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": FIRST_ROW})
        driver.get(path.as_uri())
        first_row = wait(driver, "return window.firstRow")
        loaded = driver.execute_script("return performance.getEntriesByType('navigation')[0].loadEventEnd")
        driver.execute_script(KEY_TIMES)
        before = metrics_of(driver)["ProcessTime"]
        for number, key in enumerate(KEYS, 1):
            driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyDown", "text": key, "key": key})
            wait(driver, f"return keyTimes.length >= {number}")
        metrics = metrics_of(driver)
        keys = driver.execute_script("return keyTimes")
        processor = (metrics["ProcessTime"] - before) * 1000 / len(KEYS)
        heap = metrics["JSHeapUsedSize"] / 1e6
        return Round(first_row, loaded, keys, processor, metrics["Nodes"], heap, page_memory(driver))
    finally:
        driver.quit()


def metrics_of(driver: webdriver.Chrome) -> dict[str, float]:
    """Return the counters of the page. ProcessTime is the processor time of its process in seconds."""
    return {row["name"]: row["value"] for row in driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}


def wait(driver: webdriver.Chrome, script: str) -> t.Any:
    """Return the result of the script once it is true."""
    while not (result := driver.execute_script(script)):
        time.sleep(0.02)
    return result


def show(label: str, values: list[float], unit: str) -> None:
    """Print the median with the lowest and the highest value."""
    print(f"{label}: {statistics.median(values):.0f}{unit} ({min(values):.0f} to {max(values):.0f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpufleet-audit-") as directory:
        path = Path(directory, "gpufleet-audit.html")
        build(given.hosts, path)
        rounds = [measure(path) for _round in range(given.rounds)]
    show("first row", [each.first_row for each in rounds], " ms")
    show("page loaded", [each.loaded for each in rounds], " ms")
    show("key of the search", [key for each in rounds for key in each.keys], " ms")
    show("processor time for a key", [each.processor for each in rounds], " ms")
    show("DOM nodes", [each.nodes for each in rounds], "")
    show("JavaScript heap", [each.heap for each in rounds], " MB")
    show("process of the page", [each.process for each in rounds], " MB")


if __name__ == "__main__":
    main()
