# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: Docker as Canonical's snap, which is confined and brings NVIDIA's toolkit of its own.

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._docker_plan import DockerPlanner
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_docker import Docker
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import MAIN_NAME
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import load_unit

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
        Context,
        EnginePlan,
        Installation,
        PlannedFile,
        Trial,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import Unit

# Where snapd puts the files of the snap, and the application of it that is the daemon.  What follows was read of
# revisions 1125 to 3505 (the latter of Docker 29.3).
_MOUNT, _APPLICATION = "/snap/docker/", "docker.dockerd"
# How dockerd begins what it has against a file: all else it says is about being run outside of its snap.
_VERDICTS = ("unable to configure the Docker daemon with file", "merged configuration validation")
_OUTSIDE = "userland-proxy"


class _SnapPlanner(DockerPlanner):
    """One plan for the snap's daemon.json, in which the snap has entries of its own."""

    def leftover(self, path: t.Any) -> bool:
        return super().leftover(path) and not _is_snaps_own(path)


class DockerSnap(Docker):
    """The snap's Docker."""

    flavor = "snap"
    key = "docker_snap"
    companions: tuple[str, ...] = ()
    config_path = "/var/snap/docker/current/config/daemon.json"
    service = "snap.docker.dockerd.service"
    pid_file = "/run/snap.docker/docker.pid"
    program_path = f"{_MOUNT}current/bin/dockerd"
    planner = _SnapPlanner

    # -- the host ------------------------------------------------------------------------------------------------

    def _unit(self, host: HostRoot, service: str) -> Unit | None:
        """The unit, in which ``snap run docker.dockerd`` gives all that follows to dockerd."""
        unit = load_unit(host, service)
        if unit is None or not unit.arguments:
            return unit
        program, *words = unit.arguments
        if words[:2] != ["run", _APPLICATION]:
            return unit._replace(arguments=(), wrapper=program)
        return unit._replace(arguments=(program, *words[2:]))

    def _binary(self, host: HostRoot, _unit: Unit | None) -> str | None:
        return host.find_executable([self.program_path])

    def _ask(self, host: HostRoot, installation: Installation, request: str) -> t.Any:
        """Nothing is known where another Docker has taken the socket, which both make in the same place."""
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._signals import sender_of  # noqa: PLC0415

        if sender_of(host.outer(installation.socket), self.greeting) not in (None, installation.pid):
            return None
        return super()._ask(host, installation, request)

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(self, request: RuntimeRequest, context: Context) -> EnginePlan:
        if not request.allow_snap:
            raise GpufleetError(
                f"{context.path}: this Docker is a snap. It is confined, so it cannot run the host's NVIDIA Container"
                " Toolkit; it brings one of its own, and sets that up by itself where it finds a GPU. Use the Docker of"
                " the distribution or Docker's own packages instead, or set allow_snap: true to change the snap's file"
                " nevertheless; nothing was changed."
            )
        same = context.same_program
        # The runtime that the snap has registered is the one that it can run.
        kept = context._replace(same_program=lambda one, other: _is_snaps_own(one) or same(one, other))
        plan = super().present(request, kept)
        return plan._replace(warnings=(*plan.warnings, *_doubts(request, plan)))

    # -- the program ---------------------------------------------------------------------------------------------

    def trial(self, binary: str, folder: str, files: t.Sequence[PlannedFile], context: Context) -> Trial:
        trial = super().trial(binary, folder, files, context)
        # It looks for docker-proxy, which lies beside it.
        path = f"PATH={posixpath.dirname(binary)}:/usr/sbin:/usr/bin:/sbin:/bin"
        return trial._replace(argv=["env", path, *trial.argv])

    def validator_missing(self, output: str) -> bool:
        judged = any(words in output for words in _VERDICTS) and _OUTSIDE not in output
        return not judged or super().validator_missing(output)


def _is_snaps_own(path: t.Any) -> bool:
    return isinstance(path, str) and path.startswith(_MOUNT)


def _doubts(request: RuntimeRequest, plan: EnginePlan) -> t.Iterator[str]:
    runtimes = request.runtimes()
    if MAIN_NAME in runtimes:
        yield (
            f"The Docker snap writes the runtime {MAIN_NAME} itself, whenever its service nvidia-container-toolkit"
            " starts, and takes it out again where that fails. snap set docker nvidia-support.disabled=true switches"
            " that off."
        )
    outside = [name for name, path in plan.state.paths().items() if name in runtimes and not _is_snaps_own(path)]
    if outside:
        yield (
            f"The Docker snap does not see the host's programs, so it cannot run {', '.join(outside)}. Set runtime_dir"
            f" to {_MOUNT}current/usr/bin, where the snap has its own."
        )


DOCKER_SNAP = DockerSnap()
