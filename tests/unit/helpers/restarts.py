# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restarts of the Docker in fake_systemd.py, with the parameters that the role uses."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import restart as restart_restart
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.health import Expectation
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.restart import (
    RestartError,
    RestartOptions,
    RestartResult,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.rollback import ChangedFile

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_systemd import FakeSystemd

OLD = '{"debug": true, "live-restore": true}\n'
NVIDIA = Expectation(("nvidia",), "nvidia")
BACKUPS = "/var/lib/gpufleet-nvidia/backups"
STATE = "/var/lib/gpufleet-nvidia/state"
JOURNAL = f"{STATE}/restart-docker.json"


class Signalled(t.NamedTuple):
    """The processes that are dockerd, the one that answers on the socket, and those that got a signal."""

    daemons: list[int]
    answering: list[int]
    got: list[int]


def configure(systemd: FakeSystemd, **request: t.Any) -> tuple[ChangedFile, ...]:
    """Register the runtime, and return the changes for the restart."""
    return _changes(systemd, RuntimeRequest(**{"set_as_default": True, **request}))


def remove(systemd: FakeSystemd, **options: t.Any) -> tuple[ChangedFile, ...]:
    """Remove the runtime, and return the changes for the restart."""
    return _changes(systemd, None, **options)


def _changes(systemd: FakeSystemd, request: RuntimeRequest | None, **options: t.Any) -> tuple[ChangedFile, ...]:
    configuration = ConfigureEngine(Options("docker", request, **options), systemd.docker.host, systemd.run)
    files = configuration.execute(check_mode=False).backup_files
    return tuple(ChangedFile(str(file["path"]), file["backup"], file["checksum"]) for file in files)


def restart(systemd: FakeSystemd, check_mode: bool = False, **options: t.Any) -> RestartResult:
    given = {"engine": "docker", "timeout": 6.0, "backup_dir": BACKUPS, **options}
    return restart_restart.restart(RestartOptions(**given), systemd.docker.host, systemd.run, check_mode)


def failure(systemd: FakeSystemd, check_mode: bool = False, **options: t.Any) -> tuple[str, RestartResult]:
    with pytest.raises(RestartError) as caught:
        restart(systemd, check_mode, **options)
    return str(caught.value), caught.value.result


def ends_with(text: str, end: str) -> t.Callable[[str], str]:
    """Return how starts end: with ``end`` while the file contains ``text``, else active."""
    return lambda content: end if text in content else "active"


def state_files(systemd: FakeSystemd) -> list[str]:
    """Return the kinds of files in the directory of records."""
    folder = systemd.docker.path(STATE)
    return sorted(path.name.split("-")[0] for path in folder.iterdir()) if folder.exists() else []
