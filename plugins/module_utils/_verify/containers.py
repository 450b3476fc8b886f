# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Start a container with Docker, to verify an engine or to measure a copy of another container.

``podman_containers`` and ``cri_pods`` do the same with Podman and with a CRI.
It pulls no image. Without an image, it imports an archive of the host's programs as one, and removes it again.
"""

from __future__ import annotations

import abc
import contextlib
import json
import re
import time
import typing as t
import uuid
from urllib.parse import quote

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import unix_socket

# The name of everything created here, and the label that identifies what a killed task left.
NAME = "gpufleet-verify"
LABEL = "gpufleet.nvidia.verify"
# The number of characters of a container's output that are kept, from its end.
OUTPUT_LIMIT = 16000
# Seconds for the removal, in addition to the timeout.
REMOVAL_TIMEOUT = 30.0
# The number of output lines to request.
OUTPUT_LINES = 400
# Seconds between two queries of a container's state: the first pause and the longest.
_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
# Seconds allowed for a query after the timeout, to read the container's exit status and output.
_MIN_QUERY_TIMEOUT = 2.0
# The exit statuses after SIGKILL and SIGTERM.
KILLED = (137, 143)

REMOVED = "Another program removed the container while it ran"
REMOVED_ADVICE = "Run the task again while no other program removes containers."


class ContainerSpec(t.NamedTuple):
    """A container of the local image ``image`` that runs only ``command``, without a network.

    - ``image``: empty if ``archive``, the tar archive of a file system, is to be imported instead.
    - ``runtime``: empty for the default runtime of the engine.
    - ``devices``: qualified names of CDI devices.
    - ``all_gpus``: whether to start it as ``docker run --gpus all`` does.
    - ``request``: what else to request, in the form of the engine: fields of Docker's request, options of `podman run`,
      or encoded fields of the configurations of a CRI's pod and container.
    - ``measure``: called with the ID of the first process, for a container whose command only waits. The status in the
      result is then 0 if it still runs afterwards, otherwise that of a killed one.
    """

    image: str
    command: tuple[str, ...]
    runtime: str
    environment: t.Mapping[str, str]
    timeout: float
    devices: tuple[str, ...] = ()
    all_gpus: bool = False
    archive: bytes = b""
    request: t.Any = None
    measure: t.Callable[[int], None] | None = None


class ContainerResult(t.NamedTuple):
    """The exit status and the output of a container that has exited."""

    status: int
    output: str


class ContainerError(Exception):
    """The error for a container that did not run to its end.

    It has the problem, the advice if there is any, and the output so far. ``started`` says whether the engine was
    requested to create or start the container. ``no_program`` says that the image lacks the program of the command.
    ``refusal`` is the engine's own message if it refused to create or start the container.
    """

    def __init__(
        self, problem: str, advice: str = "", output: str = "", *, started: bool = True, refusal: str = ""
    ) -> None:
        super().__init__(problem, advice)
        self.problem = problem
        self.advice = advice
        self.output = output
        self.started = started
        self.no_program = False
        self.refusal = refusal


class Deadline:
    """A point in time by which everything must be done."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that a query may take."""
        return max(self._end - time.monotonic(), _MIN_QUERY_TIMEOUT)

    def wait(self, query: t.Callable[[], int | None]) -> int | None:
        """Repeat ``query`` until it returns an exit status, and return that, or None if time runs out."""
        pause = _PAUSE
        while True:
            status = query()
            if status is not None:
                return status
            left = self._end - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE)


