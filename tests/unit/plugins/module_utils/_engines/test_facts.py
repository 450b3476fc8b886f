# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An engine is known in one place: the options that it takes, and a search for names of engines in other code."""

from __future__ import annotations

import ast
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.tests.unit.helpers import names_in_code

ROOT = Path(__file__).resolve().parents[5]
NAMES = {*flavors.ENGINES, *(row.flavor for row in flavors.FLAVORS.values())} - {"system", "snap", "rootless"}
# Where names of engines remain, with the number of places. Add none: give the engine a fact instead.
REMAINING = {
    # The registry: names, flavors, loaders, and the units of further instances.
    "module_utils/_engines/flavors.py": 3,
    "module_utils/_engines/registry.py": 12,
    # Files of releases before 1.0.0 of NVIDIA's tools, by engine.
    "module_utils/_engines/legacy_cleanup.py": 4,
    # Keys of containerd's own files, not names of engines.
    "module_utils/_engines/nvidia_files.py": 3,
    "module_utils/_verify/cri_pods.py": 1,
    # Distributions of Kubernetes, which have their own registry. Their units are those of flavors.
    "module_utils/_kubernetes/distributions.py": 4,
    # Files that K3s and RKE2 write.
    # Directories below /run, by the program that creates them.
    "module_utils/_kubernetes/strategies.py": 1,
    "module_utils/_systemd/gpu_containers.py": 1,
    # Plans of the controller.
    "plugin_utils/_restart_plan.py": 1,
}

ALL = {
    "runtime_name": "x", "extra_modes": ("cdi",), "set_as_default": True, "enable_cdi": True, "config_mode": "drop_in",
    "drop_in_path": "/x", "runtime_type": "t", "runtime_options": {"a": 1}, "container_annotations": ("b",),
    "use_legacy_config": True,
}  # fmt: skip
COMMON = {"runtime_name", "set_as_default", "enable_cdi"}
TABLES = {"extra_modes", "runtime_type", "runtime_options", "container_annotations"}
FILE_OPTIONS = {"config_mode", "drop_in_path"}


@pytest.mark.parametrize(
    ("engine", "flavor", "changed", "kept"),
    [
        ("docker", "system", {}, COMMON | {"extra_modes"}),
        ("docker", "rootless", {}, COMMON | {"extra_modes"}),
        ("podman", "system", {}, set()),
        ("containerd", "system", {}, COMMON | TABLES | FILE_OPTIONS | {"use_legacy_config"}),
        ("containerd", "system", {"config_mode": "hook"}, COMMON | TABLES | {"use_legacy_config"}),
        ("containerd", "k0s", {}, COMMON | TABLES | {"use_legacy_config"}),
        ("containerd", "k3s", {}, COMMON | {"use_legacy_config"}),
        ("crio", "system", {}, COMMON | TABLES | FILE_OPTIONS),
        ("crio", "system", {"config_mode": "hook"}, COMMON | TABLES | FILE_OPTIONS),
    ],
)
def test_options_of_engines(engine: str, flavor: str, changed: dict[str, t.Any], kept: set[str]) -> None:
    request = RuntimeRequest(**{**ALL, **changed})
    defaults = RuntimeRequest()
    found = request.for_engine(engine, flavor)
    assert {name for name in ALL if getattr(found, name) != getattr(defaults, name)} == kept


def test_every_engine_has_facts() -> None:
    assert tuple(flavors.FACTS) == flavors.ENGINES
    assert {name for name, facts in flavors.FACTS.items() if facts.cri} == {"containerd", "crio"}


def test_facts_import_no_planner() -> None:
    for name in flavors.FACTS:
        tree = ast.parse((ROOT / f"plugins/module_utils/_engines/{name}/facts.py").read_text(encoding="utf-8"))
        imported = {
            f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module != "__future__"
            for alias in node.names
        }
        assert all(module.endswith(("._engines.facts", "._core.constants")) for module in imported), imported


# -- names of engines in other code --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ['x == "docker"', '{"crio": 1}', '("podman", "x")', 'x in ["k3s"]'])
def test_names_are_found(text: str) -> None:
    assert names_in_code.lines_with(NAMES, text)


def test_only_the_registry_names_engines() -> None:
    packages = {f"module_utils/_engines/{name}" for name in NAMES}
    found: dict[str, int] = {}
    for path in sorted((ROOT / "plugins").rglob("*.py")):
        name = path.relative_to(ROOT / "plugins").as_posix()
        lines = names_in_code.lines_with(NAMES, path.read_text(encoding="utf-8"))
        if lines and path.parent.relative_to(ROOT / "plugins").as_posix() not in packages:
            found[name] = len(lines)
    assert found == REMAINING
