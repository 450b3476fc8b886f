# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import driver_files
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.driver_files import DriverFile, DriverFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.file_lookup import CachedFS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    AARCH64,
    LIBRARIES,
    MULTIARCH,
    VERSION,
    Tree,
    elf,
    ld_cache,
)

CUDA = f"libcuda.so.{VERSION}"


def files(tree: Tree, root: str = "/", **folders: tuple[str, ...]) -> DriverFiles:
    return DriverFiles(CachedFS(tree.host()), root, **folders)


def hosts(found: list[DriverFile]) -> list[str]:
    return [file.host for file in found]


# -- libraries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "seen"),
    [
        (MULTIARCH, MULTIARCH),
        ("/usr/lib64", "/usr/lib64"),
        ("/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
        (f"{MULTIARCH}/nvidia/current", f"{MULTIARCH}/nvidia/current"),
        ("", ""),
    ],
)
def test_default_directories(tree: Tree, folder: str, seen: str) -> None:
    tree.driver(folder)
    found = files(tree)
    assert found.version() == VERSION
    found.require_version(VERSION)
    assert found.library_folders(VERSION) == [seen or "/"]
    assert hosts(found.libraries("libcuda.so*")) == [f"{seen}/{CUDA}"]


def test_order_of_directories(tree: Tree) -> None:
    tree.driver(MULTIARCH)
    tree.driver("/usr/lib64")
    assert files(tree).library_folders(VERSION) == ["/usr/lib64", MULTIARCH]


def test_links_between_directories(tree: Tree) -> None:
    # Debian has links through /etc/alternatives in the directory of libraries.
    current = f"{MULTIARCH}/nvidia/current"
    tree.driver(current)
    tree.file(f"{MULTIARCH}/libnvidia-eglcore.so.{VERSION}", elf())
    tree.link(f"{MULTIARCH}/libcuda.so.{VERSION}", f"/etc/alternatives/{CUDA}")
    tree.link(f"/etc/alternatives/{CUDA}", f"{current}/{CUDA}")
    found = files(tree)
    assert found.library_folders(VERSION) == [current, MULTIARCH]
    assert hosts(found.libraries("libcuda.so.*")) == [f"{current}/{CUDA}"]
    inside = [file.inside for file in found.in_folders([MULTIARCH, current], f"*.so.{VERSION}")]
    assert inside[:2] == [f"{current}/{CUDA}", f"{MULTIARCH}/libnvidia-eglcore.so.{VERSION}"]
    assert len(inside) == len(set(inside)) == len(LIBRARIES) + 1


def test_searches_the_cache_last(tree: Tree) -> None:
    tree.driver("/opt/nvidia/lib")
    # The cache may contain the path of a link.
    tree.link("/opt/current", "nvidia")
    sonames = [f"/opt/current/lib/{soname}" for _name, soname, _linked in LIBRARIES]
    tree.file("/etc/ld.so.cache", ld_cache("/opt/current/lib/libmissing.so.1", *sonames))
    found = files(tree)
    assert found.version() == VERSION
    assert found.library_folders(VERSION) == ["/opt/nvidia/lib"]
    assert hosts(found.libraries("libcuda.so")) == []
    tree.file(f"{MULTIARCH}/{CUDA}", elf())
    assert files(tree).library_folders(VERSION) == [MULTIARCH]


def test_cache_is_a_directory(tree: Tree) -> None:
    tree.folder("/etc/ld.so.cache")
    assert files(tree).libraries("lib*") == []


def test_only_given_directories(tree: Tree) -> None:
    tree.driver(MULTIARCH)
    tree.driver("/opt/nvidia/lib")
    assert files(tree, library_folders=("/opt/nvidia/lib", "relative")).library_folders(VERSION) == ["/opt/nvidia/lib"]
    assert files(tree, library_folders=("/opt/none",)).libraries("lib*") == []


def test_driver_root(tree: Tree) -> None:
    root = "/run/nvidia/driver"
    tree.driver(MULTIARCH, root)
    tree.driver("/usr/lib64")
    found = files(tree, root)
    assert found.library_folders(VERSION) == [MULTIARCH]
    assert found.libraries("libcuda.so.?") == [DriverFile(f"{root}{MULTIARCH}/{CUDA}", f"{MULTIARCH}/{CUDA}")]
    assert found.in_folders([MULTIARCH], "libcuda.so.1") == [
        DriverFile(f"{root}{MULTIARCH}/{CUDA}", f"{MULTIARCH}/{CUDA}")
    ]