class Containers(abc.ABC):
    """The base of the classes that start a container with one engine.

    After run(), ``cleanup_error`` is the reason if something could not be removed.
    """

    def __init__(self) -> None:
        self._deadline = Deadline(REMOVAL_TIMEOUT)
        self.cleanup_error = ""

    def run(self, spec: ContainerSpec) -> ContainerResult:
        """Start the container, wait until it exits or measure it, and remove it in any case. Raises ContainerError."""
        self._deadline = Deadline(spec.timeout)
        if not spec.archive:
            self._check_image(spec.image)
        self._remove_all()
        try:
            return self._run(self._with_image(spec))
        finally:
            self._deadline = Deadline(REMOVAL_TIMEOUT)
            self.cleanup_error = self._remove_all() or self._remove_image()

    def _with_image(self, spec: ContainerSpec) -> ContainerSpec:
        """Return ``spec`` with the image that is made of its archive, if it has one."""
        if not spec.archive:
            return spec
        # For a name without a registry, Podman creates and locks its file of short names.
        image = f"localhost/{NAME}:{uuid.uuid4().hex[:12]}"
        self._import(spec.archive, image)
        return spec._replace(image=image)

    def _import(self, archive: bytes, image: str) -> None:  # noqa: ARG002
        """Make an image with LABEL of ``archive``. Raises ContainerError."""
        raise ContainerError("This engine imports no image", f"Set {core_errors.option:image}.", started=False)

    def _remove_image(self) -> str:
        """Remove an image that this run has pulled; return an error message if it remains."""
        return ""

    def _result(self, spec: ContainerSpec, name: str) -> ContainerResult:
        """Wait until the container exits, or measure it, and return its result."""
        if spec.measure is not None:
            return self._measured(name, spec.measure)
        status = self._deadline.wait(lambda: self._status(name))
        output = self._output(name)
        if status is None:
            raise ContainerError(
                f"The container did not exit within {spec.timeout:g} seconds",
                f"Increase {core_errors.option:timeout}, or set {core_errors.option:command} to one that exits.",
                output,
            )
        return ContainerResult(status, output)

    def _measured(self, name: str, measure: t.Callable[[int], None]) -> ContainerResult:
        pid = self._pid(name)
        if pid:
            measure(pid)
        if pid and pid == self._pid(name):
            return ContainerResult(0, "")
        return ContainerResult(KILLED[0], self._output(name))

    @abc.abstractmethod
    def _check_image(self, image: str) -> None:
        """Raise ContainerError if the image is not on this host."""

    @abc.abstractmethod
    def _run(self, spec: ContainerSpec) -> ContainerResult:
        """Start the container and return its result. Raises ContainerError."""

    @abc.abstractmethod
    def _pid(self, name: str) -> int:
        """Return the ID of the container's first process; 0 if it does not run. Raises ContainerError."""

    @abc.abstractmethod
    def _status(self, name: str) -> int | None:
        """Return the exit status of a container that has exited, else None. Raises ContainerError."""

    @abc.abstractmethod
    def _output(self, name: str) -> str:
        """Return the container's output; empty for a container that was never started."""

    @abc.abstractmethod
    def _remove_all(self) -> str:
        """Remove everything that this module left on the host; return an error message if something remains."""


# The exit status of engines for a program that was not found: of the command, of a hook, or of the runtime.
NO_SUCH_PROGRAM = 127


def lacks_program(spec: ContainerSpec, status: int, message: str) -> bool:
    """Return whether a failed start means that the image lacks the program of the command.

    ``status`` is the exit status that the engine reports. It is the same for a hook that is not found, so ``message``
    has to name the program of the command. The archive of the host's programs has it.
    """
    # The program of a pause image is its own.
    names = [re.escape(program) for program in spec.command[:1]]
    named = any(re.search(rf"(?<![\w./-]){name}(?![\w./-])", message) for name in names)
    return status == NO_SUCH_PROGRAM and not spec.archive and named


def missing_image(image: str, load_command: str, kind: str = "image") -> ContainerError:
    """Return the error for an image that is not on this host."""
    change = f"set {core_errors.option:image} to another one" if kind == "image" else "configure another one"
    return ContainerError(
        f"The {kind} {image} is not on this host, and no image is pulled",
        f"Load it first, for example with `{load_command}`, or {change}.",
        started=False,
    )


def shorten(output: str) -> str:
    """Return the end of a container's output."""
    output = output.strip()
    return output if len(output) <= OUTPUT_LIMIT else "[...] " + output[-OUTPUT_LIMIT:]


# The size of Docker's header before each piece of output of a container without a terminal: stream, zeros, size.
_HEADER_SIZE = 8


