# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# What a runtime's table holds, whatever file it goes into; where it goes is in test__containerd_modes.py.

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_configs import (
    AKS,
    MAIN,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import (
    CRI_2,
    NVIDIA,
    OPTIONS,
    RUNTIME,
    Host,
    default,
    runtime,
)

V2 = "version = 2\n"
CRI = "plugins.io.containerd.grpc.v1.cri."
V16, V17, V20, V21, V24 = (1, 6, 20), (1, 7, 24), (2, 0, 0), (2, 1, 9), (2, 4, 0)
RUNC_TYPE = "io.containerd.runc.v2"
RUNC = runtime("runc", SystemdCgroup="true")
KATA = runtime("kata", kind="io.containerd.kata.v2", ConfigPath='"/k.toml"')


def nvidia_of(host: Host, name: str = "nvidia") -> t.Any:
    return host.runtimes[name]


# -- inheritance -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, V17, V21])
@pytest.mark.parametrize("mode", ["in_place", "drop_in"])
@pytest.mark.parametrize(
    ("text", "inherited"),
    [
        ("", {}),
        (RUNC, {"SystemdCgroup": True}),
        (runtime("runc", "/usr/bin/runc", SystemdCgroup="true"), {"SystemdCgroup": True}),
        (runtime("runc", Runtime='"/x/runc"', Root='"/r"'), {"Root": "/r"}),
        (runtime("runc", runtime='"/x/runc"', Root='"/r"'), {"Root": "/r"}),
        # The names of options mean the same in any case, and kubespray writes them so.
        (runtime("runc", binaryName='"/usr/local/bin/runc"', systemdCgroup="true"), {"systemdCgroup": True}),
        (runtime("crun", "/usr/bin/crun", Root='"/r"') + RUNC + default("crun"), {"Root": "/r"}),
        (runtime("crun", "/usr/bin/crun", Root='"/r"') + default("crun"), {"Root": "/r"}),
        (runtime("crun", Root='"/r"') + runtime("runc"), {}),
        (runtime("crun", Root='"/r"'), {"Root": "/r"}),
        (RUNC + KATA + default("kata"), {"SystemdCgroup": True}),
        (KATA + default("kata"), {}),
        (RUNC + runtime("gpu", NVIDIA, Debug="true") + default("gpu"), {"SystemdCgroup": True}),
        (RUNC + runtime("nvidia-old", "/x", Debug="true") + default("nvidia-old"), {"SystemdCgroup": True}),
        (runtime("gpu", binaryName=f'"{NVIDIA}"', Debug="true") + default("gpu"), {}),
    ],
)
def test_inherits_from_the_low_level_runtime_in_use(
    text: str, inherited: dict[str, t.Any], mode: str, version: tuple[int, ...] | None
) -> None:
    host = Host(V2 + text, version)
    host.present(config_mode=mode)
    assert nvidia_of(host) == {"runtime_type": RUNC_TYPE, "options": {**inherited, "BinaryName": NVIDIA}}


def test_inherits_the_whole_table() -> None:
    more = 'pod_annotations = ["a/*"]\nprivileged_without_host_devices = true\nbase_runtime_spec = "/b.json"\n'
    host = Host(V2 + RUNTIME.format("runc") + more + 'runtime_type = "io.containerd.runc.v1"\n', V17)
    host.present(extra_modes=("cdi",))
    for name in ("nvidia", "nvidia-cdi"):
        entry = nvidia_of(host, name)
        assert entry.pop("options") == {"BinaryName": NVIDIA if name == "nvidia" else NVIDIA + ".cdi"}
        assert entry == {
            "pod_annotations": ["a/*"],
            "privileged_without_host_devices": True,
            "base_runtime_spec": "/b.json",
            "runtime_type": "io.containerd.runc.v1",
        }


def test_inherits_from_the_legacy_default() -> None:
    table = '[plugins.cri.containerd.default_runtime]\nruntime_type = "io.containerd.runc.v1"\n'
    host = Host(table + '[plugins.cri.containerd.default_runtime.options]\nRoot = "/r"\nBinaryName = "/x"\n', V17)
    host.present()
    assert nvidia_of(host) == {"runtime_type": "io.containerd.runc.v1", "options": {"Root": "/r", "BinaryName": NVIDIA}}


@pytest.mark.parametrize(("mode", "version"), [("in_place", V17), ("drop_in", V17), ("drop_in", V21)])
def test_follows_its_parent_on_later_runs(mode: str, version: tuple[int, ...]) -> None:
    host = Host(V2 + RUNC + 'ShimCgroup = "a"\n', version)
    host.present(config_mode=mode, set_as_default=True)
    host.edit("SystemdCgroup = true", "SystemdCgroup = false\nNoPivotRoot = true")
    host.edit('ShimCgroup = "a"\n', "")
    host.present(config_mode=mode)
    assert nvidia_of(host)["options"] == {"SystemdCgroup": False, "NoPivotRoot": True, "BinaryName": NVIDIA}
    host.absent()
    assert host.text() == V2 + runtime("runc", SystemdCgroup="false", NoPivotRoot="true")


def test_what_others_wrote_into_our_table_survives() -> None:
    host = Host(V2 + RUNC, V17)
    host.present()
    # One key of ours changed, one key added.
    ours = host.text().index("runtimes.nvidia.options]")
    head, tail = host.text()[:ours], host.text()[ours:]
    host.files.put(MAIN, head + tail.replace("SystemdCgroup = true", 'SystemdCgroup = false\nRoot = "/theirs"'))
    host.present(enable_cdi=True)
    assert nvidia_of(host)["options"] == {"SystemdCgroup": False, "Root": "/theirs", "BinaryName": NVIDIA}


def test_an_option_that_stands_there_in_another_case_is_not_written_twice() -> None:
    theirs = runtime("nvidia", binaryName='"/x"', SystemdCgroup="false")
    host = Host(V2 + runtime("runc", systemdCgroup="true") + theirs, V17)
    host.present()
    assert nvidia_of(host)["options"] == {"binaryName": NVIDIA, "SystemdCgroup": False}
    host.present(runtime_options={"options": {"systemdcgroup": True}})
    assert nvidia_of(host)["options"] == {"binaryName": NVIDIA, "SystemdCgroup": True}
    host = Host(V2 + RUNC, V17)
    host.present(runtime_options={"options": {"systemdCgroup": False}})
    assert nvidia_of(host)["options"] == {"systemdCgroup": False, "BinaryName": NVIDIA}


# -- runc beside it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, V16, V17, V20, V21, V24])
@pytest.mark.parametrize("mode", ["in_place", "drop_in"])
@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (V2, True),
        (V2 + runtime("nvidia", NVIDIA), True),
        (V2 + runtime("gpu", binaryName=f'"{NVIDIA}"') + default("gpu"), True),
        # Lost already, but the default.
        (V2 + KATA, True),
        # Lost already, and nobody's default.
        (V2 + KATA + default("kata"), False),
    ],
)
def test_runc_stands_beside_nvidia_where_its_builtin_entry_would_be_lost(
    text: str, lost: bool, mode: str, version: tuple[int, ...] | None
) -> None:
    host = Host(text, version)
    host.present(config_mode=mode)
    merges = version is not None and version >= (2, 0)
    assert host.runtimes.get("runc") == ({"runtime_type": RUNC_TYPE} if lost and not merges else None)


