# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Start a pod through the CRI to verify an engine. No image is pulled, and the engine's files are not changed."""

from __future__ import annotations

import contextlib
import os
import shutil
import typing as t
import uuid

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import grpc
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import containers as verify_containers

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# The keys of the pause image: in the CRI's Status reply (containerd 1.x, CRI-O), and in `config dump` (containerd 2.x).
_TOLD = "sandboxImage"
_PRINTED = ("plugins", "io.containerd.cri.v1.images", "pinned_images", "sandbox")


def sandbox_image(
    told: t.Mapping[str, t.Any], binary: str | None, config_path: str, host: hostfs.HostFS, run: core_plan.Runner
) -> str | None:
    """Return the pause image of every pod, or None if it is unknown. containerd 2 reports it only in its dump."""
    found = told.get(_TOLD)
    if found is None and binary is not None:
        known = host.exists(config_path)
        argv = [binary, "--config", config_path, "config", "dump"] if known else [binary, "config", "default"]
        status, output, _errors = run(host.argv(argv))
        try:
            printed = toml_document.TomlDocument.from_bytes("", output.encode("utf-8")).data if not status else {}
        except errors.NvidiaError:
            printed = {}
        found = toml_plan.lookup(printed, _PRINTED)
    return found if isinstance(found, str) and found else None


def wants_slice(told: t.Mapping[str, t.Any], runtime: str) -> bool:
    """Return whether pods of a runtime need a systemd slice as the parent of their control groups."""
    options = toml_plan.lookup(told, ("containerd", "runtimes", runtime, "options"))
    chosen = options.get("SystemdCgroup") if isinstance(options, dict) else None
    return bool(chosen) or told.get("systemdCgroup") is True


# runtime.v1 of k8s.io/cri-api (api.proto). The numbers in the calls below are its field numbers.
_RUNTIME = "/runtime.v1.RuntimeService/"
_IMAGES = "/runtime.v1.ImageService/ImageStatus"
# NamespaceMode.NODE and ContainerState.CONTAINER_EXITED.
_NODE, _EXITED = 2, 2
# A slice that exists on every host, for the pods of runtimes that let systemd create their control groups.
_SLICE = "system.slice"
# The directory for the container's log. Only root can enter it.
_FOLDER = f"/run/{verify_containers.NAME}"
_LOG = "output.log"
# A kubelet ends pods that it does not know within seconds: with SIGTERM, then with SIGKILL.
_ENDED_BY_OTHERS = (143, 137)
_ATTEMPTS = 3


class Cri(t.NamedTuple):
    """The CRI of a host.

    ``engine`` is the engine's name. ``sandbox_image`` is the image of every pod's first container, or None if it is
    unknown. ``systemd_cgroup`` says whether the runtime needs a systemd slice.
    """

    host: hostfs.HostFS
    engine: str
    socket: str
    sandbox_image: str | None
    systemd_cgroup: bool


