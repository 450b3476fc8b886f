# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read what a host has that decides about the GPUs of one container.

The toolkit and its config.toml, the driver, the GPUs, and the CDI specifications. It changes nothing, and opens no file
of the container: of that, it reads the kernel's list of mounts only.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, trusted_paths
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import cdi_support, flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker import facts as docker_facts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    access as explain_access,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    container as explain_container,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    contents as explain_contents,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    devices as explain_devices,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    facts as explain_facts,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    rules as explain_rules,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import info as gpu_info
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import inventory, procfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import plugins
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import installed as toolkit_installed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import runtime_settings
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import checks as verify_checks

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# The limit for /proc/PID/mountinfo. A container with all files of a driver has about 10 KiB.
_MOUNTS = 1 << 20


class ExplainedHost(t.NamedTuple):
    """What decides about the GPUs of a container.

    - ``version``: the version of the toolkit, None if it is unknown. ``config_path``: its config.toml, and
      ``config_problem`` why that cannot be read.
    - ``program``: the program of the container's runtime, if the engine reports only a name; otherwise empty.
    - ``programs``: those of _DOCKER_PROGRAMS that are on the host. ``program_exists``: whether the program of the
      container's runtime is. ``missing_programs``: the others that the mode in the key needs, and that are not.
    - ``driver``, ``cuda``: the version of the driver and its CUDA version. None: unknown.
    - ``driver_problem``: why no program can use the driver. ``library``, ``cuda_library``: the versions of its
      libraries NVML and libcuda, None if they are unknown.
    - ``tegra``: whether the host is a Tegra system. ``comparable``: False for WSL and Tegra, which have other device
      nodes and, in most releases, none of the driver's files in /proc.
    - ``all_gpus``: the GPUs and MIG devices. ``names_known``: whether all of their UUIDs are known.
    - ``engine_cdi``: whether the engine reads CDI specifications, None if it is unknown. ``cdi_advice``: what switches
      CDI on; empty if this collection does. ``engine_version``: Docker's.
    - ``engine_specifications``, ``runtime_specifications``: in the directories of the engine and of config.toml.
    - ``engine_reads``: whether the release of the engine reads specifications at all. ``rootless``: whether it belongs
      to a user. ``default_nvidia``: whether its default runtime is one of NVIDIA.
    - ``nri_plugin``: whether the NRI plugin of the toolkit may run. ``nri_adds``: whether the release of the engine
      adds the CDI devices that it requests.
    - ``nodes``: the permissions of device nodes. ``imex_channels``: the numbers of those that exist, and
      ``creates_imex``: whether mode legacy creates others. ``features``: the variables of those whose devices exist.
    - ``csv_files``: whether a Tegra system has lists of files for mode csv. ``has_driver_root``: whether the directory
      of the driver's files in config.toml exists.
    - ``selinux``: whether SELinux denies containers the devices of the host; None without enforced SELinux.
    - ``mountinfo``: /proc/PID/mountinfo of the container. ``device_rules``: those of its device cgroup, version 1.
    """

    version: str | None = None
    settings: runtime_settings.RuntimeSettings = runtime_settings.RuntimeSettings()
    config_path: str = toolkit_constants.CONFIG_FILE
    config_problem: str = ""
    program: str = ""
    programs: frozenset[str] = frozenset()
    program_exists: bool = True
    missing_programs: t.Mapping[str, tuple[str, ...]] = core_plan.NOTHING
    driver_loaded: bool = True
    driver: str | None = None
    cuda: str | None = None
    driver_problem: explain_facts.DriverProblem = explain_facts.DriverProblem()
    library: str | None = None
    cuda_library: str | None = None
    tegra: bool = False
    comparable: bool = True
    all_gpus: tuple[explain_devices.ExplainedGpu, ...] = ()
    names_known: bool = True
    engine_cdi: bool | None = None
    cdi_advice: str = ""
    engine_version: str = ""
    engine_specifications: explain_contents.Specifications = explain_contents.Specifications()
    runtime_specifications: explain_contents.Specifications = explain_contents.Specifications()
    engine_reads: bool = True
    rootless: bool = False
    default_nvidia: bool | None = None
    nri_plugin: bool = False
    nri_adds: bool = True
    nodes: t.Mapping[str, explain_access.NodeAccess] = core_plan.NOTHING
    imex_channels: frozenset[str] = frozenset()
    creates_imex: bool = False
    features: frozenset[str] = frozenset(explain_rules.FEATURE_NODES)
    csv_files: bool = True
    has_driver_root: bool = True
    selinux: explain_access.Selinux | None = None
    mountinfo: str = ""
    device_rules: str = ""

    @property
    def gpus(self) -> tuple[explain_devices.ExplainedGpu, ...]:
        return tuple(gpu for gpu in self.all_gpus if gpu.usable)

    def select(self, names: t.Iterable[str], legacy: bool = True) -> explain_devices.GpuSelection:
        """Return the GPUs that ``names`` request in mode legacy, or in a mode with generated specifications."""
        return explain_devices.select(self.all_gpus, names, self.names_known, legacy)


