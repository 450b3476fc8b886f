# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find running containers that have GPUs or use the runtimes of the toolkit.

Containers whose GPUs were added by the legacy hook (nvidia-container-runtime-hook) lose them when systemd reloads its
units.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
_RUNTIMES = (core_constants.MAIN_PROGRAM, *core_constants.MODE_PROGRAMS.values())
# The containerd namespace of Docker's containers.
_DOCKER = "moby"

_DEVICES = "NVIDIA_VISIBLE_DEVICES"
# The usual prefix of the variables that Swarm sets. They have precedence over the variable above.
_SWARM = "DOCKER_RESOURCE_"
# A container may also request devices by mounts into this directory.
_DEVICE_MOUNTS = "/var/run/nvidia-container-devices"
# An image with this variable and without NVIDIA_VISIBLE_DEVICES is an old CUDA image. Its containers get all devices.
_LEGACY_IMAGE = "CUDA_VERSION"

# The runtime specification of a container, and the program that runs it.
_BUNDLE_FILES = ("config.json", "runtime")

_PID_BYTES = 64
_LONG_ID = re.compile(r"[0-9a-f]{64}")


class _Bundles(t.NamedTuple):
    """The location of an engine's bundles. A bundle is the directory of one container and has a ``config.json``.

    ``pattern`` selects the bundles below ``root``. ``pid_file`` is the name of the file with the process ID of the
    container. This file is in the bundle. If ``pid_root`` is set, it is in the directory with the same path below
    ``pid_root``. In that case a bundle stays after its container has ended, so a container without a process ID is not
    running.
    """

    engine: str
    root: str
    pattern: str
    pid_file: str
    pid_root: str = ""


_TASKS = ("io.containerd.runtime.v2.task/*/*", "init.pid")
_STORAGE = ("*-containers/*/userdata", "pidfile")
_STORAGE_FILES = ("/etc/containers/storage.conf", "/usr/share/containers/storage.conf")


class _Directory(t.NamedTuple):
    """A directory that ``key`` in ``files`` can change, and ``flag`` of ``program`` in the unit ``service``.

    ``config_flags`` of the program name another file.
    """

    usual: str
    key: str
    files: tuple[str, ...]
    service: str = ""
    program: str = ""
    flag: str = ""
    config_flags: tuple[str, ...] = ()


# Sources: containerd-config.toml(5), dockerd(8), crio.conf(5), and containers-storage.conf(5).
_STATE = _Directory(
    "/run/containerd", "state", ("/etc/containerd/config.toml", "/etc/containerd/conf.d/*"),
    "containerd.service", "containerd", "--state", ("--config", "-c"),
)  # fmt: skip
_EXEC_ROOT = _Directory(
    "/run/docker", "exec-root", ("/etc/docker/daemon.json", "/var/snap/docker/current/config/daemon.json"),
    "docker.service", "dockerd", "--exec-root", ("--config-file",),
)  # fmt: skip
_RUN_ROOT = _Directory(
    "/run/containers/storage", "runroot", (*_STORAGE_FILES, "/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*"),
    "crio.service", "crio", "--runroot", ("--config", "-c"),
)  # fmt: skip
_GRAPH_ROOT = _Directory("/var/lib/containers/storage", "graphroot", _STORAGE_FILES)


def _paths(host: hostfs.HostFS, directory: _Directory) -> list[str]:
    """Return the usual directory and those in the configuration, without the rules which of the files is used.

    A directory that is not in use has no bundles.
    """
    # TOML or JSON. A path with a wildcard is none that an engine would use.
    setting = re.compile(rf"""(?:^|[{{,])\s*"?{directory.key}"?\s*[=:]\s*["'](/[^"'*?\[\\]*)["']""", re.MULTILINE)
    found, files = [directory.usual], [file for pattern in directory.files for file in host.glob(pattern)]
    with contextlib.suppress(errors.HostError):
        unit = systemd_units.load_unit(host, directory.service, directory.program) if directory.service else None
        if unit is not None:
            found += unit.flag_values(directory.flag)
            files += filter(posixpath.isabs, unit.flag_values(*directory.config_flags))
    for file in files:
        found += setting.findall(host.read_text(file))
    resolved = []
    for path in filter(posixpath.isabs, found):
        # Two names of a directory, such as /run and /var/run, must not yield a container twice.
        with contextlib.suppress(errors.HostError):
            resolved.append(host.resolve(path))
    return list(dict.fromkeys(resolved))


