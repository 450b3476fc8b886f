# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The tables of runtimes, the default runtime, and CDI, in whichever file they are.

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action, ConfiguredState, LiveState
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.engine import CONTAINERD
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_configs import AKS, MAIN, VERSION_3, of_file
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import (
    CRI_2,
    NVIDIA,
    OPTIONS,
    RUNTIME,
    Host,
    default,
    runtime,
)

Version = t.Optional[t.Tuple[int, ...]]

V2 = "version = 2\n"
CRI = "plugins.io.containerd.grpc.v1.cri."
V16, V17, V20, V21, V24 = (1, 6, 20), (1, 7, 24), (2, 0, 0), (2, 1, 9), (2, 4, 0)
RUNC_TYPE, OLD_TYPE = "io.containerd.runc.v2", "io.containerd.runc.v1"
RUNC = runtime("runc", SystemdCgroup="true")
KATA = runtime("kata", kind="io.containerd.kata.v2", ConfigPath='"/k.toml"')
LEGACY = CRI_2.replace("]", ".containerd.default_runtime]") + f'runtime_type = "{OLD_TYPE}"\nruntime_root = "/r"\n'
LEGACY_OPTIONS = CRI_2.replace("]", ".containerd.default_runtime.options]") + 'binaryName = "/usr/sbin/runc"\n'
# auto is drop_in from 2.0 on, and in_place before.
BOTH_MODES = pytest.mark.parametrize("mode", ["in_place", "auto"])
BOTH_VERSIONS = pytest.mark.parametrize("version", [V17, V21])


# -- inheritance -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, V17, V21])
@BOTH_MODES
@pytest.mark.parametrize(
    ("text", "inherited"),
    [
        ("", {}),
        (RUNC, {"SystemdCgroup": True}),
        (runtime("runc", "/usr/bin/runc", SystemdCgroup="true"), {"SystemdCgroup": True}),
        (runtime("runc", Runtime='"/x/runc"', Root='"/r"'), {"Root": "/r"}),
        (runtime("runc", runtime='"/x/runc"', Root='"/r"'), {"Root": "/r"}),
        # containerd ignores the case of option names, and kubespray uses this spelling.
        (runtime("runc", binaryName='"/usr/local/bin/runc"', systemdCgroup="true"), {"SystemdCgroup": True}),
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
    text: str, inherited: dict[str, t.Any], mode: str, version: Version
) -> None:
    host = Host(V2 + text, version)
    host.present(config_mode=mode)
    assert host.runtimes["nvidia"] == {"runtime_type": RUNC_TYPE, "options": {**inherited, "BinaryName": NVIDIA}}


MORE = 'pod_annotations = ["a/*"]\nprivileged_without_host_devices = true\nbase_runtime_spec = "/b.json"\n'


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        # The whole table is inherited.
        (
            V2 + RUNTIME.format("runc") + MORE + f'runtime_type = "{OLD_TYPE}"\n',
            [
                (
                    {"runtime_name": "nvidia"},
                    {
                        "pod_annotations": ["a/*"],
                        "privileged_without_host_devices": True,
                        "base_runtime_spec": "/b.json",
                        "runtime_type": OLD_TYPE,
                        "options": {"BinaryName": NVIDIA},
                    },
                )
            ],
        ),
        # The table default_runtime is inherited too.
        (
            (LEGACY + LEGACY_OPTIONS + 'Root = "/r"\n').replace('"io.containerd.grpc.v1.cri"', "cri"),
            [({}, {"runtime_type": OLD_TYPE, "runtime_root": "/r", "options": {"Root": "/r", "BinaryName": NVIDIA}})],
        ),
        # runtime_type and runtime_options override inherited entries, and the next run restores them.
        (
            V2 + RUNC,
            [
                (
                    {
                        "runtime_type": OLD_TYPE,
                        "runtime_options": {
                            "privileged_without_host_devices": True,
                            "options": {"SystemdCgroup": False, "Root": "/r"},
                        },
                    },
                    {
                        "runtime_type": OLD_TYPE,
                        "privileged_without_host_devices": True,
                        "options": {"SystemdCgroup": False, "Root": "/r", "BinaryName": NVIDIA},
                    },
                ),
                ({}, {"runtime_type": RUNC_TYPE, "options": {"SystemdCgroup": True, "BinaryName": NVIDIA}}),
            ],
        ),
        # runtime_options override foreign entries, and the next run restores them.
        (
            V2 + runtime("nvidia", NVIDIA, Root='"/site"', Debug="true"),
            [
                (
                    {"runtime_options": {"options": {"Root": "/own"}}},
                    {"runtime_type": RUNC_TYPE, "options": {"Root": "/own", "Debug": True, "BinaryName": NVIDIA}},
                ),
                ({}, {"runtime_type": RUNC_TYPE, "options": {"Root": "/site", "Debug": True, "BinaryName": NVIDIA}}),
            ],
        ),
        # An option that exists in another spelling is not written twice.
        (
            V2 + RUNC,
            [
                (
                    {"runtime_options": {"options": {"systemdCgroup": False}}},
                    {"runtime_type": RUNC_TYPE, "options": {"SystemdCgroup": False, "BinaryName": NVIDIA}},
                )
            ],
        ),
        (
            V2 + runtime("runc", systemdCgroup="true") + runtime("nvidia", binaryName='"/x"', SystemdCgroup="false"),
            [
                ({}, {"runtime_type": RUNC_TYPE, "options": {"BinaryName": NVIDIA, "SystemdCgroup": False}}),
                (
                    {"runtime_options": {"options": {"systemdcgroup": True}}},
                    {"runtime_type": RUNC_TYPE, "options": {"BinaryName": NVIDIA, "SystemdCgroup": True}},
                ),
            ],
        ),
    ],
)
def test_table_after_calls(text: str, calls: list[tuple[dict[str, t.Any], dict[str, t.Any]]]) -> None:
    host = Host(text, V17)
    for asked, expected in calls:
        host.present(**asked)
        assert host.runtimes["nvidia"] == expected
        written = [key.lower() for key in host.effect.raw_cri()["containerd"]["runtimes"]["nvidia"]["options"]]
        assert len(written) == len(set(written))
    host.absent()
    assert host.text() == text


