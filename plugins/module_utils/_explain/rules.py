# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rules by which the NVIDIA Container Toolkit decides what a container gets: devices, mode and capabilities.

The rules are those of nvidia-container-toolkit 1.15 to 1.20; some hold for 1.14 too. Each function names its source
there. They are pure, and read no host. The requirements of an image are in ``requirements.py``.
"""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import schema as cdi_schema
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import devices as explain_devices
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import runtime_settings

if t.TYPE_CHECKING:
    Environment = t.Mapping[str, str]


CDI, CSV, JIT_CDI = "cdi", "csv", "jit-cdi"
AUTO, LEGACY = runtime_settings.AUTO, runtime_settings.LEGACY
RUNTIME_MODES = (LEGACY, CDI, CSV, JIT_CDI)
HOOKS = (runtime_settings.HOOK, "nvidia-container-toolkit")

VISIBLE_DEVICES, DRIVER_CAPABILITIES = "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"
CUDA_VERSION, DISABLE_REQUIRE, REQUIRE = "CUDA_VERSION", "NVIDIA_DISABLE_REQUIRE", "NVIDIA_REQUIRE_"
REQUIRE_CUDA, REQUIRE_JETPACK = f"{REQUIRE}CUDA", f"{REQUIRE}JETPACK"
MIG_VARIABLES = ("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES")
IMEX_CHANNELS, IMEX_NODES = "NVIDIA_IMEX_CHANNELS", "/dev/nvidia-caps-imex-channels"
# The device nodes of each feature (internal/discover/gds.go, gdrcopy.go, mofed.go and nvswitch.go).
FEATURE_NODES = {
    "NVIDIA_GDS": ("/dev/nvidia-fs*",),
    "NVIDIA_MOFED": ("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"),
    "NVIDIA_GDRCOPY": ("/dev/gdrdrv",),
    "NVIDIA_NVSWITCH": ("/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch*"),
}
# The variables that programs of the toolkit or CUDA read. Only these are in results, because others such as
# NVIDIA_API_KEY may be secrets. The variables of requirements begin with REQUIRE.
VARIABLES = (
    *(VISIBLE_DEVICES, DRIVER_CAPABILITIES, CUDA_VERSION, DISABLE_REQUIRE, *MIG_VARIABLES),
    *(IMEX_CHANNELS, *FEATURE_NODES, explain_devices.CUDA_VISIBLE_DEVICES),
)
DEVICE_MOUNTS = "/var/run/nvidia-container-devices"
# The annotation of a pod that the NRI plugin of the toolkit reads, and the kind of devices that the plugin adds only in
# some namespaces.
NRI_ANNOTATION, MANAGEMENT_KIND = "nvidia.cdi.k8s.io", "management.nvidia.com/gpu"
# How a container requests devices.
BY_ANNOTATION, BY_MOUNT, BY_VARIABLE, BY_IMAGE = "annotation", "mount", "variable", "image"

# internal/modifier/cdi.go: specifications of this kind are generated when the container starts.
AUTOMATIC_KIND = "runtime.nvidia.com/gpu"
# The code of DriverMismatchError in _gpu/nvml, which is not imported here.
LIBRARY_DIFFERS = "driver-library-differs"
_DEFAULT_CAPABILITIES = frozenset(("compute", "utility"))
# golang.org/x/mod/semver, IsValid(), which accepts a version without minor and patch numbers.
_NUMBER = "(?:0|[1-9][0-9]*)"
_VERSION = re.compile(rf"v?({_NUMBER})(?:\.({_NUMBER})(?:\.{_NUMBER}(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?)?)?\Z")


class Image(t.NamedTuple):
    """What the toolkit's programs read of a container's OCI config.

    ``mounts`` are pairs of source and destination. ``privileged`` is whether the bounding set has CAP_SYS_ADMIN
    (internal/config/image/privileged.go).
    """

    environment: Environment
    mounts: tuple[tuple[str, str], ...] = ()
    annotations: t.Mapping[str, str] = core_plan.NOTHING
    privileged: bool = False

    @property
    def legacy(self) -> bool:
        """Whether this is an old CUDA image (IsLegacy() in internal/config/image/cuda_image.go)."""
        return bool(self.environment.get(CUDA_VERSION)) and not self.environment.get(REQUIRE_CUDA)


class Visible(t.NamedTuple):
    """The devices that a program of the toolkit adds to a container.

    ``devices`` is empty for a container that is none with GPUs, and has one empty string for a container that gets the
    driver's files without a GPU. ``source`` is one of BY_ANNOTATION to BY_IMAGE, ``variables`` are the variables that
    were read. ``refused`` has the devices that the settings refuse, and the setting.
    """

    devices: tuple[str, ...]
    source: str = ""
    variables: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    setting: str = ""


def is_qualified(name: str) -> bool:
    """Return whether ``name`` is the name of a CDI device: VENDOR/CLASS=NAME."""
    kind, equals, device = name.partition("=")
    return bool(equals) and not cdi_schema.kind_problem(kind) and not cdi_schema.device_name_problem(device)


def is_device_mounts(name: str) -> bool:
    """Return whether a value of NVIDIA_VISIBLE_DEVICES is the directory of requests by mounts.

    NVIDIA's device plugin sets it with the strategy volume-mounts (updateResponseForDeviceMounts() in
    internal/plugin/server.go of k8s-device-plugin 0.18).
    """
    return f"{posixpath.normpath(name)}/".startswith(f"{DEVICE_MOUNTS}/")


def visible_devices(
    image: Image, settings: runtime_settings.RuntimeSettings, version: str | None, mode: str, hook: bool = False
) -> Visible:
    """Return the devices that the runtime in ``mode``, or ``hook``, adds.

    From 1.18 on: VisibleDevices() in internal/config/image/cuda_image.go, for all modes. Before: getDevices() in
    cmd/nvidia-container-runtime-hook/container_config.go for legacy, getDevicesFromSpec() in internal/modifier/cdi.go
    for cdi, which reads no swarm-resource (1.17.8).
    """
    unified = runtime_settings.is_unified(version)
    # In other modes, initRuntimeModeAndImage() of internal/runtime/runtime_factory.go drops the prefixes.
    if mode == CDI and not hook:
        annotated = devices_in_annotations(image.annotations, settings.annotation_prefixes)
        if annotated:
            return Visible(annotated, BY_ANNOTATION)
    mounted = devices_in_mounts(image.mounts)
    if not unified:
        mounted = tuple(name for name in mounted if is_qualified(name) == (mode == CDI))
    if settings.accept_mounts and mounted:
        return Visible(mounted, BY_MOUNT)
    swarm = settings.swarm_variables if unified or mode != CDI else ()
    variables = _variables_read(image.environment, swarm)
    devices = devices_in_variables(image, variables)
    if any(is_device_mounts(name) for name in devices) and not settings.accept_mounts:
        return Visible((), BY_MOUNT, (), mounted or devices, runtime_settings.KEYS["accept_mounts"])
    source = BY_VARIABLE if any(name in image.environment for name in variables) else BY_IMAGE if devices else ""
    if devices and not (image.privileged or settings.accept_variable):
        return Visible((), source, variables, devices, runtime_settings.KEYS["accept_variable"])
    if not devices and mounted:
        return Visible((), BY_MOUNT, (), mounted, runtime_settings.KEYS["accept_mounts"])
    return Visible(devices, source, variables)


def _variables_read(environment: Environment, swarm: t.Sequence[str]) -> tuple[str, ...]:
    """Return the variables of Swarm that are set, or the usual one (visibleEnvVars(), 1.18)."""
    return tuple(name for name in swarm if name in environment) or (VISIBLE_DEVICES,)


def devices_in_variables(image: Image, variables: t.Sequence[str]) -> tuple[str, ...]:
    """Return the devices in ``variables`` (devicesFromEnvvars() in cuda_image.go, and devices.go)."""
    values = [image.environment[name] for name in variables if name in image.environment]
    devices = [name.strip() for value in values for name in value.split(",") if name.strip()]
    if not values and image.legacy:
        devices = ["all"]
    if not devices or "void" in devices:
        return ()
    # The first of these names wins.
    special = next((name for name in devices if name in ("all", "none")), None)
    if special is not None:
        return ("all",) if special == "all" else ("",)
    return tuple(dict.fromkeys(devices))


def devices_in_mounts(mounts: t.Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the devices that mounts of /dev/null request (visibleDevicesFromMounts() of cuda_image.go, 1.18)."""
    found: dict[str, None] = {}
    for source, destination in mounts:
        path = posixpath.normpath(destination)
        if posixpath.normpath(source) != "/dev/null" or not path.startswith(DEVICE_MOUNTS):
            continue
        name = path[len(DEVICE_MOUNTS) :].strip("/")
        if not name or name.startswith("imex/"):
            continue
        if name.startswith("cdi/"):
            name = name[len("cdi/") :]
            parts = name.split("/", 2)
            if not is_qualified(name):
                if len(parts) != 3:
                    continue
                name = f"{parts[0]}/{parts[1]}={parts[2]}"
        found[name] = None
    return tuple(found)


