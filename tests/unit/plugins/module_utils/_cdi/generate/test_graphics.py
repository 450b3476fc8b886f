# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""No specification has a JSON file for Vulkan or EGL without its library, or a library without its file, silently."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import discover
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate.graphics import problem_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.info import describe_cdi
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.cdi_hosts import CdiHost
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    MULTIARCH,
    VERSION,
    Files,
    elf,
    needs_root,
)

ICD, LAYERS = "/etc/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/implicit_layer.d/nvidia_layers.json"
EGL = "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"
WAYLAND = "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json"
LIB = "/usr/lib64"
GLX, EGL_LIBRARY = f"{LIB}/libGLX_nvidia.so.{VERSION}", f"{LIB}/libEGL_nvidia.so.{VERSION}"
PLATFORM = f"{LIB}/libnvidia-egl-wayland.so.1.1.18"
CUDA = f"{LIB}/libcuda.so.{VERSION}"
FOLDER = Path(__file__).parents[4] / "files" / "cdi"


def icd(library: str) -> str:
    return json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": library, "api_version": "1.3"}})


# The contents of the driver's own files.
TEXTS = {
    ICD: icd("libGLX_nvidia.so.0"),
    LAYERS: json.dumps({"layers": [{"name": "A", "library_path": "libGLX_nvidia.so.0"}, {"name": "B"}]}),
    EGL: icd("libEGL_nvidia.so.0"),
    WAYLAND: icd("libnvidia-egl-wayland.so.1"),
}


def problem(
    tmp_path: Path,
    paths: t.Iterable[str],
    texts: t.Mapping[str, str] | None = None,
    names: t.Sequence[str] = ("0", "all"),
) -> str:
    """Return the text of the problem of a specification that mounts ``paths``."""
    tree = Files(tmp_path)
    for path, text in (TEXTS if texts is None else texts).items():
        tree.file(path, text.encode())
    document = {
        "devices": [{"name": name, "containerEdits": {}} for name in names],
        "containerEdits": {"mounts": [{"hostPath": path, "containerPath": path} for path in paths]},
    }
    found = problem_of("It", document, HostFS(str(tmp_path), live=False))
    assert found is None or found.code == "cdi-graphics-incomplete"
    return "" if found is None else found.message


@pytest.mark.parametrize(
    ("paths", "named"),
    [
        # No graphics at all, and all of it.
        ((CUDA,), ""),
        ((CUDA, GLX, EGL_LIBRARY, PLATFORM, ICD, LAYERS, EGL, WAYLAND), ""),
        # The library has another version than the loaded driver, so no generator mounts it.
        ((CUDA, EGL_LIBRARY, ICD, EGL), f"libGLX_nvidia.so.0 (which {ICD} names)"),
        ((CUDA, LAYERS, ICD, GLX, EGL), "libEGL_nvidia.so.0"),
        ((CUDA, WAYLAND), "libnvidia-egl-wayland.so.1"),
        # A library of the linker's next version is another one.
        ((CUDA, f"{LIB}/libnvidia-egl-wayland2.so.1.0.0", WAYLAND), "libnvidia-egl-wayland.so.1"),
        ((CUDA, GLX), "nvidia_icd*.json (for libGLX_nvidia)"),
        ((CUDA, GLX, ICD, EGL_LIBRARY), "10_nvidia.json (for libEGL_nvidia)"),
        ((CUDA, PLATFORM), "10_nvidia_wayland.json (for libnvidia-egl-wayland)"),
    ],
)
def test_files_and_libraries(tmp_path: Path, paths: tuple[str, ...], named: str) -> None:
    found = problem(tmp_path, paths)
    assert named in found
    assert bool(found) is bool(named)


def test_a_specification_of_mode_management(tmp_path: Path) -> None:
    assert problem(tmp_path, (CUDA, GLX), names=("all",)) == ""


@pytest.mark.parametrize(
    ("library", "has"),
    [
        (f"{LIB}/libGLX_nvidia.so.0", True),
        ("../../../usr/lib64/libGLX_nvidia.so.0", True),
        ("/nix/store/x/lib/libGLX_nvidia.so.0", False),
        ("./libGLX_nvidia.so.0", False),
    ],
)
def test_a_library_with_a_directory(tmp_path: Path, library: str, has: bool) -> None:
    assert (problem(tmp_path, (GLX, ICD), {ICD: icd(library)}) == "") is has


def test_a_mounted_directory(tmp_path: Path) -> None:
    Files(tmp_path).file("/opt/driver/libGLX_nvidia.so.0")
    assert problem(tmp_path, ("/opt/driver", ICD)) == ""
    assert problem(tmp_path, ("/opt/driver", EGL)) != ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"ICD": []}',
        '{"ICD": {"library_path": 7}, "layers": {}}',
        json.dumps({"ICD": {"library_path": "x" * 5000}}),
        icd("libx.so") + " " * (1 << 16),
    ],
)
def test_damaged_files(tmp_path: Path, text: str) -> None:
    assert problem(tmp_path, (GLX, ICD), {ICD: text}) == ""


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    Files(tmp_path).folder(ICD)
    assert problem(tmp_path, (GLX, ICD, EGL, EGL_LIBRARY), {}) == ""


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_specifications_of_the_reference(tmp_path: Path, path: Path) -> None:
    document = json.loads(path.read_text())
    mounts = [mount["containerPath"] for mount in document["containerEdits"]["mounts"]]
    found = problem_of("It", document, HostFS(str(tmp_path), live=False))
    has_file = any(Path(mount).name.startswith("nvidia_icd") for mount in mounts)
    has_library = any("libGLX_nvidia.so." in mount for mount in mounts)
    is_management = len(document["devices"]) == 1
    assert (found is None) is (has_file is has_library or is_management)


def test_all_files_of_the_generator_are_known() -> None:
    listed = {Path(name).name for name in discover._SHARED_FILES if "egl" in name}
    assert listed == {file for library, file in discover.DESCRIPTIONS.items() if library != "libGLX_nvidia"}


@needs_root
def test_the_module_warns(tmp_path: Path) -> None:
    host = CdiHost(tmp_path / "host")
    assert not any("Vulkan" in warning for warning in host.cdi(use_nvml=False)["warnings"])
    # Packages that build the library's name themselves have a file with the name of the link.
    for name in (f"libGLX_nvidia.so.{VERSION}", "libGLX_nvidia.so.0"):
        (host.path / MULTIARCH[1:] / name).unlink()
    host.file(f"{MULTIARCH}/libGLX_nvidia.so.0", elf("libGLX_nvidia.so.0"))
    for device_ids in ((), ("0",)):
        warnings = host.cdi(use_nvml=False, request=Request(device_ids=device_ids))["warnings"]
        (warning,) = (warning for warning in warnings if "Vulkan" in warning)
        assert "libGLX_nvidia.so.0 (which /usr/share/vulkan/icd.d/nvidia_icd.json names)" in warning
    # The report, and so the audit, has it once.
    (found,) = describe_cdi(host.host(), host.run)[0]["problems"]
    assert found["code"] == "cdi-graphics-incomplete"
    assert "/etc/cdi/nvidia.yaml lacks libGLX_nvidia.so.0" in found["message"]