@pytest.mark.parametrize(("mode", "version"), [("in_place", V17), ("drop_in", V21)])
def test_inherited_entries_follow_their_source(mode: str, version: Version) -> None:
    host = Host(V2 + RUNC + 'ShimCgroup = "a"\n', version)
    host.present(config_mode=mode, set_as_default=True)
    host.edit("SystemdCgroup = true", "SystemdCgroup = false\nNoPivotRoot = true")
    host.edit('ShimCgroup = "a"\n', "")
    host.present(config_mode=mode)
    assert host.runtimes["nvidia"]["options"] == {"SystemdCgroup": False, "NoPivotRoot": True, "BinaryName": NVIDIA}
    host.absent()
    assert host.text() == V2 + runtime("runc", SystemdCgroup="false", NoPivotRoot="true")


def test_foreign_entries_in_an_own_table_stay() -> None:
    host = Host(V2 + RUNC, V17)
    host.present()
    # One own entry is changed, another is added.
    head, own, tail = host.text().partition("runtimes.nvidia.options]")
    host.files.put(MAIN, head + own + tail.replace("SystemdCgroup = true", 'SystemdCgroup = false\nRoot = "/site"'))
    host.present(enable_cdi=True)
    assert host.runtimes["nvidia"]["options"] == {"SystemdCgroup": False, "Root": "/site", "BinaryName": NVIDIA}


# -- runc ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, V16, V17, V20, V21, V24])
@BOTH_MODES
@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (V2, True),
        (V2 + runtime("nvidia", NVIDIA), True),
        (V2 + runtime("gpu", binaryName=f'"{NVIDIA}"') + default("gpu"), True),
        # Already hidden, but the default.
        (V2 + KATA, True),
        # Already hidden, and not the default.
        (V2 + KATA + default("kata"), False),
    ],
)
def test_defines_runc_if_other_runtimes_would_hide_it(text: str, hidden: bool, mode: str, version: Version) -> None:
    host = Host(text, version)
    host.present(config_mode=mode)
    merges = version is not None and version >= (2, 0)
    assert host.runtimes.get("runc") == ({"runtime_type": RUNC_TYPE} if hidden and not merges else None)


def test_foreign_runc_is_unchanged() -> None:
    host = Host(V2 + OPTIONS.format("runc") + "SystemdCgroup = true\n", V17)
    host.present()
    assert host.runtimes["runc"] == {"options": {"SystemdCgroup": True}}


