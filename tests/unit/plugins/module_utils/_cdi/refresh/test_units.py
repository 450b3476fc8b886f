# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
import shutil
import subprocess
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import refresh
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh.units import (
    drop_in,
    own_service,
    toolkit_refresh,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import records as cdi_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import nvml
from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import cdi_spec
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.refresh_hosts import (
    ENVIRONMENT,
    GENERATOR,
    LOCAL,
    OUTPUT,
    OWN_SERVICE,
    PATH,
    SERVICE,
    SPECIFICATION,
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


COMMAND = (GENERATOR, "cdi", "generate")


def settings(output: str = SPECIFICATION, command: t.Sequence[str] = COMMAND, **options: t.Any) -> list[str]:
    """Return the lines of the service of this collection."""
    given = {"before_engines": True, "nodes": True, **options}
    return own_service(command, output, **given).decode().splitlines()


def test_every_ordinary_service_waits_for_the_service() -> None:
    lines = settings()
    assert {"DefaultDependencies=no", "After=sysinit.target", "Before=basic.target shutdown.target"} <= {*lines}
    assert "WantedBy=basic.target" in lines
    # nvidia-persistenced.service and others start after basic.target, so this would be a cycle.
    assert not [line for line in lines if line.startswith("After=") and line != "After=sysinit.target"]
    late = settings(before_engines=False)
    assert not [line for line in late if line.startswith(("DefaultDependencies", "After", "Before", "JobRunning"))]
    assert "WantedBy=basic.target" in late


def test_control_nodes_are_created_first() -> None:
    nodes = f"ExecStartPre=-{GENERATOR} system create-device-nodes --control-devices"
    lines = settings()
    assert [line for line in lines if line.startswith("Exec")] == [
        f"{nodes} --load-kernel-modules",
        nodes,
        f"ExecStart={' '.join(COMMAND)}",
    ]
    assert not [line for line in settings(nodes=False) if "ExecStartPre" in line]


def test_time_limits_are_nested() -> None:
    """If NVML hangs, the inner limit ends first, so the task fails with its own message."""
    limits = dict(re.findall("^(Timeout.*Sec|JobRunningTimeoutSec)=(.*)$", "\n".join(settings()), re.MULTILINE))
    assert nvml.TIMEOUT == cdi_spec.LIMIT == int(limits["TimeoutStartSec"])
    # After the limit systemd waits up to four times TimeoutStopSec: two signals, and two for remaining processes.
    end = int(limits["TimeoutStartSec"]) + 4 * int(limits["TimeoutStopSec"])
    # A boot does not wait longer than for one command that hangs.
    assert end == int(limits["JobRunningTimeoutSec"]) < refresh.LIMIT < lock.TIMEOUT


@pytest.mark.parametrize(
    ("output", "command", "expected"),
    [
        ("/etc/cdi/nvidia.yaml", COMMAND, {"ProtectSystem=strict", "ProtectHome=yes", "ConfigurationDirectory=cdi"}),
        (
            "/var/run/cdi/nvidia.yaml",
            COMMAND,
            {"ProtectSystem=strict", "ProtectHome=yes", "RuntimeDirectory=cdi", "RuntimeDirectoryPreserve=yes"},
        ),
        ("/etc/a b/100%/x.yaml", COMMAND, {'ConfigurationDirectory="a b/100%%"', "ProtectSystem=strict"}),
        ("/srv/cdi/nvidia.yaml", COMMAND, {"ProtectSystem=yes", "ProtectHome=yes"}),
        ("/root/nvidia.yaml", COMMAND, {"ProtectSystem=yes"}),
        # The service could not write there.
        ("/usr/local/share/cdi/nvidia.yaml", COMMAND, {"ProtectHome=yes"}),
        # systemd would ignore such a directory.
        ("/etc/a:b/nvidia.yaml", COMMAND, {"ProtectSystem=yes", "ProtectHome=yes"}),
        ("/etc/cdi/nvidia.yaml", ["/home/kubernetes/bin/nvidia/nvidia-ctk"], {"ProtectHome=read-only"}),
        ("/etc/cdi/nvidia.yaml", [*COMMAND, "--driver-root=/home/kubernetes/bin/nvidia"], {"ProtectHome=read-only"}),
    ],
)
def test_only_the_directory_of_the_specification_is_writable(
    output: str, command: list[str], expected: set[str]
) -> None:
    found = {line for line in settings(output, command) if "Directory" in line or line.startswith("Protect")}
    found -= {"ProtectHostname=yes", "ProtectKernelLogs=yes"}
    assert expected <= found
    assert ("ProtectHome" in str(found)) is not output.startswith("/root")
    assert ("ProtectSystem" in str(found)) is not output.startswith("/usr")


def test_the_service_can_do_its_work() -> None:
    """Loading modules, and creating nodes with the owner and the mode of the driver's parameters in the host's /dev."""
    lines = settings()
    (capabilities,) = (line.partition("=")[2] for line in lines if line.startswith("CapabilityBoundingSet="))
    assert capabilities.split() == ["CAP_SYS_MODULE", "CAP_SYS_ADMIN", "CAP_MKNOD", "CAP_CHOWN"]
    # Each of these hides devices, modules or /proc/driver.
    refused = ("PrivateDevices", "ProtectClock", "DeviceAllow", "ProtectKernelModules", "ProtectProc", "ProcSubset")
    assert not [line for line in lines if line.startswith(refused)]
    assert {"NoNewPrivileges=yes", "UMask=0022", "PrivateNetwork=yes", "RestrictAddressFamilies=AF_UNIX"} <= {*lines}


def test_drop_in_stops_the_service_of_the_toolkit() -> None:
    assert drop_in().decode().splitlines()[2:] == [
        "[Unit]",
        f"ConditionPathExists=!{LOCAL}/{OWN_SERVICE}",
        f"Wants={OWN_SERVICE}",
    ]


ANALYZE = shutil.which("systemd-analyze")
# The result of the units of 1.2.0 was 9.6 of 10.
THRESHOLD = 70


@pytest.mark.skipif(ANALYZE is None, reason="There is no systemd-analyze on this machine. molecule/cdi runs it too.")
@pytest.mark.parametrize("output", [SPECIFICATION, OUTPUT, "/srv/cdi/nvidia.yaml"])
def test_exposure(tmp_path: Path, output: str) -> None:
    unit = tmp_path / OWN_SERVICE
    unit.write_text("\n".join(settings(output)) + "\n")
    command = [ANALYZE or "", "security", "--offline=true", f"--threshold={THRESHOLD}", "--no-pager", str(unit)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized option" in ended.stderr:
        pytest.skip("This systemd-analyze is older than 250, and cannot read a file.")
    assert ended.returncode == 0, ended.stdout + ended.stderr
