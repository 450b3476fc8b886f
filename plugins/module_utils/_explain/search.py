# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find an existing container by its name or ID in the engines of a host, and read what its engine recorded.

It only reads, starts nothing, and does not connect to an engine that does not run. ``record.py`` parses the answers.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import typing as t
from urllib.parse import quote

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import record as explain_record
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri, grpc, unix_socket
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# Names and IDs of Docker (daemon/names of moby) and of Podman, and the status for a container that does not exist.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_ID = re.compile(r"[0-9a-f]{1,64}")
# [NAMESPACE/]POD/NAME of a container that a kubelet made. In cri-dockerd, the sandbox of a pod has the NAME "POD"
# (core/sandbox_helpers.go of 0.3).
_IN_POD = re.compile(r"(?:[a-z0-9][a-z0-9.-]*/){1,2}[a-z0-9][a-z0-9-]*")
_CRI_ENGINES = tuple(name for name, facts in flavors.FACTS.items() if facts.cri)


class Selector(t.NamedTuple):
    """The options of the task that limit the search. ``engine`` None searches all engines."""

    engine: str | None = None
    flavor: str = "auto"
    user: str | None = None
    service: str | None = None
    socket: str | None = None


class EngineState(t.NamedTuple):
    """The engine of a container. What is unknown, or does not exist, is empty.

    - ``target``: the engine as ENGINE/FLAVOR/INSTANCE, as the audit names it.
    - ``socket``, ``binary``: the paths of its API socket and of its program.
    """

    target: str = ""
    socket: str = ""
    binary: str = ""


class FoundContainer(t.NamedTuple):
    """A container, and its engine."""

    container: explain_record.Container
    engine: EngineState


class _Candidate(t.NamedTuple):
    """A container that may be the one: its engine, ID and names, and a function that reads the rest.

    ``created`` is the time of its creation for a container of a pod, whose name several containers may have.
    """

    engine: str
    identifier: str
    names: tuple[str, ...]
    read: t.Callable[[], FoundContainer]
    created: int = 0

    def __str__(self) -> str:
        return f"{self.names[0] if self.names else self.identifier[:12]} ({self.engine}, {self.identifier[:12]})"


class _EngineError(Exception):
    """The reason why the containers of an engine cannot be listed."""


def find(name: str, selector: Selector, host: hostfs.HostFS, run: core_plan.Runner) -> FoundContainer:
    """Return the container ``name``: its name, its ID or the beginning of that. In a pod also [NAMESPACE/]POD/NAME.

    Raises HostError if there is none (the message says where it was searched) or several, and NvidiaError for an
    offline tree.
    """
    if not host.live:
        raise errors.NvidiaError("An offline tree has no containers. Run the task without container.")
    searched: list[str] = []
    candidates: list[_Candidate] = []
    for target in _targets(selector, host):
        try:
            place = _Place(name, target, selector, host, run)
            candidates += place.candidates()
        except _EngineError as error:
            searched.append(f"{target} ({error})")
            continue
        searched.append(f"{target} ({place.state.socket or place.state.binary})")
    if selector.engine in (None, *_CRI_ENGINES):
        others = _bundles(name, candidates, host)
        candidates += [other for other in others if selector.engine in (None, other.engine)]
        searched.append("bundles of running containers")
    chosen = _only(name, _matching(name, candidates), searched)
    try:
        return chosen.read()
    except (_EngineError, ValueError) as error:
        raise errors.HostError(f"The container {chosen} cannot be read: {error}. Run the task again.") from error


def _targets(selector: Selector, host: hostfs.HostFS) -> list[engines_registry.Target]:
    if selector.engine is None:
        return engines_registry.targets_on(host)
    return [engines_registry.resolve_target(host, selector.engine, selector.flavor, selector.user, selector.service)]


def _matching(name: str, candidates: t.Sequence[_Candidate]) -> list[_Candidate]:
    """Return the candidates with the exact name or ID, otherwise those whose ID begins with ``name``."""
    exact = [candidate for candidate in candidates if name == candidate.identifier or name in candidate.names]
    return _newest(exact) or [one for one in candidates if name and one.identifier.startswith(name)]


