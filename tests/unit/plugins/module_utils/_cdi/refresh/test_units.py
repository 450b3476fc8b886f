# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import CdiOptions, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import refresh
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh.units import (
    drop_in,
    environment_text,
    toolkit_refresh,
    variables,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import records as cdi_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.flavors import FLAVORS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import nvml
from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import cdi_spec
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.refresh_hosts import (
    ENVIRONMENT,
    LOCAL,
    OUTPUT,
    PATH,
    SERVICE,
    VENDOR,
    WANTS,
    RefreshTree,
)

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> RefreshTree:
    return RefreshTree(tmp_path)


def test_no_units(tree: RefreshTree) -> None:
    assert toolkit_refresh(tree.host()) is None


@pytest.mark.parametrize("folder", [VENDOR, LOCAL], ids=["rpm", "deb-until-1.19.1"])
def test_installed_but_disabled(tree: RefreshTree, folder: str) -> None:
    tree.toolkit(folder=folder)
    found = toolkit_refresh(tree.host())
    assert found is not None
    assert (found.service, found.path) == (f"{folder}/{SERVICE}", f"{folder}/{PATH}")
    assert not found.enabled
    assert not found.masked
    assert found.output == OUTPUT


@pytest.mark.parametrize(
    ("link", "at_boot", "on_change"),
    [
        (f"{WANTS}/{SERVICE}", True, False),
        (f"{LOCAL}/docker.service.requires/{SERVICE}", True, False),
        (f"{VENDOR}/multi-user.target.wants/{SERVICE}", True, False),
        (f"{WANTS}/{PATH}", False, True),
        (f"{WANTS}/other.service", False, False),
    ],
)
def test_enabled_by_links(tree: RefreshTree, link: str, at_boot: bool, on_change: bool) -> None:
    tree.toolkit()
    tree.link(link, f"{VENDOR}/{link.rpartition('/')[2]}".replace("other.service", SERVICE))
    found = toolkit_refresh(tree.host())
    assert found is not None
    assert (found.at_boot, found.on_change, found.enabled) == (at_boot, on_change, at_boot or on_change)


def test_masked(tree: RefreshTree) -> None:
    tree.toolkit()
    for name in (SERVICE, PATH):
        tree.link(f"{WANTS}/{name}", f"{VENDOR}/{name}")
    tree.link(f"{LOCAL}/{SERVICE}", "/dev/null")
    found = toolkit_refresh(tree.host())
    assert found is not None
    assert found.masked
    assert not found.enabled


@pytest.mark.parametrize(
    ("environment", "output"),
    [
        ("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/cdi/nvidia.yaml\n", "/etc/cdi/nvidia.yaml"),
        ('NVIDIA_CTK_CDI_OUTPUT_FILE_PATH="/etc/cdi/a b.yaml"\n', "/etc/cdi/a b.yaml"),
        ("#NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/cdi/nvidia.yaml\n", OUTPUT),
        ("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=\n", ""),
    ],
)
def test_environment_file_sets_output(tree: RefreshTree, environment: str, output: str) -> None:
    tree.toolkit()
    tree.write(ENVIRONMENT, environment)
    found = toolkit_refresh(tree.host())
    assert found is not None
    assert found.output == output


@pytest.mark.parametrize(
    ("environment", "flags", "expected"),
    [
        ("", "", "nvidia.com/gpu"),
        ("NVIDIA_CTK_CDI_GENERATE_VENDOR=example.com\nNVIDIA_CTK_CDI_GENERATE_CLASS=x\n", "", "example.com/x"),
        ("NVIDIA_CTK_CDI_GENERATE_VENDOR=example.com\n", "--vendor other.com", "other.com/gpu"),
    ],
)
def test_kind_decides_whether_the_output_is_the_default_path(
    tree: RefreshTree, environment: str, flags: str, expected: str
) -> None:
    tree.toolkit()
    tree.link(f"{WANTS}/{SERVICE}", f"{VENDOR}/{SERVICE}")
    text = tree.text(f"{VENDOR}/{SERVICE}").replace("cdi generate", f"cdi generate --output=/etc/cdi/x.yaml {flags}")
    tree.write(f"{VENDOR}/{SERVICE}", text)
    tree.write(ENVIRONMENT, environment)
    found = toolkit_refresh(tree.host())
    assert found is not None
    assert found.kind == expected
    location = cdi_records.location_of(cdi_options.CdiOptions(), tree.host(), found)
    assert location.path == ("/etc/cdi/x.yaml" if expected == "nvidia.com/gpu" else "/etc/cdi/nvidia.yaml")


def test_flag_sets_output(tree: RefreshTree) -> None:
    tree.toolkit()
    text = tree.text(f"{VENDOR}/{SERVICE}").replace("cdi generate", "cdi generate --output=/var/run/cdi/flag.yaml")
    tree.write(f"{VENDOR}/{SERVICE}", text)
    found = toolkit_refresh(tree.host())
    assert found is not None
    assert found.output == "/var/run/cdi/flag.yaml"


def test_no_path_unit(tree: RefreshTree) -> None:
    tree.toolkit()
    (tree.path / f"{VENDOR}/{PATH}".lstrip("/")).unlink()
    found = toolkit_refresh(tree.host())
    assert found is not None
    assert found.path is None
    assert not found.on_change


PREFIX = "NVIDIA_CTK_CDI_GENERATE_"


def test_service_is_ordered_before_engines() -> None:
    (before,) = re.findall("^Before=(.*)$", (drop_in(order=True, environment=False) or b"").decode(), re.MULTILINE)
    registered = {service for row in FLAVORS.values() for service in row.services}
    assert {"k0sworker.service", "k0scontroller.service", "snap.microk8s.daemon-containerd.service"} <= registered
    assert registered | {"podman.service", "podman-restart.service", "kubelet.service"} == set(before.split())


def test_time_limits_are_nested() -> None:
    """If NVML hangs, the inner limit ends first, so the task fails with its own message."""
    text = (drop_in(order=True, environment=False) or b"").decode()
    limits = dict(re.findall("^(Timeout.*Sec)=(.*)$", text, re.MULTILINE))
    assert nvml.TIMEOUT == cdi_spec.LIMIT == int(limits["TimeoutStartSec"])
    # After the limit systemd waits up to four times TimeoutStopSec: two signals, and two for remaining processes.
    assert int(limits["TimeoutStartSec"]) + 4 * int(limits["TimeoutStopSec"]) < refresh.LIMIT < lock.TIMEOUT


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (CdiOptions(), {}),
        (CdiOptions(path="/etc/cdi/nvidia.yaml"), {"NVIDIA_CTK_CDI_OUTPUT_FILE_PATH": "/etc/cdi/nvidia.yaml"}),
        (CdiOptions(format="json", mode="csv"), {f"{PREFIX}OUTPUT_FORMAT": "json", f"{PREFIX}MODE": "csv"}),
        (
            CdiOptions(request=Request(vendor="example.com", class_="fast", device_ids=("0", "1:0"), all_device=False)),
            {
                f"{PREFIX}VENDOR": "example.com",
                f"{PREFIX}CLASS": "fast",
                f"{PREFIX}DEVICE_IDS": "0,1:0",
                f"{PREFIX}NO_ALL_DEVICE": "true",
            },
        ),
        (
            CdiOptions(
                request=Request(
                    driver_root="/run/nvidia/driver",
                    dev_root="/",
                    library_search_paths=("/opt/a", "/opt/b"),
                    config_search_paths=("/opt/c",),
                    csv_files=("/opt/a.csv", "/opt/b.csv"),
                    csv_ignore_patterns=("*.so",),
                    csv_compat_container_root="/opt/compat",
                    cdi_hook_path="/opt/hook",
                    ldconfig_path="/sbin/ldconfig.real",
                )
            ),
            {
                "NVIDIA_CTK_DRIVER_ROOT": "/run/nvidia/driver",
                "NVIDIA_CTK_DEV_ROOT": "/",
                f"{PREFIX}LIBRARY_SEARCH_PATHS": "/opt/a,/opt/b",
                f"{PREFIX}CONFIG_SEARCH_PATHS": "/opt/c",
                f"{PREFIX}CSV_FILES": "/opt/a.csv,/opt/b.csv",
                f"{PREFIX}CSV_IGNORE_PATTERNS": "*.so",
                f"{PREFIX}CSV_CONTAINER_COMPAT_ROOT": "/opt/compat",
                "NVIDIA_CTK_CDI_HOOK_PATH": "/opt/hook",
                f"{PREFIX}LDCONFIG_PATH": "/sbin/ldconfig.real",
            },
        ),
        (
            CdiOptions(request=Request(enabled_hooks=("chmod",), disabled_hooks=("all",), feature_flags=("a", "b"))),
            {f"{PREFIX}ENABLED_HOOKS": "chmod", f"{PREFIX}DISABLED_HOOKS": "all", f"{PREFIX}FEATURE_FLAGS": "a,b"},
        ),
        (
            CdiOptions(request=Request(hooks="none", enabled_hooks=("chmod",))),
            {f"{PREFIX}DISABLED_HOOKS": "all"},
        ),
        (
            CdiOptions(request=Request(device_name_strategies=("type-index",))),
            {f"{PREFIX}DEVICE_NAME_STRATEGIES": "type-index"},
        ),
    ],
)
def test_variables(options: CdiOptions, expected: dict[str, str]) -> None:
    assert variables(options) == expected


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(library_search_paths=("/a,b",)), "cannot contain commas"),
        (Request(driver_root="/a\nX=1"), "cannot contain control characters"),
    ],
)
def test_invalid_variable_values(request_: Request, message: str) -> None:
    with pytest.raises(NvidiaError, match=message):
        variables(CdiOptions(request=request_))


@given(st.text(st.characters(blacklist_categories=("C", "Zl", "Zp")), max_size=20))
def test_environment_file_quoting(value: str) -> None:
    text = environment_text({"A": value, "B": "1"}).decode("utf-8")
    # Quotes and backslashes as in EnvironmentFile= of systemd.exec(5).
    line = text.splitlines()[1]
    quoted = re.fullmatch(r'A="((?:[^"\\]|\\.)*)"', line)
    assert (re.sub(r'\\(["\\$`])', r"\1", quoted.group(1)) if quoted else line[2:]) == value
    assert text.splitlines()[2] == "B=1"


def test_drop_in_sections() -> None:
    assert drop_in(order=False, environment=False) is None
    assert b"[Unit]" not in (drop_in(order=False, environment=True) or b"[Unit]")
    assert b"EnvironmentFile" not in (drop_in(order=True, environment=False) or b"EnvironmentFile")
