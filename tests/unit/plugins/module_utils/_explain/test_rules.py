# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The decisions that the toolkit's own code makes. The tables name the file and the version of each rule.

The rows of VISIBLE_1_20, VISIBLE_BY_MODE, MODES and HOOK, and those about capabilities and requirements, were also
given to this code itself: to initRuntimeModeAndImage() and the hook of 1.20.0, and to getDevicesFromSpec(),
ResolveAutoMode() and the hook of 1.17.8. The decisions were the same.
"""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import rules as explain_rules
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.rules import CDI, CSV, JIT_CDI, LEGACY, Image
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config.runtime_settings import RuntimeSettings

NEW, OLD = "1.20.0", "1.17.8"
NVIDIA = "/usr/bin/nvidia-container-runtime"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NULL = "/dev/null"
ROOT = "/var/run/nvidia-container-devices"
OLD_IMAGE = {"CUDA_VERSION": "10.1.243"}
CUDA_IMAGE = {"CUDA_VERSION": "12.6.3", "NVIDIA_REQUIRE_CUDA": "cuda>=12.6"}
CLOSED = RuntimeSettings(accept_variable=False)
MOUNTS = RuntimeSettings(accept_mounts=True)
SWARM = RuntimeSettings(swarm_resource="DOCKER_RESOURCE_GPU, DOCKER_RESOURCE_NVIDIA-GPU")


def variables(value: str, **others: str) -> Image:
    return Image({VISIBLE: value, **others})


def mounted(*names: str, source: str = NULL, **environment: str) -> Image:
    return Image(environment, tuple((source, f"{ROOT}/{name}") for name in names))


def annotated(value: str, key: str = "cdi.k8s.io/plugin_1") -> Image:
    return Image({}, annotations={key: value})


# internal/config/image/cuda_image.go of 1.20.0: devicesFromEnvvars(), VisibleDevices(), visibleDevicesFromMounts(),
# cdiDeviceRequestsFromAnnotations(); devices.go: NewVisibleDevices(). The hook and mode legacy read the same.
VISIBLE_1_20: list[tuple[str, Image, RuntimeSettings, tuple[str, ...]]] = [
    ("unset", Image({}), RuntimeSettings(), ()),
    ("empty", variables(""), RuntimeSettings(), ()),
    ("only commas", variables(" , "), RuntimeSettings(), ()),
    ("void", variables("void"), RuntimeSettings(), ()),
    ("void among others", variables("0,void"), RuntimeSettings(), ()),
    ("none", variables("none"), RuntimeSettings(), ("",)),
    ("all", variables("all"), RuntimeSettings(), ("all",)),
    ("all after an index", variables("0,all"), RuntimeSettings(), ("all",)),
    ("none before all", variables("none,all"), RuntimeSettings(), ("",)),
    ("indices", variables("0, 2"), RuntimeSettings(), ("0", "2")),
    ("an index twice", variables("0,0"), RuntimeSettings(), ("0",)),
    ("a MIG device", variables("0:1"), RuntimeSettings(), ("0:1",)),
    ("unset in an old CUDA image", Image(OLD_IMAGE), RuntimeSettings(), ("all",)),
    ("unset in a CUDA image", Image(CUDA_IMAGE), RuntimeSettings(), ()),
    ("empty in an old CUDA image", variables("", **OLD_IMAGE), RuntimeSettings(), ()),
    ("refused without privileges", variables("all"), CLOSED, ()),
    ("permitted with privileges", Image({VISIBLE: "all"}, privileged=True), CLOSED, ("all",)),
    ("refused in an old CUDA image", Image(OLD_IMAGE), CLOSED, ()),
    ("mounts that are not accepted", mounted("0"), RuntimeSettings(), ()),
    ("mounts", mounted("0", "GPU-1"), MOUNTS, ("0", "GPU-1")),
    ("mounts before the variable", mounted("0", NVIDIA_VISIBLE_DEVICES="all"), MOUNTS, ("0",)),
    ("mounts without permission for the variable", mounted("0"),
     RuntimeSettings(accept_variable=False, accept_mounts=True), ("0",)),
    ("a mount of another source", mounted("0", source="/dev/zero"), MOUNTS, ()),
    ("a mount of a CDI device", mounted("cdi/nvidia.com/gpu/0"), MOUNTS, ("nvidia.com/gpu=0",)),
    ("a mount of a qualified CDI device", mounted("cdi/nvidia.com/gpu=0"), MOUNTS, ("nvidia.com/gpu=0",)),
    ("an invalid mount of a CDI device", mounted("cdi/nvidia.com"), MOUNTS, ()),
    ("an IMEX channel", mounted("imex/0"), MOUNTS, ()),
    ("the variable instead of an IMEX channel", mounted("imex/0", NVIDIA_VISIBLE_DEVICES="1"), MOUNTS, ("1",)),
    ("Swarm", Image({"DOCKER_RESOURCE_GPU": "GPU-1"}), SWARM, ("GPU-1",)),
    ("Swarm before the variable", variables("all", DOCKER_RESOURCE_GPU="0"), SWARM, ("0",)),
    ("two variables of Swarm", Image({"DOCKER_RESOURCE_GPU": "0", "DOCKER_RESOURCE_NVIDIA-GPU": "1"}), SWARM,
     ("0", "1")),
    ("the variable without those of Swarm", variables("1"), SWARM, ("1",)),
    ("Swarm that is not configured", variables("1", DOCKER_RESOURCE_GPU="0"), RuntimeSettings(), ("1",)),
    ("annotations in other modes than cdi", annotated("nvidia.com/gpu=0"), RuntimeSettings(), ()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("image", "settings", "expected"), [row[1:] for row in VISIBLE_1_20], ids=[row[0] for row in VISIBLE_1_20]
)
def test_visible_devices(image: Image, settings: RuntimeSettings, expected: tuple[str, ...]) -> None:
    assert explain_rules.visible_devices(image, settings, NEW, LEGACY).devices == expected
    assert explain_rules.visible_devices(image, settings, NEW, LEGACY, hook=True).devices == expected
    # An unknown version has the rules of the newest.
    assert explain_rules.visible_devices(image, settings, None, JIT_CDI).devices == expected


# 1.17.8: getDevices() of cmd/nvidia-container-runtime-hook/container_config.go for legacy, getDevicesFromSpec() of
# internal/modifier/cdi.go for cdi. 1.20.0: as above, with annotations in mode cdi.
VISIBLE_BY_MODE: list[tuple[str, Image, RuntimeSettings, str, str, tuple[str, ...]]] = [
    ("annotations", annotated("nvidia.com/gpu=0,nvidia.com/gpu=1"), CLOSED, NEW, CDI,
     ("nvidia.com/gpu=0", "nvidia.com/gpu=1")),
    ("annotations in 1.17", annotated("nvidia.com/gpu=0"), CLOSED, OLD, CDI, ("nvidia.com/gpu=0",)),
    ("annotations of others", annotated("nvidia.com/gpu=0", "example.com/x"), RuntimeSettings(), NEW, CDI, ()),
    ("annotations without prefixes", annotated("nvidia.com/gpu=0"), RuntimeSettings(annotation_prefixes=()), NEW, CDI,
     ()),
    ("annotations before variables", Image({VISIBLE: "1"}, annotations={"cdi.k8s.io/a": "v.io/c=0"}),
     RuntimeSettings(), NEW, CDI, ("v.io/c=0",)),
    ("mounts in mode cdi of 1.17", mounted("0", "cdi/nvidia.com/gpu/1"), MOUNTS, OLD, CDI, ("nvidia.com/gpu=1",)),
    ("mounts in mode legacy of 1.17", mounted("0", "cdi/nvidia.com/gpu/1"), MOUNTS, OLD, LEGACY, ("0",)),
    ("mounts in mode cdi of 1.20", mounted("0", "cdi/nvidia.com/gpu/1"), MOUNTS, NEW, CDI, ("0", "nvidia.com/gpu=1")),
    ("Swarm in mode legacy of 1.17", variables("all", DOCKER_RESOURCE_GPU="0"), SWARM, OLD, LEGACY, ("0",)),
    ("Swarm in mode cdi of 1.17", variables("all", DOCKER_RESOURCE_GPU="0"), SWARM, OLD, CDI, ("all",)),
    ("Swarm in mode cdi of 1.20", variables("all", DOCKER_RESOURCE_GPU="0"), SWARM, NEW, CDI, ("0",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("image", "settings", "version", "mode", "expected"),
    [row[1:] for row in VISIBLE_BY_MODE],
    ids=[row[0] for row in VISIBLE_BY_MODE],
)
def test_visible_devices_by_mode(
    image: Image, settings: RuntimeSettings, version: str, mode: str, expected: tuple[str, ...]
) -> None:
    assert explain_rules.visible_devices(image, settings, version, mode).devices == expected


def test_why_devices_are_refused() -> None:
    refused = explain_rules.visible_devices(variables("0,1"), CLOSED, NEW, LEGACY)
    assert refused.refused == ("0", "1")
    assert refused.variables == (VISIBLE,)
    assert refused.setting == "accept-nvidia-visible-devices-envvar-when-unprivileged"
    refused = explain_rules.visible_devices(mounted("0"), RuntimeSettings(), NEW, LEGACY)
    assert refused.refused == ("0",)
    assert refused.setting == "accept-nvidia-visible-devices-as-volume-mounts"


# internal/info/auto.go and internal/runtime/runtime_factory.go of 1.20.0 and 1.17.8,
# cmd/nvidia-container-runtime.{cdi,legacy}/main.go.
MODES: list[tuple[str, Image, RuntimeSettings, str, str, str]] = [
    ("auto", variables("all"), RuntimeSettings(), NVIDIA, NEW, JIT_CDI),
    ("auto in 1.18", variables("all"), RuntimeSettings(), NVIDIA, "1.18.0", JIT_CDI),
    ("auto in a release candidate", variables("all"), RuntimeSettings(), NVIDIA, "1.18.0-rc.1", JIT_CDI),
    ("auto in 1.17", variables("all"), RuntimeSettings(), NVIDIA, OLD, LEGACY),
    ("auto with CDI devices", variables("nvidia.com/gpu=0"), RuntimeSettings(), NVIDIA, NEW, CDI),
    ("auto with CDI devices in 1.17", variables("nvidia.com/gpu=0"), RuntimeSettings(), NVIDIA, OLD, CDI),
    ("auto with CDI devices and others", variables("nvidia.com/gpu=0,1"), RuntimeSettings(), NVIDIA, NEW, JIT_CDI),
    ("auto with refused CDI devices", variables("nvidia.com/gpu=0"), CLOSED, NVIDIA, NEW, JIT_CDI),
    ("auto with refused CDI devices in 1.17", variables("nvidia.com/gpu=0"), CLOSED, NVIDIA, OLD, CDI),
    ("auto with annotations", annotated("nvidia.com/gpu=0"), RuntimeSettings(), NVIDIA, NEW, CDI),
    ("auto with annotations in 1.17", annotated("nvidia.com/gpu=0"), RuntimeSettings(), NVIDIA, OLD, LEGACY),
    ("auto with CDI mounts that are not accepted in 1.17", mounted("cdi/nvidia.com/gpu/0"), RuntimeSettings(), NVIDIA,
     OLD, CDI),
    ("auto without devices", Image({}), RuntimeSettings(), NVIDIA, NEW, JIT_CDI),
    ("config.toml", variables("nvidia.com/gpu=0"), RuntimeSettings(mode="legacy"), NVIDIA, NEW, LEGACY),
    ("config.toml with an unknown mode", variables("all"), RuntimeSettings(mode="fast"), NVIDIA, NEW, "fast"),
    ("the program for cdi", variables("all"), RuntimeSettings(mode="legacy"), f"{NVIDIA}.cdi", NEW, CDI),
    ("the program for legacy", variables("all"), RuntimeSettings(mode="cdi"), f"{NVIDIA}.legacy", NEW, LEGACY),
]  # fmt: skip


@pytest.mark.parametrize(
    ("image", "settings", "program", "version", "expected"), [row[1:] for row in MODES], ids=[row[0] for row in MODES]
)
def test_mode(image: Image, settings: RuntimeSettings, program: str, version: str, expected: str) -> None:
    assert explain_rules.resolve_mode(image, settings, program, version, tegra=False).name == expected


def test_mode_of_tegra() -> None:
    for version in (OLD, NEW):
        assert explain_rules.resolve_mode(variables("all"), RuntimeSettings(), NVIDIA, version, tegra=True).name == CSV


# assertModeIsLegacy() of cmd/nvidia-container-runtime-hook/hook_config.go (1.20.0), main.go (1.17.8).
HOOK: list[tuple[str, Image, RuntimeSettings, str, str]] = [
    ("auto", variables("all"), RuntimeSettings(), NEW, ""),
    ("auto in 1.17", variables("all"), RuntimeSettings(), OLD, ""),
    ("legacy", variables("nvidia.com/gpu=0"), RuntimeSettings(mode="legacy"), NEW, ""),
    ("cdi", variables("all"), RuntimeSettings(mode="cdi"), NEW, "cdi"),
    ("jit-cdi", variables("all"), RuntimeSettings(mode="jit-cdi"), NEW, "jit-cdi"),
    ("auto with CDI devices", variables("nvidia.com/gpu=0"), RuntimeSettings(), NEW, "cdi"),
    ("the hook reads no annotations", annotated("nvidia.com/gpu=0"), RuntimeSettings(), NEW, ""),
    ("skip-mode-detection", variables("all"), RuntimeSettings(mode="cdi", skip_mode_detection=True), NEW, ""),
]


@pytest.mark.parametrize(("image", "settings", "version", "expected"), [row[1:] for row in HOOK],
                         ids=[row[0] for row in HOOK])  # fmt: skip
def test_hook(image: Image, settings: RuntimeSettings, version: str, expected: str) -> None:
    assert explain_rules.hook_refuses(image, settings, version, tegra=False) == expected


# DeviceRequests() and newCDIModifier() of internal/modifier/cdi.go (1.20.0).
@pytest.mark.parametrize(
    ("devices", "mode", "expected", "mixed"),
    [
        (("all",), JIT_CDI, ("runtime.nvidia.com/gpu=all",), False),
        (("",), JIT_CDI, ("runtime.nvidia.com/gpu=none",), False),
        (("0", "1"), CDI, ("nvidia.com/gpu=0", "nvidia.com/gpu=1"), False),
        (("nvidia.com/gpu=0", "1"), CDI, ("nvidia.com/gpu=0", "nvidia.com/gpu=1"), False),
        (("nvidia.com/gpu=0", "1"), JIT_CDI, ("nvidia.com/gpu=0", "runtime.nvidia.com/gpu=1"), True),
        (("0", "nvidia.com/gpu=0"), CDI, ("nvidia.com/gpu=0",), False),
    ],
)
def test_cdi_devices(devices: tuple[str, ...], mode: str, expected: tuple[str, ...], mixed: bool) -> None:
    found = explain_rules.cdi_devices(devices, RuntimeSettings(), mode)
    assert found == expected
    assert explain_rules.mixes_kinds(found) is mixed


def test_cdi_devices_of_another_kind() -> None:
    settings = RuntimeSettings(default_kind="management.nvidia.com/gpu")
    assert explain_rules.cdi_devices(("all",), settings, CDI) == ("management.nvidia.com/gpu=all",)


# getDriverCapabilities() of cmd/nvidia-container-runtime-hook/container_config.go (1.14.0 to 1.20.0).
ALL = ["compat32", "compute", "display", "graphics", "ngx", "utility", "video"]


@pytest.mark.parametrize(
    ("environment", "supported", "granted", "unsupported"),
    [
        ({}, "all", ["compute", "utility"], []),
        ({"NVIDIA_DRIVER_CAPABILITIES": ""}, "all", ["compute", "utility"], []),
        ({"NVIDIA_DRIVER_CAPABILITIES": "all"}, "all", ALL, []),
        ({"NVIDIA_DRIVER_CAPABILITIES": "all"}, "compute,utility", ["compute", "utility"], []),
        ({"NVIDIA_DRIVER_CAPABILITIES": "graphics, compute"}, "all", ["compute", "graphics"], []),
        ({"NVIDIA_DRIVER_CAPABILITIES": "graphics"}, "compute,utility", [], ["graphics"]),
        ({"NVIDIA_DRIVER_CAPABILITIES": "compute,fast"}, "all", ["compute"], ["fast"]),
        ({}, "video", [], []),
        (OLD_IMAGE, "all", ALL, []),
        ({**OLD_IMAGE, "NVIDIA_DRIVER_CAPABILITIES": "utility"}, "all", ["utility"], []),
    ],
)
def test_capabilities(environment: dict[str, str], supported: str, granted: list[str], unsupported: list[str]) -> None:
    found = explain_rules.capabilities(Image(environment), RuntimeSettings(supported_capabilities=supported))
    assert (sorted(found.granted), sorted(found.unsupported)) == (granted, unsupported)


# GetRequirements() of internal/config/image/cuda_image.go (1.14.0 to 1.20.0).
@pytest.mark.parametrize(
    ("environment", "settings", "expected"),
    [
        ({}, RuntimeSettings(), {}),
        (CUDA_IMAGE, RuntimeSettings(), {"NVIDIA_REQUIRE_CUDA": "cuda>=12.6"}),
        (OLD_IMAGE, RuntimeSettings(), {"CUDA_VERSION": "cuda>=10.1"}),
        ({"CUDA_VERSION": "v11"}, RuntimeSettings(), {"CUDA_VERSION": "cuda>=11.0"}),
        ({"NVIDIA_REQUIRE_DRIVER": "driver>=550", "NVIDIA_REQUIRE_JETPACK": "x"}, RuntimeSettings(),
         {"NVIDIA_REQUIRE_DRIVER": "driver>=550"}),
        (CUDA_IMAGE, RuntimeSettings(disable_require=True), {}),
        ({**CUDA_IMAGE, "NVIDIA_DISABLE_REQUIRE": "1"}, RuntimeSettings(), {}),
        ({**CUDA_IMAGE, "NVIDIA_DISABLE_REQUIRE": "True"}, RuntimeSettings(), {}),
        # strconv.ParseBool() does not accept it.
        ({**CUDA_IMAGE, "NVIDIA_DISABLE_REQUIRE": "yes"}, RuntimeSettings(), {"NVIDIA_REQUIRE_CUDA": "cuda>=12.6"}),
    ],
)  # fmt: skip
def test_requirements(environment: dict[str, str], settings: RuntimeSettings, expected: dict[str, str]) -> None:
    assert explain_rules.requirements(Image(environment), settings) == (expected, "")


@pytest.mark.parametrize("version", ["12.6.3.1", "12.06", "latest", "12."])
def test_invalid_cuda_version(version: str) -> None:
    _found, problem = explain_rules.requirements(Image({"CUDA_VERSION": version}), RuntimeSettings())
    assert problem == f"CUDA_VERSION={version} is not a version"


# getNvidiaConfig() of cmd/nvidia-container-runtime-hook/container_config.go (1.14.0 to 1.20.0).
def test_variables_for_privileged_containers() -> None:
    environment = {VISIBLE: "all", "NVIDIA_MIG_MONITOR_DEVICES": "all"}
    assert explain_rules.refused_variable(Image(environment)) == "NVIDIA_MIG_MONITOR_DEVICES"
    assert explain_rules.refused_variable(Image(environment, privileged=True)) == ""
    assert explain_rules.refused_variable(Image({"NVIDIA_MIG_CONFIG_DEVICES": ""})) == ""


@pytest.mark.parametrize(
    ("name", "qualified"),
    [("nvidia.com/gpu=0", True), ("nvidia.com/gpu=0:1", True), ("nvidia.com/gpu", False), ("gpu=0", False),
     ("0", False), ("", False), ("/gpu=0", False), ("nvidia.com/gpu=", False)],
)  # fmt: skip
def test_qualified_names(name: str, qualified: bool) -> None:
    assert explain_rules.is_qualified(name) is qualified