def test_an_existing_runc_is_left_alone() -> None:
    host = Host(V2 + OPTIONS.format("runc") + "SystemdCgroup = true\n", V17)
    host.present()
    assert host.runtimes["runc"] == {"options": {"SystemdCgroup": True}}


def test_our_runc_stays_if_others_need_it_after_removal() -> None:
    host = Host(V2, V17)
    host.present(set_as_default=True)
    host.add(KATA)
    plan = host.absent()
    assert host.runtimes == {
        "runc": {"runtime_type": RUNC_TYPE},
        "kata": {"runtime_type": "io.containerd.kata.v2", "options": {"ConfigPath": "/k.toml"}},
    }
    assert "runtimes.runc stays" in plan.warnings[0]
    assert host.default is None


def test_our_runc_goes_where_another_is_the_default_or_tables_merge() -> None:
    for version, text in ((V17, KATA + default("kata")), (V21, KATA)):
        host = Host(V2, version)
        host.present(config_mode="in_place")
        host.add(text)
        host.absent()
        assert list(host.runtimes) == ["kata"]
    host = Host(V2, V17)
    host.present()
    host.add(KATA)
    host.version = V21
    host.absent()
    assert list(host.runtimes) == ["kata"]


def test_our_runc_keeps_its_type_under_what_others_wrote_into_it() -> None:
    host = Host(V2, V17)
    host.present()
    host.add(OPTIONS.format("runc") + "SystemdCgroup = true\n")
    assert host.present().warnings == ()
    assert host.runtimes["runc"] == {"runtime_type": RUNC_TYPE, "options": {"SystemdCgroup": True}}
    assert nvidia_of(host)["options"]["SystemdCgroup"] is True
    host.absent()
    # Without a type every pod would fail.
    assert host.runtimes == {"runc": {"runtime_type": RUNC_TYPE, "options": {"SystemdCgroup": True}}}


