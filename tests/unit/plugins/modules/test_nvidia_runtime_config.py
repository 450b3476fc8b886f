# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The option targets, with which one task configures several engines, programs that are predicted, pods, packages."""

from __future__ import annotations

import typing as t
from unittest.mock import MagicMock

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import runtime_config
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.kubelet_hosts import Node

if t.TYPE_CHECKING:
    from pathlib import Path

    Run = t.Callable[..., dict[str, t.Any]]

FILES = {"docker": "etc/docker/daemon.json", "crio": "etc/crio/crio.conf.d/99-nvidia.toml"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("etc/docker", "etc/crio", "etc/containers"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_all_engines_in_one_task(run_module: Run, tree: Path) -> None:
    arguments: dict[str, t.Any] = {"targets": ["docker", "crio", "podman"], "host_root": str(tree)}
    # Docker and Podman have no such setting.
    arguments["runtime_options"] = {"monitor_path": "/usr/bin/conmon"}
    result = run_module("nvidia_runtime_config", **arguments)
    assert {engine["target"]: engine["changed"] for engine in result["engines"]} == {
        "docker": True, "crio": True, "podman": False,
    }  # fmt: skip
    paths = [entry["after_header"] for entry in result["diff"]]
    assert set(FILES.values()) == {path.lstrip("/").replace(" (absent)", "") for path in paths}
    assert all("nvidia" in (tree / path).read_text() for path in FILES.values())
    assert "conmon" in (tree / FILES["crio"]).read_text()
    again = run_module("nvidia_runtime_config", **arguments)
    assert again["changed"] is False
    assert not any(engine["changed"] or "diff" in engine for engine in again["engines"])
    one = run_module("nvidia_runtime_config", engine="docker", host_root=str(tree))
    assert set(again["engines"][0]) == set(one) - {"diff", "warnings", "invocation"}


def test_an_error_does_not_prevent_the_other_engines(run_module: Run, tree: Path) -> None:
    (tree / FILES["docker"]).write_text("{")
    result = run_module("nvidia_runtime_config", targets=["docker", "crio", "docker/k3s"], host_root=str(tree))
    docker, crio, unknown = result["engines"]
    assert result["failed"] is True
    assert result["changed"] is True
    assert docker["target"] == "docker"
    assert docker["changed"] is False
    assert FILES["docker"] in docker["error"]
    assert "error" not in crio
    assert crio["changed"] is True
    assert "Unsupported target 'docker/k3s'. Supported: docker, " in unknown["error"]
    assert result["msg"] == f"docker: {docker['error']} | docker/k3s: {unknown['error']}"


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("docker", '{"proxies": {"http-proxy": "http://user:hidden-word@proxy"}}'),
        ("crio", '[crio.runtime]\ndefault_env = ["HTTP_PROXY=http://user:hidden-word@proxy"]\n'),
    ],
)
def test_secrets_in_files_are_hidden(run_module: Run, tree: Path, target: str, text: str) -> None:
    path = tree / FILES[target]
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    result = run_module("nvidia_runtime_config", targets=[target], host_root=str(tree))
    assert result["changed"] is True
    assert "hidden-word" in path.read_text(encoding="utf-8")
    (entry,) = result["diff"]
    assert "user:" not in entry["before"] + entry["after"]
    assert "hidden-word" not in str(result)
    assert "proxy" in entry["after"]


def test_the_warnings_of_all_targets_are_returned(run_module: Run, tree: Path) -> None:
    (tree / "etc/containerd").mkdir()
    (tree / "etc/containerd/config.toml").write_text('disabled_plugins = ["cri"]\n', encoding="utf-8")
    result = run_module("nvidia_runtime_config", targets=["docker", "containerd"], host_root=str(tree))
    assert "failed" not in result
    # Ansible returns more than a text since 2.19.
    assert "/etc/containerd/config.toml: disabled_plugins" in str(result["warnings"])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nvidia_cdi_spec", {}),
        ("nvidia_container_info", {}),
        ("nvidia_runtime_config", {"engine": "docker"}),
        ("nvidia_toolkit_install", {"source": "existing"}),
        ("nvidia_toolkit_install", {"source": "directory", "state": "absent"}),
    ],
)
def test_modules_use_the_packages_that_the_controller_sends(
    run_module: Run, tree: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, str]
) -> None:
    found: dict[str, str] = {}
    monkeypatch.setattr(bundled, "register", found.update)
    run_module(name, host_root=str(tree), _bundled={"a": "packed"}, **options)
    assert found == {"a": "packed"}


