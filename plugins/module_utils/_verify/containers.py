# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Start a container with Docker or Podman to verify an engine. No image is pulled. Pods are in ``cri_pods``."""

from __future__ import annotations

import contextlib
import json
import signal
import time
import typing as t
import uuid
from urllib.parse import quote

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import unix_socket

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# The name of everything created here, and the label that identifies what a killed task left.
NAME = "gpufleet-verify"
LABEL = "gpufleet.nvidia.verify"
# The number of characters of a container's output that are kept, from its end.
OUTPUT_LIMIT = 4000

# Seconds for the removal, in addition to the timeout.
REMOVAL = 30.0

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# Seconds between two queries of a container's state: the first pause and the longest.
_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
# Seconds allowed for a query after the timeout, to read the container's exit status and output.
_LEAST = 2.0


class ContainerSpec(t.NamedTuple):
    """A container of the local image ``image`` that runs only ``command``, without a network."""

    image: str
    command: tuple[str, ...]
    runtime: str
    environment: t.Mapping[str, str]
    timeout: float


class ContainerResult(t.NamedTuple):
    """The exit status and the output of a container that has ended."""

    status: int
    output: str


class NotRunError(Exception):
    """The error for a container that did not run to its end.

    It has the problem, the advice if there is any, and the output so far. ``tried`` says whether the engine was told
    to start anything.
    """

    def __init__(self, problem: str, advice: str = "", output: str = "", *, tried: bool = True) -> None:
        super().__init__(problem, advice)
        self.problem = problem
        self.advice = advice
        self.output = output
        self.tried = tried


def not_ended(order: ContainerSpec, output: str) -> NotRunError:
    """Return the error for a container that did not end in time."""
    problem = f"It did not end within {order.timeout:g} seconds"
    return NotRunError(problem, "Give it more with timeout, or a command that ends by itself.", output)


class Containers(t.Protocol):
    """The interface for starting containers. After run(), ``left_behind`` is the reason if one could not be removed."""

    left_behind: str

    def run(self, order: ContainerSpec) -> ContainerResult:
        """Start the container, wait for its end, and remove it in any case. Raises NotRunError."""


class Deadline:
    """A point in time by which everything has to be done."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that an answer may take."""
        return max(self._end - time.monotonic(), _LEAST)

    def ended(self, ask: t.Callable[[], int | None]) -> int | None:
        """Return the exit status that ``ask`` returns at last, or None if time runs out."""
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
    """Raise SystemExit for the signals that end a process, so that the container is removed."""

    def end(number: int, _frame: object) -> t.NoReturn:
        # A second signal must not interrupt the removal.
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # A signal that is set to be ignored, as nohup does, stays ignored.
    for number in [number for number in _SIGNALS if before[number] is not signal.SIG_IGN]:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            # getsignal() returns None for a handler that was not set from Python.
            if handler is not None:
                signal.signal(number, handler)


def shortened(output: str) -> str:
    """Return the end of a container's output."""
    output = output.strip()
    return output if len(output) <= OUTPUT_LIMIT else "[...] " + output[-OUTPUT_LIMIT:]


# The number of output lines to request.
_DOCKER_LINES = 100
# The size of Docker's header before each piece of output of a container without a terminal: stream, zeros, size.
_HEAD = 8


class DockerContainers:
    """The containers of the dockerd behind a socket."""

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
            raise NotRunError(f"docker does not create it: {made.error_message()}")
        started = self._ask("POST", f"/containers/{name}/start")
        if started.refused:
            raise NotRunError(f"docker cannot start it: {started.error_message()}", output=self._output(name))
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
                f"docker does not know the image {image}: {answer.error_message()}", "Correct image.", tried=False
            )

    def _status(self, name: str) -> int | None:
        answer = self._ask("GET", f"/containers/{name}/json")
        if answer.status == 404:
            raise NotRunError("Somebody removed it while it ran", "Run this again when nothing prunes containers.")
        try:
            state = json_data.field(answer.json(), "State", dict)
            return (
                json_data.field(state, "ExitCode", int)
                if json_data.field(state, "Status", str) in ("exited", "dead")
                else None
            )
        except ValueError as error:
            raise NotRunError(f"docker does not report the container's state: {error}") from error

    def _output(self, name: str) -> str:
        """Return the container's output; empty for a container that was never started."""
        try:
            answer = self._ask("GET", f"/containers/{name}/logs?stdout=1&stderr=1&tail={_DOCKER_LINES}")
        except NotRunError:
            return ""
        return "" if answer.refused else shortened(_plain(answer.body))

    def _remove_all(self) -> str:
        """Remove all containers that this module left on the host; return an error message if one remains."""
        try:
            answer = self._ask("GET", f"/containers/json?all=1&filters={quote(json.dumps({'label': [LABEL]}))}")
            found = [] if answer.refused else answer.json()
            for identity in [json_data.field(container, "Id", str) for container in json_data.check(found, list)]:
                gone = self._ask("DELETE", f"/containers/{quote(identity, safe='')}?force=1&v=1")
                # Another program may have removed it (404), or may be removing it (409).
                if gone.refused and gone.status not in (404, 409):
                    return f"The container {identity[:12]} cannot be removed: {gone.error_message()}"
        except (NotRunError, ValueError) as error:
            reason = error.problem if isinstance(error, NotRunError) else "docker does not list its containers properly"
            return f"The container may still be there: {reason}"
        return "" if not answer.refused else f"The container may still be there: {answer.error_message()}"

    def _ask(self, method: str, request: str, body: t.Any = None) -> unix_socket.HttpResponse:
        try:
            return unix_socket.http_request(self._socket, method, request, body, self._deadline.left())
        except (OSError, ValueError) as error:
            raise NotRunError(
                f"docker gives no proper answer on {self._shown_socket} ({str(error) or 'it says nothing'})",
                "Give it more time with timeout, or look at its journal.",
            ) from error