class ReportedEngine(t.NamedTuple):
    """What is known about the engine of the container.

    Its version, whether it reads CDI specifications, whether it belongs to a user, and whether its default runtime is
    one of NVIDIA. ``folders`` are its directories of specifications, None if it does not report them.
    ``cdi_advice``: what switches CDI on; empty if this collection does.
    """

    version: str = ""
    cdi: bool | None = None
    rootless: bool = False
    default_nvidia: bool | None = None
    folders: tuple[str, ...] | None = None
    cdi_advice: str = ""


def read_host(
    container: explain_container.Container,
    engine: ReportedEngine,
    runtime_dir: str | None,
    host: hostfs.HostFS,
    run: core_plan.Runner,
) -> ExplainedHost:
    """Return what decides about ``container``.

    Raises MissingPackageError if a file needs a Python package that this host lacks.
    """
    program = explain_facts.program_of_podman(container, host, run)
    container = container._replace(program=program or container.program)
    program_dir = runtime_dir or _own_dir(container.program, host) or toolkit_installed.PROGRAM_DIR
    config_path = toolkit_constants.config_file(host, program_dir)
    version = toolkit_installed.version_in(program_dir, host, run)
    settings, problem = _settings(host, config_path, version)
    driver, kind = procfs.loaded_driver(host), procfs.detect_gpu(host).kind
    report = gpu_info.describe_gpus(host)
    gpus, known = _gpus(host, report["devices"])
    missing = [node["path"] for node in report["missing_nodes"]]
    cuda, gpus = _requirement_facts(host, container, gpus, settings.driver_root or "/", missing)
    support = cdi_support.running_engine(container.engine, engine.version, host, run)
    specifications = {}
    is_new = container.state != explain_container.RUNNING
    own_folders = support.folders if engine.folders is None or not support.reads else engine.folders
    for folders in (own_folders, settings.cdi_folders):
        if folders not in specifications:
            specifications[folders] = _specifications(host, folders, is_new)
    process = "" if container.pid is None else f"/proc/{container.pid}"
    return ExplainedHost(
        version=version,
        settings=settings,
        config_path=config_path,
        config_problem=problem,
        program=program,
        programs=frozenset(name for name in docker_facts.GPUS_PROGRAMS if host.find_executable([name])),
        program_exists=bool(container.program) and host.find_executable([container.program]) is not None,
        missing_programs=explain_facts.missing_programs(
            host, program_dir, settings, engine.rootless or flavors.FACTS[container.engine].cri_plugin
        ),
        driver_loaded=driver is not None,
        driver=driver.version if driver is not None else None,
        cuda=cuda,
        driver_problem=explain_facts.driver_problem(host, run, report) if driver else explain_facts.DriverProblem(),
        library=explain_facts.library_version(host, settings.driver_root or "/", explain_facts.NVML),
        cuda_library=explain_facts.library_version(host, settings.driver_root or "/", explain_facts.CUDA),
        tegra=kind == procfs.TEGRA,
        comparable=kind not in (procfs.WSL, procfs.TEGRA),
        all_gpus=gpus,
        names_known=known,
        engine_cdi=engine.cdi if support.reads else False,
        cdi_advice=engine.cdi_advice,
        # Podman has no daemon that reports a version.
        engine_version=engine.version
        or ("" if flavors.FLAVORS[support.name, core_constants.SYSTEM].daemon else support.version or ""),
        engine_specifications=specifications[own_folders],
        runtime_specifications=specifications[settings.cdi_folders],
        engine_reads=support.reads,
        rootless=engine.rootless,
        default_nvidia=engine.default_nvidia,
        nri_plugin=bool(container.nri_devices) and plugins.has_nri_plugin(host),
        nri_adds=cdi_support.adds_devices_of_nri(container.engine, engine.version),
        nodes=explain_facts.permissions(host, [node for gpu in gpus for node in gpu.nodes], settings.driver_root),
        imex_channels=explain_facts.imex_channels(host),
        creates_imex=explain_facts.creates_imex_channels(host),
        features=explain_facts.features(host),
        csv_files=bool(host.glob(f"{settings.csv_folder}/*.csv")),
        has_driver_root=host.exists(settings.driver_root or "/"),
        selinux=explain_facts.selinux(host),
        mountinfo=host.read_text(f"{process}/mountinfo", _MOUNTS) if process else "",
        device_rules=explain_facts.device_rules(host, process) if process else "",
    )


def _own_dir(program: str, host: hostfs.HostFS) -> str:
    """Return the directory of a runtime of NVIDIA, whose programs are run; empty if another user can change it.

    The option socket can name the engine of a user, who then chooses the path of ``program``.
    """
    if not engines_base.is_nvidia_program(program) or not program.startswith("/"):
        return ""
    folder = posixpath.dirname(program)
    return folder if trusted_paths.is_trusted_folder(host, folder) else ""