# Measured with Docker 20.10, 26.1 and 28.5 on containerd 1.6, 1.7 and 2.1, with containerd 1.6 alone, and with Podman
# 4.3. The other engines have the same layout, because they use containerd or the storage library of Podman.
def _locations(host: hostfs.HostFS) -> list[_Bundles]:
    """Return where the engines of ``host`` have their bundles."""
    run_roots = _paths(host, _RUN_ROOT)
    return [
        *(_Bundles("containerd", path, *_TASKS) for path in _paths(host, _STATE)),
        *(_Bundles("docker", f"{path}/containerd/daemon", *_TASKS) for path in _paths(host, _EXEC_ROOT)),
        _Bundles("docker", "/run/snap.docker/containerd/daemon", *_TASKS),
        _Bundles("k3s", "/run/k3s/containerd", *_TASKS),
        _Bundles("k0s", "/run/k0s/containerd", *_TASKS),
        _Bundles("microk8s", "/var/snap/microk8s/common/run/containerd", *_TASKS),
        *(_Bundles("crio", path, *_STORAGE) for path in run_roots),
        # CRI-O also keeps copies of its bundles here. Their pid files are the same, so each container is reported once.
        *(_Bundles("podman", path, *_STORAGE, run) for path in _paths(host, _GRAPH_ROOT) for run in run_roots),
    ]


def bundle_folders(host: hostfs.HostFS) -> list[str]:
    """Return the directories that contain the bundles."""
    folders = (f"{bundles.root}/{bundles.pattern}".partition("/*")[0] for bundles in _locations(host))
    return list(dict.fromkeys(folders))


class Bundle(t.NamedTuple):
    """The bundle of a running container. ``engine`` is docker, containerd, crio or podman.

    ``namespace`` is that of containerd, empty for the other engines.
    """

    engine: str
    identifier: str
    folder: str
    pid: int
    namespace: str = ""


def find_bundles(host: hostfs.HostFS, identifier: str) -> list[Bundle]:
    """Return the bundles of running containers whose ID begins with ``identifier``. Each container has one.

    For containerd, it can also be NAMESPACE/ID, because several namespaces may have a container with one ID.
    """
    found: dict[str, Bundle] = {}
    for bundles in _locations(host) if host.live else ():
        for folder in host.glob(f"{bundles.root}/{bundles.pattern}"):
            parts = folder.split("/")
            of_storage = bundles.pid_file == _STORAGE[1]
            name = parts[-2 if of_storage else -1]
            pid_file = f"{bundles.pid_root or bundles.root}{folder[len(bundles.root) :]}/{bundles.pid_file}"
            named = name.startswith(identifier) or (not of_storage and f"{parts[-2]}/{name}" == identifier)
            pid = host.read_text(pid_file, _PID_BYTES).strip() if named else ""
            # Podman's pid file is in a directory like that of a bundle of CRI-O.
            if not (pid.isdecimal() and host.exists(f"/proc/{pid}") and host.exists(f"{folder}/config.json")):
                continue
            in_containerd = "docker" if parts[-2] == _DOCKER else "containerd"
            engine = bundles.engine if of_storage else in_containerd
            namespace = parts[-2] if engine == "containerd" else ""
            found.setdefault(f"{namespace}/{name}", Bundle(engine, name, folder, int(pid), namespace))
    return list(found.values())


def legacy_gpu_containers(host: hostfs.HostFS) -> list[str]:
    """Return the running containers with a GPU from the legacy hook.

    The names are ``docker/ID``, ``containerd/NAMESPACE/ID`` and so on. Long IDs are cut to twelve characters, as
    engines show them. A container is running unless its process is known to have ended. A bundle that cannot be read is
    skipped. The list is empty for an offline tree, in which nothing runs.
    """
    return _running_containers(host, lambda folder: _has_gpu(host.read_text(f"{folder}/config.json")))


