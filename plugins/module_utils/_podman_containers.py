# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: a container of a local image through the program podman, as root.  Nothing is ever pulled.

from __future__ import annotations

import json
import typing as t
import uuid

from ansible_collections.gpufleet.nvidia.plugins.module_utils._containers import (
    LABEL,
    NAME,
    REMOVAL,
    Deadline,
    End,
    NotRunError,
    Order,
    not_ended,
    shortened,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner

# The qualified name of all GPUs, for ``devices``.
ALL_GPUS = "nvidia.com/gpu=all"
# Lines of a container's output that are asked for.
_LINES = 100
# podman-run(1), "Exit status": the command is not in the image.
_NO_SUCH_PROGRAM = 127
# What a podman says that knows no device of this name, and what may be wrong then.
_UNRESOLVED = "unresolvable CDI devices"
_ABOUT_DEVICES = (
    "No CDI specification that this Podman reads and accepts describes it. Make one with nvidia_cdi_spec, and let"
    " Podman read its folder with nvidia_runtime_config."
)
_LOOK = "Podman has no journal of its own: start such a container by hand, with podman --log-level=debug."
# States of a container whose process is gone.
_ENDED = ("exited", "stopped")


class PodmanContainers:
    """Containers of the podman in ``binary``, each with the CDI devices ``devices``.

    An order's runtime is of no concern: none is registered with Podman.
    """

    def __init__(self, host: HostRoot, run: Runner, binary: str, devices: t.Sequence[str] = ()) -> None:
        self._host = host
        self._runner = run
        self._binary = binary
        self._devices = devices
        self._deadline = Deadline(REMOVAL)
        self.left_behind = ""

    def run(self, order: Order) -> End:
        self._deadline = Deadline(order.timeout)
        self._check_image(order.image)
        self._remove_all()
        try:
            return self._run(order)
        finally:
            self.left_behind = self._remove_all()

    def _run(self, order: Order) -> End:
        name = f"{NAME}-{uuid.uuid4().hex[:12]}"
        # In the background, so that a run that is cut off, or has waited long enough, still knows what to remove.
        status, _output, errors = self._podman(
            "run",
            "--detach",
            "--pull=never",
            "--network=none",
            f"--name={name}",
            f"--label={LABEL}=1",
            # Its removal waits for nothing.
            "--stop-timeout=0",
            # The host's own default may be one whose logs cannot be read back.
            "--log-driver=k8s-file",
            "--log-opt=max-size=1mb",
            *(f"--env={variable}={value}" for variable, value in order.environment.items()),
            *(f"--device={device}" for device in self._devices),
            # In place of the image's own, which may do anything.
            f"--entrypoint={json.dumps(list(order.command))}",
            "--",
            order.image,
        )
        if status == _NO_SUCH_PROGRAM:
            return End(status, _words(errors))
        if status:
            advice = _ABOUT_DEVICES if _UNRESOLVED in errors else _LOOK
            raise NotRunError(f"podman cannot start it: {_words(errors)}", advice, self._output(name))
        ended = self._deadline.ended(lambda: self._status(name))
        output = self._output(name)
        if ended is None:
            raise not_ended(order, output)
        return End(ended, output)

    def _check_image(self, image: str) -> None:
        status, _output, errors = self._podman("image", "exists", "--", image)
        if status == 1:
            raise NotRunError(
                f"The image {image} is not on this host, and nothing is pulled here",
                "Load it first, for example with podman load --input FILE, or name another one in image.",
                tried=False,
            )
        if status:
            raise NotRunError(
                f"podman does not say whether it has the image {image}: {_words(errors)}",
                "Correct image, or what podman complains of.",
                tried=False,
            )

    def _status(self, name: str) -> int | None:
        state = "{{.State.Status}} {{.State.ExitCode}}"
        status, output, errors = self._podman("container", "inspect", f"--format={state}", "--", name)
        word, _blank, code = output.strip().partition(" ")
        if status and "no such" in errors:
            raise NotRunError("Somebody removed it while it ran", "Run this again when nothing prunes containers.")
        if status or not code.isdecimal():
            raise NotRunError(f"podman does not tell how it is: {_words(errors or output)}")
        return int(code) if word in _ENDED else None

    def _output(self, name: str) -> str:
        """What the container has said; one that was never started has said nothing."""
        status, output, errors = self._podman("logs", f"--tail={_LINES}", "--", name)
        return "" if status else shortened(output + errors)

    def _remove_all(self) -> str:
        """Remove all containers that this module has ever left here; returns why one stays, if one does."""
        status, output, errors = self._podman("ps", "--all", "--quiet", "--no-trunc", f"--filter=label={LABEL}")
        found = output.split()
        if not status and found:
            # Somebody else may have been faster.
            status, _output, errors = self._podman("rm", "--force", "--ignore", "--volumes", "--", *found)
        return f"The container may still be there: {_words(errors)}" if status else ""

    def _podman(self, *arguments: str) -> tuple[int, str, str]:
        return self._runner(self._host.argv([self._binary, *arguments]))


def _words(errors: str) -> str:
    """What podman says is wrong, among its warnings."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("Error:")), lines[-1] if lines else "")
    return said[len("Error:") :].strip() if said.startswith("Error:") else said or "it does not say why"
