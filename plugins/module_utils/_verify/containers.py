# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Start a container with Docker or Podman to verify an engine. No image is pulled."""

from __future__ import annotations

import contextlib
import json
import signal
import time
import typing as t
import uuid
from urllib.parse import quote

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker import live as docker_live

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# What all that is made here is called, and the label by which leftovers of a killed run are found again.
NAME = "gpufleet-verify"
LABEL = "gpufleet.nvidia.verify"
# Characters of a container's output that are kept, the last ones.
OUTPUT_LIMIT = 4000

# Seconds for the removal, which comes after all else has had its time.
REMOVAL = 30.0

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# Seconds between two looks at a container, the first and the longest.
_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
# Seconds that an answer gets even when all time is spent: what is asked then is how it ended, and what it said.
_LEAST = 2.0


class ContainerSpec(t.NamedTuple):
    """A container of the local image ``image`` that runs ``command`` and nothing else, without a network."""

    image: str
    command: tuple[str, ...]
    runtime: str
    environment: t.Mapping[str, str]
    timeout: float


class ContainerResult(t.NamedTuple):
    """How a container ended: its exit status, and what it said."""

    status: int
    output: str


class NotRunError(Exception):
    """Why there is no end of a container to tell of, what to do about it if that is known, and what it has said.

    ``tried`` says whether the engine was told to start anything at all.
    """

    def __init__(self, problem: str, advice: str = "", output: str = "", *, tried: bool = True) -> None:
        super().__init__(problem, advice)
        self.problem = problem
        self.advice = advice
        self.output = output
        self.tried = tried


def not_ended(order: ContainerSpec, output: str) -> NotRunError:
    """Why nothing can be told of a container that goes on and on."""
    problem = f"It did not end within {order.timeout:g} seconds"
    return NotRunError(problem, "Give it more with timeout, or a command that ends by itself.", output)


class Containers(t.Protocol):
    """What starts containers; afterwards ``left_behind`` says why something of them is still there, if it is."""

    left_behind: str

    def run(self, order: ContainerSpec) -> ContainerResult:
        """Start the container, wait for its end, and remove it whatever happens.  Raises NotRunError."""