# -- what else is asked for ------------------------------------------------------------------------------------------


def test_modes_come_and_go() -> None:
    host = Host(V2 + RUNC, V17)
    host.present(extra_modes=("cdi", "legacy"))
    assert list(host.runtimes) == ["runc", "nvidia", "nvidia-cdi", "nvidia-legacy"]
    plan = host.present(extra_modes=("legacy",))
    assert list(host.runtimes) == ["runc", "nvidia", "nvidia-legacy"]
    assert plan.state.paths() == {"nvidia": NVIDIA, "nvidia-legacy": NVIDIA + ".legacy"}
    assert plan.action is Action.RESTART
    host.present(runtime_name="gpu")
    assert list(host.runtimes) == ["runc", "gpu"]


def test_runtime_type_and_options() -> None:
    host = Host(V2 + RUNC, V17)
    options = {"privileged_without_host_devices": True, "options": {"SystemdCgroup": False, "Root": "/r"}}
    host.present(runtime_type="io.containerd.runc.v1", runtime_options=options)
    assert nvidia_of(host) == {
        "runtime_type": "io.containerd.runc.v1",
        "privileged_without_host_devices": True,
        "options": {"SystemdCgroup": False, "Root": "/r", "BinaryName": NVIDIA},
    }
    host.present()
    assert nvidia_of(host) == {"runtime_type": RUNC_TYPE, "options": {"SystemdCgroup": True, "BinaryName": NVIDIA}}


def test_options_that_are_asked_for_win_over_those_of_others() -> None:
    host = Host(V2 + runtime("nvidia", NVIDIA, Root='"/theirs"', Debug="true"), V17)
    before = host.text()
    host.present(runtime_options={"options": {"Root": "/ours"}})
    assert nvidia_of(host)["options"] == {"Root": "/ours", "Debug": True, "BinaryName": NVIDIA}
    host.present()
    assert nvidia_of(host)["options"]["Root"] == "/theirs"
    host.absent()
    assert host.text() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"runtime_type": "x"}, r"Remove runtime_type from runtime_options and set runtime_type"),
        ({"options": {"BinaryName": "/x"}}, r"Remove options.BinaryName from runtime_options and set runtime_dir"),
        ({"options": {"binaryName": "/x"}}, r"Remove options.binaryName from runtime_options and set runtime_dir"),
        ({"container_annotations": ["a"]}, r"Remove container_annotations from runtime_options"),
        ({"options": {"Root": None}}, r"runtime_options.options.Root has an unsupported type"),
        ({"list": [{"a": 1}]}, r"runtime_options.list has an unsupported type"),
        ({"list": [None]}, r"runtime_options.list has an unsupported type"),
    ],
)
def test_refuses_options_that_have_a_parameter_or_are_no_toml(options: dict[str, t.Any], words: str) -> None:
    with pytest.raises(NvidiaError, match=words):
        Host(V2).present(runtime_options=options)


@pytest.mark.parametrize(("mode", "version"), [("in_place", V17), ("drop_in", V17), ("drop_in", V21)])
def test_annotations_add_up(mode: str, version: tuple[int, ...]) -> None:
    text = V2 + RUNTIME.format("runc") + 'container_annotations = ["a/*", "b/*"]\n'
    text += RUNTIME.format("nvidia") + 'container_annotations = ["c/*"]\n'
    host = Host(text, version)
    for asked in (("b/*", "d/*"), ("d/*", "b/*")):
        host.present(config_mode=mode, container_annotations=asked)
        assert nvidia_of(host)["container_annotations"] == ["a/*", "b/*", "c/*", "d/*"]
    host.present(config_mode=mode, container_annotations=("e/*",))
    assert nvidia_of(host)["container_annotations"] == ["a/*", "b/*", "c/*", "e/*"]
    host.present(config_mode=mode)
    assert nvidia_of(host)["container_annotations"] == ["c/*"]
    host.absent()
    assert host.text() == text


