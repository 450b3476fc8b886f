# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find an existing container by its name or ID in the engines of a host, and read what its engine reports.

It only reads, starts nothing, and does not connect to an engine that does not run. ``container.py`` parses the
answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import typing as t
from urllib.parse import quote

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors, program_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    container as explain_container,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    host as explain_host,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    rules as explain_rules,
)
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
_NOT_FOUND = 404
_CRI_ENGINES = tuple(name for name, facts in flavors.FACTS.items() if facts.cri)


class Selector(t.NamedTuple):
    """The options of the task that limit the search. ``engine`` None searches all engines."""

    engine: str | None = None
    flavor: str = "auto"
    user: str | None = None
    service: str | None = None
    socket: str | None = None


class FoundContainer(t.NamedTuple):
    """A container, and the state of its engine."""

    container: explain_container.Container
    engine: explain_host.ReportedEngine


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
    listed: list[str] = []
    for target in _targets(selector, host):
        try:
            found, where = _search(name, target, selector, host, run)
        except _EngineError as error:
            searched.append(f"{target} ({error})")
            continue
        candidates += found
        # Another socket may be that of another engine.
        listed += [] if selector.socket else [str(target)]
        searched.append(f"{target} ({where})")
    if selector.engine in (None, *_CRI_ENGINES):
        others = _bundles(name, candidates, host)
        candidates += [other for other in others if selector.engine in (None, other.engine)]
        searched.append("bundles of running containers")
    matching = _matching(name, candidates)
    never_created = None if matching else _of_kubelet(name, listed, host, run)
    if never_created is not None:
        return never_created
    chosen = _only(name, matching, searched)
    try:
        return chosen.read()
    except _EngineError as error:
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
    raise errors.HostError(
        f"No container has the name or ID {name!r}. Searched: {places}. Correct {errors.option:container}, or select"
        " the engine."
    )


def _of_kubelet(
    name: str, listed: t.Collection[str], host: hostfs.HostFS, run: core_plan.Runner
) -> FoundContainer | None:
    """Return a container of a pod that was never created, with the last error of the pod; None if there is none.

    ``listed`` are the targets that do not have it.
    """
    # Imported here, because most containers exist and do not need it.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import pod_errors  # noqa: PLC0415

    error = pod_errors.last_error(host, run, name, listed) if _IN_POD.fullmatch(name) else None
    if error is None:
        return None
    container = explain_container.Container(
        error.engine, "", name, explain_container.CREATED, error=error.message, request_known=False, in_pod=True
    )
    return FoundContainer(container, explain_host.ReportedEngine())


def _newest(found: t.Iterable[_Candidate]) -> list[_Candidate]:
    """Return ``found`` without the older ones of several containers of a pod that have the same name.

    A kubelet keeps the previous container when it restarts one.
    """
    newest = {
        (candidate.engine, candidate.names, "" if candidate.created else candidate.identifier): candidate
        for candidate in sorted(found, key=lambda candidate: candidate.created)
    }
    return list(newest.values())