class CriPods:
    """The pods of one CRI."""

    def __init__(self, cri: Cri) -> None:
        self._cri = cri
        self._deadline = verify_containers.Deadline(verify_containers.REMOVAL)
        self.left_behind = ""

    def run(self, order: verify_containers.ContainerSpec) -> verify_containers.ContainerResult:
        self._deadline = verify_containers.Deadline(order.timeout)
        image = self._local(order.image, "image", "or name another one in image")
        if self._cri.sandbox_image:
            self._local(self._cri.sandbox_image, "pause image", "or configure another one")
        for attempt in range(1, _ATTEMPTS + 1):
            end = self._run(order, image)
            if end.status not in _ENDED_BY_OTHERS or attempt == _ATTEMPTS:
                return end
        raise AssertionError

    def _run(self, order: verify_containers.ContainerSpec, image: str) -> verify_containers.ContainerResult:
        self._remove_all()
        try:
            self._make_folder()
            return self._ended(order, image)
        finally:
            spent, self._deadline = self._deadline, verify_containers.Deadline(verify_containers.REMOVAL)
            self.left_behind = self._remove_all()
            self._deadline = spent

    def _ended(self, order: verify_containers.ContainerSpec, image: str) -> verify_containers.ContainerResult:
        pod_config = self._pod_config()
        pod = self._made("RunPodSandbox", grpc.field(1, pod_config) + grpc.field(2, order.runtime), "start the pod")
        request = grpc.field(1, pod) + grpc.field(2, _container_config(order, image)) + grpc.field(3, pod_config)
        container = self._made("CreateContainer", request, "create the container")
        self._call("StartContainer", grpc.field(1, container), "start the container")
        status = self._deadline.ended(lambda: self._status(container))
        if status is None:
            raise verify_containers.not_ended(order, self._output())
        return verify_containers.ContainerResult(status, self._output())

    def _pod_config(self) -> bytes:
        metadata = grpc.field(1, verify_containers.NAME) + grpc.field(2, str(uuid.uuid4())) + grpc.field(3, "default")
        namespaces = grpc.field(2, grpc.field(1, grpc.field(1, _NODE)))
        parent = grpc.field(1, _SLICE) if self._cri.systemd_cgroup else b""
        return (
            grpc.field(1, metadata)
            + grpc.field(3, _FOLDER)
            + grpc.field(6, _label())
            + grpc.field(8, parent + namespaces)
        )

    # -- images and containers -----------------------------------------------------------------------------------

    def _local(self, image: str, kind: str, otherwise: str) -> str:
        """Return the identifier of an image on this host. A CRI pulls nothing for an identifier."""
        answer = self._call(_IMAGES, grpc.field(1, grpc.field(1, image)), f"say whether it has the {kind} {image}")
        with self._readable():
            found = dict(grpc.fields(answer)).get(1)
            name = None if found is None else dict(grpc.fields(found)).get(1, b"").decode("utf-8", "replace")
        if name is None:
            load = f"ctr --namespace k8s.io images import FILE, {otherwise}"
            if self._cri.engine != "containerd":
                load = f"podman load --input FILE, {otherwise}"
            raise verify_containers.NotRunError(
                f"The {kind} {image} is not on this host, and nothing is pulled here",
                f"Load it first, for example with {load}.",
                tried=False,
            )
        return name or image

    def _status(self, container: str) -> int | None:
        answer = self._call("ContainerStatus", grpc.field(1, container), "tell how the container is")
        with self._readable():
            told = dict(grpc.numbers(dict(grpc.fields(answer)).get(1, b"")))
        # protobuf omits fields whose value is 0.
        return told.get(7, 0) if told.get(3) == _EXITED else None

    def _remove_all(self) -> str:
        """Remove all pods that this module left on the host; return an error message if one remains."""
        try:
            found = self._call("ListPodSandbox", grpc.field(1, grpc.field(3, _label())), "list its pods")
            with self._readable():
                pods = [dict(grpc.fields(content)).get(1, b"") for number, content in grpc.fields(found) if number == 1]
            for pod in pods:
                self._call("StopPodSandbox", grpc.field(1, pod), "stop the pod")
                self._call("RemovePodSandbox", grpc.field(1, pod), "remove the pod")
        except verify_containers.NotRunError as error:
            return f"The pod may still be there: {error.problem}"
        finally:
            shutil.rmtree(self._cri.host.real_path(_FOLDER), ignore_errors=True)
        return ""

    # -- the container's output ----------------------------------------------------------------------------------

    def _make_folder(self) -> None:
        try:
            os.mkdir(self._cri.host.real_path(_FOLDER), 0o700)
        except OSError as error:
            raise verify_containers.NotRunError(
                f"{_FOLDER} cannot be made: {error.strerror}", "Run the task as root (become: true)."
            ) from error

    def _output(self) -> str:
        """Return the log without the prefix of each line: time, stream, and the tag P for a line that continues."""
        text = ""
        for line in self._cri.host.read_text(f"{_FOLDER}/{_LOG}").splitlines():
            _time, _stream, tag, words = [*line.split(" ", 3), "", "", ""][:4]
            text += words + ("" if tag.startswith("P") else "\n")
        return verify_containers.shortened(text)

    # -- the socket ----------------------------------------------------------------------------------------------

    def _made(self, method: str, request: bytes, doing: str) -> str:
        answer = self._call(method, request, doing)
        try:
            return dict(grpc.fields(answer))[1].decode("utf-8")
        except (KeyError, ValueError) as error:
            raise verify_containers.NotRunError(f"{self._cri.engine} does not say what it made of it") from error

    @contextlib.contextmanager
    def _readable(self) -> t.Iterator[None]:
        """Raise NotRunError instead of ValueError for an answer that is not valid protobuf."""
        try:
            yield
        except ValueError as error:
            raise verify_containers.NotRunError(
                f"The answer of {self._cri.engine} cannot be read: {error}",
                "Restart the engine, and check its version.",
            ) from error

    def _call(self, method: str, request: bytes, doing: str) -> bytes:
        path = method if method.startswith("/") else _RUNTIME + method
        try:
            return grpc.call(self._cri.host.real_path(self._cri.socket), path, request, self._deadline.left())
        except grpc.CallError as error:
            raise verify_containers.NotRunError(
                f"{self._cri.engine} cannot {doing}: {error}", output=self._output()
            ) from error
        except (OSError, ValueError) as error:
            raise verify_containers.NotRunError(
                f"{self._cri.engine} gives no proper answer on {self._cri.socket} when it is to {doing}"
                f" ({str(error) or 'it says nothing'})",
                "Give it more time with timeout, or look at its journal.",
            ) from error


def _label() -> bytes:
    return grpc.field(1, verify_containers.LABEL) + grpc.field(2, "1")


def _container_config(order: verify_containers.ContainerSpec, image: str) -> bytes:
    # The command replaces the image's own, which could do anything.
    config = grpc.field(1, grpc.field(1, verify_containers.NAME)) + grpc.field(2, grpc.field(1, image))
    config += b"".join(grpc.field(3, word) for word in order.command)
    config += b"".join(
        grpc.field(6, grpc.field(1, name) + grpc.field(2, value)) for name, value in order.environment.items()
    )
    return config + grpc.field(9, _label()) + grpc.field(11, _LOG)