def devices_in_annotations(annotations: t.Mapping[str, str], prefixes: t.Sequence[str]) -> tuple[str, ...]:
    """Return the devices that annotations request (cdiDeviceRequestsFromAnnotations() of cuda_image.go, 1.18)."""
    keys = sorted(key for key in annotations if prefixes and key.startswith(tuple(prefixes)))
    return tuple(dict.fromkeys(name for key in keys for name in annotations[key].split(",")))


def devices_of_nri(annotations: t.Mapping[str, str], container: str) -> tuple[str, ...]:
    """Return the CDI devices that annotations of a pod request of the toolkit's NRI plugin for one of its containers.

    parseCDIDevices() in cmd/nvidia-ctk-installer/container/runtime/nri (1.19 to 1.20), GetEffectiveAnnotation() of
    containerd/nri 0.12: an annotation for the container replaces those for the pod.
    """
    keys = (f"{NRI_ANNOTATION}/container.{container}", f"{NRI_ANNOTATION}/pod", NRI_ANNOTATION)
    value = next((annotations[key] for key in keys if key in annotations), "")
    return tuple(dict.fromkeys(filter(None, value.split(","))))


class Mode(t.NamedTuple):
    """The mode of the runtime, and which rule chose it: ``program``, ``config`` or ``auto``."""

    name: str
    chosen_by: str


