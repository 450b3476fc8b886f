# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read single facts of a host for host.py: the driver's problems, programs, device nodes, features, SELinux."""

from __future__ import annotations

import os
import posixpath
import re
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import compare as cdi_compare
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import ignored as cdi_ignored
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import cdi_support, flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    access as explain_access,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    rules as explain_rules,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import (
    device_nodes,
    driver_files,
    file_lookup,
    inventory,
    procfs,
    services,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import checks as verify_checks

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
        container as explain_container,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
        contents as explain_contents,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import runtime_settings


NVML, CUDA = "libnvidia-ml.so.1", "libcuda.so.1"
_VERSION = re.compile(r"\.so\.([0-9]+\.[0-9.]*[0-9])\Z")
# The problems of a report of GPUs with which no program can use the driver, and what to do.
_RESTART = "Restart the host, or load the kernel module of the installed driver."
_DRIVER_PROBLEMS = {explain_rules.LIBRARY_DIFFERS: _RESTART, "driver-modules-differ": _RESTART}
# A device node that is missing on the host is made by the driver's programs when a container starts, and a container
# that runs has nodes of its own. Problems of the driver are those of driver_problem().
_NOT_OF_GPU = (inventory.NODE, inventory.MIG_NODE, *_DRIVER_PROBLEMS)
_IMEX_DRIVER = "nvidia-caps-imex-channels"
_SELINUX = "/sys/fs/selinux"
# The booleans of container-selinux that let containers use devices of the host.
_BOOLEANS = ("container_use_devices", "container_use_xserver_devices")
_LABEL = "security.selinux"


def missing_programs(
    host: hostfs.HostFS, folder: str, settings: runtime_settings.RuntimeSettings, own_runtime: bool
) -> dict[str, tuple[str, ...]]:
    """Return the programs that the runtime needs in each mode and that the host lacks.

    ``own_runtime``: the engine may have a low-level runtime that is not in the PATH of the host, as that of K3s has.
    """
    found = own_runtime or folder.startswith("/snap/") or host.find_executable(settings.runtimes) is not None
    low = () if found else (f"one of {core_text.listed(settings.runtimes)}",)
    ldconfig = settings.ldconfig[1:] if settings.ldconfig.startswith("@/") else ""
    tools = (ldconfig,) if ldconfig and not host.is_executable(ldconfig) else ()
    legacy = verify_checks.missing_programs(host, folder, "legacy", settings)
    generated = verify_checks.missing_programs(host, folder, "cdi", settings)
    return {
        explain_rules.LEGACY: (*low, *legacy, *tools),
        explain_rules.CDI: low,
        explain_rules.JIT_CDI: (*low, *generated),
        explain_rules.CSV: (*low, *generated),
    }


def program_of_podman(container: explain_container.Container, host: hostfs.HostFS, run: core_plan.Runner) -> str:
    """Return the program of a runtime that Podman gets from containers.conf; empty for others.

    Of the paths of a runtime, Podman uses the first that exists (getDefaultOCIRuntime in libpod of Podman 5.4).
    """
    if (
        flavors.FLAVORS[container.engine, core_constants.SYSTEM].daemon
        or not container.program
        or "/" in container.program
    ):
        return ""
    # Only containers of Podman need this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.podman import config  # noqa: PLC0415

    (engine,) = cdi_support.engines_for([container.engine], host, run)
    version = core_text.parse_version(engine.version or "") or ()
    try:
        files = engines_base.HostFiles(host, container.engine)
        paths = config.ContainersConf(files, version).runtime_programs(container.program)
    except errors.MissingPackageError:
        raise
    except errors.NvidiaError:
        return ""
    return next((path for path in paths if host.is_executable(path)), paths[0] if paths else "")


# -- the driver --------------------------------------------------------------------------------------------------------


class DriverProblem(t.NamedTuple):
    """Why no program can use the loaded driver: a code, a sentence without full stop, and advice. Empty: no reason."""

    code: str = ""
    problem: str = ""
    advice: str = ""


def driver_problem(host: hostfs.HostFS, run: core_plan.Runner, report: t.Mapping[str, t.Any]) -> DriverProblem:
    """Return why no program can use the loaded driver.

    ``report`` is the result of describe_gpus().
    """
    for problem in report["problems"]:
        if problem["code"] in _DRIVER_PROBLEMS:
            return DriverProblem(problem["code"], problem["message"].rstrip("."), _DRIVER_PROBLEMS[problem["code"]])
    fabric = (services.describe_services(host, run) if host.live else {}).get("fabric_manager") or {}
    found = services.fabric_manager_problem(fabric, report["driver_version"] or "")
    if found is None or fabric["running"]:
        return DriverProblem()
    return DriverProblem(found.code, found.message.rstrip("."), found.advice)


def problem_of(reasons: t.Iterable[t.Mapping[str, str]]) -> tuple[str, str]:
    """Return why no program can use a GPU or MIG device, and the advice, from the ``reasons`` of its report.

    Both are empty without a reason, and the advice also if the reason has none.
    """
    own = next((reason for reason in reasons if reason["code"] not in _NOT_OF_GPU), {})
    return own.get("message", ""), own.get("advice", "")


def library_version(host: hostfs.HostFS, root: str, name: str) -> str | None:
    """Return the version of a library of the driver below ``root``, from the name of its file; None: unknown."""
    files = driver_files.DriverFiles(file_lookup.CachedFS(host), root, ())
    try:
        found = files.libraries(name)
    except errors.NvidiaError:
        return None
    versions = [match[1] for match in (_VERSION.search(posixpath.basename(one.host)) for one in found) if match]
    return versions[0] if versions else None


# -- devices -----------------------------------------------------------------------------------------------------------


def permissions(host: hostfs.HostFS, paths: t.Iterable[str], driver_root: str) -> dict[str, explain_access.NodeAccess]:
    """Return the permissions of the device nodes of GPUs in ``paths``, and of those that all GPUs need."""
    folder = device_nodes.dev_directory(host, (driver_root or "/", *device_nodes.DRIVER_ROOTS))
    found: dict[str, explain_access.NodeAccess] = {}
    for path in dict.fromkeys([*device_nodes.NEEDED_NODES, *paths]):
        try:
            real = host.real_path(device_nodes.node_in(folder, path))
            status = os.stat(real)
        except (errors.HostError, OSError):
            continue
        if stat.S_ISCHR(status.st_mode):
            mode = stat.S_IMODE(status.st_mode)
            number = os.major(status.st_rdev), os.minor(status.st_rdev)
            found[path] = explain_access.NodeAccess(mode, status.st_uid, status.st_gid, _label_type(real), number)
    return found


def _label_type(process_path: str) -> str:
    try:
        label = os.getxattr(process_path, _LABEL).decode("ascii", "replace").rstrip("\0")
    except (OSError, AttributeError):
        return ""
    return "".join(label.split(":")[2:3])


def imex_channels(host: hostfs.HostFS) -> frozenset[str]:
    """Return the numbers of the IMEX channels of the host."""
    names = host.readable_entries(explain_rules.IMEX_NODES)
    return frozenset(name[len("channel") :] for name in names if name.startswith("channel"))


def creates_imex_channels(host: hostfs.HostFS) -> bool:
    """Return whether the driver has IMEX channels, so that nvidia-container-cli creates those that it needs."""
    return _IMEX_DRIVER in device_nodes.kernel_majors(host)


def features(host: hostfs.HostFS) -> frozenset[str]:
    """Return the variables of the features whose device nodes exist."""
    rows = explain_rules.FEATURE_NODES.items()
    return frozenset(name for name, patterns in rows if any(host.glob(pattern) for pattern in patterns))


def ignored_files(host: hostfs.HostFS, folders: t.Sequence[str]) -> list[str]:
    """Return why engines ignore files in ``folders``, as sentences."""
    return [found.message for found in cdi_ignored.ignored_paths(host, folders) if found.kind != cdi_ignored.UNREADABLE]


def stale_devices(host: hostfs.HostFS, found: explain_contents.Specifications) -> dict[str, str]:
    """Return why CDI devices do not match the host, by qualified name. Each is compared without the others."""
    driver = procfs.loaded_driver(host)
    version = driver.version if driver is not None else None
    stale = {}
    for name, path in found.devices.items():
        own = name.partition("=")[2]
        document = dict(found.documents[path])
        document["devices"] = [device for device in document.get("devices", ()) if device.get("name") == own]
        reasons, _missing = cdi_compare.stale_reasons(document, host, version)
        if reasons:
            stale[name] = reasons[0].message
    return stale


# -- access ------------------------------------------------------------------------------------------------------------


def selinux(host: hostfs.HostFS) -> explain_access.Selinux | None:
    """Return what SELinux permits containers; None if it is not enforced."""
    if host.read_text(f"{_SELINUX}/enforce").strip() != "1":
        return None
    # The current and the pending value (security/selinux/selinuxfs.c of Linux).
    values = [host.read_text(f"{_SELINUX}/booleans/{name}").split() for name in _BOOLEANS]
    known = [value[0] == "1" for value in values if value]
    return explain_access.Selinux(any(known) if known else None)


def device_rules(host: hostfs.HostFS, process: str) -> str:
    """Return the rules of the device cgroup of a process, version 1; empty if they cannot be read."""
    for line in host.read_text(f"{process}/cgroup").splitlines():
        _number, _colon, rest = line.partition(":")
        controllers, _colon, path = rest.partition(":")
        if "devices" in controllers.split(",") and "/.." not in path:
            return host.read_text(f"/sys/fs/cgroup/devices{path}/devices.list")
    return ""