@pytest.mark.parametrize(
    ("version", "last_version", "text", "left"),
    [
        # Other runtimes still hide the built-in runc.
        (V17, V17, KATA, ["kata", "runc"]),
        (V17, V17, KATA + default("kata"), ["kata"]),
        (V21, V21, KATA, ["kata"]),
        (V17, V21, KATA, ["kata"]),
    ],
)
def test_own_runc_after_absent(version: Version, last_version: Version, text: str, left: list[str]) -> None:
    host = Host(V2, version)
    host.present(config_mode="in_place")
    host.add(text)
    host.version = last_version
    plan = host.absent()
    assert sorted(host.runtimes) == left
    assert ["runtimes.runc stays" in warning for warning in plan.warnings] == [True] * ("runc" in left)


def test_own_runc_keeps_its_type_for_foreign_options() -> None:
    host = Host(V2, V17)
    host.present()
    host.add(OPTIONS.format("runc") + "SystemdCgroup = true\n")
    assert host.present().warnings == ()
    assert host.runtimes["runc"] == {"runtime_type": RUNC_TYPE, "options": {"SystemdCgroup": True}}
    assert host.runtimes["nvidia"]["options"]["SystemdCgroup"] is True
    host.absent()
    # Without a type, no pod would start.
    assert host.runtimes == {"runc": {"runtime_type": RUNC_TYPE, "options": {"SystemdCgroup": True}}}


# -- requests --------------------------------------------------------------------------------------------------------


def test_requested_runtimes() -> None:
    host = Host(V2 + RUNC, V17)
    host.present(extra_modes=("cdi", "legacy"))
    assert list(host.runtimes) == ["runc", "nvidia", "nvidia-cdi", "nvidia-legacy"]
    plan = host.present(extra_modes=("legacy",))
    assert list(host.runtimes) == ["runc", "nvidia", "nvidia-legacy"]
    assert plan.state.paths() == {"nvidia": NVIDIA, "nvidia-legacy": NVIDIA + ".legacy"}
    assert plan.action is Action.RESTART
    host.present(runtime_name="gpu")
    assert list(host.runtimes) == ["runc", "gpu"]


@pytest.mark.parametrize(("mode", "version"), [("in_place", V17), ("drop_in", V21)])
def test_annotations_are_added_to_existing_ones(mode: str, version: Version) -> None:
    text = V2 + RUNTIME.format("runc") + 'container_annotations = ["a/*", "b/*"]\n'
    text += RUNTIME.format("nvidia") + 'container_annotations = ["c/*"]\n'
    host = Host(text, version)
    for asked, expected in (
        (("b/*", "d/*"), ["a/*", "b/*", "c/*", "d/*"]),
        (("d/*", "b/*"), ["a/*", "b/*", "c/*", "d/*"]),
        (("e/*",), ["a/*", "b/*", "c/*", "e/*"]),
        ((), ["c/*"]),
    ):
        host.present(config_mode=mode, container_annotations=asked)
        assert host.runtimes["nvidia"]["container_annotations"] == expected
    host.absent()
    assert host.text() == text


def test_another_path_to_the_same_program_is_unchanged() -> None:
    text = V2 + RUNC + runtime("nvidia", "nvidia-container-runtime", SystemdCgroup="true")
    host = Host(text, V17)
    host.same_program = lambda one, other: one.rpartition("/")[2] == other.rpartition("/")[2]
    assert not any(file.changed for file in host.present().files)
    host.same_program = lambda one, other: one == other
    host.present()
    assert host.runtimes["nvidia"]["options"]["BinaryName"] == NVIDIA
    host.absent()
    assert host.text() == text