def resolve_mode(
    image: Image, settings: runtime_settings.RuntimeSettings, program: str, version: str | None, tegra: bool
) -> Mode:
    """Return the mode of the runtime ``program`` for a container.

    cmd/nvidia-container-runtime.{cdi,legacy}/main.go, ResolveRuntimeMode() in internal/info/auto.go (1.20; 1.14 to 1.17
    have legacy instead of jit-cdi).
    """
    by_program = runtime_settings.mode_of_program(program)
    if by_program is not None:
        return Mode(by_program, "program")
    if settings.mode != AUTO:
        return Mode(settings.mode, "config")
    default = JIT_CDI if runtime_settings.is_unified(version) else LEGACY
    return Mode(_auto_mode(image, settings, version, tegra, default), AUTO)


def _auto_mode(
    image: Image, settings: runtime_settings.RuntimeSettings, version: str | None, tegra: bool, default: str
) -> str:
    """Return the mode that ``auto`` is. Containers that request only CDI devices by their names get mode cdi."""
    if runtime_settings.is_unified(version):
        requested = visible_devices(image, settings, version, CDI).devices
    else:
        # OnlyFullyQualifiedCDIDevices() ignores the settings here (1.17.8).
        requested = devices_in_variables(image, (VISIBLE_DEVICES,)) + devices_in_mounts(image.mounts)
    if requested and all(map(is_qualified, requested)):
        return CDI
    return CSV if tegra else default


def hook_refuses(image: Image, settings: runtime_settings.RuntimeSettings, version: str | None, tegra: bool) -> str:
    """Return the mode with which nvidia-container-runtime-hook refuses to run; empty if it runs.

    See cmd/nvidia-container-runtime-hook/hook_config.go, function assertModeIsLegacy() (1.20), and main.go (1.17.8).
    """
    if settings.skip_mode_detection:
        return ""
    # The hook reads no annotations.
    without = image._replace(annotations={})
    mode = settings.mode if settings.mode != AUTO else _auto_mode(without, settings, version, tegra, LEGACY)
    return "" if mode == LEGACY else mode