class Deadline:
    """A moment by which everything has to be done."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """The seconds that an answer may take."""
        return max(self._end - time.monotonic(), _LEAST)

    def ended(self, ask: t.Callable[[], int | None]) -> int | None:
        """The exit status that ``ask`` tells at last, None if it does not in time."""
        pause = _PAUSE
        while True:
            status = ask()
            if status is not None:
                return status
            left = self._end - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE)


@contextlib.contextmanager
def interruptible() -> t.Iterator[None]:
    """Turns the signals that end a process into an exception, so that what was started is removed."""

    def end(number: int, _frame: object) -> t.NoReturn:
        # Once is enough: what is being removed must not be interrupted.
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # What somebody has set to be ignored, as nohup does, stays ignored.
    for number in [number for number in _SIGNALS if before[number] is not signal.SIG_IGN]:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            # None is one that nobody in Python has set.
            if handler is not None:
                signal.signal(number, handler)


def shortened(output: str) -> str:
    """The end of what a container said."""
    output = output.strip()
    return output if len(output) <= OUTPUT_LIMIT else "[...] " + output[-OUTPUT_LIMIT:]


# Lines of a container's output that are asked for.
_DOCKER_LINES = 100
# What Docker puts before each piece of the output of a container without a terminal: stream, zeros, size.
_HEAD = 8


class DockerContainers:
    """Containers of the dockerd behind a socket."""

    def __init__(self, socket_path: str, shown_socket: str) -> None:
        self._socket = socket_path
        self._shown_socket = shown_socket
        self._deadline = Deadline(REMOVAL)
        self.left_behind = ""

    def run(self, order: ContainerSpec) -> ContainerResult:
        self._deadline = Deadline(order.timeout)
        self._check_image(order.image)
        self._remove_all()
        try:
            return self._run(order)
        finally:
            self._deadline = Deadline(REMOVAL)
            self.left_behind = self._remove_all()

    def _run(self, order: ContainerSpec) -> ContainerResult:
        name = f"{NAME}-{uuid.uuid4().hex[:12]}"
        made = self._ask("POST", f"/containers/create?name={name}", _body(order))
        if made.refused:
            raise NotRunError(f"docker does not create it: {made.words()}")
        started = self._ask("POST", f"/containers/{name}/start")
        if started.refused:
            raise NotRunError(f"docker cannot start it: {started.words()}", output=self._output(name))
        status = self._deadline.ended(lambda: self._status(name))
        output = self._output(name)
        if status is None:
            raise not_ended(order, output)
        return ContainerResult(status, output)

    def _check_image(self, image: str) -> None:
        answer = self._ask("GET", f"/images/{quote(image, safe='/:@')}/json")
        if answer.status == 404:
            raise NotRunError(
                f"The image {image} is not on this host, and nothing is pulled here",
                "Load it first, for example with docker load --input FILE, or name another one in image.",
                tried=False,
            )
        if answer.refused:
            raise NotRunError(
                f"docker does not know the image {image}: {answer.words()}", "Correct image.", tried=False
            )

    def _status(self, name: str) -> int | None:
        answer = self._ask("GET", f"/containers/{name}/json")
        if answer.status == 404:
            raise NotRunError("Somebody removed it while it ran", "Run this again when nothing prunes containers.")
        try:
            state = json_data.field(answer.value(), "State", dict)
            return (
                json_data.field(state, "ExitCode", int)
                if json_data.field(state, "Status", str) in ("exited", "dead")
                else None
            )
        except ValueError as error:
            raise NotRunError(f"docker does not report the container's state: {error}") from error

    def _output(self, name: str) -> str:
        """What the container has said; a container that was never started has said nothing."""
        try:
            answer = self._ask("GET", f"/containers/{name}/logs?stdout=1&stderr=1&tail={_DOCKER_LINES}")
        except NotRunError:
            return ""
        return "" if answer.refused else shortened(_plain(answer.body))

    def _remove_all(self) -> str:
        """Remove all containers that this module has ever left here; returns why one stays, if one does."""
        try:
            answer = self._ask("GET", f"/containers/json?all=1&filters={quote(json.dumps({'label': [LABEL]}))}")
            found = [] if answer.refused else answer.value()
            for identity in [json_data.field(container, "Id", str) for container in json_data.check(found, list)]:
                gone = self._ask("DELETE", f"/containers/{quote(identity, safe='')}?force=1&v=1")
                # Somebody else may have been faster, or be at it.
                if gone.refused and gone.status not in (404, 409):
                    return f"The container {identity[:12]} cannot be removed: {gone.words()}"
        except (NotRunError, ValueError) as error:
            reason = error.problem if isinstance(error, NotRunError) else "docker does not list its containers properly"
            return f"The container may still be there: {reason}"
        return "" if not answer.refused else f"The container may still be there: {answer.words()}"

    def _ask(self, method: str, request: str, body: t.Any = None) -> docker_live.Answer:
        try:
            return docker_live.ask(self._socket, method, request, body, self._deadline.left())
        except (OSError, ValueError) as error:
            raise NotRunError(
                f"docker gives no proper answer on {self._shown_socket} ({str(error) or 'it says nothing'})",
                "Give it more time with timeout, or look at its journal.",
            ) from error


def _body(order: ContainerSpec) -> dict[str, t.Any]:
    return {
        "Image": order.image,
        # In place of the image's own, which may do anything.
        "Entrypoint": list(order.command),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in order.environment.items()],
        "Labels": {LABEL: "1"},
        "NetworkDisabled": True,
        "HostConfig": {
            "Runtime": order.runtime,
            "NetworkMode": "none",
            # The daemon's own default may be a driver whose logs cannot be read back.
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m"}},
        },
    }


def _plain(stream: bytes) -> str:
    """What both streams of a container say, in the order in which it came."""
    text = bytearray()
    position = 0
    while position + _HEAD <= len(stream):
        size = int.from_bytes(stream[position + 4 : position + _HEAD], "big")
        text += stream[position + _HEAD : position + _HEAD + size]
        position += _HEAD + size
    return text.decode("utf-8", "replace")


# The qualified name of all GPUs, for ``devices``.
ALL_GPUS = "nvidia.com/gpu=all"
# Lines of a container's output that are asked for.
_PODMAN_LINES = 100
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

    def __init__(self, host: hostfs.HostFS, run: core_plan.Runner, binary: str, devices: t.Sequence[str] = ()) -> None:
        self._host = host
        self._runner = run
        self._binary = binary
        self._devices = devices
        self._deadline = Deadline(REMOVAL)
        self.left_behind = ""

    def run(self, order: ContainerSpec) -> ContainerResult:
        self._deadline = Deadline(order.timeout)
        self._check_image(order.image)
        self._remove_all()
        try:
            return self._run(order)
        finally:
            self.left_behind = self._remove_all()

    def _run(self, order: ContainerSpec) -> ContainerResult:
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
            return ContainerResult(status, _words(errors))
        if status:
            advice = _ABOUT_DEVICES if _UNRESOLVED in errors else _LOOK
            raise NotRunError(f"podman cannot start it: {_words(errors)}", advice, self._output(name))
        ended = self._deadline.ended(lambda: self._status(name))
        output = self._output(name)
        if ended is None:
            raise not_ended(order, output)
        return ContainerResult(ended, output)

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
        status, output, errors = self._podman("logs", f"--tail={_PODMAN_LINES}", "--", name)
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