@pytest.mark.parametrize(
    ("text", "asked", "problem"),
    [
        (
            V2,
            {"runtime_options": {"runtime_type": "x"}},
            "Remove runtime_type from runtime_options and set runtime_type",
        ),
        (V2, {"runtime_options": {"options": {"BinaryName": "/x"}}}, "Remove options.BinaryName from runtime_options"),
        (V2, {"runtime_options": {"options": {"binaryName": "/x"}}}, "Remove options.binaryName from runtime_options"),
        (
            V2,
            {"runtime_options": {"container_annotations": ["a"]}},
            "Remove container_annotations from runtime_options",
        ),
        (V2, {"runtime_options": {"options": {"Root": None}}}, "runtime_options: options.Root has an unsupported type"),
        (V2, {"runtime_options": {"list": [{"a": 1}]}}, "runtime_options: list has an unsupported type"),
        (V2, {"runtime_options": {"list": [None]}}, "runtime_options: list has an unsupported type"),
        (V2, {"config_mode": "hook"}, "containerd does not support config_mode: hook"),
        (V2, {"config_mode": "snapshot"}, "containerd does not support config_mode: snapshot"),
        (V2 + "plugins = 1\n", {}, "line 2, column 1: plugins is no"),
        (V2 + "disabled_plugins = 1\n", {}, "line 2, column 1: disabled_plugins is not an array"),
        (V2 + CRI_2 + "enable_cdi = 'yes'\n", {}, f"line 3, column 1: {CRI}enable_cdi is not true or false"),
        (V2 + CRI_2 + "containerd = 1\n", {}, f"line 3, column 1: {CRI}containerd is not a table"),
        (V2 + CRI_2 + "containerd.runtimes = []\n", {}, f"line 3, column 1: {CRI}containerd.runtimes is not a table"),
        (V2 + CRI_2 + "containerd.runtimes.x = 1\n", {}, f"line 3, column 1: {CRI}containerd.runtimes.x is not a t"),
        (V2 + CRI_2 + "containerd.default_runtime_name = 1\n", {}, f"line 3, column 1: {CRI}containerd.default_runt"),
        (V2 + OPTIONS.format("nvidia") + "BinaryName = 5\n", {}, f"line 3, column 1: {CRI}containerd.runtimes.nvidia"),
        (V2 + "[a]\nb = = 1\n", {}, "line 3, column "),
        # use_legacy_config
        (V2, {"use_legacy_config": True, "version": V20}, "containerd 2.0.0 with a file in configuration version 2 ig"),
        (VERSION_3, {"use_legacy_config": True, "version": None}, "containerd with a file in configuration version 3"),
        ("", {"use_legacy_config": True, "version": V20}, "containerd 2.0.0 with a file in configuration version 3"),
        (V2 + LEGACY, {"set_as_default": True}, "in containerd 1.x the table default_runtime has precedence over"),
    ],
)
def test_refusals(text: str, asked: dict[str, t.Any], problem: str) -> None:
    asked = dict(asked)
    host = Host(text, asked.pop("version", V17))
    with pytest.raises(NvidiaError) as caught:
        host.present(**asked)
    assert problem in str(caught.value)
    assert not isinstance(caught.value, ConfigurationError) or caught.value.path == MAIN
    assert host.text() == text


# -- removal without a record ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, V17, V21])
def test_absent_without_a_record_removes_only_nvidia_programs(version: Version) -> None:
    others = runtime("nvidia-like", "/opt/site") + runtime("lower", binaryName='"/x/nvidia-container-runtime.cdi"')
    host = Host(AKS + runtime("nvidia", NVIDIA) + runtime("gpu", "nvidia-container-runtime.legacy") + others, version)
    host.edit('name = "runc"', 'name = "gpu"')
    plan = host.absent()
    assert list(host.runtimes) == ["runc", "untrusted", "nvidia-like"]
    assert host.default is None
    assert "The default runtime is now runc" in plan.warnings[0]
    # A record of the drop-in proves that the main file is foreign.
    text = AKS.replace("version = 2", 'version = 2\nimports = ["conf.d/*.toml"]') + runtime("gpu", NVIDIA)
    recorded = Host(text, V21)
    recorded.present()
    recorded.absent()
    assert recorded.text() == text
    untouched = Host(AKS, version)
    untouched.absent()
    assert untouched.text() == AKS


def test_replaced_runtime_leaves_no_blank_line() -> None:
    tables = runtime("gpu", NVIDIA).replace("\n[", "\n\n[") + runtime("runc") + "\n" + OPTIONS.format("runc")
    text = V2 + tables + CRI_2 + 'sandbox_image = "p"\n'
    host = Host(text)
    host.present()
    assert "nvidia" in host.runtimes
    host.present(runtime_name="gpu")
    assert host.text() == text
    assert not host.files.records


# -- the default runtime ---------------------------------------------------------------------------------------------


