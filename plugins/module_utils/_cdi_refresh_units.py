# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the units that keep a CDI specification fresh, as their files stand on a host: those of
# NVIDIA's toolkit (1.18 and newer), and those of this collection.  Every task reads them, so where there are none this
# costs a few lookups of names.

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
OWN_SERVICE, OWN_PATH = "gpufleet-nvidia-cdi.service", "gpufleet-nvidia-cdi.path"
PROGRAM = "nvidia-ctk"
# The file of the toolkit's service for its users' options, and the variable that names the specification.
ENVIRONMENT_FILE = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
OUTPUT = "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"
# The specification of the toolkit's service by default.
DEFAULT_OUTPUT = "/var/run/cdi/nvidia.yaml"

# Folders of links that make one unit's start another's (systemd.unit(5)).
_LINK_FOLDERS = ("wants", "requires", "upholds")


class Refresh(t.NamedTuple):
    """A service that runs ``nvidia-ctk cdi generate``, and the unit that starts it after a change of the driver.

    ``path`` is the file of that unit, None where there is none.  ``at_boot`` and ``on_change`` are whether the service
    and that unit are enabled.  ``output`` is the specification that the service writes; empty if it writes none.
    ``kind`` is what the specification describes, as far as the flags of the command name it.
    """

    service: str
    path: str | None
    at_boot: bool
    on_change: bool
    masked: bool
    output: str
    kind: str

    @property
    def enabled(self) -> bool:
        """Whether the service is started at boot or after a change of the driver."""
        return not self.masked and (self.at_boot or self.on_change)


def toolkit_refresh(host: HostRoot) -> Refresh | None:
    """The toolkit's refresh units as they stand on ``host``, None where it has none."""
    return _refresh(host, SERVICE, PATH, DEFAULT_OUTPUT)


def own_refresh(host: HostRoot) -> Refresh | None:
    """The units of this collection, None where they are not there or only run the toolkit's command earlier."""
    found = _refresh(host, OWN_SERVICE, OWN_PATH, "")
    return found if found is not None and found.output and found.kind else None


def _refresh(host: HostRoot, service: str, path: str, default: str) -> Refresh | None:
    file = unit_file(host, service)
    if file is None:
        return None
    watcher = unit_file(host, path)
    watched = watcher is not None and not is_masked(host, watcher) and is_enabled(host, path)
    unit = load_unit(host, service, PROGRAM)
    if unit is None:
        return Refresh(file, watcher, at_boot=False, on_change=watched, masked=True, output="", kind="")
    flags = unit.flag_values("--output")
    kind = [values[-1] for values in (unit.flag_values("--vendor"), unit.flag_values("--class")) if values]
    return Refresh(
        file,
        watcher,
        at_boot=is_enabled(host, service),
        on_change=watched,
        masked=False,
        output=flags[-1] if flags else unit.environment.get(OUTPUT, default),
        kind="/".join(kind),
    )


def is_enabled(host: HostRoot, name: str) -> bool:
    """Whether a link makes the start of another unit the start of the unit ``name``."""
    patterns = (f"{folder}/*.{links}/{name}" for folder in UNIT_FOLDERS for links in _LINK_FOLDERS)
    return any(host.glob(pattern) for pattern in patterns)
