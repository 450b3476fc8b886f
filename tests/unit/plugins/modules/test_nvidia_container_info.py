# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""nvidia_container_info: what it returns, root's privileges, and the engines that later tasks configure."""

from __future__ import annotations

import json
import os
import typing as t
from unittest.mock import MagicMock

import pytest

pytest.importorskip("ansible.module_utils.basic")

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import host_info
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import container_info
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import SECOND, FakeMig, gpu_host
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.kubelet_hosts import GPU, Node

if t.TYPE_CHECKING:
    from pathlib import Path

    Run = t.Callable[..., dict[str, t.Any]]

# A fact that only a rule of the audit reads is no return value: the finding says it.
MOST_VALUES = 130


# -- return values -----------------------------------------------------------------------------------------------------


def documented(values: t.Mapping[str, t.Any], place: str = "") -> t.Iterator[str]:
    """Yield the documented return values by names with dots."""
    for name, value in values.items():
        yield place + name
        yield from documented(value.get("contains", {}), f"{place}{name}.")


def reported(value: t.Any, place: str) -> t.Iterator[str]:
    """Yield the names of dictionaries in a report, likewise."""
    for item in value if isinstance(value, list) else [value]:
        for name, part in item.items() if isinstance(item, dict) else ():
            yield f"{place}.{name}"
            yield from reported(part, f"{place}.{name}")


def test_number_of_return_values() -> None:
    yaml = pytest.importorskip("yaml")
    module = pytest.importorskip("ansible_collections.gpufleet.nvidia.plugins.modules.nvidia_container_info")
    names = set(documented(yaml.safe_load(module.RETURN)))
    assert len(names) <= MOST_VALUES
    assert not names & {f"{place}.{name}" for place, internal in container_info.INTERNAL.items() for name in internal}


def test_facts_of_the_rules_are_not_returned(tmp_path: Path, run_module: Run) -> None:
    """The fixture checks that each returned value is documented."""
    gpu_host(tmp_path, [SECOND._replace(mig=1, migs=(FakeMig(1, 7, 0),))])
    node = Node(tmp_path, running=False)
    node.checkpoint({GPU: [SECOND.identity()]})
    edits = {"deviceNodes": [{"path": "/dev/nvidia0"}]}
    device = {"name": "0", "containerEdits": edits}
    specification = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [device], "containerEdits": {}}
    node.write("/etc/cdi/nvidia.json", json.dumps(specification))
    selected = {"names": ["auto"], "flavor": "auto"}
    found = host_info.describe_host(HostFS(str(tmp_path)), lambda _argv: (127, "", ""), selected_engines=selected)
    known = {name for part, value in found.items() for name in reported(value, part)}
    for place, names in container_info.INTERNAL.items():
        # No engine runs, and no engine runs the toolkit of another directory.
        if place not in ("engines.live", "toolkit.other_toolkits"):
            assert {f"{place}.{name}" for name in names} <= known
    result = run_module(
        "nvidia_container_info", host_root=str(tmp_path), host_root_live=True, selected_engines=selected
    )
    (gpu,), (file,) = result["gpus"]["devices"], result["cdi"]["files"]
    (mig,) = gpu["mig_devices"]
    assert all(reason.startswith("/dev/nvidia") for reason in [*gpu["reasons"], *mig["reasons"]])
    assert file["reasons"][0] == "These paths no longer exist: /dev/nvidia0."
    assert {"cdi-stale", "device-node-missing"} <= {finding["id"] for finding in result["findings"]}