@BOTH_VERSIONS
@BOTH_MODES
@pytest.mark.parametrize("previous", [None, "runc", "crun"])
def test_default_runtime(previous: str | None, mode: str, version: Version) -> None:
    text = V2 + RUNC + runtime("crun", "/usr/bin/crun") + (default(previous) if previous else "")
    host = Host(text, version)
    steps: list[tuple[dict[str, t.Any], str | None]] = [
        ({"set_as_default": False}, previous),
        ({}, previous),
        ({"set_as_default": True}, "nvidia"),
        ({"extra_modes": ("cdi",)}, "nvidia"),
        ({"set_as_default": False}, previous),
        ({"set_as_default": True}, "nvidia"),
        ({"set_as_default": True, "runtime_name": "nvidia-cdi"}, "nvidia-cdi"),
        ({"set_as_default": True}, "nvidia"),
    ]
    for asked, expected in steps:
        host.present(config_mode=mode, **asked)
        assert host.default == expected
        assert "nvidia" in host.runtimes
    plan = host.present(config_mode=mode, runtime_name="gpu")
    message = f"no longer defined. The default runtime is now {previous or 'runc'}."
    assert [message in warning for warning in plan.warnings] == [True]
    assert host.default == previous
    assert list(host.runtimes) == ["runc", "crun", "gpu"]
    host.absent()
    assert host.text() == text


def test_default_that_the_user_set_is_removed_with_the_runtime() -> None:
    host = Host(V2 + RUNC + default("runc"), V17)
    host.present()
    host.edit('name = "runc"', 'name = "nvidia"')
    plan = host.absent()
    assert host.default == "runc"
    assert "The default runtime is now runc" in plan.warnings[0]


@BOTH_VERSIONS
@pytest.mark.parametrize(
    ("before", "asked", "left"),
    [
        ("kata", None, None),
        ("kata", {"set_as_default": False}, None),
        ("kata", {"runtime_name": "gpu"}, None),
        ("runc", None, "runc"),
    ],
)
def test_default_whose_runtime_is_gone_is_not_restored(
    before: str, asked: dict[str, t.Any] | None, left: str | None, version: Version
) -> None:
    host = Host(V2 + RUNC + default(before) + KATA, version)
    host.present(set_as_default=True, config_mode="in_place")
    host.edit(KATA, "")
    plan = host.absent() if asked is None else host.present(config_mode="in_place", **asked)
    assert host.default == left
    assert "kata" not in host.text()
    message = "The previous default runtime is no longer defined. The default runtime is now runc."
    assert list(plan.warnings) == ([] if left else [message])


def test_builtin_runc_is_restored_as_the_default() -> None:
    host = Host(V2 + default("runc"), V21)
    host.present(set_as_default=True, config_mode="in_place")
    host.add('[debug]\nlevel = "info"\n')
    assert host.absent().warnings == ()
    assert host.default == "runc"


@BOTH_MODES
def test_warns_about_an_undefined_default_that_was_there_before(mode: str) -> None:
    text = V2 + RUNC + default("missing")
    host = Host(text, V21)
    host.present(set_as_default=True, config_mode=mode)
    plan = host.absent()
    assert host.text() == text
    assert plan.warnings[0].startswith(f"{MAIN}: default_runtime_name is 'missing', but no file defines this runtime")
    assert not host.absent().warnings


@pytest.mark.parametrize("version", [None, V17, V21])
def test_set_as_default_replaces_an_undefined_default(version: Version) -> None:
    text = V2 + RUNC + default("missing")
    host = Host(text, version)
    host.present(set_as_default=True)
    assert host.default == "nvidia"
    host.absent()
    assert host.text() == text


@pytest.mark.parametrize("version", [None, V16, V17])
def test_refuses_default_runtime_name_beside_the_legacy_table(version: Version) -> None:
    table = CRI_2.replace("]", ".containerd.default_runtime]") + 'runtime_type = "io.containerd.runc.v2"\n'
    host = Host(V2 + table, version)
    with pytest.raises(NvidiaError, match=r"config.toml: in containerd 1.x the table default_runtime has precedence"):
        host.present(set_as_default=True)
    host.present()
    # `containerd config default` prints an empty table, which has no effect.
    for accepted in (Host(of_file("1.7"), version), Host(V2 + table, V21)):
        accepted.present(set_as_default=True)
        assert accepted.default == "nvidia"


# -- CDI -------------------------------------------------------------------------------------------------------------


