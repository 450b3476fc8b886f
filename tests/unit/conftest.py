# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes `ansible_collections.gpufleet.nvidia` importable from a plain clone, without Ansible.

ansible-test brings an importer of its own; there this steps aside.
"""

from __future__ import annotations

import sys
import types
import typing as t
import zlib
from pathlib import Path

from hypothesis import settings

if t.TYPE_CHECKING:
    import pytest

_ROOT = Path(__file__).resolve().parents[2]

# Other work on the machine is no reason to fail.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
# For the same tests on one more Python. Modules that want another number of examples take a share of the profile's.
settings.register_profile("few", max_examples=settings().max_examples // 4)


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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", default="1/1", metavar="I/N", help="only the I-th of N shares of the tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    number, _slash, count = config.getoption("--share").partition("/")
    shares: list[list[pytest.Item]] = [[] for _share in range(int(count))]
    for item in items:
        # By its name, so that a test's share changes with no other test.
        shares[zlib.crc32(item.nodeid.encode()) % len(shares)].append(item)
    items[:] = shares.pop(int(number) - 1)
    config.hook.pytest_deselected(items=[item for share in shares for item in share])
