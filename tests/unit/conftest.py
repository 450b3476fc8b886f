# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes `ansible_collections.gpufleet.nvidia` importable from a plain clone, and sets how much the tests try.

ansible-test has its own importer for the collection. Under ansible-test this file installs none.

The default set of tests is short and is the same in each run. ``GPUFLEET_NIGHTLY=1`` switches on the full set.

Skipped tests are counted by reason. ``GPUFLEET_SKIPPED`` is the path of a JSON file for their names, by reason.
"""

from __future__ import annotations

import collections
import gc
import itertools
import json
import os
import sys
import types
import typing as t
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

if t.TYPE_CHECKING:
    from collections.abc import Callable

_ROOT = Path(__file__).resolve().parents[2]
NIGHTLY = os.environ.get("GPUFLEET_NIGHTLY") == "1"

# The only settings of the property tests. A slow machine is no reason to fail, so there is no limit of time.
_UNLIMITED: dict[str, t.Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("short", max_examples=25, derandomize=True, database=None, **_UNLIMITED)
settings.register_profile("nightly", max_examples=2000, derandomize=False, **_UNLIMITED)
settings.load_profile("nightly" if NIGHTLY else "short")


def _package(name: str, *path: str) -> None:
    package = types.ModuleType(name)
    package.__path__ = list(path)
    sys.modules[name] = package
    parent, _dot, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)


if not any(type(finder).__name__ == "_AnsibleCollectionFinder" for finder in sys.meta_path):
    _package("ansible_collections")
    _package("ansible_collections.gpufleet")
    _package("ansible_collections.gpufleet.nvidia", str(_ROOT))


# What is imported and collected stays until the end. The garbage collector need not search it again and again.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# The names of the skipped tests, or of files of which no test runs, by reason.
_SKIPPED: collections.defaultdict[str, set[str]] = collections.defaultdict(set)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note_skip(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note_skip(report)


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    # An expected failure is reported in the same way, but without a place.
    if report.skipped and isinstance(report.longrepr, tuple):
        _SKIPPED[report.longrepr[2].partition("Skipped: ")[2]].add(report.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason, names in sorted(_SKIPPED.items()):
        terminalreporter.write_line(f"{len(names)} skipped: {reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = os.environ.get("GPUFLEET_SKIPPED")
    # The workers of pytest-xdist send their reports to the process that started them.
    if path and not hasattr(session.config, "workerinput"):
        Path(path).write_text(json.dumps({reason: sorted(names) for reason, names in _SKIPPED.items()}))


_NUMBERS = itertools.count()


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new folder. The fixture of pytest reads the names of all earlier folders first, which takes long."""
    path = tmp_path_factory.getbasetemp() / str(next(_NUMBERS))
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(autouse=True)
def no_earlier_warnings() -> None:
    """Drop the warnings of code that ran without a module, which the next module would show."""
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors  # noqa: PLC0415

    errors.take_warnings()


@pytest.fixture
def kill_points() -> Callable[..., list[int]]:
    """Of ``count`` points at which a run can be killed: the first, the last, and every sixth from ``offset`` on."""

    def chosen(count: int, offset: int = 0) -> list[int]:
        return [point for point in range(1, count + 1) if NIGHTLY or point in (1, count) or point % 6 == offset % 6]

    return chosen