def _search(
    name: str, target: engines_registry.Target, selector: Selector, host: hostfs.HostFS, run: core_plan.Runner
) -> tuple[list[_Candidate], str]:
    """Return the containers of an engine that ``name`` may mean, and where they were searched.

    A host may have thousands of containers, so the engine is asked for this name. Raises _EngineError.
    """
    engine = target.load()
    try:
        installation = engine.inspect(host, selector.service)
    except errors.HostError as error:
        raise _EngineError(f"cannot be inspected: {str(error).rstrip('.')}") from error
    installation = installation._replace(socket=selector.socket or installation.socket)
    row = flavors.FLAVORS[engine.name, engine.flavor]
    if not row.daemon:
        if installation.binary is None:
            raise _EngineError("is not installed")
        version = program_version.ask_version(engine, installation, host, run)
        configured = _configured(engine, installation, version, host)
        # Each user has containers of their own.
        state = explain_host.ReportedEngine(
            cdi=True, rootless=os.geteuid() != 0, folders=engines_base.cdi_folders(None, configured)
        )
        return _of_podman(name, host, run, installation.binary, state), installation.binary
    if installation.pid is None:
        raise _EngineError("does not run")
    live = engine.live(host, installation)
    state = explain_host.ReportedEngine(rootless=target.user is not None)
    if live is not None:
        default = engines_base.is_nvidia_runtime(live.default_runtime, live.runtimes.get(live.default_runtime))
        state = state._replace(version=live.version, cdi=live.cdi, default_nvidia=default, folders=live.cdi_folders)
        # Docker does not report an empty list of directories.
        configured = _configured(engine, installation, live.version, host) if live.cdi is False else None
        advice = flavors.cdi_advice(row, engines_base.cdi_folders(live, configured), "")
        state = state._replace(cdi_advice=advice)
    facts = flavors.FACTS[engine.name]
    if not facts.cri:
        programs = dict(live.runtimes) if live is not None else {}
        return _of_docker(name, host, installation.socket, programs, state), installation.socket
    programs = {}
    if facts.cdi_always:
        configured = _configured(engine, installation, None, host)
        programs = _programs_of_crio(configured)
        state = state._replace(cdi=True, folders=engines_base.cdi_folders(live, configured))
    found = _of_cri(name, engine.name, host, installation.socket, state=state, programs=programs)
    return found, installation.socket


def _configured(
    engine: engines_base.Planner, installation: engines_base.Installation, version: str | None, host: hostfs.HostFS
) -> engines_base.ConfiguredState | None:
    """Return what the files of an engine say that does not report it; None if they cannot be read."""
    try:
        context = engines_base.HostFiles(host, engine.key).as_configured(installation, version)
        return engine.configured(context)
    except errors.MissingPackageError:
        raise
    except errors.NvidiaError:
        return None


# -- Docker ------------------------------------------------------------------------------------------------------------


def _of_docker(
    name: str, host: hostfs.HostFS, socket: str, programs: t.Mapping[str, str], state: explain_host.ReportedEngine
) -> list[_Candidate]:
    def read(identifier: str) -> FoundContainer:
        data = _docker_data(socket, _docker_inspect(host, socket, identifier))
        bundle = _bundle(host, identifier)
        container = explain_container.from_docker(_object(data), programs, _config(host, bundle))
        return FoundContainer(_with_program(container, host, bundle), state)

    def candidate(entry: t.Any) -> _Candidate:
        identifier = json_data.field(entry, "Id", str)
        in_pod = cri.pod_names(json_data.get(entry, "Labels", {}))
        names = in_pod or tuple(name.lstrip("/") for name in json_data.strings(entry, "Names"))
        created = json_data.get(entry, "Created", 0) if in_pod else 0
        return _Candidate("docker", identifier, names, lambda: read(identifier), created)

    try:
        return [candidate(entry) for entry in _docker_entries(name, host, socket)]
    except ValueError as error:
        raise _EngineError(f"its description of containers is not valid: {error}") from error


def _docker_entries(name: str, host: hostfs.HostFS, socket: str) -> list[t.Any]:
    """Return the containers that ``name`` may mean, as Docker lists them. Of those of pods, the newest is the last.

    Raises _EngineError, and ValueError if the answer is not a description of containers.
    """
    if _IN_POD.fullmatch(name):
        labels = [f"{label}={value}" for label, value in cri.kubelet_labels(name).items()]
        # Docker lists the newest first (byCreatedDescending in daemon/list.go of moby). Its times are whole seconds.
        return _docker_list(host, socket, f"&filters={quote(json.dumps({'label': labels}))}")[::-1]
    # Another name cannot belong to a container of Docker, and may be another request.
    answer = _docker_inspect(host, socket, name) if _NAME.fullmatch(name) else None
    if answer is None or answer.status == _NOT_FOUND:
        return []
    if not answer.refused:
        data = _docker_data(socket, answer)
        own = json_data.field(data, "Name", str)
        return [{"Id": data.get("Id"), "Names": [own]}]
    # The beginning of several IDs. The list names their containers. If it is too long, the error is Docker's refusal.
    try:
        return _docker_list(host, socket)
    except _EngineError as error:
        raise _refused(socket, answer) from error