@BOTH_MODES
@pytest.mark.parametrize(
    ("version", "text", "asked", "expected"),
    [
        (None, "", True, (True, None)),
        (None, "", False, (False, None)),
        (V16, "", True, (None, None)),
        (V17, "", None, (None, False)),
        (V17, "", True, (True, True)),
        (V17, "", False, (False, False)),
        (V20, "", True, (None, True)),
        (V21, "", True, (None, True)),
        (V21, "", False, (False, False)),
        (V21, "enable_cdi = false\n", True, (True, True)),
        (V21, "enable_cdi = false\n", None, (False, False)),
        (V24, "", True, (None, True)),
        (V24, "", False, (False, False)),
        (V24, "enable_cdi = false\n", None, (False, False)),
        (None, "", "auto", (None, None)),
        (V16, "", "auto", (None, None)),
        (V17, "", "auto", (True, True)),
        # `containerd config default` of 1.7 prints this.
        (V17, "enable_cdi = false\n", "auto", (True, True)),
        (V20, "", "auto", (None, True)),
        (V24, "", "auto", (None, True)),
        (V24, "enable_cdi = false\n", "auto", (False, False)),
    ],
)
def test_cdi(version: Version, text: str, asked: t.Any, expected: tuple[bool | None, bool | None], mode: str) -> None:
    """``expected`` is what the files contain, and what containerd uses."""
    host = Host(V2 + CRI_2 + text, version)
    plan = host.present(config_mode=mode, enable_cdi=asked)
    assert (host.effect.cri().get("enable_cdi"), plan.state.cdi) == expected
    unsupported = version == V16 and asked is True
    assert ["containerd 1.6.20 does not support CDI" in warning for warning in plan.warnings] == [True] * unsupported
    assert host.present(config_mode=mode, enable_cdi=asked).action is Action.NONE


@BOTH_MODES
@BOTH_VERSIONS
def test_cdi_is_kept_and_restored(version: Version, mode: str) -> None:
    host = Host(V2, version)
    steps: list[tuple[bool | str | None, bool]] = [
        (False, False), (True, True), (True, True), (None, True), (False, False), (None, False), ("auto", True),
        (None, True),
    ]  # fmt: skip
    for asked, effective in steps:
        host.present(config_mode=mode, enable_cdi=asked)
        assert host.plan(config_mode=mode).state.cdi is effective
        assert host.plan(config_mode=mode, enable_cdi=asked).action is Action.NONE
    host.absent()
    assert host.text() == V2


# -- the table default_runtime (use_legacy_config) -------------------------------------------------------------------

V1_FILE = """\
# The old format
[plugins.cri]
  sandbox_image = "pause:3.1" # site
  [plugins.cri.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v1"
    [plugins.cri.containerd.runtimes.runc.options]
      SystemdCgroup = true
      Runtime = "/usr/sbin/runc"
"""
V2_FILE = V2 + RUNC + default("runc")


def legacy(host: Host, **asked: t.Any) -> t.Any:
    return host.present(use_legacy_config=True, **asked)


@pytest.mark.parametrize("version", [None, V16, V17])
@pytest.mark.parametrize("text", [V1_FILE, V2_FILE, V2, AKS], ids=["1", "2", "bare", "AKS"])
def test_legacy_default_is_a_copy_of_the_runtime(text: str, version: Version) -> None:
    host = Host(text, version)
    previous = host.default
    plan = legacy(host, set_as_default=True)
    table = host.effect.legacy_default()
    assert table is not None
    assert table == host.runtimes["nvidia"]
    assert table["options"]["BinaryName"] == NVIDIA
    # Only files of version 1 name the program twice.
    assert table["options"].get("Runtime") == (NVIDIA if text is V1_FILE else None)
    assert host.default == previous
    assert plan.state.default_runtime == "nvidia"
    assert plan.state.runtimes["default"]["path"] == NVIDIA
    assert any("use_legacy_config is deprecated" in warning for warning in plan.warnings)
    assert not any(file.changed for file in legacy(host, set_as_default=True).files)
    host.present(set_as_default=True)
    assert "Runtime" not in host.runtimes["nvidia"]["options"]
    host.absent()
    assert host.text() == text


@pytest.mark.parametrize("asked", [None, False])
def test_no_legacy_table_without_a_default(asked: bool | None) -> None:
    host = Host(V2_FILE, V17)
    plan = legacy(host, set_as_default=asked)
    assert host.effect.legacy_default() is None
    assert plan.state.default_runtime == "runc"
    assert len(plan.warnings) == 1