def test_a_program_that_is_spelled_differently_is_left_so() -> None:
    text = V2 + RUNC + runtime("nvidia", "nvidia-container-runtime", SystemdCgroup="true")
    host = Host(text, V17)
    host.same_program = lambda one, other: one.rpartition("/")[2] == other.rpartition("/")[2]
    assert not any(file.changed for file in host.present().files)
    host.same_program = lambda one, other: one == other
    host.present()
    assert nvidia_of(host)["options"]["BinaryName"] == NVIDIA
    host.absent()
    assert host.text() == text


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('version = "2"\n', "line 1, column 1: version is not a number"),
        ("version = true\n", "line 1, column 1: version is not a number"),
        ("version = 5\n", "line 1, column 1: unsupported configuration version 5"),
        (V2 + "plugins = 1\n", "line 2, column 1: plugins is no"),
        (V2 + 'imports = "x"\n', "line 2, column 1: imports is not an array"),
        (V2 + "imports = [1]\n", "line 2, column 1: imports contains an entry that is not"),
        (V2 + "disabled_plugins = 1\n", "line 2, column 1: disabled_plugins is not an array"),
        (V2 + CRI_2 + "enable_cdi = 'yes'\n", f"line 3, column 1: {CRI}enable_cdi is not true or false"),
        (V2 + CRI_2 + "containerd = 1\n", f"line 3, column 1: {CRI}containerd is not a table"),
        (V2 + CRI_2 + "containerd.runtimes = []\n", f"line 3, column 1: {CRI}containerd.runtimes is not a table"),
        (V2 + CRI_2 + "containerd.runtimes.x = 1\n", f"line 3, column 1: {CRI}containerd.runtimes.x is not a table"),
        (V2 + CRI_2 + "containerd.default_runtime_name = 1\n", f"line 3, column 1: {CRI}containerd.default_runtime_"),
        (V2 + OPTIONS.format("nvidia") + "BinaryName = 5\n", f"line 3, column 1: {CRI}containerd.runtimes.nvidia.opt"),
        (V2 + "[a]\nb = = 1\n", "line 3, column "),
    ],
)
def test_refuses_what_containerd_would_choke_on(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Host(text, V17).present(enable_cdi=True)
    assert f"{MAIN}, {words}" in str(caught.value)


# -- removal without a record ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, V17, V21])
def test_absent_without_a_record_takes_only_nvidias_programs(version: tuple[int, ...] | None) -> None:
    theirs = runtime("nvidia-like", "/opt/theirs") + runtime("lower", binaryName='"/x/nvidia-container-runtime.cdi"')
    host = Host(AKS + runtime("nvidia", NVIDIA) + runtime("gpu", "nvidia-container-runtime.legacy") + theirs, version)
    host.edit('name = "runc"', 'name = "gpu"')
    plan = host.absent()
    assert list(host.runtimes) == ["runc", "untrusted", "nvidia-like"]
    assert host.default is None
    assert "The default runtime is now runc" in plan.warnings[0]
    # With a record it is known what was not ours: here the whole main file.
    text = AKS.replace("version = 2", 'version = 2\nimports = ["conf.d/*.toml"]') + runtime("gpu", NVIDIA)
    recorded = Host(text, V21)
    recorded.present()
    recorded.absent()
    assert recorded.text() == text
    untouched = Host(AKS, version)
    untouched.absent()
    assert untouched.text() == AKS


def test_a_runtime_that_is_replaced_by_one_of_the_file_leaves_no_blank_line() -> None:
    tables = runtime("gpu", NVIDIA).replace("\n[", "\n\n[") + runtime("runc") + "\n" + OPTIONS.format("runc")
    text = V2 + tables + CRI_2 + 'sandbox_image = "p"\n'
    host = Host(text)
    host.present()
    assert "nvidia" in host.runtimes
    host.present(runtime_name="gpu")
    assert host.text() == text
    assert not host.files.records