def _docker_list(host: hostfs.HostFS, socket: str, filters: str = "") -> list[t.Any]:
    return json_data.check(_docker_data(socket, _docker_answer(host, socket, f"/containers/json?all=1{filters}")), list)


def _docker_inspect(host: hostfs.HostFS, socket: str, name: str) -> unix_socket.HttpResponse:
    return _docker_answer(host, socket, f"/containers/{quote(name, safe='')}/json")


def _docker_answer(host: hostfs.HostFS, socket: str, request: str) -> unix_socket.HttpResponse:
    try:
        return unix_socket.http_request(host.real_path(socket), "GET", request)
    except (OSError, ValueError, errors.HostError) as error:
        raise _EngineError(f"{socket} does not answer correctly: {str(error) or 'empty answer'}") from error


def _refused(socket: str, answer: unix_socket.HttpResponse) -> _EngineError:
    return _EngineError(f"{socket} answers {answer.error_message()}")


def _docker_data(socket: str, answer: unix_socket.HttpResponse) -> t.Any:
    if answer.refused:
        raise _refused(socket, answer)
    try:
        return answer.json()
    except ValueError as error:
        raise _EngineError(f"{socket} does not answer correctly: {error}") from error


# -- Podman ------------------------------------------------------------------------------------------------------------


def _of_podman(
    name: str, host: hostfs.HostFS, run: core_plan.Runner, binary: str, state: explain_host.ReportedEngine
) -> list[_Candidate]:
    def ask(*arguments: str) -> t.Any:
        status, output, messages = run(host.argv([binary, *arguments]))
        if status:
            raise _EngineError(f"podman fails: {' '.join(messages.split())[:200] or 'no message'}")
        try:
            return json_data.load(output) if output.strip() else []
        except ValueError as error:
            raise _EngineError("the output of podman is not JSON") from error

    def read(identifier: str) -> FoundContainer:
        answer = ask("container", "inspect", "--", identifier)
        data = _object(answer[0] if isinstance(answer, list) and answer else None)
        config = _parsed_config(host, json_data.get(data, "OCIConfigPath", ""))
        return FoundContainer(explain_container.from_podman(data, config), state)

    def candidate(entry: t.Any) -> _Candidate:
        identifier, names = json_data.field(entry, "Id", str), json_data.strings(entry, "Names")
        return _Candidate("podman", identifier, names, lambda: read(identifier))

    if not _NAME.fullmatch(name):
        return []
    # Regular expressions in all versions. Podman returns only containers that match all filters of a command.
    filters = [f"name=^{re.escape(name)}$", *([f"id=^{name}"] if _ID.fullmatch(name) else [])]
    try:
        listed = [
            entry
            for wanted in filters
            for entry in json_data.check(ask("ps", "--all", "--no-trunc", f"--filter={wanted}", "--format=json"), list)
        ]
        return [candidate(entry) for entry in {json_data.field(each, "Id", str): each for each in listed}.values()]
    except ValueError as error:
        raise _EngineError(f"its list of containers is not valid: {error}") from error


# -- CRI ---------------------------------------------------------------------------------------------------------------


def _programs_of_crio(configured: engines_base.ConfiguredState | None) -> dict[str, str]:
    """Return the programs of CRI-O's runtimes by name, that of the default runtime also under the empty name."""
    if configured is None:
        # Without its files, the name of a runtime stands for its program.
        return {}
    # CRI-O searches for a program with the name of the runtime if its table names none.
    programs = {name: configured.paths().get(name) or name for name in configured.runtimes}
    default = configured.default_runtime or ""
    return {**programs, "": programs.get(default, default)}