# -- requirements ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "params", "refused"),
    [
        (1000, {"require_root": True, "host_root": "/"}, True),
        (1000, {"require_root": True, "host_root": "/tree"}, False),
        (1000, {"require_root": False, "host_root": "/"}, False),
        (0, {"require_root": True, "host_root": "/"}, False),
    ],
)
def test_requires_root(monkeypatch: pytest.MonkeyPatch, user: int, params: dict[str, t.Any], refused: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    for name in ("load_bundled_packages", "host_from_params", "command_runner"):
        monkeypatch.setattr(_module, name, lambda _task: None)
    module = MagicMock(
        params={
            **dict.fromkeys(("gather_subset", "toolkit_dir", "driver_root", "library_search_paths")),
            **dict.fromkeys(("selected_engines", "require_engines")),
            **params,
        }
    )
    if refused:
        with pytest.raises(HostError, match=r"runs as user 1000, not as root\. Run with -b \(become\)\."):
            container_info.describe(module, lambda *_args, **_options: {})
    else:
        assert container_info.describe(module, lambda *_args, **_options: {}) == {}


# -- required engines --------------------------------------------------------------------------------------------------


@pytest.fixture
def inspect(tmp_path: Path, run_module: Run) -> Run:
    """Return a function that inspects a tree with Docker, whose files are read."""
    for name in ("etc/docker", "sys/bus/pci/devices"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("dockerd", "docker"):
        program = tmp_path / "usr/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.touch(mode=0o755)

    def run(live: bool = False, subset: str = "engines,toolkit", check: bool = False, **required: t.Any) -> t.Any:
        return run_module(
            "nvidia_container_info",
            host_root=str(tmp_path),
            host_root_live=live,
            gather_subset=subset,
            require_engines=required,
            _ansible_check_mode=check,
        )

    return run


def test_the_engines_must_be_inspected(inspect: Run) -> None:
    failed = inspect(subset="toolkit")
    assert failed["failed"] is True
    assert failed["msg"] == "require_engines needs engines in gather_subset. Add it."


@pytest.mark.parametrize(
    ("live", "check", "refused"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_named_engine_that_the_host_lacks(inspect: Run, live: bool, check: bool, refused: bool) -> None:
    """In check mode and in an offline tree, it may be installed later."""
    result = inspect(live=live, check=check, names=["docker", "crio"])
    assert result.get("failed", False) is refused
    assert not refused or result["msg"].startswith("nvidia_runtime_engines names crio, which this host does not have.")


@pytest.mark.parametrize(("without_gpu", "refused"), [(True, True), (False, False)])
def test_a_host_without_a_gpu_may_need_no_engine(inspect: Run, without_gpu: bool, refused: bool) -> None:
    result = inspect(live=True, names=["crio"], without_gpu=without_gpu)
    assert result.get("failed", False) is refused
    assert refused or result["toolkit"]["gpu"]["present"] is False


def test_a_host_whose_gpu_is_unknown_needs_its_engines(inspect: Run) -> None:
    result = inspect(live=True, subset="engines", names=["crio"], without_gpu=False)
    assert "which this host does not have" in result["msg"]


@pytest.mark.parametrize(
    ("text", "required", "messages"),
    [
        ("{", {}, ["daemon.json"]),
        ("{", {"files": False}, []),
        ("{", {"options": {}}, ["daemon.json"]),
        ('{"runtimes": 1}', {}, []),
        ('{"runtimes": 1}', {"options": {}}, ["daemon.json", "runtimes"]),
        ("{}", {"options": {"runtime_name": "runc"}}, ["nvidia_runtime_name"]),
        ("{}", {"options": {"config_mode": "drop"}}, ["require_engines.options: ", "config_mode"]),
        ("{}", {"options": {}}, []),
    ],
)
def test_a_later_change_that_is_refused(
    inspect: Run, tmp_path: Path, text: str, required: dict[str, t.Any], messages: list[str]
) -> None:
    """With the options of the later task, its change is planned, and the message names the variables of its role."""
    path = tmp_path / "etc/docker/daemon.json"
    path.write_text(text, encoding="utf-8")
    result = inspect(**required)
    assert result.get("failed", False) is bool(messages)
    assert all(message in result["msg"] for message in messages)
    assert path.read_text(encoding="utf-8") == text
