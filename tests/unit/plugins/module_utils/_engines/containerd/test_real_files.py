# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# What holds for every real configuration, in every version of containerd and in every mode.

from __future__ import annotations

import itertools
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action, RuntimeRequest
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_configs import (
    DROP_IN,
    FILES,
    MAIN,
    MODES,
    VERSIONS,
    Version,
    expected_refusal,
    of_file,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import Host

REQUESTS: dict[str, dict[str, t.Any]] = {
    "plain": {},
    "all": {
        "set_as_default": True,
        "enable_cdi": True,
        "extra_modes": ("cdi",),
        "runtime_dir": "/usr/local/nvidia/toolkit",
        "container_annotations": ("cdi.k8s.io/*",),
    },
}
# Lines that a request may replace: its own entries, and the array of imports.
OURS = ("default_runtime_name", "enable_cdi", "imports", "BinaryName", "container_annotations", "{ runc")
# Each file with each version, each time with another mode and another request. The printed defaults of containerd are
# long: one mode and one request are enough for those.
MIXES = list(itertools.product(MODES, REQUESTS))
CASES = [
    (name, version, *(("auto", "all") if name.startswith("default") else MIXES[(number + place) % len(MIXES)]))
    for number, name in enumerate(FILES)
    for place, version in enumerate(VERSIONS)
]


def spelled(value: t.Any) -> str:
    return ".".join(map(str, value)) if isinstance(value, tuple) else str(value)


def contents(host: Host) -> dict[str, bytes]:
    return dict(host.files.content)


def in_order(lines: list[str], text: str) -> bool:
    remaining = iter(text.splitlines())
    return all(line in remaining for line in lines)


@pytest.mark.parametrize(("name", "version", "mode", "asked"), CASES, ids=spelled)
def test_comes_keeps_the_rest_stays_and_goes(name: str, version: Version, mode: str, asked: str) -> None:
    host = Host(FILES[name], version)
    request = {"config_mode": mode, **REQUESTS[asked]}
    before = contents(host)
    refusal = expected_refusal(name, version, mode, REQUESTS[asked])
    if refusal is not None:
        with pytest.raises(NvidiaError, match=refusal):
            host.present(**request)
        return
    rest = host.everything_else(["nvidia", "nvidia-cdi", "runc"])
    runc = host.runtimes.get("runc")
    plan = host.present(**request)
    expect_effect(host, request)
    added = None if host.effect.merges else {"runtime_type": "io.containerd.runc.v2"}
    assert host.runtimes.get("runc") == (runc or added)
    assert host.everything_else(["nvidia", "nvidia-cdi", "runc"]) == rest
    assert plan.action is (Action.NONE if contents(host) == before else Action.RESTART)
    for path, content in before.items():
        kept = [line for line in content.decode().splitlines() if line.strip() and not any(o in line for o in OURS)]
        assert in_order(kept, host.text(path))
    after = contents(host)
    again = host.present(**request)
    assert again.action is Action.NONE
    assert contents(host) == after
    if plan.action is Action.RESTART:
        host.absent()
        assert contents(host) == before


def expect_effect(host: Host, asked: dict[str, t.Any]) -> None:
    request = RuntimeRequest(**asked)
    files = host.effect
    runtimes = files.runtimes()
    for name, program in request.runtimes().items():
        assert runtimes[name]["options"]["BinaryName"] == program
        assert runtimes[name]["runtime_type"].startswith("io.containerd.runc.")
        assert set(request.container_annotations) <= set(runtimes[name].get("container_annotations", ()))
    if request.set_as_default:
        assert files.default_runtime() == "nvidia"
    # The built-in runc is lost beside other runtimes of a file, until tables merge.
    assert files.merges or "runc" in runtimes
    if request.enable_cdi:
        by_default = host.version is not None and host.version >= (2,)
        optional = host.version is None or host.version >= (1, 7)
        assert not optional or files.cri().get("enable_cdi", by_default)


@pytest.mark.parametrize("version", VERSIONS, ids=spelled)
@pytest.mark.parametrize("mode", MODES)
def test_dockers_packages_switch_the_cri_off(version: Version, mode: str) -> None:
    host = Host(of_file("docker"), version)
    before = contents(host)
    plan = host.present(config_mode=mode)
    assert plan.files == ()
    assert plan.action is Action.NONE
    assert not plan.state.lists_runtimes
    assert "disabled_plugins disables containerd's CRI" in plan.warnings[0]
    with pytest.raises(NvidiaError, match=r"config.toml: disabled_plugins .* Remove cri from disabled_plugins"):
        host.present(config_mode=mode, cri_disabled="fail")
    host.absent()
    assert contents(host) == before


@pytest.mark.parametrize(
    ("name", "version"),
    [
        (name, version)
        for number, name in enumerate(FILES)
        # Two versions for each file: an old one and a new one.
        for version in VERSIONS[number % 3 :: 3]
        if not name.startswith("default")
        and not any(expected_refusal(name, version, mode, {"set_as_default": True}) for mode in MODES)
    ],
    ids=spelled,
)
def test_a_run_in_each_mode_leaves_nothing_behind(name: str, version: Version) -> None:
    host = Host(FILES[name], version)
    before = contents(host)
    results = [
        (host.present(config_mode=mode, set_as_default=True), contents(host))
        for mode in ("drop_in", "in_place", "drop_in", "in_place")
    ]
    assert results[0][1] == results[2][1]
    assert results[1][1] == results[3][1]
    assert DROP_IN not in results[1][1]
    # What was there already is not ours, whoever wrote it.
    if host.files.records:
        host.absent()
    assert contents(host) == before


@pytest.mark.parametrize("name", ["missing", "Debian", "kubeadm", "EKS", "AKS", "vendor", "dotted", "Windows", "tabs"])
def test_an_upgrade_and_a_downgrade_leave_nothing_behind(name: str) -> None:
    host = Host(FILES[name], (1, 7, 24))
    before = contents(host)
    host.present(set_as_default=True)
    old = contents(host)
    host.version = (2, 1, 9)
    host.present(set_as_default=True)
    assert DROP_IN in contents(host)
    assert "nvidia-container-runtime" in host.drop_in() or name == "vendor"
    host.version = (1, 7, 24)
    host.present(set_as_default=True)
    assert contents(host) == old
    host.absent()
    assert contents(host) == before
    assert MAIN in before or MAIN not in contents(host)