def _of_cri(
    wanted: str,
    name: str,
    host: hostfs.HostFS,
    socket: str,
    *,
    state: explain_host.ReportedEngine,
    programs: t.Mapping[str, str],
) -> list[_Candidate]:
    path = host.real_path(socket)

    def read(entry: cri.CriContainer) -> FoundContainer:
        try:
            status = cri.container_status(path, entry.identifier)
            annotations = cri.pod_annotations(path, entry.sandbox) if entry.sandbox else {}
        except (OSError, ValueError) as error:
            raise _EngineError(f"{socket} does not answer correctly: {str(error) or 'empty answer'}") from error
        container = explain_container.from_cri(
            name, entry.identifier, entry.names[0], status, state.cdi, programs=programs
        )
        requested = explain_rules.devices_of_nri(annotations, entry.names[-1])
        own = _config(host, _bundle(host, entry.identifier))
        if own is not None:
            container = container._replace(config=own, config_is_final=True)
        return FoundContainer(container._replace(nri_devices=requested), state)

    def candidate(entry: cri.CriContainer) -> _Candidate:
        created = entry.created if len(entry.names) > 1 else 0
        return _Candidate(name, entry.identifier, entry.names, lambda: read(entry), created)

    try:
        return [candidate(entry) for entry in cri.find_containers(path, wanted)]
    except (OSError, ValueError) as error:
        # Only for these names the CRI lists just a few containers (cri.find_containers).
        is_too_long = isinstance(error, grpc.TooLongError)
        advice = "; give the whole ID, or NAMESPACE/POD/NAME" if is_too_long else ""
        raise _EngineError(f"its CRI does not list containers: {str(error) or 'empty answer'}{advice}") from error


# -- bundles -----------------------------------------------------------------------------------------------------------


def _bundles(name: str, known: t.Sequence[_Candidate], host: hostfs.HostFS) -> list[_Candidate]:
    """Return running containers that no engine has listed, such as those of ctr and nerdctl."""
    listed = {candidate.identifier for candidate in known}
    found = [bundle for bundle in gpu_containers.find_bundles(host, name) if bundle.identifier not in listed]

    def read(bundle: gpu_containers.Bundle) -> FoundContainer:
        config = _config(host, bundle) or {}
        program = gpu_containers.program_of(host, bundle.folder)
        container = explain_container.from_bundle(bundle.engine, bundle.identifier, config, program, bundle.pid)
        return FoundContainer(container, explain_host.ReportedEngine())

    def candidate(bundle: gpu_containers.Bundle) -> _Candidate:
        names = (f"{bundle.namespace}/{bundle.identifier}",) if bundle.namespace else ()
        return _Candidate(bundle.engine, bundle.identifier, names, lambda: read(bundle))

    return [candidate(bundle) for bundle in found]


def _bundle(host: hostfs.HostFS, identifier: str) -> gpu_containers.Bundle | None:
    found = [bundle for bundle in gpu_containers.find_bundles(host, identifier) if bundle.identifier == identifier]
    return found[0] if found else None


def _config(host: hostfs.HostFS, bundle: gpu_containers.Bundle | None) -> dict[str, t.Any] | None:
    """Return the OCI config in a bundle, None if it has none that can be read."""
    return None if bundle is None else _parsed_config(host, f"{bundle.folder}/config.json")


def _parsed_config(host: hostfs.HostFS, path: str) -> dict[str, t.Any] | None:
    text = host.read_text(path) if path.startswith("/") else ""
    with contextlib.suppress(ValueError):
        config = json_data.load(text)
        return config if isinstance(config, dict) else None
    return None


def _with_program(
    container: explain_container.Container, host: hostfs.HostFS, bundle: gpu_containers.Bundle | None
) -> explain_container.Container:
    """Return the container; if it runs, with the program that containerd's shim calls."""
    program = "" if bundle is None else gpu_containers.program_of(host, bundle.folder)
    return container._replace(program=program) if program.startswith("/") else container


def _object(data: t.Any) -> dict[str, t.Any]:
    """Return ``data`` if it is a JSON object. Raises HostError otherwise."""
    if not isinstance(data, dict):
        raise errors.HostError(f"The engine describes the container as {json.dumps(data)[:40]}, not as an object.")
    return data