def _only(name: str, found: t.Sequence[_Candidate], searched: t.Sequence[str]) -> _Candidate:
    """Return the only candidate. Raises HostError if there is none, or several."""
    if len(found) == 1:
        return found[0]
    if found:
        raise errors.HostError(
            f"container {name!r} matches several containers: {', '.join(map(str, found[:10]))}. Give the full name or"
            " ID."
        )
    places = ", ".join(searched) or "no engine is installed"
    pod = name.rpartition("/")[0].rpartition("/")[2] if _IN_POD.fullmatch(name) else ""
    advice = f" If it was never created, `kubectl describe pod {pod}` says why." if pod else ""
    raise errors.HostError(
        f"No container has the name or ID {name!r}. Searched: {places}. Correct {errors.option:container}, or select"
        f" the engine.{advice}"
    )


def _newest(found: t.Iterable[_Candidate]) -> list[_Candidate]:
    """Return ``found`` without the older ones of several containers of a pod that have the same name.

    A kubelet keeps the previous container when it restarts one.
    """
    newest = {
        (candidate.engine, candidate.names, "" if candidate.created else candidate.identifier): candidate
        for candidate in sorted(found, key=lambda candidate: candidate.created)
    }
    return list(newest.values())


class _Place:
    """One engine, in which a container is searched. All methods raise _EngineError.

    A host may have thousands of containers, so the engine is asked for this name.
    """

    def __init__(
        self, name: str, target: engines_registry.Target, selector: Selector, host: hostfs.HostFS, run: core_plan.Runner
    ) -> None:
        self.name, self.host, self.run = name, host, run
        self.engine = target.load()
        try:
            found: engines_base.Installation = self.engine.inspect(host, selector.service)
        except errors.HostError as error:
            raise _EngineError(f"cannot be inspected: {str(error).rstrip('.')}") from error
        self.installation = found._replace(socket=selector.socket or found.socket)
        self.has_daemon = flavors.FLAVORS[target.engine, target.flavor].daemon
        self.state = EngineState(str(target), self.installation.socket, found.binary or "")

    def candidates(self) -> list[_Candidate]:
        """Return the containers that the name may mean."""
        if self.has_daemon and self.installation.pid is None:
            raise _EngineError("does not run")
        if self.has_daemon:
            return self._of_cri() if flavors.FACTS[self.engine.name].cri else self._of_docker()
        if not self.state.binary:
            raise _EngineError("is not installed")
        return self._of_podman()

    def _filters(self) -> list[tuple[str, str]]:
        """Return the filters for a name, which is a Go expression, and for the beginning of an ID.

        Docker and Podman return only containers that match all filters of a request, so each one needs its own. Some
        versions of Podman find the characters anywhere in an ID.
        """
        by_name = [("name", f"^{re.escape(self.name)}$")] if _NAME.fullmatch(self.name) else []
        return [*by_name, ("id", self.name)] if _ID.fullmatch(self.name) else by_name

    def _wrong_answer(self, error: Exception) -> _EngineError:
        return _EngineError(f"{self.state.socket} does not answer correctly: {str(error) or 'empty answer'}")

    # -- Docker --------------------------------------------------------------------------------------------------

    def _of_docker(self) -> list[_Candidate]:
        if _IN_POD.fullmatch(self.name):
            filters = [{"label": [f"{label}={value}" for label, value in cri.kubelet_labels(self.name).items()]}]
        else:
            filters = [{kind: [value]} for kind, value in self._filters()]
        try:
            answers = [self._docker(f"/containers/json?all=1&filters={quote(json.dumps(each))}") for each in filters]
            entries = [self._docker_candidate(entry) for answer in answers for entry in json_data.check(answer, list)]
        except ValueError as error:
            raise _EngineError(f"its description of containers is not valid: {error}") from error
        # Docker lists the newest first (byCreatedDescending in daemon/list.go of moby). Its times are whole seconds.
        return list({entry.identifier: entry for entry in reversed(entries)}.values())

    def _docker_candidate(self, entry: t.Any) -> _Candidate:
        identifier = json_data.field(entry, "Id", str)
        in_pod = cri.pod_names(json_data.get(entry, "Labels", {}))
        names = in_pod or tuple(name.lstrip("/") for name in json_data.strings(entry, "Names"))
        created = json_data.get(entry, "Created", 0) if in_pod else 0
        return _Candidate("docker", identifier, names, functools.partial(self._read_docker, identifier), created)

    def _read_docker(self, identifier: str) -> FoundContainer:
        data = self._docker(f"/containers/{identifier}/json")
        live = self.engine.live(self.host, self.installation)
        container = explain_record.from_docker(json_data.check(data, dict), {} if live is None else live.runtimes)
        return FoundContainer(container, self.state)

    def _docker(self, request: str) -> t.Any:
        try:
            answer = unix_socket.http_request(self.host.real_path(self.state.socket), "GET", request)
            if not answer.refused:
                return answer.json()
        except (OSError, ValueError, errors.HostError) as error:
            raise self._wrong_answer(error) from error
        raise _EngineError(f"{self.state.socket} answers {answer.error_message()}")

    # -- Podman --------------------------------------------------------------------------------------------------

    def _of_podman(self) -> list[_Candidate]:
        found: dict[str, tuple[str, ...]] = {}
        try:
            for kind, value in self._filters():
                answer = self._podman("ps", "--all", "--no-trunc", f"--filter={kind}={value}", "--format=json")
                for entry in json_data.check(answer, list):
                    found[json_data.field(entry, "Id", str)] = json_data.strings(entry, "Names")
        except ValueError as error:
            raise _EngineError(f"its list of containers is not valid: {error}") from error
        return [_Candidate("podman", key, found[key], functools.partial(self._read_podman, key)) for key in found]

    def _read_podman(self, identifier: str) -> FoundContainer:
        (data,) = json_data.check(self._podman("container", "inspect", "--", identifier), list)
        return FoundContainer(explain_record.from_podman(json_data.check(data, dict)), self.state)

    def _podman(self, *arguments: str) -> t.Any:
        status, output, messages = self.run(self.host.argv([self.state.binary, *arguments]))
        if status:
            # Its error is after its warnings.
            raise _EngineError(f"podman fails: {' '.join(messages.split())[-200:] or 'no message'}")
        try:
            return json_data.load(output) if output.strip() else []
        except ValueError as error:
            raise _EngineError("the output of podman is not JSON") from error

    # -- CRI -----------------------------------------------------------------------------------------------------

    def _of_cri(self) -> list[_Candidate]:
        try:
            found = cri.find_containers(self.host.real_path(self.state.socket), self.name)
        except (OSError, ValueError) as error:
            # Only for these names the CRI lists just a few containers (cri.find_containers).
            is_too_long = isinstance(error, grpc.TooLongError)
            advice = "; give the whole ID, or NAMESPACE/POD/NAME" if is_too_long else ""
            raise _EngineError(f"its CRI does not list containers: {str(error) or 'empty answer'}{advice}") from error
        return [self._cri_candidate(entry) for entry in found]

    def _cri_candidate(self, entry: cri.CriContainer) -> _Candidate:
        created = entry.created if len(entry.names) > 1 else 0
        read = functools.partial(self._read_cri, entry)
        return _Candidate(self.engine.name, entry.identifier, entry.names, read, created)

    def _read_cri(self, entry: cri.CriContainer) -> FoundContainer:
        path = self.host.real_path(self.state.socket)
        try:
            status = cri.container_status(path, entry.identifier)
            annotations = cri.pod_annotations(path, entry.sandbox) if entry.sandbox else {}
        except (OSError, ValueError) as error:
            raise self._wrong_answer(error) from error
        container = explain_record.from_cri(self.engine.name, entry, status, annotations)
        return FoundContainer(container, self.state)


def _bundles(name: str, known: t.Sequence[_Candidate], host: hostfs.HostFS) -> list[_Candidate]:
    """Return running containers that no engine has listed, such as those of ctr and nerdctl."""
    listed = {candidate.identifier for candidate in known}
    found = (bundle for bundle in gpu_containers.find_bundles(host, name) if bundle.identifier not in listed)
    return [
        _Candidate(
            bundle.engine,
            bundle.identifier,
            (f"{bundle.namespace}/{bundle.identifier}",) if bundle.namespace else (),
            functools.partial(_read_bundle, bundle, host),
        )
        for bundle in found
    ]


def _read_bundle(bundle: gpu_containers.Bundle, host: hostfs.HostFS) -> FoundContainer:
    config: dict[str, t.Any] = {}
    with contextlib.suppress(ValueError):
        config = json_data.check(json_data.load(host.read_text(f"{bundle.folder}/config.json")), dict)
    program = gpu_containers.program_of(host, bundle.folder)
    container = explain_record.from_bundle(bundle.engine, bundle.identifier, config, program, bundle.pid)
    return FoundContainer(container, EngineState())