def test_links_out_of_driver_root(tree: Tree) -> None:
    root = "/run/nvidia/driver"
    tree.file("/opt/libcuda.so.1", elf())
    tree.file("/opt/libother.so.1", elf())
    tree.file(f"{root}/opt/libother.so.1", elf())
    tree.link(f"{root}/usr/lib64/libcuda.so.1", "/opt/libcuda.so.1")
    tree.link(f"{root}/usr/lib64/libother.so.1", "/opt/libother.so.1")
    # nvidia-ctk also joins the root and the target.
    found = files(tree, root).in_folders(["/usr/lib64"], "*.so.1")
    assert found == [DriverFile(f"{root}/opt/libother.so.1", "/opt/libother.so.1")]


def test_cache_of_driver_root(tree: Tree) -> None:
    root = "/run/nvidia/driver"
    tree.driver("/opt/lib", root)
    tree.file(f"{root}/etc/ld.so.cache", ld_cache("/opt/lib/libcuda.so.1"))
    found = [DriverFile(f"{root}/opt/lib/{CUDA}", f"/opt/lib/{CUDA}")]
    assert files(tree, root).libraries(CUDA) == found
    # Only links of libraries in the cache begin at the driver's root.
    tree.link(f"{root}/usr/lib/current", "/opt/lib")
    tree.link(f"{root}/usr/lib/libcuda.so.1", f"/opt/lib/{CUDA}")
    tree.link(f"{root}/usr/lib/loop", "loop")
    tree.file(f"{root}/etc/ld.so.cache", ld_cache("/usr/lib/loop", "/usr/lib/libcuda.so.1"))
    assert files(tree, root).libraries("lib*") == found
    tree.file(f"{root}/etc/ld.so.cache", ld_cache("/usr/lib/current/libcuda.so.1"))
    assert files(tree, root).libraries("lib*") == []


def test_libraries_of_another_version(tree: Tree) -> None:
    tree.driver()
    with pytest.raises(HostError, match=r"version 570\.1, but there is no libcuda\.so\.570\.1 below /\."):
        files(tree).require_version("570.1")


@pytest.mark.parametrize("version", ["", "../..", "5*", "575/1", "5\n"])
def test_invalid_version(tree: Tree, version: str) -> None:
    tree.driver()
    with pytest.raises(HostError, match="is not a version of an NVIDIA driver"):
        files(tree).require_version(version)


def test_no_driver(tree: Tree) -> None:
    with pytest.raises(HostError, match=r"no libcuda\.so\.VERSION of an NVIDIA driver below /\."):
        files(tree).version()
    tree.file(f"{MULTIARCH}/libnvidia-ml.so.{VERSION}")
    found = files(tree)
    assert found.version() == VERSION
    found.require_version(VERSION)


def test_sonames_and_machines(tree: Tree) -> None:
    tree.driver()
    tree.file("/usr/lib64/libarm.so", elf("libarm.so.1", AARCH64))
    tree.file("/usr/lib64/libtext.so", b"INPUT(x)")
    found = files(tree)
    cuda, arm, text = (found.libraries(name)[0] for name in (CUDA, "libarm.so", "libtext.so"))
    assert [found.soname(file) for file in (cuda, arm, text)] == ["libcuda.so.1", "libarm.so.1", None]
    assert [found.machine(file) for file in (cuda, arm)] == ["x86_64", "aarch64"]
    assert found.machine(text) == found.machine(None) == os.uname().machine


# -- other files -----------------------------------------------------------------------------------------------------


def test_programs(tree: Tree) -> None:
    tree.program("/usr/bin/nvidia-smi")
    tree.program("/usr/local/bin/nvidia-smi")
    tree.file("/usr/local/sbin/nvidia-smi")
    tree.folder("/usr/local/sbin/nvidia-imex")
    tree.link("/usr/bin/nvidia-imex", "/opt/imex")
    tree.program("/opt/imex")
    found = files(tree)
    assert found.program("nvidia-smi") == DriverFile("/usr/local/bin/nvidia-smi", "/usr/local/bin/nvidia-smi")
    assert found.program("nvidia-imex") == DriverFile("/usr/bin/nvidia-imex", "/usr/bin/nvidia-imex")
    assert found.program("nvidia-xconfig") is None
    tree.program("/run/driver/usr/bin/nvidia-smi")
    assert files(tree, "/run/driver").program("nvidia-smi") == DriverFile(
        "/run/driver/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"
    )
    assert files(tree, "/run/driver").program("nvidia-imex") is None


def test_configuration(tree: Tree) -> None:
    name = "vulkan/icd.d/nvidia_icd.json"
    assert files(tree).config(name) is None
    tree.file(f"/usr/share/{name}")
    assert files(tree).config(name) == f"/usr/share/{name}"
    tree.file(f"/etc/{name}")
    assert files(tree).config(name) == f"/etc/{name}"
    tree.file(f"/opt/share/{name}")
    assert files(tree, "/run/driver").config(name) is None
    assert files(tree, "/run/driver", config_folders=("/opt/none", "/opt/share")).config(name) == f"/opt/share/{name}"