def toolkit_runtime_containers(host: hostfs.HostFS) -> list[str]:
    """Return the running containers whose runtime is one of the toolkit's programs.

    The names have the same form as in legacy_gpu_containers(). To stop or to enter such a container, containerd's shim
    runs that program again. The file ``runtime`` in the bundle contains its path (1.6 to 2.1).
    """
    return _running_containers(host, lambda folder: posixpath.basename(program_of(host, folder)) in _RUNTIMES)


def program_of(host: hostfs.HostFS, folder: str) -> str:
    """Return the program that containerd's shim calls for the bundle in ``folder``; empty for other engines."""
    return host.read_text(f"{folder}/runtime", hostfs.UNIT_BYTES).strip()


def bundles_referencing(host: hostfs.HostFS, text: str) -> list[str]:
    """Return the running containers whose bundles contain ``text``, such as the path of a hook.

    The names have the same form as in legacy_gpu_containers().
    """
    return _running_containers(
        host, lambda folder: any(text in host.read_text(f"{folder}/{name}") for name in _BUNDLE_FILES)
    )


def _running_containers(host: hostfs.HostFS, matches: t.Callable[[str], bool]) -> list[str]:
    # The key is the pid file, because two bundles with the same pid file belong to one container.
    found: dict[str, str] = {}
    for bundles in _locations(host) if host.live else ():
        for folder in host.glob(f"{bundles.root}/{bundles.pattern}"):
            relative_path = folder[len(bundles.root) :]
            pid_file = f"{bundles.pid_root or bundles.root}{relative_path}/{bundles.pid_file}"
            if matches(folder) and _is_running(host, pid_file, bool(bundles.pid_root)):
                found.setdefault(pid_file, _name(bundles, relative_path))
    return list(found.values())


def _name(bundles: _Bundles, relative_path: str) -> str:
    if bundles.pid_file == _STORAGE[1]:
        return f"{bundles.engine}/{_short(relative_path.split('/')[-2])}"
    namespace, name = relative_path.split("/")[-2:]
    return f"docker/{_short(name)}" if namespace == _DOCKER else f"{bundles.engine}/{namespace}/{_short(name)}"


def _short(name: str) -> str:
    return name[:12] if _LONG_ID.fullmatch(name) else name


def _is_running(host: hostfs.HostFS, pid_file: str, needs_pid: bool) -> bool:
    pid = host.read_text(pid_file).strip()
    if not pid.isdigit():
        return not needs_pid
    # Without /proc in the tree, it is unknown whether the process exists. The container then counts as running.
    return host.exists(f"/proc/{pid}") or not host.exists("/proc/1")


def _has_gpu(text: str) -> bool:
    """Return whether the runtime specification ``text`` has the legacy hook and requests devices from it.

    If the NVIDIA runtime is the default runtime, every container has the hook, so the hook alone does not show a GPU.
    """
    # This is cheaper than parsing the specifications of all containers of a host.
    if not any(name in text for name in _HOOKS):
        return False
    try:
        specification = json_data.load(text)
        return _has_hook(specification) and _requests_devices(specification)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def _has_hook(specification: t.Any) -> bool:
    stages = (specification.get("hooks") or {}).values()
    return any(posixpath.basename(hook["path"]) in _HOOKS for stage in stages for hook in stage or ())


def _requests_devices(specification: t.Any) -> bool:
    environment = dict(pair.partition("=")[::2] for pair in specification["process"].get("env") or ())
    mounts = [mount["destination"] for mount in specification.get("mounts") or ()]
    if any(path.startswith(_DEVICE_MOUNTS) for path in mounts) or any(name.startswith(_SWARM) for name in environment):
        return True
    devices = environment.get(_DEVICES)
    return _LEGACY_IMAGE in environment if devices is None else devices not in ("", "void")