def _settings(host: hostfs.HostFS, path: str, version: str | None) -> tuple[runtime_settings.RuntimeSettings, str]:
    """Return the settings in config.toml, and why the file cannot be read."""
    try:
        return runtime_settings.read(host, path, version), ""
    except errors.MissingPackageError:
        raise
    except errors.ConfigurationError as error:
        line = f", line {error.line}" if error.line is not None else ""
        return runtime_settings.RuntimeSettings(), f"{error.path}{line} is not valid: {error.problem}"
    except errors.NvidiaError as error:
        return runtime_settings.RuntimeSettings(), str(error).rstrip(".")


def _gpus(
    host: hostfs.HostFS, devices: t.Iterable[dict[str, t.Any]]
) -> tuple[tuple[explain_devices.ExplainedGpu, ...], bool]:
    """Return the GPUs and MIG devices in the report ``devices``, and whether all of their names are known."""
    mig_nodes = procfs.MigCapabilities(host).known_nodes
    found: list[explain_devices.ExplainedGpu] = []
    known = True
    for device in devices:
        index, minor, uuid = device["index"], device["minor"], device["uuid"]
        bus = device["bus_id"] or ""
        # nvidia-smi and nvidia-container-cli write the domain of an address with eight digits.
        long_bus = bus.zfill(len("00000000:00:00.0")) if bus else ""
        names = list(filter(None, (None if index is None else str(index), uuid, bus, long_bus)))
        node = () if minor is None else (f"/dev/nvidia{minor}",)
        gpu = f"GPU {device['bus_id'] if index is None else index}"
        (problem, advice), migs = explain_facts.problem_of(device["reasons"]), device["mig_devices"]
        empty = bool(device["mig_enabled"]) and not migs
        one = explain_devices.ExplainedGpu(gpu, tuple(names), node, not device["mig_enabled"], empty=empty)
        found.append(one._replace(problem=problem, advice=advice, mig_unknown=device["mig_enabled"] is None))
        known = known and index is not None and uuid is not None
        for number, mig in enumerate(migs):
            own = number if mig["index"] is None else mig["index"]
            known = known and mig["index"] is not None and mig["uuid"] is not None
            nodes = tuple(mig_nodes(minor, mig["gpu_instance"], mig["compute_instance"])) if node else ()
            names = [f"{index}:{own}", *([mig["uuid"]] if mig["uuid"] else [])]
            one = explain_devices.ExplainedGpu(f"{gpu} MIG {own}", tuple(names), (*node, *nodes))
            problem, advice = explain_facts.problem_of(mig["reasons"])
            found.append(one._replace(problem=problem, advice=advice))
    return tuple(found), known


def _requirement_facts(
    host: hostfs.HostFS,
    container: explain_container.Container,
    gpus: tuple[explain_devices.ExplainedGpu, ...],
    driver_root: str,
    missing_nodes: t.Sequence[str],
) -> tuple[str | None, tuple[explain_devices.ExplainedGpu, ...]]:
    """Return the driver's CUDA version, and ``gpus`` with what requirements of images compare.

    NVML is asked only for an image with requirements, because that takes seconds on some hosts. It must not create
    ``missing_nodes``.
    """
    names = container.environment
    if not any(name.startswith((explain_rules.REQUIRE, explain_rules.CUDA_VERSION)) for name in names):
        return None, gpus
    try:
        result, _reason = inventory.query_nvml(host, driver_root, missing_nodes=missing_nodes)
    except errors.NvidiaError:
        result = None
    if result is None:
        return None, gpus
    by_uuid = {gpu.uuid: gpu for gpu in result.gpus if gpu.uuid}
    by_uuid.update((mig.uuid, gpu) for gpu in result.gpus for mig in gpu.migs)
    found = []
    for gpu in gpus:
        known = next((by_uuid[name] for name in gpu.names if name in by_uuid), None)
        found.append(gpu if known is None else gpu._replace(arch=known.arch or None, brand=known.brand or None))
    return result.cuda or None, tuple(found)


def _specifications(host: hostfs.HostFS, folders: t.Sequence[str], with_stale: bool) -> explain_contents.Specifications:
    """Return the CDI specifications in ``folders``. Raises MissingPackageError if a file needs PyYAML.

    ``with_stale``: compare each device with the host. What a running container has is compared with the container.
    """
    if not folders:
        return explain_contents.Specifications()
    try:
        documents, resolution = verify_checks.read_specifications(host, folders)
    except errors.MissingPackageError:
        raise
    except errors.HostError as error:
        return explain_contents.Specifications(tuple(folders), problems=(str(error),))
    used = dict.fromkeys(resolution.devices.values())
    found = explain_contents.Specifications(
        tuple(folders),
        resolution.devices,
        {path: cdi_validate.validate(documents[path]).document for path in used},
        (*resolution._replace(shadowed={}).warnings(), *explain_facts.ignored_files(host, folders)),
    )
    return found._replace(stale=explain_facts.stale_devices(host, found)) if with_stale else found
