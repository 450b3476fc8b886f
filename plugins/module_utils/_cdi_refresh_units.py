# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the units with which NVIDIA's toolkit (1.18 and newer) keeps a CDI specification fresh, as
# their files stand on a host.  Every task asks for them, so where there are none this costs a few looks at names.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import (
    UNIT_FOLDERS,
    is_masked,
    load_unit,
    unit_file,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

SERVICE, PATH = "nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path"
PROGRAM = "nvidia-ctk"
# What the service reads its options from, and the one that says where it writes.
ENVIRONMENT_FILE = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
OUTPUT = "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"
# Where it writes if nobody says otherwise.
DEFAULT_OUTPUT = "/var/run/cdi/nvidia.yaml"

# Folders of links that make one unit's start another's (systemd.unit(5)).
_LINK_FOLDERS = ("wants", "requires", "upholds")


class ToolkitRefresh(t.NamedTuple):
    """The toolkit's refresh units: their files, and what comes of them.

    ``path`` is the unit that starts the service when a driver is installed, None where there is none.  ``at_boot`` and
    ``on_change`` say whether the service and that unit are enabled.  ``output`` is the specification that the service
    writes; empty if it writes none.  ``environment`` is what the service's program is told.
    """

    service: str
    path: str | None
    at_boot: bool
    on_change: bool
    masked: bool
    output: str
    environment: t.Mapping[str, str]

    @property
    def enabled(self) -> bool:
        """Whether the service writes its file by itself, be it at boot or after a change of the driver."""
        return not self.masked and (self.at_boot or self.on_change)


def toolkit_refresh(host: HostRoot) -> ToolkitRefresh | None:
    """The toolkit's refresh units as they stand on ``host``, None where it has none."""
    service = unit_file(host, SERVICE)
    if service is None:
        return None
    path = unit_file(host, PATH)
    watched = path is not None and not is_masked(host, path) and is_enabled(host, PATH)
    unit = load_unit(host, SERVICE, PROGRAM)
    if unit is None:
        return ToolkitRefresh(service, path, at_boot=False, on_change=watched, masked=True, output="", environment={})
    flags = unit.flag_values("--output")
    output = flags[-1] if flags else unit.environment.get(OUTPUT, DEFAULT_OUTPUT)
    return ToolkitRefresh(
        service,
        path,
        at_boot=is_enabled(host, SERVICE),
        on_change=watched,
        masked=False,
        output=output,
        environment=unit.environment,
    )


def is_enabled(host: HostRoot, name: str) -> bool:
    """Whether anything that starts brings the unit ``name`` along."""
    patterns = (f"{folder}/*.{links}/{name}" for folder in UNIT_FOLDERS for links in _LINK_FOLDERS)
    return any(host.glob(pattern) for pattern in patterns)