def cdi_devices(devices: t.Sequence[str], settings: runtime_settings.RuntimeSettings, mode: str) -> tuple[str, ...]:
    """Return the names of the CDI devices for ``devices`` (DeviceRequests() in internal/modifier/cdi.go, 1.20)."""
    kind = AUTOMATIC_KIND if mode == JIT_CDI else settings.default_kind
    named = [name if is_qualified(name or "none") else f"{kind}={name or 'none'}" for name in devices]
    return tuple(dict.fromkeys(named))


def mixes_kinds(devices: t.Sequence[str]) -> bool:
    """Return whether generated devices are requested with others, which newCDIModifier() refuses (1.15 to 1.20)."""
    automatic = [name for name in devices if name.startswith(f"{AUTOMATIC_KIND}=")]
    return bool(automatic) and len(automatic) != len(devices)


class Capabilities(t.NamedTuple):
    """The driver capabilities that a container requests and gets. ``unsupported`` are those that the hook refuses."""

    requested: frozenset[str]
    granted: frozenset[str]
    unsupported: frozenset[str] = frozenset()


def capabilities(image: Image, settings: runtime_settings.RuntimeSettings) -> Capabilities:
    """Return the capabilities that the hook passes to nvidia-container-cli.

    getDriverCapabilities() in cmd/nvidia-container-runtime-hook/container_config.go (1.14 to 1.20). The modes cdi and
    jit-cdi ignore them.
    """
    supported = settings.supported
    value = image.environment.get(DRIVER_CAPABILITIES)
    if value is None and image.legacy:
        return Capabilities(frozenset(("all",)), supported)
    requested = runtime_settings.split_capabilities(value or "")
    if not value:
        return Capabilities(requested, supported & _DEFAULT_CAPABILITIES)
    if "all" in requested:
        return Capabilities(requested, supported)
    return Capabilities(requested, requested & supported, requested - supported)


def requirements(image: Image, settings: runtime_settings.RuntimeSettings) -> tuple[dict[str, str], str]:
    """Return the requirements of an image by variable, and why they cannot be read (empty: they can).

    GetRequirements() in internal/config/image/cuda_image.go (1.14 to 1.20). An old image requires its CUDA version.
    """
    if settings.disable_require or image.environment.get(DISABLE_REQUIRE, "") in core_text.GO_TRUE:
        return {}, ""
    found = {
        name: value
        for name, value in image.environment.items()
        if name.startswith(REQUIRE) and not name.startswith(REQUIRE_JETPACK)
    }
    if image.legacy:
        version = _VERSION.match(image.environment[CUDA_VERSION])
        if version is None:
            return found, f"{CUDA_VERSION}={image.environment[CUDA_VERSION]} is not a version"
        found[CUDA_VERSION] = f"cuda>={version[1]}.{version[2] or 0}"
    return found, ""


def imex_channels(image: Image, settings: runtime_settings.RuntimeSettings) -> tuple[str, ...]:
    """Return the IMEX channels that a container requests (ImexChannelRequests() in cuda_image.go, 1.18 to 1.20)."""
    prefix = f"{DEVICE_MOUNTS}/imex/"
    points = [posixpath.normpath(path) for source, path in image.mounts if posixpath.normpath(source) == "/dev/null"]
    mounted = tuple(path[len(prefix) :] for path in points if path.startswith(prefix))
    if settings.accept_mounts and mounted:
        return mounted
    permitted = image.privileged or settings.accept_variable
    if not permitted or IMEX_CHANNELS not in image.environment:
        return ()
    named = devices_in_variables(image, (IMEX_CHANNELS,))
    return () if named == ("all",) else tuple(filter(None, named))


def features(image: Image) -> tuple[str, ...]:
    """Return the variables with which a container requests other devices (gatedDevices in internal/modifier/cdi.go)."""
    return tuple(name for name in FEATURE_NODES if image.environment.get(name) == "enabled")


def refused_variable(image: Image) -> str:
    """Return the variable that only privileged containers may have; empty without one (getNvidiaConfig(), 1.14)."""
    if image.privileged:
        return ""
    return next((name for name in MIG_VARIABLES if image.environment.get(name)), "")
