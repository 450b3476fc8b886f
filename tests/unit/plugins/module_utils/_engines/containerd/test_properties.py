# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Rules for every configuration of containerd, every version of it and every series of requests: first for real files,
# then for generated ones.

from __future__ import annotations

import itertools
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
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
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_strategies import (
    REQUESTS,
    Asked,
    ask,
    configurations,
    host_of,
    starts,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import Host

# -- real files --------------------------------------------------------------------------------------------------------

ASKED: dict[str, dict[str, t.Any]] = {
    "plain": {},
    "all": {
        "set_as_default": True,
        "enable_cdi": True,
        "extra_modes": ("cdi",),
        "runtime_dir": "/usr/local/nvidia/toolkit",
        "container_annotations": ("cdi.k8s.io/*",),
    },
}
# Keys whose lines a request may replace: its own entries, and the array of imports.
OWN_KEYS = ("default_runtime_name", "enable_cdi", "imports", "BinaryName", "container_annotations", "{ runc")
# Each file with each version, each time with another mode and another request. The printed defaults of containerd are
# long: one mode and one request are enough for those.
MIXES = list(itertools.product(MODES, ASKED))
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
def test_present_and_absent(name: str, version: Version, mode: str, asked: str) -> None:
    host = Host(FILES[name], version)
    request = {"config_mode": mode, **ASKED[asked]}
    before = contents(host)
    refusal = expected_refusal(name, version, mode, ASKED[asked])
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
        kept = [
            line for line in content.decode().splitlines() if line.strip() and not any(key in line for key in OWN_KEYS)
        ]
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
    # If containerd does not merge tables, other runtimes in a file hide the built-in runc.
    assert files.merges or "runc" in runtimes
    if request.enable_cdi:
        by_default = host.version is not None and host.version >= (2,)
        optional = host.version is None or host.version >= (1, 7)
        assert not optional or files.cri().get("enable_cdi", by_default)


@pytest.mark.parametrize("version", VERSIONS, ids=spelled)
@pytest.mark.parametrize("mode", MODES)
def test_disabled_cri_of_docker_packages(version: Version, mode: str) -> None:
    host = Host(of_file("docker"), version)
    before = contents(host)
    plan = host.present(config_mode=mode)
    assert plan.files == ()
    assert plan.action is Action.NONE
    assert not plan.state.lists_runtimes
    assert "disabled_plugins disables containerd's CRI" in plan.warnings[0]
    with pytest.raises(NvidiaError, match=r"config.toml: disabled_plugins .* Remove cri from disabled_plugins"):
        host.present(config_mode=mode, cri_disabled="fail")
    ignored = host.present(config_mode=mode, cri_disabled="ignore")
    assert (ignored.files, ignored.warnings) == ((), ())
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
def test_changes_of_mode_are_reversible(name: str, version: Version) -> None:
    host = Host(FILES[name], version)
    before = contents(host)
    results = [
        (host.present(config_mode=mode, set_as_default=True), contents(host))
        for mode in ("drop_in", "in_place", "drop_in", "in_place")
    ]
    assert results[0][1] == results[2][1]
    assert results[1][1] == results[3][1]
    assert DROP_IN not in results[1][1]
    # Entries that existed before are foreign.
    if host.files.records:
        host.absent()
    assert contents(host) == before


@pytest.mark.parametrize("name", ["missing", "Debian", "kubeadm", "EKS", "AKS", "vendor", "dotted", "Windows", "tabs"])
def test_upgrade_and_downgrade_are_reversible(name: str) -> None:
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


# -- generated files ---------------------------------------------------------------------------------------------------


OWN_NAMES = ("nvidia", "gpu", "nvidia-cdi", "nvidia-legacy")
ENGINE_VERSIONS = st.sampled_from(
    [None, (1, 6, 20), (1, 7, 24), (2, 0, 0), (2, 0, 11), (2, 1, 9), (2, 3, 4), (2, 4, 0)]
)


@given(configurations(), ENGINE_VERSIONS, REQUESTS)
def test_property_idempotent(files: dict[str, bytes | None], version: t.Any, asked: Asked) -> None:
    host = Host(files, version)
    if ask(host, **asked):
        once = dict(host.files.content)
        runtimes, before = host.runtimes, Host(files, version).runtimes
        for name, program in RuntimeRequest(**asked).runtimes().items():
            options = runtimes[name]["options"]
            assert options["BinaryName"] == program
            # A spelling that this release ignores is there only if the file had it.
            ignored = {key for key in options if key.lower() == "binaryname"} - {"BinaryName"}
            assert ignored <= set(before.get(name, {}).get("options", {}))
        assert not asked.get("set_as_default") or host.default == RuntimeRequest(**asked).runtime_name
        assert ask(host, **asked)
        assert host.files.content == once


@given(configurations(), st.lists(st.tuples(ENGINE_VERSIONS, REQUESTS), min_size=1, max_size=4))
def test_property_absent_restores_every_byte(files: dict[str, bytes | None], calls: list[t.Any]) -> None:
    host = host_of(files, calls[0][0])
    original = dict(host.files.content)
    for version, asked in calls:
        host.version = version
        ask(host, **asked)
    if host.files.records:
        host.absent()
    assert host.files.content == original
    assert not host.files.records


@given(configurations(), ENGINE_VERSIONS, st.lists(REQUESTS, min_size=1, max_size=3), st.integers(0, 2))
def test_property_foreign_content_is_unchanged(
    files: dict[str, bytes | None], version: t.Any, calls: list[Asked], moment: int
) -> None:
    host = host_of(files, version)
    names = {*OWN_NAMES, "runc"}
    entries = {name: entry for name, entry in host.runtimes.items() if name in names}
    for number, asked in enumerate(calls):
        if number == moment and MAIN in host.files.content:
            host.files.put(MAIN, host.files.content[MAIN].rstrip(b"\r\n") + b"\n[site]\nx = 1 # since\n")
        rest = host.everything_else(names)
        if ask(host, **asked):
            assert host.everything_else(names) == rest
            assert starts(host)
            # An existing runtime keeps its type and its options.
            for name, entry in entries.items():
                assert host.runtimes[name].get("runtime_type") == entry["runtime_type"]
                assert set(entry.get("options", {})) <= set(host.runtimes[name].get("options", {}))
    rest = host.everything_else(names)
    if host.files.records:
        host.absent()
    assert host.everything_else(names) == rest
    assert starts(host)
    assert DROP_IN not in host.files.content
    runtimes = host.runtimes
    assert {name: runtimes.get(name) for name in entries} == entries
    kept = ("runc",) if not host.effect.merges else ()
    assert not [name for name in runtimes if name in names and name not in entries and name not in kept]
