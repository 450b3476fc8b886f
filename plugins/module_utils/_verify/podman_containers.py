# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Start a container with Podman, to verify it or to measure a copy of another container. It pulls no image."""

from __future__ import annotations

import json
import typing as t
import uuid

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import containers

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# The states of a container whose process has exited.
_EXITED = ("exited", "stopped")
# The commands that list and remove. Another program may have removed a container already.
_REMOVALS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("container", ("ps", "--all"), ("rm", "--force", "--ignore", "--volumes")),
    ("image", ("images",), ("rmi", "--force")),
)


class PodmanContainers(containers.Containers):
    """The containers of the podman in ``binary``.

    The runtime of a container is ignored, because no runtime is registered with Podman.
    """

    def __init__(self, host: hostfs.HostFS, run: core_plan.Runner, binary: str) -> None:
        super().__init__()
        self._host = host
        self._runner = run
        self._binary = binary

    def _run(self, spec: containers.ContainerSpec) -> containers.ContainerResult:
        name = f"{containers.NAME}-{uuid.uuid4().hex[:12]}"
        # The container runs detached, so that its name is known if the task is interrupted or the timeout expires.
        status, _output, errors = self._podman(
            "run",
            "--detach",
            "--pull=never",
            "--network=none",
            f"--name={name}",
            f"--label={containers.LABEL}=1",
            # The removal must not wait for the container to stop.
            "--stop-timeout=0",
            # The logs of the host's default driver may not be readable.
            "--log-driver=k8s-file",
            "--log-opt=max-size=1mb",
            *(f"--env={variable}={value}" for variable, value in spec.environment.items()),
            *(f"--device={device}" for device in spec.devices),
            *(spec.request or ()),
            # It replaces the image's own entry point, which could do anything.
            f"--entrypoint={json.dumps(list(spec.command))}",
            "--",
            spec.image,
        )
        if status:
            message = _error_message(errors)
            problem = f"podman cannot start the container: {message}"
            error = containers.ContainerError(problem, output=self._output(name), refusal=message)
            error.no_program = containers.lacks_program(spec, status, message)
            raise error
        return self._result(spec, name)

    def _check_image(self, image: str) -> None:
        status, _output, errors = self._podman("image", "exists", "--", image)
        if status == 1:
            raise containers.missing_image(image, "podman load --input FILE")
        if status:
            raise containers.ContainerError(
                f"podman cannot find the image {image}: {_error_message(errors)}",
                f"Correct {core_errors.option:image}, or fix what podman reports.",
                started=False,
            )

    def _status(self, name: str) -> int | None:
        state = "{{.State.Status}} {{.State.ExitCode}}"
        status, output, errors = self._podman("container", "inspect", f"--format={state}", "--", name)
        word, _blank, code = output.strip().partition(" ")
        if status and "no such" in errors:
            raise containers.ContainerError(containers.REMOVED, containers.REMOVED_ADVICE)
        if status or not code.isdecimal():
            raise containers.ContainerError(
                f"podman does not report the container's state: {_error_message(errors or output)}"
            )
        return int(code) if word in _EXITED else None

    def _pid(self, name: str) -> int:
        status, output, _errors = self._podman("container", "inspect", "--format={{.State.Pid}}", "--", name)
        return int(output) if not status and output.strip().isdecimal() else 0

    def _output(self, name: str) -> str:
        status, output, errors = self._podman("logs", f"--tail={containers.OUTPUT_LINES}", "--", name)
        return "" if status else containers.shorten(output + errors)

    def _import(self, archive: bytes, image: str) -> None:
        try:
            with lock.temp_directory(self._host, "the host's programs") as (process_path, path):
                with open(f"{process_path}/archive.tar", "wb") as file:
                    file.write(archive)
                change = f"--change=LABEL {containers.LABEL}=1"
                status, _output, errors = self._podman("import", "--quiet", change, "--", f"{path}/archive.tar", image)
        except (core_errors.HostError, OSError) as error:
            problem = f"The archive of the host's programs cannot be written: {error}"
            raise containers.ContainerError(problem, started=False) from error
        if status:
            raise containers.ContainerError(
                f"podman cannot import the image of the host's programs: {_error_message(errors)}"
            )

    def _remove_all(self) -> str:
        label = f"--filter=label={containers.LABEL}"
        for kind, listing, removal in _REMOVALS:
            status, output, errors = self._podman(*listing, "--quiet", "--no-trunc", label)
            found = list(dict.fromkeys(output.split()))
            if not status and found:
                status, _output, errors = self._podman(*removal, "--", *found)
            if status:
                return f"The {kind} may still exist: {_error_message(errors)}"
        return ""

    def _podman(self, *arguments: str) -> tuple[int, str, str]:
        return self._runner(self._host.argv([self._binary, *arguments]))


def _error_message(errors: str) -> str:
    """Return Podman's error message without its warnings."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    message = next((line for line in lines if line.startswith("Error:")), lines[-1] if lines else "no error message")
    return message[len("Error:") :].strip() if message.startswith("Error:") else message