def test_firmware(tree: Tree) -> None:
    names = [
        f"/opt/firmware/nvidia/{VERSION}/gsp_a.bin",
        f"/usr/lib/firmware/updates/6.1.0/nvidia/{VERSION}/gsp_a.bin",
        f"/usr/lib/firmware/updates/nvidia/{VERSION}/gsp_a.bin",
        f"/usr/lib/firmware/6.1.0/nvidia/{VERSION}/gsp_a.bin",
        f"/usr/lib/firmware/nvidia/{VERSION}/gsp_a.bin",
        f"/usr/lib/firmware/nvidia/{VERSION}/gsp_b.bin",
    ]
    for name in [*names, f"/usr/lib/firmware/nvidia/{VERSION}/other.bin", "/usr/lib/firmware/nvidia/1.2/gsp_a.bin"]:
        tree.file(name)
    tree.file("/proc/sys/kernel/osrelease", b"6.1.0\n")
    tree.file("/sys/module/firmware_class/parameters/path", b"/opt/firmware/\n")
    assert hosts(files(tree).firmware(VERSION)) == [name.replace("/usr/lib/", "/lib/") for name in names]
    tree.file("/sys/module/firmware_class/parameters/path", b"\n")
    tree.file("/proc/sys/kernel/osrelease")
    found = files(tree).firmware(VERSION)
    assert hosts(found) == [names[2].replace("/usr/", "/"), *(name.replace("/usr/", "/") for name in names[4:])]
    tree.file(f"/run/driver/lib/firmware/nvidia/{VERSION}/gsp_c.bin")
    assert files(tree, "/run/driver").firmware(VERSION) == [
        DriverFile(f"/run/driver/lib/firmware/nvidia/{VERSION}/gsp_c.bin", f"/lib/firmware/nvidia/{VERSION}/gsp_c.bin")
    ]


def test_firmware_of_the_running_kernel(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_files, "_KERNEL", "/proc/none")
    path = f"/lib/firmware/{os.uname().release}/nvidia/{VERSION}/gsp_a.bin"
    tree.file(path)
    live = DriverFiles(CachedFS(HostFS(str(tree.path), live=True)), "/")
    assert hosts(live.firmware(VERSION)) == [path]
    assert files(tree).firmware(VERSION) == []


# -- ld.so.cache -------------------------------------------------------------------------------------------------------

ONE, TWO = "/opt/nvidia/lib/libcuda.so.1", "/usr/lib/libc.so.6"


@pytest.mark.parametrize(
    ("cache", "found"),
    [
        (ld_cache(ONE, TWO), [ONE, TWO]),
        (ld_cache(TWO, ONE, TWO), [TWO, ONE]),
        (ld_cache(), []),
        # AArch64 and 64-bit PowerPC. i386, x32 and other files are ignored.
        (ld_cache(ONE, flags=0x0A03), [ONE]),
        (ld_cache(ONE, flags=0x0503), [ONE]),
        (ld_cache(ONE, flags=0x0003), []),
        (ld_cache(ONE, flags=0x0803), []),
        (ld_cache(ONE, flags=0x0300), []),
        # The format of ldconfig before glibc 2.32, with every alignment of the first table.
        (ld_cache(ONE, TWO, old=0), [ONE, TWO]),
        (ld_cache(ONE, TWO, old=1), [ONE, TWO]),
        (ld_cache(ONE, TWO, old=2), [ONE, TWO]),
        (ld_cache("lib/relative.so"), []),
        (b"", []),
        (b"glibc-ld.so.cache1.1", []),
        (b"ld.so-1.7.0\0", []),
        (b"ld.so-1.7.0\0" + bytes(100), []),
        (b"glibc-ld.so.cache2.0" + bytes(100), []),
    ],
)
def test_cached_libraries(cache: bytes, found: list[str]) -> None:
    assert driver_files.cached_libraries(cache) == found


def test_text_without_end() -> None:
    assert driver_files.cached_libraries(ld_cache(ONE)[:-1]) == []


@given(st.binary(max_size=200), st.integers(0, 200), st.sampled_from([None, 0, 1]))
def test_any_cache(noise: bytes, place: int, old: int | None) -> None:
    cache = ld_cache(ONE, TWO, old=old)
    found = driver_files.cached_libraries(cache[:place] + noise + cache[place + len(noise) :])
    assert all(path.startswith("/") for path in found)
    driver_files.cached_libraries(noise)


@pytest.mark.skipif(not os.path.exists(driver_files.CACHE), reason="needs the cache of ldconfig")
def test_cache_of_this_system() -> None:
    with open(driver_files.CACHE, "rb") as stream:
        found = driver_files.cached_libraries(stream.read())
    assert any(os.path.basename(path).startswith("libc.so") for path in found)
