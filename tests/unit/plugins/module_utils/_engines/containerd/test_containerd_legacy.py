# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The default runtime as a table of its own (use_legacy_config), and the ways in and out of it.

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import (
    Action,
    ConfiguredState,
    LiveState,
    RuntimeRequest,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.engine import CONTAINERD
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_configs import AKS, MAIN, VERSION_3
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import (
    CRI_2,
    NVIDIA,
    Host,
    default,
    runtime,
)

V16, V17, V20 = (1, 6, 20), (1, 7, 24), (2, 0, 0)
RUNC_TYPE = "io.containerd.runc.v2"
V1_FILE = """\
# The old format
[plugins.cri]
  sandbox_image = "pause:3.1" # ours
  [plugins.cri.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v1"
    [plugins.cri.containerd.runtimes.runc.options]
      SystemdCgroup = true
      Runtime = "/usr/sbin/runc"
"""
V2_FILE = "version = 2\n" + runtime("runc", SystemdCgroup="true") + default("runc")
FOREIGN = (
    CRI_2.replace("]", ".containerd.default_runtime]") + 'runtime_type = "io.containerd.runc.v1"\nruntime_root = "/r"\n'
)
FOREIGN_OPTIONS = CRI_2.replace("]", ".containerd.default_runtime.options]") + 'binaryName = "/usr/sbin/runc"\n'


def legacy(host: Host, **asked: t.Any) -> t.Any:
    return host.present(use_legacy_config=True, **asked)


@pytest.mark.parametrize("version", [None, V16, V17])
@pytest.mark.parametrize("text", [V1_FILE, V2_FILE, "version = 2\n", AKS], ids=["1", "2", "bare", "AKS"])
def test_the_default_is_a_copy_of_the_runtime_and_goes_without_a_trace(
    text: str, version: tuple[int, ...] | None
) -> None:
    host = Host(text, version)
    before = host.effect
    plan = legacy(host, set_as_default=True)
    table = host.effect.legacy_default()
    assert table is not None
    assert table == host.runtimes["nvidia"]
    assert table["options"]["BinaryName"] == NVIDIA
    assert host.default == before.default_runtime()
    assert plan.state.default_runtime == "nvidia"
    assert plan.state.runtimes["default"]["path"] == NVIDIA
    assert any("use_legacy_config is deprecated" in warning for warning in plan.warnings)
    assert "default_runtime_name and options.BinaryName" in " ".join(plan.warnings)

    assert not any(file.changed for file in legacy(host, set_as_default=True).files)
    host.absent()
    assert host.text() == text


def test_the_oldest_files_name_the_program_twice() -> None:
    host = Host(V1_FILE, V17)
    legacy(host, set_as_default=True, extra_modes=("cdi",))
    assert host.runtimes["nvidia"]["options"] == {"SystemdCgroup": True, "BinaryName": NVIDIA, "Runtime": NVIDIA}
    assert host.runtimes["nvidia-cdi"]["options"]["Runtime"] == NVIDIA + ".cdi"
    assert host.effect.legacy_default() == {
        "runtime_type": "io.containerd.runc.v1",
        "options": {"SystemdCgroup": True, "BinaryName": NVIDIA, "Runtime": NVIDIA},
    }
    host.present(set_as_default=True, extra_modes=("cdi",))
    assert "Runtime" not in host.runtimes["nvidia"]["options"]


def test_newer_files_name_it_once() -> None:
    host = Host(V2_FILE, V17)
    legacy(host, set_as_default=True)
    assert "Runtime" not in host.runtimes["nvidia"]["options"]


@pytest.mark.parametrize("asked", [None, False])
def test_no_table_without_a_default(asked: bool | None) -> None:
    host = Host(V2_FILE, V17)
    plan = legacy(host, set_as_default=asked)
    assert host.effect.legacy_default() is None
    assert plan.state.default_runtime == "runc"
    assert len(plan.warnings) == 1


@pytest.mark.parametrize("text", [V1_FILE, V2_FILE])
def test_both_ways_lead_to_and_fro(text: str) -> None:
    host = Host(text, V17)
    host.present(set_as_default=True)
    named = host.text()
    legacy(host, set_as_default=True)
    tabled = host.text()
    assert host.effect.legacy_default() is not None
    assert host.default != "nvidia"
    host.present(set_as_default=True)
    assert host.text() == named
    legacy(host, set_as_default=True)
    assert host.text() == tabled
    legacy(host, set_as_default=False)
    assert host.effect.legacy_default() is None
    host.absent()
    assert host.text() == text


def test_a_run_that_says_nothing_keeps_the_default_in_the_way_that_it_asks_for() -> None:
    host = Host(V2_FILE, V17)
    legacy(host, set_as_default=True)
    assert not any(file.changed for file in legacy(host).files)
    assert host.effect.legacy_default() is not None
    host.present()
    assert (host.effect.legacy_default(), host.default) == (None, "nvidia")
    legacy(host)
    assert host.effect.legacy_default() is not None
    assert host.default == "runc"
    host.absent()
    assert host.text() == V2_FILE


@pytest.mark.parametrize("first", ["drop_in", "in_place"])
def test_a_copy_of_the_default_s_name_is_not_what_was_asked_for(first: str) -> None:
    host = Host(V2_FILE, V17)
    legacy(host, set_as_default=True, config_mode=first)
    assert legacy(host, config_mode="drop_in").state.default_runtime == "nvidia"
    again = legacy(host, config_mode="drop_in")
    assert again.state.default_runtime == "nvidia"
    assert not any(file.changed for file in again.files)
    assert host.effect.legacy_default() is not None
    # Without the table the name is ours.
    assert host.present(config_mode="drop_in").state.default_runtime == "nvidia"
    assert (host.effect.legacy_default(), host.default) == (None, "nvidia")
    host.absent()
    assert host.text() == V2_FILE


def test_follows_the_runtime_on_later_runs() -> None:
    host = Host(V2_FILE, V17)
    legacy(host, set_as_default=True)
    legacy(host, set_as_default=True, runtime_dir="/opt/bin", runtime_options={"options": {"Root": "/r"}})
    table = host.effect.legacy_default()
    assert table is not None
    assert table["options"] == {
        "SystemdCgroup": True, "Root": "/r", "BinaryName": "/opt/bin/nvidia-container-runtime",
    }  # fmt: skip
    legacy(host, set_as_default=True, runtime_dir="/opt/bin")
    assert "Root" not in (host.effect.legacy_default() or {})["options"]


@pytest.mark.parametrize(
    ("text", "version", "words"),
    [
        (
            V2_FILE,
            V20,
            r"config.toml: use_legacy_config requires containerd 1.x. containerd 2.0.0 with a file in configuration",
        ),
        (VERSION_3, None, r"containerd with a file in configuration version 3 ignores the table default_runtime"),
        ("", V20, r"containerd 2.0.0 with a file in configuration version 3"),
    ],
)
def test_refused_where_it_does_not_exist(text: str, version: tuple[int, ...] | None, words: str) -> None:
    with pytest.raises(NvidiaError, match=words):
        Host(text, version).plan(use_legacy_config=True, set_as_default=True)


def test_a_table_of_others_is_taken_over_and_given_back() -> None:
    text = V2_FILE + FOREIGN + FOREIGN_OPTIONS
    host = Host(text, V17)
    with pytest.raises(NvidiaError, match=r"the table default_runtime has precedence over"):
        host.plan(set_as_default=True)
    legacy(host, set_as_default=True)
    # Options are spelled as they are there, and others' entries stay.
    assert host.effect.legacy_default() == {
        "runtime_type": "io.containerd.runc.v1",
        "runtime_root": "/r",
        "options": {"binaryName": NVIDIA},
    }
    assert not any(file.changed for file in legacy(host).files)
    host.absent()
    assert host.text() == text


def test_what_others_wrote_since_stays() -> None:
    host = Host(V2_FILE, V17)
    legacy(host, set_as_default=True)
    host.edit("default_runtime]\n", 'default_runtime]\nruntime_root = "/theirs"\n')
    host.absent()
    assert host.effect.cri()["containerd"]["default_runtime"] == {"runtime_root": "/theirs"}
    assert "nvidia" not in host.text()


def test_without_a_record_the_table_goes_with_the_runtimes() -> None:
    table = FOREIGN + FOREIGN_OPTIONS.replace("/usr/sbin/runc", NVIDIA)
    host = Host(V2_FILE + runtime("nvidia", NVIDIA) + table, V17)
    host.absent()
    assert "nvidia" not in host.text()
    assert host.effect.legacy_default() is None
    # One that runs something else is none of ours.
    host = Host(V2_FILE + FOREIGN + FOREIGN_OPTIONS, V17)
    assert not any(file.changed for file in host.absent().files)


def test_the_state_tells_of_a_table_of_nvidia_s_only() -> None:
    host = Host(V2_FILE + FOREIGN + FOREIGN_OPTIONS, V17)
    assert "default" not in CONTAINERD.configured(host.context()).runtimes
    host = Host(V2_FILE + FOREIGN + FOREIGN_OPTIONS.replace("/usr/sbin/runc", NVIDIA), V17)
    state = CONTAINERD.configured(host.context())
    assert (state.default_runtime, state.paths()["default"]) == ("default", NVIDIA)


def _live(state: ConfiguredState, default_runtime: str) -> LiveState:
    paths = {name: entry.get("path") or "" for name, entry in state.runtimes.items()}
    told = {name: {**entry, "path": None} for name, entry in state.runtimes.items()}
    return LiveState("", paths, default_runtime, entries=told)


def test_a_daemon_catches_up_in_both_directions() -> None:
    host = Host(V2_FILE, V17)
    named = host.present(set_as_default=True).state
    tabled = legacy(host, set_as_default=True).state
    assert CONTAINERD.required_action(_live(named, "nvidia"), named) is Action.NONE
    # containerd itself calls the table's runtime default.
    assert CONTAINERD.required_action(_live(tabled, "default"), tabled) is Action.NONE
    assert CONTAINERD.required_action(_live(tabled, "default"), named) is Action.RESTART
    assert CONTAINERD.required_action(_live(named, "nvidia"), tabled) is Action.RESTART


def test_the_validator_lets_the_table_change() -> None:
    host = Host(V2_FILE, V17)
    before = host.text()
    plan = legacy(host, set_as_default=True)
    after = host.text()
    assert CONTAINERD.compare_dumps(before, after, plan.files) == ""
    assert CONTAINERD.compare_dumps(before, after + "[debug]\nuid = 5\n", plan.files) != ""


def test_other_engines_have_no_place_for_it() -> None:
    with pytest.raises(NvidiaError, match="Unsupported options for docker: use_legacy_config"):
        RuntimeRequest(use_legacy_config=True).refuse_toml_settings("docker")


@pytest.mark.parametrize("mode", ["hook", "snapshot"])
def test_modes_of_other_engines_are_refused(mode: str) -> None:
    host = Host(V2_FILE, V17)
    with pytest.raises(NvidiaError, match=f"containerd does not support config_mode: {mode}"):
        host.plan(config_mode=mode)
    assert host.text(MAIN) == V2_FILE
