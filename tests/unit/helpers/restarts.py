# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A restart as the role asks for it, on the host of fake_systemd.py, and what is looked at afterwards."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import restart as restart_restart
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.health import Expectation
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.restart import (
    Restarted,
    RestartError,
    RestartOptions,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.rollback import Change

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_systemd import FakeSystemd

OLD = '{"debug": true, "live-restore": true}\n'
NVIDIA = Expectation(("nvidia",), "nvidia")
BACKUPS = "/var/lib/gpufleet-nvidia/backups"
STATE = "/var/lib/gpufleet-nvidia/state"
NOTE = f"{STATE}/restart-docker.json"


class Signalled(t.NamedTuple):
    """Which processes are dockerd, who answers on the socket, and who got a signal."""

    daemons: list[int]
    answering: list[int]
    got: list[int]


def configure(systemd: FakeSystemd, **request: t.Any) -> tuple[Change, ...]:
    """Register the runtime; the changes as they are given to the restart."""
    options = Options("docker", RuntimeRequest(**{"set_as_default": True, **request}))
    outcome = ConfigureEngine(options, systemd.docker.host, systemd.run).execute(check_mode=False)
    return tuple(Change(str(file["path"]), file["backup"], file["checksum"]) for file in outcome.backup_files)


def restart(systemd: FakeSystemd, check_mode: bool = False, **options: t.Any) -> Restarted:
    given = {"engine": "docker", "timeout": 0.5, "backup_dir": BACKUPS, **options}
    return restart_restart.restart(RestartOptions(**given), systemd.docker.host, systemd.run, check_mode)


def failure(systemd: FakeSystemd, **options: t.Any) -> tuple[str, Restarted]:
    with pytest.raises(RestartError) as caught:
        restart(systemd, **options)
    return str(caught.value), caught.value.outcome


def only(bad: str, end: str) -> t.Callable[[str], str]:
    """Starts that end badly while the file holds ``bad``."""
    return lambda text: end if bad in text else "active"


def states(systemd: FakeSystemd) -> list[str]:
    """What is left in the folder of records."""
    folder = systemd.docker.path(STATE)
    return sorted(path.name.split("-")[0] for path in folder.iterdir()) if folder.exists() else []
