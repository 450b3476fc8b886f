# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Options in another case, names of version 3 in files of version 2, and settings that a new table would activate.

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action, LiveState
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.engine import (
    CONTAINERD,
    _reported_entries,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.options import program_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.plan import configured_state
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_configs import (
    LOWER_CASE_OPTIONS,
    MAIN,
    NEW_NAMES,
    SNAPSHOTTER,
    Version,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import (
    CRI_2,
    NVIDIA,
    Host,
    default,
    runtime,
)

V17, V200, V2011, V21, V23, V24 = (1, 7, 24), (2, 0, 0), (2, 0, 11), (2, 1, 9), (2, 3, 4), (2, 4, 0)
V2 = "version = 2\n"
NEW = '[plugins."io.containerd.cri.v1.runtime"'
IMPORT = 'imports = ["/etc/containerd/site.d/*.toml"]\n'
SITE = "/etc/containerd/site.d/site.toml"


def live_of(host: Host) -> LiveState:
    """Return what a CRI reports that runs with the present files: all built-in options, and those of the files."""
    builtin = {"BinaryName": "", "Root": "", "SystemdCgroup": False, "NoNewKeyring": False, "IoUid": 0}
    files = host.effect
    raw = files.raw_cri()["containerd"]["runtimes"]
    entries = {
        name: _reported_entries(
            {"runtimeType": entry.get("runtime_type"), "options": {**builtin, **entry.get("options", {})}}
        )
        for name, entry in raw.items()
    }
    programs = {name: str(program_of(entry) or "") for name, entry in entries.items()}
    return LiveState("", programs, files.default_runtime() or "runc", cdi=True, entries=entries)


@pytest.mark.parametrize("version", [V2011, V21, V23, V24])
@pytest.mark.parametrize("mode", ["drop_in", "in_place"])
def test_options_in_lower_case_are_no_difference(version: tuple[int, ...], mode: str) -> None:
    host = Host(LOWER_CASE_OPTIONS, version)
    state = CONTAINERD.configured(host.context())
    assert state.paths() == {"runc": "/usr/local/sbin/runc"}
    live = live_of(host)
    assert live.runtimes == {"runc": "/usr/local/sbin/runc"}
    assert CONTAINERD.required_action(live, state) is Action.NONE
    host.present(config_mode=mode)
    state = CONTAINERD.configured(host.context())
    assert CONTAINERD.required_action(live, state) is Action.RESTART
    assert CONTAINERD.required_action(live_of(host), state) is Action.NONE
    assert host.present(config_mode=mode).action is Action.NONE


BOTH = runtime("nvidia", NVIDIA, binaryName='"/usr/bin/runc"')


@pytest.mark.parametrize("version", [None, V17, V21, V24])
@pytest.mark.parametrize(
    ("text", "line", "advice"),
    [
        (BOTH + runtime("runc"), 6, "Remove binaryName"),
        (runtime("runc", BINARYNAME='"/site"'), 5, "Rename it to BinaryName"),
        (runtime("runc", systemdCgroup="true", SystemdCgroup="false"), 5, "Remove systemdCgroup"),
    ],
)
def test_option_that_releases_read_differently_is_refused(text: str, line: int, advice: str, version: Version) -> None:
    host = Host(V2 + text, version)
    for act in (host.present, lambda: CONTAINERD.configured(host.context())):
        with pytest.raises(ConfigurationError, match=rf"^{MAIN}, line {line}, .* release of containerd .*{advice}"):
            act()


def test_options_in_two_files_are_compared() -> None:
    host = Host({MAIN: V2 + IMPORT + runtime("runc", "/a"), SITE: V2 + runtime("runc", binaryName='"/b"')}, V21)
    with pytest.raises(ConfigurationError, match=rf"^{SITE}, line 5, .* Remove binaryName"):
        host.present()


@pytest.mark.parametrize(
    ("text", "line", "version"),
    [
        ("Version = 2\n" + CRI_2, 1, V21),
        ("VERSION = 2\n" + CRI_2, 1, V17),
        (V2 + 'Imports = ["/x/*.toml"]\n', 2, V21),
        (V2 + 'DISABLED_PLUGINS = ["x"]\n', 2, V21),
        (V2 + '[Plugins."io.containerd.grpc.v1.cri"]\nx = 1\n', 2, V21),
        (V2 + CRI_2 + "Enable_CDI = false\n", 3, V21),
        (V2 + CRI_2 + "ENABLE_CDI = false\n", 3, V17),
        (V2 + CRI_2.replace("]", ".Containerd]") + 'default_runtime_name = "runc"\n', 2, V21),
        (V2 + CRI_2.replace("]", ".containerd]") + 'Default_Runtime_Name = "runc"\n', 3, V21),
        (V2 + CRI_2.replace("]", ".containerd.Runtimes.runc]") + 'runtime_type = "io.containerd.runc.v2"\n', 2, V21),
        (V2 + runtime("nvidia").replace("runtime_type", "Runtime_Type"), 3, V21),
        (V2 + runtime("nvidia", "/x").replace(".options", ".Options"), 4, V21),
        (V2 + runtime("nvidia") + "Privileged_Without_Host_Devices = true\n", 4, V21),
    ],
)
def test_other_spellings_of_other_keys_are_refused_with_their_line(
    text: str, line: int, version: tuple[int, ...]
) -> None:
    host = Host(text, version)
    with pytest.raises(ConfigurationError, match=rf"^{MAIN}, line {line}, column .*Rename it to "):
        host.present(set_as_default=True, enable_cdi=True)
    with pytest.raises(ConfigurationError, match=rf"^{MAIN}, line {line}, "):
        CONTAINERD.configured(host.context())
    # They do not prevent a removal.
    assert host.absent().action is Action.NONE
    assert host.text() == text


@pytest.mark.parametrize(
    "text",
    [
        # Runtimes and plugins are keys of a Go map.
        V2 + runtime("Nvidia", "/x") + runtime("runc"),
        V2 + '[plugins."IO.containerd.grpc.v1.cri"]\nx = 1\n',
    ],
)
def test_keys_that_containerd_does_not_read_are_ignored(text: str) -> None:
    host = Host(text, V17)
    host.present(enable_cdi=True)
    assert host.runtimes["nvidia"]["options"]["BinaryName"] == NVIDIA
    assert host.effect.cri()["enable_cdi"] is True
    host.absent()
    assert host.text() == text


@pytest.mark.parametrize(
    ("text", "folders"),
    [
        (V2, None),
        (V2 + CRI_2 + "cdi_spec_dirs = []\n", ()),
        ("version = 3\n[plugins.'io.containerd.cri.v1.runtime']\ncdi_spec_dirs = ['/a', '/b']\n", ("/a", "/b")),
    ],
)
def test_directories_of_specifications(text: str, folders: tuple[str, ...] | None) -> None:
    assert configured_state(Host(text, V21).effect).cdi_folders == folders


# -- names of version 3 in version 2 -----------------------------------------------------------------------------------


def migrated(text: str) -> str:
    """Return tables of version 2 under the names of version 3."""
    return text.replace("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")


OWN_SITE = runtime("site", "/site") + default("site")


@pytest.mark.parametrize("mode", ["auto", "in_place"])
@pytest.mark.parametrize("version", [None, V200, V2011, V21, V23, V24])
@pytest.mark.parametrize(
    ("files", "inherited"),
    [
        ({MAIN: NEW_NAMES}, {}),
        ({MAIN: V2 + migrated(runtime("runc", SystemdCgroup="true"))}, {"SystemdCgroup": True}),
        ({MAIN: V2 + IMPORT, SITE: V2 + migrated(runtime("runc", SystemdCgroup="true"))}, {"SystemdCgroup": True}),
        ({MAIN: V2 + IMPORT + runtime("runc", Root='"/r"'), SITE: V2 + '[debug]\nlevel = "warn"\n'}, {"Root": "/r"}),
    ],
)
def test_entries_have_effect_beside_new_names(
    files: dict[str, str], inherited: dict[str, t.Any], version: Version, mode: str
) -> None:
    host = Host(files, version)
    host.present(config_mode=mode)
    assert host.runtimes["nvidia"]["options"] == {**inherited, "BinaryName": NVIDIA}
    assert "runc" in host.runtimes
    assert host.present(config_mode=mode).action is Action.NONE
    host.absent()
    assert host.texts == files


@pytest.mark.parametrize("mode", ["drop_in", "in_place"])
@pytest.mark.parametrize(
    ("version", "site", "cgroup"),
    [
        # Up to 2.0.1 the older table replaces the newer one.
        (V200, {"site"}, None),
        (V2011, {"runc"}, True),
        (V21, {"runc"}, True),
        (V23, {"runc"}, True),
    ],
)
def test_tables_of_both_names(version: tuple[int, ...], site: set[str], cgroup: bool | None, mode: str) -> None:
    text = V2 + OWN_SITE + migrated(runtime("runc", SystemdCgroup="true"))
    host = Host(text, version)
    assert set(host.runtimes) == site
    host.present(config_mode=mode, set_as_default=True)
    assert set(host.runtimes) >= {*site, "nvidia"}
    assert host.runtimes["nvidia"]["options"] == {
        **({} if cgroup is None else {"SystemdCgroup": cgroup}),
        "BinaryName": NVIDIA,
    }
    assert host.default == "nvidia"
    assert host.present(config_mode=mode, set_as_default=True).action is Action.NONE
    host.absent()
    assert host.text() == text


def test_tables_of_both_names_for_an_unknown_release() -> None:
    text = V2 + runtime("site", "/site") + migrated(runtime("runc"))
    assert ["Set engine_version" in warning for warning in Host(text).present().warnings] == [True]
    assert Host(text, V21).present().warnings == ()
    assert Host(NEW_NAMES).present().warnings == ()


def test_entries_move_when_another_tool_adds_new_names() -> None:
    text = V2 + runtime("runc", SystemdCgroup="true")
    host = Host(text, V21)
    host.present()
    host.add(migrated(runtime("runc", "/site/runc")))
    assert "nvidia" not in host.runtimes
    host.present()
    assert host.runtimes["nvidia"]["options"] == {"BinaryName": NVIDIA}
    host.absent()
    assert host.text() == text + migrated(runtime("runc", "/site/runc"))


# -- the snapshotter ---------------------------------------------------------------------------------------------------


def uses_snapshotter(host: Host) -> bool:
    """Return whether the image store gets the snapshotter of a version 2 file (migrateConfig in plugins/cri/images)."""
    files = host.effect
    groups = [[file] for file in files.files] if files.migrates else [files.files]
    for group in groups:
        table = files._merged(group, containerd_config.CRI_TABLE[2]) or {}
        if {"snapshotter", "runtimes"} <= set(table.get("containerd", {})):
            return True
    return False


@pytest.mark.parametrize("mode", ["drop_in", "in_place"])
@pytest.mark.parametrize("version", [V2011, V21, V23, V24])
def test_snapshotter_without_runtimes_stays_ignored(version: tuple[int, ...], mode: str) -> None:
    host = Host(SNAPSHOTTER, version)
    warnings = host.present(config_mode=mode, set_as_default=True).warnings
    assert host.runtimes["nvidia"]["options"]["BinaryName"] == NVIDIA
    assert host.default == "nvidia"
    assert not uses_snapshotter(host)
    # A drop-in that is migrated on its own has no snapshotter.
    apart = version >= V23 and mode == "drop_in"
    assert ["ignores snapshotter" in warning for warning in warnings] == ([] if apart else [True])
    assert host.present(config_mode=mode, set_as_default=True).action is Action.NONE
    host.absent()
    assert host.text() == SNAPSHOTTER


def test_snapshotter_of_an_unknown_release_is_a_warning() -> None:
    assert [("2.0 or newer, snapshotter" in text) for text in Host(SNAPSHOTTER).present().warnings] == [True]
    assert Host(SNAPSHOTTER, V17).present().warnings == ()
    assert Host(SNAPSHOTTER + runtime("runc"), V21).present().warnings == ()
    # 2.0.0 and 2.0.1 cannot keep both names.
    assert ["snapshotter" in text for text in Host(SNAPSHOTTER, V200).present().warnings] == [True]


# -- types and imports -------------------------------------------------------------------------------------------------

OLD_LINUX = "io.containerd.runtime.v1.linux"


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("", {"runtime_type": OLD_LINUX}),
        (runtime("nvidia", NVIDIA, OLD_LINUX), {}),
        (runtime("nvidia", NVIDIA, "io.containerd.kata.v2"), {}),
    ],
)
@pytest.mark.parametrize("version", [(1, 6, 20), V17, V21])
def test_type_that_ignores_the_program_is_refused(text: str, asked: dict[str, t.Any], version: Version) -> None:
    host = Host(V2 + runtime("runc") + text, version)
    with pytest.raises(NvidiaError, match=r"the runtime nvidia has the runtime_type .* ignores the option BinaryName"):
        host.present(config_mode="in_place", **asked)
    assert host.present(config_mode="in_place", runtime_type="io.containerd.runc.v2").action is not None


def test_missing_import_is_refused_offline() -> None:
    host = Host(V2 + 'imports = ["/x/a.toml"]\n', V21)
    with pytest.raises(NvidiaError, match=r"do not exist, and containerd would not start: /x/a\.toml"):
        host.present()
    assert ["would not start: /x/a.toml" in warning for warning in host.absent().warnings] == [True]
