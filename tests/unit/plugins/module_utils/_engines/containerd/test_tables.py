# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import tables
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.tables import NEWER, OLDER
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_configs import MAIN, NEW_NAMES
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import Host, default, runtime

Version = t.Optional[t.Tuple[int, ...]]

# The first and the last release of each range of rows.
V16, V1734, V200, V201, V202, V227, V23, V24 = (
    (1, 6, 20), (1, 7, 34), (2, 0, 0), (2, 0, 1), (2, 0, 2), (2, 2, 7), (2, 3, 0), (2, 4, 0)
)  # fmt: skip
UP_TO_17, ONLY_200, SINCE_202 = (V16, V1734), (V200, V201), (V202, V227, V23, V24)

DEFAULT = ("containerd", "default_runtime_name")
RUNC: dict[str, t.Any] = {"containerd": {"runtimes": {"runc": {}}}}
NAMED: dict[str, t.Any] = {"containerd": {"default_runtime_name": "runc"}}
ZFS: dict[str, t.Any] = {"containerd": {"snapshotter": "zfs"}}
CDI: dict[str, t.Any] = {"enable_cdi": True}


@pytest.mark.parametrize(
    ("entry", "newer", "older", "releases", "expected"),
    [
        # 1.x knows the older name only.
        (tables.RUNTIMES, None, None, UP_TO_17, OLDER),
        (tables.RUNTIMES, RUNC, None, UP_TO_17, OLDER),
        (tables.RUNTIMES, RUNC, RUNC, UP_TO_17, OLDER),
        (tables.RUNTIMES, None, ZFS, UP_TO_17, OLDER),
        # 2.0.0 and 2.0.1 use the older table if there is one.
        (tables.RUNTIMES, None, None, ONLY_200, OLDER),
        (tables.RUNTIMES, {}, None, ONLY_200, NEWER),
        (tables.RUNTIMES, RUNC, {}, ONLY_200, OLDER),
        (tables.RUNTIMES, RUNC, RUNC, ONLY_200, OLDER),
        (tables.RUNTIMES, None, ZFS, ONLY_200, OLDER),
        # Later releases merge both, key by key.
        (tables.RUNTIMES, None, None, SINCE_202, OLDER),
        (tables.RUNTIMES, None, RUNC, SINCE_202, OLDER),
        (tables.RUNTIMES, {}, None, SINCE_202, NEWER),
        (tables.RUNTIMES, RUNC, RUNC, SINCE_202, NEWER),
        (tables.RUNTIMES, RUNC, {}, SINCE_202, NEWER),
        (tables.RUNTIMES, NAMED, RUNC, SINCE_202, OLDER),
        (tables.RUNTIMES, CDI, NAMED, SINCE_202, OLDER),
        (DEFAULT, RUNC, RUNC, SINCE_202, OLDER),
        (DEFAULT, NAMED, RUNC, SINCE_202, NEWER),
        (("enable_cdi",), CDI, RUNC, SINCE_202, NEWER),
        # The snapshotter of the images would get effect beside a new table of runtimes, and beside nothing else.
        (tables.RUNTIMES, None, ZFS, SINCE_202, NEWER),
        (tables.RUNTIMES, CDI, ZFS, SINCE_202, NEWER),
        (DEFAULT, None, ZFS, SINCE_202, OLDER),
        (tables.RUNTIMES, None, {"containerd": {**ZFS["containerd"], "runtimes": {}}}, SINCE_202, OLDER),
        # A release that is unknown.
        (tables.RUNTIMES, None, RUNC, (None,), OLDER),
        (tables.RUNTIMES, None, ZFS, (None,), OLDER),
        (tables.RUNTIMES, RUNC, None, (None,), NEWER),
        (tables.RUNTIMES, RUNC, RUNC, (None,), NEWER),
    ],
)
def test_table_of_a_new_entry(
    entry: tuple[str, ...], newer: t.Any, older: t.Any, releases: tuple[Version, ...], expected: tuple[str, ...]
) -> None:
    assert {tables.table_of(entry, release, newer, older) for release in releases} == {expected}


def options(**given: t.Any) -> dict[str, t.Any]:
    return {"containerd": {"runtimes": {"runc": {"options": given}}}}


@pytest.mark.parametrize(
    ("newer", "older", "key"),
    [
        (None, None, None),
        (RUNC, None, None),
        (options(Root="/r", SystemdCgroup=True), options(Root="/r"), None),
        (options(Root="/r"), options(Root="/s"), "containerd.runtimes.runc.options.Root"),
        (options(NoPivotRoot=True), options(NoPivotRoot=1), "containerd.runtimes.runc.options.NoPivotRoot"),
        ({"enable_cdi": True}, {"enable_cdi": False}, "enable_cdi"),
        ({"cdi_spec_dirs": ["/a"]}, {"cdi_spec_dirs": ["/b"]}, "cdi_spec_dirs"),
        # This collection does not use this setting.
        ({"enable_selinux": True}, {"enable_selinux": False}, None),
    ],
)
def test_conflict(newer: t.Any, older: t.Any, key: str | None) -> None:
    found = tables.conflict(newer, older)
    assert (".".join(found) if found else None) == key


V2 = "version = 2\n"
IMPORT = 'imports = ["/x/*.toml"]\n'
SITE = "/x/site.toml"


def renamed(text: str) -> str:
    return text.replace(OLDER[-1], NEWER[-1])


@pytest.mark.parametrize(
    ("files", "refused_in", "line"),
    [
        ({MAIN: NEW_NAMES + runtime("runc", "/usr/bin/runc")}, (None, *ONLY_200, *SINCE_202), 13),
        ({MAIN: V2 + default("runc") + renamed(default("crun") + runtime("crun"))}, (None, *ONLY_200, *SINCE_202), 5),
        # From 2.3 on, each file is migrated before all are merged.
        (
            {MAIN: V2 + IMPORT + runtime("runc", "/a"), SITE: V2 + renamed(runtime("runc", "/b"))},
            (None, *ONLY_200, V202, V227),
            5,
        ),
    ],
)
def test_different_values_in_both_tables_are_refused(files: t.Any, refused_in: t.Any, line: int) -> None:
    for version in (None, *UP_TO_17, *ONLY_200, *SINCE_202):
        host = Host(files, version)
        if version in refused_in:
            with pytest.raises(
                ConfigurationError, match=rf"toml, line {line}, .* has another value in the table .* Remove"
            ):
                host.present()
            assert host.texts == files
        else:
            host.present(config_mode="in_place")
        host.absent()
        assert host.texts == files