class DockerContainers(Containers):
    """The containers of the dockerd behind a socket."""

    def __init__(self, socket_path: str, shown_socket: str) -> None:
        super().__init__()
        self._socket = socket_path
        self._shown_socket = shown_socket

    def _run(self, spec: ContainerSpec) -> ContainerResult:
        name = f"{NAME}-{uuid.uuid4().hex[:12]}"
        created = self._request("POST", f"/containers/create?name={name}", _create_body(spec))
        if created.refused:
            message = created.error_message()
            raise ContainerError(f"docker cannot create the container: {message}", refusal=message)
        started = self._request("POST", f"/containers/{name}/start")
        if started.refused:
            message = started.error_message()
            problem = f"docker cannot start the container: {message}"
            error = ContainerError(problem, output=self._output(name), refusal=message)
            error.no_program = lacks_program(spec, self._recorded(name, "ExitCode"), message)
            raise error
        return self._result(spec, name)

    def _check_image(self, image: str) -> None:
        answer = self._request("GET", f"/images/{quote(image, safe='/:@')}/json")
        if answer.status == 404:
            raise missing_image(image, "docker load --input FILE")
        if answer.refused:
            raise ContainerError(
                f"docker cannot find the image {image}: {answer.error_message()}",
                f"Correct {core_errors.option:image}.",
                started=False,
            )

    def _status(self, name: str) -> int | None:
        answer = self._request("GET", f"/containers/{name}/json")
        if answer.status == 404:
            raise ContainerError(REMOVED, REMOVED_ADVICE)
        try:
            state = json_data.field(answer.json(), "State", dict)
            return (
                json_data.field(state, "ExitCode", int)
                if json_data.field(state, "Status", str) in ("exited", "dead")
                else None
            )
        except ValueError as error:
            raise ContainerError(f"docker does not report the container's state: {error}") from error

    def _pid(self, name: str) -> int:
        return self._recorded(name, "Pid")

    def _recorded(self, name: str, number: str) -> int:
        """Return a number in the state that Docker has recorded, also of a container that it could not start."""
        answer = self._request("GET", f"/containers/{name}/json")
        with contextlib.suppress(ValueError):
            return json_data.get(json_data.get({} if answer.refused else answer.json(), "State", {}), number, 0)
        return 0

    def _output(self, name: str) -> str:
        try:
            answer = self._request("GET", f"/containers/{name}/logs?stdout=1&stderr=1&tail={OUTPUT_LINES}")
        except ContainerError:
            return ""
        return "" if answer.refused else shorten(_decode_stream(answer.body))

    def _import(self, archive: bytes, image: str) -> None:
        repository, _colon, tag = image.partition(":")
        query = f"fromSrc=-&repo={repository}&tag={tag}&changes={quote(f'LABEL {LABEL}=1')}"
        answer = self._request("POST", f"/images/create?{query}", archive)
        # An error after the beginning of the reply has no status.
        if answer.refused or b'"errorDetail"' in answer.body:
            raise ContainerError(f"docker cannot import the image of the host's programs: {answer.error_message()}")

    def _remove_all(self) -> str:
        # Docker removes no image of a container that still exists.
        return self._remove_labelled("container", "all=1", "force=1&v=1") or self._remove_labelled(
            "image", "all=0", "force=1"
        )

    def _remove_labelled(self, kind: str, listing: str, removal: str) -> str:
        """Remove everything of a kind with LABEL; return an error message if something remains."""
        may_exist = f"The {kind} may still exist"
        try:
            filters = quote(json.dumps({"label": [LABEL]}))
            answer = self._request("GET", f"/{kind}s/json?{listing}&filters={filters}")
            found = [] if answer.refused else answer.json()
            for identity in [json_data.field(entry, "Id", str) for entry in json_data.check(found, list)]:
                deleted = self._request("DELETE", f"/{kind}s/{quote(identity, safe='')}?{removal}")
                # Another program may have removed it (404), or may be removing it (409).
                if deleted.refused and deleted.status not in (404, 409):
                    return f"The {kind} {identity[:12]} cannot be removed: {deleted.error_message()}"
        except (ContainerError, ValueError) as error:
            reason = error.problem if isinstance(error, ContainerError) else f"docker's list of {kind}s is not valid"
            return f"{may_exist}: {reason}"
        return "" if not answer.refused else f"{may_exist}: {answer.error_message()}"

    def _request(self, method: str, request: str, body: t.Any = None) -> unix_socket.HttpResponse:
        try:
            return unix_socket.http_request(self._socket, method, request, body, self._deadline.left())
        except (OSError, ValueError) as error:
            raise ContainerError(
                f"docker does not answer correctly on {self._shown_socket} ({str(error) or 'empty answer'})",
                f"Increase {core_errors.option:timeout}, or read the journal of docker.",
            ) from error


def _create_body(spec: ContainerSpec) -> dict[str, t.Any]:
    requests: list[dict[str, t.Any]] = []
    if spec.devices:
        requests.append({"Driver": "cdi", "DeviceIDs": list(spec.devices)})
    if spec.all_gpus:
        requests.append({"Count": -1, "Capabilities": [["gpu"]]})
    more: dict[str, t.Any] = spec.request or {}
    return {
        "Image": spec.image,
        # It replaces the image's own entry point, which could do anything.
        "Entrypoint": list(spec.command),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in spec.environment.items()],
        "Labels": {LABEL: "1"},
        "NetworkDisabled": True,
        **more,
        "HostConfig": {
            **({"Runtime": spec.runtime} if spec.runtime else {}),
            **({"DeviceRequests": requests} if requests else {}),
            "NetworkMode": "none",
            # The logs of the daemon's default driver may not be readable.
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m"}},
            **more.get("HostConfig", {}),
        },
    }


def _decode_stream(stream: bytes) -> str:
    """Return the text of both output streams of a container, in the order in which it was written."""
    text = bytearray()
    position = 0
    while position + _HEADER_SIZE <= len(stream):
        size = int.from_bytes(stream[position + 4 : position + _HEADER_SIZE], "big")
        text += stream[position + _HEADER_SIZE : position + _HEADER_SIZE + size]
        position += _HEADER_SIZE + size
    return text.decode("utf-8", "replace")
