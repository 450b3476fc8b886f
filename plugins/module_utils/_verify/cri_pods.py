# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Start a pod through the CRI, to verify an engine or to measure a copy of a pod. It changes no file of the engine.

It pulls an image only if it is permitted to, and removes that image again.
"""

from __future__ import annotations

import contextlib
import os
import re
import typing as t
import uuid

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, json_data, remove_tree
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors, toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri, grpc
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import containers as verify_containers

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# The keys of the pause image: in the CRI's Status reply (containerd 1.x, CRI-O), and in `config dump` (containerd 2.x).
_STATUS_KEY = "sandboxImage"
_DUMP_KEY = ("plugins", "io.containerd.cri.v1.images", "pinned_images", "sandbox")


def sandbox_image(
    status: t.Mapping[str, t.Any], binary: str | None, config_path: str, host: hostfs.HostFS, run: core_plan.Runner
) -> str | None:
    """Return the pause image of every pod, or None if it is unknown. containerd 2 reports it only in its dump."""
    image = status.get(_STATUS_KEY)
    if image is None and binary is not None:
        exists = host.exists(config_path)
        argv = [binary, "--config", config_path, "config", "dump"] if exists else [binary, "config", "default"]
        code, output, _errors = run(host.argv(argv))
        try:
            dump = toml_document.TomlDocument.from_bytes("", output.encode("utf-8")).data if not code else {}
        except errors.NvidiaError:
            dump = {}
        image = toml_plan.lookup(dump, _DUMP_KEY)
    return image if isinstance(image, str) and image else None


def needs_slice(status: t.Mapping[str, t.Any], runtime: str) -> bool:
    """Return whether pods of a runtime need a systemd slice as the parent of their control groups."""
    options = toml_plan.lookup(status, ("containerd", "runtimes", runtime, "options"))
    chosen = options.get("SystemdCgroup") if isinstance(options, dict) else None
    return bool(chosen) or status.get("systemdCgroup") is True


# runtime.v1 of k8s.io/cri-api (api.proto). The numbers in the calls below are its field numbers.
_RUNTIME = "/runtime.v1.RuntimeService/"
_IMAGES = "/runtime.v1.ImageService/"
_STARTING = ("RunPodSandbox", "CreateContainer", "StartContainer")
# Seconds that a pull may take.
_PULL_TIMEOUT = 600.0
# NamespaceMode.NODE and ContainerState.CONTAINER_EXITED.
_NODE, _EXITED = 2, 2
# A slice that exists on every host, for the pods of runtimes that let systemd create their control groups.
_SLICE = "system.slice"
# The directory for the container's log. Only root can enter it.
_LOG_DIR = f"/run/{verify_containers.NAME}"
_LOG = "output.log"
# The messages of runc and of crun.
_NOT_FOUND = re.compile(r"executable file (?:`[^`]*` )?not found")
# A kubelet ends pods that it does not know within seconds.
_ATTEMPTS = 3


class Cri(t.NamedTuple):
    """The CRI of a host.

    ``engine`` is the engine's name. ``sandbox_image`` is the image of every pod's first container, or None if it is
    unknown. ``systemd_cgroup`` says whether the runtime needs a systemd slice. ``pull`` permits pulling images.
    """

    host: hostfs.HostFS
    engine: str
    socket: str
    sandbox_image: str | None
    systemd_cgroup: bool
    pull: bool = False


class CriPods(verify_containers.Containers):
    """The pods of one CRI."""

    def __init__(self, cri: Cri) -> None:
        super().__init__()
        self._cri = cri
        self._image_id = ""
        self._pod = ""
        self._pulled = ""
        # The identifiers of the images that the engine had before the pull.
        self._former: frozenset[str] = frozenset()

    def _run(self, spec: verify_containers.ContainerSpec) -> verify_containers.ContainerResult:
        for _attempt in range(1, _ATTEMPTS):
            result = self._run_or_ended(spec)
            if result.status not in verify_containers.KILLED:
                return result
            self._remove_all()
        return self._run_or_ended(spec)

    def _run_or_ended(self, spec: verify_containers.ContainerSpec) -> verify_containers.ContainerResult:
        try:
            return self._run_pod(spec)
        except verify_containers.ContainerError:
            # The pod may have ended before its container was started. The filter is the state 0, SANDBOX_READY.
            if spec.measure is None or not self._pod or self._pods(grpc.field(2, b"")):
                raise
            return verify_containers.ContainerResult(verify_containers.KILLED[0], "")

    def _run_pod(self, spec: verify_containers.ContainerSpec) -> verify_containers.ContainerResult:
        self._make_log_dir()
        # protobuf merges a message that occurs twice.
        more_of_pod, more_of_container = spec.request or (b"", b"")
        pod_config = self._pod_config() + more_of_pod
        request = grpc.field(1, pod_config) + grpc.field(2, spec.runtime)
        self._pod = self._create("RunPodSandbox", request, "start the pod")
        config = _container_config(spec, self._image_id) + more_of_container
        request = grpc.field(1, self._pod) + grpc.field(2, config) + grpc.field(3, pod_config)
        container = self._create("CreateContainer", request, "create the container")
        try:
            self._call("StartContainer", grpc.field(1, container), "start the container")
        except verify_containers.ContainerError as error:
            # A CRI reports no exit status for a program that is not found, only the message of the low-level runtime.
            status = verify_containers.NO_SUCH_PROGRAM if _NOT_FOUND.search(error.problem) else 0
            error.no_program = verify_containers.lacks_program(spec, status, error.problem)
            raise
        return self._result(spec, container)

    def _pod_config(self) -> bytes:
        metadata = grpc.field(1, verify_containers.NAME) + grpc.field(2, str(uuid.uuid4())) + grpc.field(3, "default")
        namespaces = grpc.field(2, grpc.field(1, grpc.field(1, _NODE)))
        parent = grpc.field(1, _SLICE) if self._cri.systemd_cgroup else b""
        return (
            grpc.field(1, metadata)
            + grpc.field(3, _LOG_DIR)
            + grpc.field(6, _label())
            + grpc.field(8, parent + namespaces)
        )

    # -- images and containers -----------------------------------------------------------------------------------

    def _check_image(self, image: str) -> None:
        # A CRI pulls nothing for an identifier.
        self._image_id = self._local_image_id(image, "image", required=not self._cri.pull)
        if self._cri.sandbox_image:
            # An engine pulls a missing pause image itself.
            self._local_image_id(self._cri.sandbox_image, "pause image", required=not self._cri.pull)

    def _with_image(self, spec: verify_containers.ContainerSpec) -> verify_containers.ContainerSpec:
        """Pull the image if it is missing."""
        if not self._image_id:
            self._deadline = verify_containers.Deadline(_PULL_TIMEOUT)
            self._former = self._image_ids()
            self._pulled = spec.image
            request = grpc.field(1, grpc.field(1, spec.image))
            try:
                answer = self._call(f"{_IMAGES}PullImage", request, f"pull the image {spec.image}")
            except verify_containers.ContainerError as error:
                advice = "Correct the name of the image, or load it first."
                raise verify_containers.ContainerError(error.problem, advice, started=False) from error
            with self._valid_answer():
                self._image_id = dict(grpc.fields(answer)).get(1, b"").decode("utf-8", "replace") or spec.image
            self._deadline = verify_containers.Deadline(spec.timeout)
        return spec

    def _remove_image(self) -> str:
        if not self._pulled:
            return ""
        try:
            # An engine removes an image with all of its names.
            if self._local_image_id(self._pulled, "image", required=False) in self._former:
                return f"The engine had the image {self._pulled} under another name, so its new name stays"
            self._call(f"{_IMAGES}RemoveImage", grpc.field(1, grpc.field(1, self._pulled)), "remove the image")
        except verify_containers.ContainerError as error:
            return f"The image {self._pulled} may still exist: {error.problem}"
        return ""

    def _image_ids(self) -> frozenset[str]:
        answer = self._call(f"{_IMAGES}ListImages", b"", "list its images")
        with self._valid_answer():
            images = (dict(grpc.fields(content)) for number, content in grpc.fields(answer) if number == 1)
            return frozenset(image.get(1, b"").decode("utf-8", "replace") for image in images)

    def _local_image_id(self, image: str, kind: str, required: bool = True) -> str:
        """Return the identifier of an image; if it is missing and not required, an empty string."""
        answer = self._call(f"{_IMAGES}ImageStatus", grpc.field(1, grpc.field(1, image)), f"find the {kind} {image}")
        with self._valid_answer():
            found = dict(grpc.fields(answer)).get(1)
            identifier = None if found is None else dict(grpc.fields(found)).get(1, b"").decode("utf-8", "replace")
        if identifier is None and not required:
            return ""
        if identifier is None:
            raise verify_containers.missing_image(image, flavors.FACTS[self._cri.engine].load_image, kind)
        return identifier or image

    def _status(self, name: str) -> int | None:
        answer = self._call("ContainerStatus", grpc.field(1, name), "report the container's state")
        with self._valid_answer():
            status = dict(grpc.numbers(dict(grpc.fields(answer)).get(1, b"")))
        # protobuf omits fields whose value is 0.
        return status.get(7, 0) if status.get(3) == _EXITED else None

    def _pid(self, name: str) -> int:
        # A pod that was ended may have been removed, too.
        with contextlib.suppress(OSError, ValueError):
            info = cri.container_status(self._cri.host.real_path(self._cri.socket), name).info
            return json_data.get(info, "pid", 0)
        return 0

    def _pods(self, selector: bytes = b"") -> list[bytes]:
        """Return the identifiers of the pods that this module left on the host."""
        request = grpc.field(1, grpc.field(3, _label()) + selector)
        found = self._call("ListPodSandbox", request, "list its pods")
        with self._valid_answer():
            return [dict(grpc.fields(content)).get(1, b"") for number, content in grpc.fields(found) if number == 1]

    def _remove_all(self) -> str:
        try:
            for pod in self._pods():
                self._call("StopPodSandbox", grpc.field(1, pod), "stop the pod")
                self._call("RemovePodSandbox", grpc.field(1, pod), "remove the pod")
        except verify_containers.ContainerError as error:
            return f"The pod may still exist: {error.problem}"
        finally:
            remove_tree.remove_tree_if_possible(self._cri.host.real_path(_LOG_DIR))
        return ""

    # -- the container's output ----------------------------------------------------------------------------------

    def _make_log_dir(self) -> None:
        try:
            os.mkdir(self._cri.host.real_path(_LOG_DIR), 0o700)
        except OSError as error:
            raise verify_containers.ContainerError(
                f"The directory {_LOG_DIR} cannot be created: {error.strerror}", "Run the task as root (become: true)."
            ) from error

    def _output(self, name: str = "") -> str:  # noqa: ARG002
        """Return the log without the prefix of each line: time, stream, and the tag P for a line that continues."""
        text = ""
        # splitlines() would also split at characters that a program prints, such as a carriage return.
        lines = self._cri.host.read_text(f"{_LOG_DIR}/{_LOG}").split("\n")
        for line in lines if lines[-1] else lines[:-1]:
            _time, _stream, tag, content = [*line.split(" ", 3), "", "", ""][:4]
            text += content + ("" if tag.startswith("P") else "\n")
        return verify_containers.shorten(text)

    # -- the socket ----------------------------------------------------------------------------------------------

    def _create(self, method: str, request: bytes, action: str) -> str:
        answer = self._call(method, request, action)
        try:
            return dict(grpc.fields(answer))[1].decode("utf-8")
        except (KeyError, ValueError) as error:
            raise verify_containers.ContainerError(
                f"{self._cri.engine} returned no identifier when it was requested to {action}"
            ) from error

    @contextlib.contextmanager
    def _valid_answer(self) -> t.Iterator[None]:
        """Raise ContainerError instead of ValueError for an answer that is not valid protobuf."""
        try:
            yield
        except ValueError as error:
            raise verify_containers.ContainerError(
                f"The answer of {self._cri.engine} cannot be read: {error}",
                "Restart the engine, and check its version.",
            ) from error

    def _call(self, method: str, request: bytes, action: str) -> bytes:
        path = method if method.startswith("/") else _RUNTIME + method
        try:
            return grpc.call(self._cri.host.real_path(self._cri.socket), path, request, self._deadline.left())
        except grpc.CallError as error:
            refusal = str(error) if method in _STARTING else ""
            raise verify_containers.ContainerError(
                f"{self._cri.engine} cannot {action}: {error}", output=self._output(), refusal=refusal
            ) from error
        except (OSError, ValueError) as error:
            raise verify_containers.ContainerError(
                f"{self._cri.engine} does not answer correctly on {self._cri.socket} when it is requested to {action}"
                f" ({str(error) or 'empty answer'})",
                f"Increase {errors.option:timeout}, or read the journal of {self._cri.engine}.",
            ) from error


def _label() -> bytes:
    return grpc.field(1, verify_containers.LABEL) + grpc.field(2, "1")


def _container_config(spec: verify_containers.ContainerSpec, image_id: str) -> bytes:
    # The command replaces the image's own, which could do anything.
    devices = b"".join(grpc.field(17, grpc.field(1, device)) for device in spec.devices)
    config = grpc.field(1, grpc.field(1, verify_containers.NAME)) + grpc.field(2, grpc.field(1, image_id))
    config += b"".join(grpc.field(3, argument) for argument in spec.command)
    config += b"".join(
        grpc.field(6, grpc.field(1, name) + grpc.field(2, value)) for name, value in spec.environment.items()
    )
    return config + grpc.field(9, _label()) + grpc.field(11, _LOG) + devices
