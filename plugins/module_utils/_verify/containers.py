# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Start a container with Docker or Podman to verify an engine. Pods are in ``cri_pods``.

It pulls no image. Without an image, it imports an archive of the host's programs as one, and removes it again.
"""

from __future__ import annotations

import abc
import contextlib
import json
import re
import signal
import time
import typing as t
import uuid
from urllib.parse import quote

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import json_data, lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import unix_socket

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# The name of everything created here, and the label that identifies what a killed task left.
NAME = "gpufleet-verify"
LABEL = "gpufleet.nvidia.verify"
# The number of characters of a container's output that are kept, from its end.
OUTPUT_LIMIT = 16000
# Seconds for the removal, in addition to the timeout.
REMOVAL_TIMEOUT = 30.0
# The number of output lines to request.
_OUTPUT_LINES = 400
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# Seconds between two queries of a container's state: the first pause and the longest.
_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
# Seconds allowed for a query after the timeout, to read the container's exit status and output.
_MIN_QUERY_TIMEOUT = 2.0


_MAY_EXIST = "The container may still exist"
_REMOVED = "Another program removed the container while it ran"
_REMOVED_ADVICE = "Run the task again while no other program removes containers."


class ContainerSpec(t.NamedTuple):
    """A container of the local image ``image`` that runs only ``command``, without a network.

    - ``image``: empty if ``archive``, the tar archive of a file system, is to be imported instead.
    - ``runtime``: empty for the default runtime of the engine.
    - ``devices``: qualified names of CDI devices.
    - ``all_gpus``: whether to start it as ``docker run --gpus all`` does.
    """

    image: str
    command: tuple[str, ...]
    runtime: str
    environment: t.Mapping[str, str]
    timeout: float
    devices: tuple[str, ...] = ()
    all_gpus: bool = False
    archive: bytes = b""


class ContainerResult(t.NamedTuple):
    """The exit status and the output of a container that has exited."""

    status: int
    output: str


class ContainerError(Exception):
    """The error for a container that did not run to its end.

    It has the problem, the advice if there is any, and the output so far. ``started`` says whether the engine was
    requested to create or start the container. ``no_program`` says that the image lacks the program of the command.
    """

    def __init__(
        self, problem: str, advice: str = "", output: str = "", *, started: bool = True, no_program: bool = False
    ) -> None:
        super().__init__(problem, advice)
        self.problem = problem
        self.advice = advice
        self.output = output
        self.started = started
        self.no_program = no_program


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
        """Start the container, wait until it exits, and remove it in any case. Raises ContainerError."""
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
        """Wait until the container exits, and return its result."""
        status = self._deadline.wait(lambda: self._status(name))
        output = self._output(name)
        if status is None:
            raise ContainerError(
                f"The container did not exit within {spec.timeout:g} seconds",
                f"Increase {core_errors.option:timeout}, or set {core_errors.option:command} to one that exits.",
                output,
            )
        return ContainerResult(status, output)

    @abc.abstractmethod
    def _check_image(self, image: str) -> None:
        """Raise ContainerError if the image is not on this host."""

    @abc.abstractmethod
    def _run(self, spec: ContainerSpec) -> ContainerResult:
        """Start the container and return its result. Raises ContainerError."""

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
    name = re.escape(spec.command[0])
    named = re.search(rf"(?<![\w./-]){name}(?![\w./-])", message) is not None
    return status == NO_SUCH_PROGRAM and not spec.archive and named


def missing_image(image: str, load_command: str, kind: str = "image") -> ContainerError:
    """Return the error for an image that is not on this host."""
    change = f"set {core_errors.option:image} to another one" if kind == "image" else "configure another one"
    return ContainerError(
        f"The {kind} {image} is not on this host, and no image is pulled",
        f"Load it first, for example with `{load_command}`, or {change}.",
        started=False,
    )


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
            raise ContainerError(f"docker cannot create the container: {created.error_message()}")
        started = self._request("POST", f"/containers/{name}/start")
        if started.refused:
            message = started.error_message()
            missing = lacks_program(spec, self._exit_code(name), message)
            problem = f"docker cannot start the container: {message}"
            raise ContainerError(problem, output=self._output(name), no_program=missing)
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
            raise ContainerError(_REMOVED, _REMOVED_ADVICE)
        try:
            state = json_data.field(answer.json(), "State", dict)
            return (
                json_data.field(state, "ExitCode", int)
                if json_data.field(state, "Status", str) in ("exited", "dead")
                else None
            )
        except ValueError as error:
            raise ContainerError(f"docker does not report the container's state: {error}") from error

    def _exit_code(self, name: str) -> int:
        """Return the exit status that Docker has recorded, also for a container that it could not start."""
        answer = self._request("GET", f"/containers/{name}/json")
        with contextlib.suppress(ValueError):
            return json_data.get(json_data.get({} if answer.refused else answer.json(), "State", {}), "ExitCode", 0)
        return 0

    def _output(self, name: str) -> str:
        try:
            answer = self._request("GET", f"/containers/{name}/logs?stdout=1&stderr=1&tail={_OUTPUT_LINES}")
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
    return {
        "Image": spec.image,
        # It replaces the image's own entry point, which could do anything.
        "Entrypoint": list(spec.command),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in spec.environment.items()],
        "Labels": {LABEL: "1"},
        "NetworkDisabled": True,
        "HostConfig": {
            **({"Runtime": spec.runtime} if spec.runtime else {}),
            **({"DeviceRequests": requests} if requests else {}),
            "NetworkMode": "none",
            # The logs of the daemon's default driver may not be readable.
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m"}},
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


# Podman's message for an unknown device, and the advice for it.
_UNRESOLVED = "unresolvable CDI devices"
_UNRESOLVED_ADVICE = (
    "No CDI specification that this Podman reads and accepts describes the device. Create one with nvidia_cdi_spec, and"
    " add its directory to Podman's configuration with nvidia_runtime_config."
)
# The states of a container whose process has exited.
_EXITED = ("exited", "stopped")


class PodmanContainers(Containers):
    """The containers of the podman in ``binary``.

    The runtime of a container is ignored, because no runtime is registered with Podman.
    """

    def __init__(self, host: hostfs.HostFS, run: core_plan.Runner, binary: str) -> None:
        super().__init__()
        self._host = host
        self._runner = run
        self._binary = binary

    def _run(self, spec: ContainerSpec) -> ContainerResult:
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
            *(f"--env={variable}={value}" for variable, value in spec.environment.items()),
            *(f"--device={device}" for device in spec.devices),
            # It replaces the image's own entry point, which could do anything.
            f"--entrypoint={json.dumps(list(spec.command))}",
            "--",
            spec.image,
        )
        if status:
            advice = _UNRESOLVED_ADVICE if _UNRESOLVED in errors else ""
            message = _error_message(errors)
            missing = lacks_program(spec, status, message)
            problem = f"podman cannot start the container: {message}"
            raise ContainerError(problem, advice, self._output(name), no_program=missing)
        return self._result(spec, name)

    def _check_image(self, image: str) -> None:
        status, _output, errors = self._podman("image", "exists", "--", image)
        if status == 1:
            raise missing_image(image, "podman load --input FILE")
        if status:
            raise ContainerError(
                f"podman cannot find the image {image}: {_error_message(errors)}",
                f"Correct {core_errors.option:image}, or fix what podman reports.",
                started=False,
            )

    def _status(self, name: str) -> int | None:
        state = "{{.State.Status}} {{.State.ExitCode}}"
        status, output, errors = self._podman("container", "inspect", f"--format={state}", "--", name)
        word, _blank, code = output.strip().partition(" ")
        if status and "no such" in errors:
            raise ContainerError(_REMOVED, _REMOVED_ADVICE)
        if status or not code.isdecimal():
            raise ContainerError(f"podman does not report the container's state: {_error_message(errors or output)}")
        return int(code) if word in _EXITED else None

    def _output(self, name: str) -> str:
        status, output, errors = self._podman("logs", f"--tail={_OUTPUT_LINES}", "--", name)
        return "" if status else shorten(output + errors)

    def _import(self, archive: bytes, image: str) -> None:
        try:
            with lock.temp_directory(self._host, "the host's programs") as (process_path, path):
                with open(f"{process_path}/archive.tar", "wb") as file:
                    file.write(archive)
                change = f"--change=LABEL {LABEL}=1"
                status, _output, errors = self._podman("import", "--quiet", change, "--", f"{path}/archive.tar", image)
        except (core_errors.HostError, OSError) as error:
            problem = f"The archive of the host's programs cannot be written: {error}"
            raise ContainerError(problem, started=False) from error
        if status:
            raise ContainerError(f"podman cannot import the image of the host's programs: {_error_message(errors)}")

    def _remove_all(self) -> str:
        status, output, errors = self._podman("ps", "--all", "--quiet", "--no-trunc", f"--filter=label={LABEL}")
        found = output.split()
        if not status and found:
            # Another program may have removed them already.
            status, _output, errors = self._podman("rm", "--force", "--ignore", "--volumes", "--", *found)
        if status:
            return f"{_MAY_EXIST}: {_error_message(errors)}"
        status, output, errors = self._podman("images", "--quiet", "--no-trunc", f"--filter=label={LABEL}")
        found = list(dict.fromkeys(output.split()))
        if not status and found:
            status, _output, errors = self._podman("rmi", "--force", "--", *found)
        return f"The image may still exist: {_error_message(errors)}" if status else ""

    def _podman(self, *arguments: str) -> tuple[int, str, str]:
        return self._runner(self._host.argv([self._binary, *arguments]))


def _error_message(errors: str) -> str:
    """Return Podman's error message without its warnings."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    message = next((line for line in lines if line.startswith("Error:")), lines[-1] if lines else "no error message")
    return message[len("Error:") :].strip() if message.startswith("Error:") else message