def test_a_target_that_is_named_twice(run_module: Run, tree: Path) -> None:
    result = run_module("nvidia_runtime_config", targets="docker, docker,crio", host_root=str(tree))
    assert "failed" not in result
    found = [(engine["target"], engine["changed"], engine["restart_action"]) for engine in result["engines"]]
    assert found == [("docker", True, "reload"), ("crio", True, "restart")]


def test_no_target(run_module: Run, tree: Path) -> None:
    result = run_module("nvidia_runtime_config", targets=[], host_root=str(tree))
    assert (result["changed"], result["engines"], "failed" in result) == (False, [], False)
    result = run_module("nvidia_runtime_config", targets=[""], host_root=str(tree))
    assert "Unsupported target ''. Supported: docker, " in result["msg"]


@pytest.mark.parametrize("other", [{"engine": "docker"}, {"flavor": "system"}, {"user": "a"}, {"service": "a"}])
def test_targets_replace_the_options_of_one_engine(run_module: Run, tree: Path, other: dict[str, str]) -> None:
    result = run_module("nvidia_runtime_config", targets=["crio"], host_root=str(tree), **other)
    assert "mutually exclusive" in result["msg"]


@pytest.mark.parametrize("option", [{"config_path": "/etc/docker/other.json"}, {"engine_version": "28.0.0"}])
def test_options_of_one_engine_with_several_targets(run_module: Run, tree: Path, option: dict[str, str]) -> None:
    result = run_module("nvidia_runtime_config", targets=["docker", "crio"], host_root=str(tree), **option)
    (name,) = option
    assert f"{name} can only be set for one engine, but targets has docker, crio." in result["msg"]
    assert not any(engine["changed"] or "error" not in engine for engine in result["engines"])
    result = run_module("nvidia_runtime_config", targets=["docker"], host_root=str(tree), **option)
    assert "failed" not in result


def test_an_engine_is_required(run_module: Run) -> None:
    assert "engine, targets" in run_module("nvidia_runtime_config")["msg"]


TOOLKIT = {"version": "1.20.0", "programs": ["/usr/bin/nvidia-container-runtime"]}


@pytest.mark.parametrize(
    "target", ["docker", "containerd", "crio", "containerd/k3s", "containerd/rke2", "containerd/k0s"]
)
def test_check_mode_with_programs_that_an_earlier_task_would_install(run_module: Run, tree: Path, target: str) -> None:
    for name in ("k3s", "rke2"):
        (tree / f"etc/rancher/{name}").mkdir(parents=True)
    (tree / "etc/k0s").mkdir()
    arguments = {
        "targets": [target], "set_as_default": True, "require_runtime": True, "host_root": str(tree),
        "engine_version": "v1.33.1+k3s1" if "k3s" in target else "v1.33.1+rke2r1" if "rke2" in target else None,
    }  # fmt: skip
    arguments = {name: value for name, value in arguments.items() if value is not None}
    predicted = run_module("nvidia_runtime_config", **arguments, predicted_toolkit=TOOLKIT, _ansible_check_mode=True)
    assert "failed" not in predicted, predicted["msg"]
    # The option has no effect in a real run.
    failed = run_module("nvidia_runtime_config", **arguments, predicted_toolkit=TOOLKIT)
    assert "nvidia-container-runtime" in failed["msg"]
    program = tree / "usr/bin/nvidia-container-runtime"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    done = run_module("nvidia_runtime_config", **arguments)
    for name in ("changed", "diff"):
        assert predicted[name] == done[name]
    keys = ("changed", "runtimes", "default_runtime", "restart_action")
    (before,), (after,) = (
        [{key: engine[key] for key in keys} for engine in run["engines"]] for run in (predicted, done)
    )
    assert before == after


@pytest.mark.parametrize(
    ("changed", "defaults", "target", "warned"),
    [
        (True, ("runc", "nvidia"), "containerd", True),
        (True, ("runc", "nvidia"), "crio", False),
        (False, ("runc", "nvidia"), "containerd", False),
        (True, ("nvidia", "nvidia"), "containerd", False),
        (True, ("", "nvidia"), "containerd", False),
        (True, ("nvidia", "runc"), "containerd", False),
        (True, ("runc", "nvidia"), "docker", False),
    ],
)
def test_pods_from_before_the_default_runtime(
    tmp_path: Path, changed: bool, defaults: tuple[str, str], target: str, warned: bool
) -> None:
    previous, default = defaults
    result = MagicMock(
        changed=changed, previous_default=previous, default_runtime=default, target=target, runtimes={"nvidia": "/n"}
    )
    node = Node(tmp_path)
    found = runtime_config._pods_to_delete(node.host, result)
    assert bool(found) is warned
    assert "Delete the pods" in found[0] if warned else not found
    assert runtime_config._pods_to_delete(HostFS(str(tmp_path / "no"), live=True), result) == []
