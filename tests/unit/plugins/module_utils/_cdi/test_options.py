# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import HOOKS, Hooks, Request, checked
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.edits import Edits, Hook
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS


def enabled(request: Request) -> list[str]:
    hooks = Hooks(request)
    return [name for name in HOOKS if hooks.edits(name).hooks]


@pytest.mark.parametrize(
    ("disabled", "enabled_hooks", "mode", "names"),
    [
        ((), (), "toolkit", [name for name in HOOKS if name != "chmod"]),
        ((), ("chmod",), "toolkit", [*HOOKS]),
        (("update-ldcache", "chmod"), (), "toolkit", [n for n in HOOKS if n not in {"update-ldcache", "chmod"}]),
        (("all",), (), "toolkit", []),
        (("all",), ("update-ldcache",), "toolkit", ["update-ldcache"]),
        (("chmod",), ("chmod",), "toolkit", [*HOOKS]),
        ((), ("chmod",), "none", []),
    ],
)
def test_enabled_hooks(disabled: tuple[str, ...], enabled_hooks: tuple[str, ...], mode: str, names: list[str]) -> None:
    assert enabled(Request(disabled_hooks=disabled, enabled_hooks=enabled_hooks, hooks=mode)) == names


@pytest.mark.parametrize(
    ("path", "start"),
    [
        ("/usr/bin/nvidia-cdi-hook", ("nvidia-cdi-hook",)),
        ("/opt/nvidia/nvidia-cdi-hook", ("nvidia-cdi-hook",)),
        ("/usr/bin/nvidia-ctk", ("nvidia-ctk", "hook")),
    ],
)
def test_hook_arguments(path: str, start: tuple[str, ...]) -> None:
    hooks = Hooks(Request(cdi_hook_path=path, enabled_hooks=("chmod",)))
    assert hooks.edits("update-ldcache", "--folder", "/lib").hooks == (
        Hook(path, (*start, "update-ldcache", "--folder", "/lib")),
    )
    assert hooks.symlinks(["a::/b", "c::/d", "a::/b"]).hooks == (
        Hook(path, (*start, "create-symlinks", "--link", "a::/b", "--link", "c::/d")),
    )
    assert hooks.chmod(["/dev/dri"]).hooks == (Hook(path, (*start, "chmod", "--mode", "755", "--path", "/dev/dri")),)
    assert hooks.symlinks([]) == Edits()
    # Without a directory the hook is added too, as by nvidia-ctk.
    assert hooks.chmod([]).hooks == (Hook(path, (*start, "chmod", "--mode", "755")),)
    assert Hooks(Request()).chmod(["/dev/dri"]) == Edits()


def test_paths_are_normalized() -> None:
    request = Request(
        driver_root="/run//driver/",
        library_search_paths=("/opt/./lib",),
        config_search_paths=("/opt/../etc",),
        cdi_hook_path="//usr/bin/nvidia-ctk",
        ldconfig_path="/sbin//ldconfig",
    )
    assert checked(request, HostFS()) == request._replace(
        driver_root="/run/driver",
        dev_root="/run/driver",
        library_search_paths=("/opt/lib",),
        config_search_paths=("/etc",),
        cdi_hook_path="/usr/bin/nvidia-ctk",
        ldconfig_path="/sbin/ldconfig",
    )
    assert checked(Request(dev_root="/", driver_root="/run/driver"), HostFS()).dev_root == "/"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(driver_root="driver"), "driver_root 'driver' is not an absolute path"),
        (Request(dev_root="dev"), "dev_root 'dev' is not an absolute path"),
        (Request(library_search_paths=("lib",)), "library_search_paths 'lib' is not an absolute path"),
        (Request(config_search_paths=("etc",)), "config_search_paths 'etc' is not an absolute path"),
        (Request(csv_files=("l4t.csv",)), "csv_files 'l4t.csv' is not an absolute path"),
        (Request(csv_compat_container_root="cuda"), "csv_compat_container_root 'cuda' is not an absolute path"),
        (Request(cdi_hook_path="nvidia-cdi-hook"), "cdi_hook_path 'nvidia-cdi-hook' is not an absolute path"),
        (Request(ldconfig_path="ldconfig"), "ldconfig_path 'ldconfig' is not an absolute path"),
        (Request(device_name_strategies=()), "device_name_strategies is empty"),
    ],
)
def test_invalid_requests(request_: Request, message: str) -> None:
    with pytest.raises(NvidiaError, match=message):
        checked(request_, HostFS())
