# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Rules for every configuration of CRI-O: first for real files, then for generated ones.

from __future__ import annotations

import typing as t

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.crio_strategies import CONTENTS, REQUESTS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_crio import (
    ASKED,
    BUNDLED,
    DROP_IN,
    FOLDER,
    HOSTS,
    MAIN,
    NVIDIA,
    OLD,
    PACKAGED,
    STOCK,
    Host,
    accepts,
    default,
)

# -- real files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("content", HOSTS.values(), ids=HOSTS)
def test_present_and_absent_on_real_files(content: dict[str, str], asked: dict[str, t.Any]) -> None:
    host = Host(content)
    before = dict(host.files.content)
    default_in_drop_in = any("default_runtime =" in text for path, text in content.items() if path != MAIN)
    if asked.get("config_mode") and asked.get("set_as_default") and default_in_drop_in:
        with pytest.raises(ConfigurationError, match="CRI-O reads this default_runtime"):
            host.present(**asked)
        asked = {**asked, "set_as_default": None}
    plan = host.present(**asked)
    assert plan.action is Action.RESTART
    request = RuntimeRequest(**asked)
    paths = plan.state.paths()
    assert {name: paths.get(name) for name in request.runtimes()} == request.runtimes()
    target = MAIN if asked.get("config_mode") else asked.get("drop_in_path", DROP_IN)
    assert [file.path for file in plan.files if file.changed] == [target]
    assert (plan.drop_in_path, plan.config_version) == (None if target == MAIN else target, None)
    for path, text in content.items():
        if path != target:
            assert host.text(path) == text
        left = iter(host.text(path).split("\n"))
        assert all(line in left for line in text.split("\n") if line.strip() and "default_runtime" not in line)

    after = dict(host.files.content)
    again = host.present(**asked)
    assert host.files.content == after
    assert again.action is Action.NONE
    assert again.state == plan.state

    assert host.absent().action is Action.RESTART
    assert host.files.content == before
    assert host.files.records == {}
    assert host.absent().action is Action.NONE


# What packages of CRI-O 1.31 to 1.37 leave on a host: 10-crio.conf is the same for all of them
# (templates/latest/cri-o/bundle of cri-o/packaging), and so are crun as the built-in default and /run/crun as the root
# of a runtime without one (pkg/config/config.go and config_linux.go of 1.31.0 to 1.36.0 and of release-1.37).
OF_BUNDLE = {"monitor_path": "/usr/libexec/crio/conmon"}
OF_CRUN = {**OF_BUNDLE, "allowed_annotations": ["io.containers.trace-syscall", "io.kubernetes.cri-o.Devices"]}
OF_OLD = {"default_annotations": {"example.com/zone": "a"}}
RELEASES: dict[str, tuple[dict[str, str], str, dict[str, t.Any]]] = {
    "package": ({PACKAGED: BUNDLED}, "crun", OF_CRUN),
    "package and crio.conf": ({MAIN: STOCK, PACKAGED: BUNDLED}, "crun", OF_CRUN),
    "runc as the default": ({PACKAGED: BUNDLED, f"{FOLDER}/20-runc.conf": default("runc")}, "runc", OF_BUNDLE),
    "file of an older release": ({MAIN: OLD}, "runc", OF_OLD),
    "both": ({MAIN: OLD, PACKAGED: BUNDLED}, "crun", OF_CRUN),
    "nothing": ({}, "crun", {}),
}


@pytest.mark.parametrize("minor", range(31, 38))
@pytest.mark.parametrize(("content", "default_runtime", "inherited"), RELEASES.values(), ids=RELEASES)
def test_releases(content: dict[str, str], default_runtime: str, inherited: dict[str, t.Any], minor: int) -> None:
    host = Host(content, version=(1, minor, 0))
    before = dict(host.files.content)
    plan = host.present()
    assert plan.state.default_runtime == default_runtime
    assert host.runtime() == {"runtime_path": NVIDIA, "runtime_type": "oci", **inherited}
    assert host.present(set_as_default=True).state.default_runtime == "nvidia"
    host.absent()
    assert host.files.content == before


# -- generated files ---------------------------------------------------------------------------------------------------


@given(CONTENTS, st.lists(REQUESTS, min_size=1, max_size=3))
def test_property_idempotent_and_reversible(content: dict[str, str], calls: list[dict[str, t.Any]]) -> None:
    host = Host(content)
    before = dict(host.files.content)
    accepted = [asked for asked in calls if accepts(host, asked)]
    assume(accepted)
    after = dict(host.files.content)
    assert host.present(**accepted[-1]).action is Action.NONE
    assert host.files.content == after
    host.absent()
    assert host.files.content == before
    assert host.files.records == {}


def foreign(host: Host, names: t.Collection[str]) -> dict[str, t.Any]:
    """Return the merged configuration without the runtimes ``names`` and without the default."""
    merged: dict[str, t.Any] = {}
    order = [MAIN, *host.files.walk(FOLDER)]
    for path in order:
        found = dict(host.data(path))
        crio = dict(found.get("crio", {}))
        runtime = dict(crio.get("runtime", {}))
        merged.setdefault("runtimes", {}).update(runtime.pop("runtimes", {}))
        runtime.pop("default_runtime", None)
        merged[path] = {**found, "crio": {**crio, "runtime": runtime}}
        if merged[path] == {"crio": {"runtime": {}}}:
            del merged[path]
    merged["runtimes"] = {name: entry for name, entry in merged.get("runtimes", {}).items() if name not in names}
    return merged


@given(CONTENTS, REQUESTS, REQUESTS)
def test_property_foreign_content_is_unchanged(
    content: dict[str, str], first: dict[str, t.Any], second: dict[str, t.Any]
) -> None:
    host = Host(content)
    names = {"nvidia", "gpu", "nvidia-cdi", "nvidia-legacy"}
    before = foreign(host, names)
    assume(any([accepts(host, first), accepts(host, second)]))
    assert foreign(host, names) == before
    host.files.put(PACKAGED, host.files.content.get(PACKAGED, b"") + b"\n[added.since]\nx = 1\n")
    added = foreign(host, names)
    host.absent()
    assert foreign(host, names) == added


@given(CONTENTS, REQUESTS)
def test_property_crio_would_start(content: dict[str, str], asked: dict[str, t.Any]) -> None:
    host = Host(content)
    assume(accepts(host, asked))
    request = RuntimeRequest(**asked)
    plan = host.planner().present(request)
    runtimes = {**dict.fromkeys(("crun", "runc")), **plan.state.paths(), **plan.state.runtimes}
    assert plan.state.default_runtime in runtimes
    assert {name: plan.state.paths()[name] for name in request.runtimes()} == request.runtimes()
    if request.set_as_default:
        assert plan.state.default_runtime == request.runtime_name