@pytest.mark.parametrize("text", [V1_FILE, V2_FILE])
def test_change_between_both_forms_of_the_default(text: str) -> None:
    host = Host(text, V17)
    previous = host.default
    texts: dict[bool, str] = {}
    # A run without set_as_default keeps the default in the requested form.
    for use_legacy, asked in ((False, True), (True, True), (True, None), (False, None), (True, None), (False, True)):
        plan = host.present(use_legacy_config=use_legacy, set_as_default=asked)
        assert plan.state.default_runtime == "nvidia"
        assert (host.effect.legacy_default() is not None) is use_legacy
        assert host.default == (previous if use_legacy else "nvidia")
        assert host.text() == texts.setdefault(use_legacy, host.text())
        assert not any(file.changed for file in host.plan(use_legacy_config=use_legacy).files)
    legacy(host, set_as_default=False)
    assert host.effect.legacy_default() is None
    host.absent()
    assert host.text() == text


def test_legacy_default_follows_the_runtime() -> None:
    host = Host(V2_FILE, V17)
    legacy(host, set_as_default=True)
    asked = {"set_as_default": True, "runtime_dir": "/opt/bin"}
    legacy(host, runtime_options={"options": {"Root": "/r"}}, **asked)
    program = "/opt/bin/nvidia-container-runtime"
    expected = {"SystemdCgroup": True, "Root": "/r", "BinaryName": program}
    assert (host.effect.legacy_default() or {})["options"] == expected
    legacy(host, **asked)
    assert (host.effect.legacy_default() or {})["options"] == {"SystemdCgroup": True, "BinaryName": program}


def test_foreign_legacy_table_is_replaced_and_restored() -> None:
    text = V2_FILE + LEGACY + LEGACY_OPTIONS
    host = Host(text, V17)
    # The table has precedence.
    assert CONTAINERD.configured(host.context()).default_runtime == "default"
    legacy(host, set_as_default=True)
    # Foreign entries stay.
    assert host.effect.legacy_default() == {
        "runtime_type": OLD_TYPE,
        "runtime_root": "/r",
        "options": {"BinaryName": NVIDIA},
    }
    assert not any(file.changed for file in legacy(host).files)
    host.absent()
    assert host.text() == text
    assert not any(file.changed for file in Host(text, V17).absent().files)


def test_legacy_table_without_a_record() -> None:
    host = Host(V2_FILE + runtime("nvidia", NVIDIA) + LEGACY + LEGACY_OPTIONS.replace("/usr/sbin/runc", NVIDIA), V17)
    state = CONTAINERD.configured(host.context())
    assert (state.default_runtime, state.paths()["default"]) == ("nvidia", NVIDIA)
    host.absent()
    assert "nvidia" not in host.text()
    assert host.effect.legacy_default() is None


def test_foreign_entries_in_the_legacy_table_stay() -> None:
    host = Host(V2_FILE, V17)
    legacy(host, set_as_default=True)
    host.edit("default_runtime]\n", 'default_runtime]\nruntime_root = "/site"\n')
    host.absent()
    assert host.effect.cri()["containerd"]["default_runtime"] == {"runtime_root": "/site"}
    assert "nvidia" not in host.text()


def _live(state: ConfiguredState, default_runtime: str) -> LiveState:
    paths = {name: entry.get("path") or "" for name, entry in state.runtimes.items()}
    entries = {name: {**entry, "path": None} for name, entry in state.runtimes.items()}
    return LiveState("", paths, default_runtime, entries=entries)


def test_required_action_and_comparison_with_the_legacy_table() -> None:
    host = Host(V2_FILE, V17)
    before = host.text()
    plan = legacy(host, set_as_default=True)
    assert CONTAINERD.compare_dumps(before, host.text(), plan.files) == ""
    assert CONTAINERD.compare_dumps(before, host.text() + "[debug]\nuid = 5\n", plan.files) != ""
    by_table, by_name = plan.state, host.present(set_as_default=True).state
    assert CONTAINERD.required_action(_live(by_name, "nvidia"), by_name) is Action.NONE
    # containerd reports the name "default" for this table.
    assert CONTAINERD.required_action(_live(by_table, "default"), by_table) is Action.NONE
    assert CONTAINERD.required_action(_live(by_table, "default"), by_name) is Action.RESTART
    assert CONTAINERD.required_action(_live(by_name, "nvidia"), by_table) is Action.RESTART