def _body(order: ContainerSpec) -> dict[str, t.Any]:
    return {
        "Image": order.image,
        # It replaces the image's own entry point, which could do anything.
        "Entrypoint": list(order.command),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in order.environment.items()],
        "Labels": {LABEL: "1"},
        "NetworkDisabled": True,
        "HostConfig": {
            "Runtime": order.runtime,
            "NetworkMode": "none",
            # The logs of the daemon's default driver may not be readable.
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m"}},
        },
    }


def _plain(stream: bytes) -> str:
    """Return the text of both output streams of a container, in the order in which it was written."""
    text = bytearray()
    position = 0
    while position + _HEAD <= len(stream):
        size = int.from_bytes(stream[position + 4 : position + _HEAD], "big")
        text += stream[position + _HEAD : position + _HEAD + size]
        position += _HEAD + size
    return text.decode("utf-8", "replace")


# The qualified name of all GPUs, a value for ``devices``.
ALL_GPUS = "nvidia.com/gpu=all"
# The number of output lines to request.
_PODMAN_LINES = 100
# podman-run(1), "Exit status": the image lacks the command.
_NO_SUCH_PROGRAM = 127
# Podman's message for an unknown device, and the advice for it.
_UNRESOLVED = "unresolvable CDI devices"
_ABOUT_DEVICES = (
    "No CDI specification that this Podman reads and accepts describes it. Make one with nvidia_cdi_spec, and let"
    " Podman read its folder with nvidia_runtime_config."
)
_LOOK = "Podman has no journal of its own: start such a container by hand, with podman --log-level=debug."
# The states of a container whose process has ended.
_ENDED = ("exited", "stopped")


class PodmanContainers:
    """The containers of the podman in ``binary``, each with the CDI devices ``devices``.

    The runtime of a container is ignored, because no runtime is registered with Podman.
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
        # The container runs detached, so that its name is known if the task is interrupted or the timeout expires.
        status, _output, errors = self._podman(
            "run",
            "--detach",
            "--pull=never",
            "--network=none",
            f"--name={name}",
            f"--label={LABEL}=1",
            # The removal must not wait for the container to stop.
            "--stop-timeout=0",
            # The logs of the host's default driver may not be readable.
            "--log-driver=k8s-file",
            "--log-opt=max-size=1mb",
            *(f"--env={variable}={value}" for variable, value in order.environment.items()),
            *(f"--device={device}" for device in self._devices),
            # It replaces the image's own entry point, which could do anything.
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
        """Return the container's output; empty for a container that was never started."""
        status, output, errors = self._podman("logs", f"--tail={_PODMAN_LINES}", "--", name)
        return "" if status else shortened(output + errors)

    def _remove_all(self) -> str:
        """Remove all containers that this module left on the host; return an error message if one remains."""
        status, output, errors = self._podman("ps", "--all", "--quiet", "--no-trunc", f"--filter=label={LABEL}")
        found = output.split()
        if not status and found:
            # Another program may have removed them already.
            status, _output, errors = self._podman("rm", "--force", "--ignore", "--volumes", "--", *found)
        return f"The container may still be there: {_words(errors)}" if status else ""

    def _podman(self, *arguments: str) -> tuple[int, str, str]:
        return self._runner(self._host.argv([self._binary, *arguments]))


def _words(errors: str) -> str:
    """Return Podman's error message without its warnings."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("Error:")), lines[-1] if lines else "")
    return said[len("Error:") :].strip() if said.startswith("Error:") else said or "it does not say why"
