# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Directory trees of hosts with NVIDIA's driver: libraries without code, and regular files instead of device nodes."""

from __future__ import annotations

import os
import stat
import struct
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.file_lookup import CachedFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.inventory import Gpu, GpuInventory, MigDevice

if t.TYPE_CHECKING:
    from pathlib import Path

VERSION = "575.57.08"
MULTIARCH = "/usr/lib/x86_64-linux-gnu"
# Name, soname, and whether it also has a link for the linker.
LIBRARIES = (
    ("libGLX_nvidia", "libGLX_nvidia.so.0", False),
    ("libcuda", "libcuda.so.1", True),
    ("libnvidia-allocator", "libnvidia-allocator.so.1", False),
    ("libnvidia-glcore", f"libnvidia-glcore.so.{VERSION}", False),
    ("libnvidia-ml", "libnvidia-ml.so.1", True),
    ("libnvidia-opticalflow", "libnvidia-opticalflow.so.1", True),
)
X86_64, AARCH64 = 62, 183


def elf(soname: str = "", machine: int = X86_64, segments: bool = True, order: str = "<") -> bytes:
    """Return a library without code and without sections."""
    strings = b"\0" + soname.encode() + b"\0"
    base, header, address = 64 + 2 * 56, 64, 0x20000
    tags = [(14, 1)] if soname else []
    offset = base + 16 * (len(tags) + 2)
    dynamic = b"".join(struct.pack(f"{order}qQ", *tag) for tag in [*tags, (5, address + offset), (0, 0)])
    end = offset + len(strings)
    # The loaded segment does not begin at the start of the file.
    loaded = struct.pack(f"{order}2I6Q", 1, 5, base, address + base, address + base, end - base, end - base, 0x1000)
    pointer = struct.pack(f"{order}2I6Q", 2, 6, base, address + base, address + base, len(dynamic), len(dynamic), 8)
    start = b"\x7fELF\x02" + (b"\x01" if order == "<" else b"\x02") + b"\x01" + bytes(9)
    start += struct.pack(
        f"{order}2HI3QI6H",
        *(3, machine, 1, 0, header if segments else 0, 0, 0, header, 56, 2 if segments else 0),
        *(64, 0, 0),
    )
    return start + loaded + pointer + dynamic + strings


class Files:
    """A host's directory tree at ``path``. Paths of the methods are paths on the host."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, path: str, content: bytes = b"", mode: int = 0o644) -> None:
        file = self.path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(mode)

    def link(self, path: str, target: str) -> None:
        link = self.path / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def folder(self, path: str) -> None:
        (self.path / path.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def program(self, path: str) -> None:
        self.file(path, b"#!/bin/sh\n", 0o755)

    def read(self, path: str) -> bytes:
        return (self.path / path.lstrip("/")).read_bytes()

    def text(self, path: str) -> str:
        return self.read(path).decode("utf-8")

    def has(self, path: str) -> bool:
        return os.path.lexists(self.path / path.lstrip("/"))

    def mode(self, path: str) -> int:
        return os.lstat(self.path / path.lstrip("/")).st_mode & 0o7777

    def contents(self) -> dict[str, tuple[int, int, int, bytes]]:
        """Return mode, owner, group, and content or target of everything in the tree."""
        found = {}
        for path in sorted(self.path.rglob("*")):
            status = path.lstat()
            content = b""
            if path.is_symlink():
                content = os.readlink(path).encode()
            elif path.is_file():
                content = path.read_bytes()
            found[str(path.relative_to(self.path))] = (status.st_mode, status.st_uid, status.st_gid, content)
        return found


class Tree(Files):
    """A host's directory tree with /bin and /lib merged into /usr."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        for name in ("bin", "sbin", "lib", "lib64"):
            (path / "usr" / name).mkdir(parents=True)
            (path / name).symlink_to(f"usr/{name}")

    @staticmethod
    def at(path: Path) -> HostFS:
        """Return the host of an existing tree."""
        return HostFS.of(str(path), live=False)

    def host(self) -> HostFS:
        return self.at(self.path)

    def node(self, path: str, major: int, minor: int, mode: int = 0o666, gid: int = 0) -> None:
        """Write a regular file that TreeLookup shows as a character device."""
        self.file(path, b"%d %d %d %d" % (major, minor, mode, gid))

    def driver(self, folder: str = MULTIARCH, root: str = "", machine: int = X86_64) -> None:
        """Write the driver's libraries and their links."""
        for name, soname, linked in LIBRARIES:
            file = f"{name}.so.{VERSION}"
            self.file(f"{root}{folder}/{file}", elf(soname, machine))
            if soname != file:
                self.link(f"{root}{folder}/{soname}", file)
            if linked:
                self.link(f"{root}{folder}/{name}.so", soname)

    def control_nodes(self, root: str = "", mode: int = 0o666, gid: int = 0) -> None:
        """Write the control nodes. ``mode`` and ``gid`` do not apply to the nodes of nvidia-uvm."""
        self.node(f"{root}/dev/nvidiactl", 195, 255, mode, gid)
        self.node(f"{root}/dev/nvidia-modeset", 195, 254, mode, gid)
        self.node(f"{root}/dev/nvidia-uvm", 510, 0)
        self.node(f"{root}/dev/nvidia-uvm-tools", 510, 1)

    def gpu(self, gpu: Gpu, root: str = "", drm: bool = True, mode: int = 0o666, gid: int = 0) -> None:
        """Write the nodes of a GPU, and its DRM nodes with other groups."""
        self.node(f"{root}/dev/nvidia{gpu.minor}", 195, gpu.minor, mode, gid)
        if not drm:
            return
        for kind, name, minor, group in (
            ("card", f"card{gpu.number}", gpu.number, 44),
            ("render", f"renderD{128 + gpu.number}", 128 + gpu.number, 105),
        ):
            self.folder(f"/sys/bus/pci/devices/{gpu.bus}/drm/{name}")
            self.node(f"{root}/dev/dri/{name}", 226, minor, 0o660, group)
            self.link(f"{root}/dev/dri/by-path/pci-{gpu.bus}-{kind}", f"../{name}")

    def nodes(
        self, devices: t.Sequence[Gpu], root: str = "", drm: bool = True, mode: int = 0o666, gid: int = 0
    ) -> None:
        """Write all nodes of a host with these GPUs."""
        self.control_nodes(root, mode, gid)
        for gpu in devices:
            self.gpu(gpu, root, drm, mode, gid)
        self.mig_nodes(devices, root)

    def mig_nodes(self, gpus: t.Iterable[Gpu], root: str = "") -> None:
        """Write the nodes of the MIG devices, and the list of their minor numbers."""
        lines, number = ["config 1", "monitor 2"], 3
        for gpu in gpus:
            # Compute instances may share a GPU instance.
            parts = [(f"gi{part.gi}/access", f"gi{part.gi}/ci{part.ci}/access") for part in gpu.migs]
            for name in dict.fromkeys(name for pair in parts for name in pair):
                lines.append(f"gpu{gpu.minor}/{name} {number}")
                self.node(f"{root}/dev/nvidia-caps/nvidia-cap{number}", 511, number, 0o444)
                number += 1
        self.file("/proc/driver/nvidia-caps/mig-minors", "\n".join(lines).encode() + b"\n")


class NodeTree(Tree):
    """A tree with real device nodes. Tests with it need the mark ``needs_root``."""

    def node(self, path: str, major: int, minor: int, mode: int = 0o666, gid: int = 0) -> None:
        node = self.path / path.lstrip("/")
        node.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(str(node), stat.S_IFCHR | mode, os.makedev(major, minor))
        node.chmod(mode)
        os.chown(str(node), 0, gid)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class TreeLookup(CachedFS):
    """Shows regular files in directories named dev as the devices that they describe. Only root can create nodes."""

    def _status(self, path: str) -> os.stat_result | None:
        status = super()._status(path)
        if status is None or "/dev/" not in path or not stat.S_ISREG(status.st_mode):
            return status
        with open(self.host.process_path(path), "rb") as stream:
            fields = stream.read().split()
        if len(fields) != 4 or not all(field.isdigit() for field in fields):
            return status
        major, minor, mode, gid = map(int, fields)
        values = (stat.S_IFCHR | mode, 0, 0, 1, 0, gid, 0, 0, 0, 0)
        return os.stat_result(values, {"st_rdev": os.makedev(major, minor)})


def gpus(count: int, parts: int = 0, gfx: bool = False) -> tuple[Gpu, ...]:
    """Return GPUs with their minor numbers in reverse order. With ``parts`` all have that many MIG devices.

    The index and the minor number of a GPU differ, except for a single GPU and the middle one of an odd number.
    """
    return tuple(
        Gpu(
            index,
            f"GPU-{index:08x}-0000",
            count - 1 - index,
            f"0000:{index + 16:02x}:00.0",
            "NVIDIA A100",
            parts > 0,
            tuple(MigDevice(part, f"MIG-{index:04x}{part:04x}-0000", part + 7, 0, gfx) for part in range(parts)),
        )
        for index in range(count)
    )


def mig_gpu(gpu: Gpu, *parts: tuple[int, int, int, bool]) -> Gpu:
    """Return ``gpu`` with MIG devices: index, GPU instance, compute instance, and whether it supports graphics."""
    migs = tuple(MigDevice(part, f"MIG-{gpu.number:04x}{part:04x}-0000", gi, ci, gfx) for part, gi, ci, gfx in parts)
    return gpu._replace(mig=True, migs=migs)


def inventory_of(*devices: Gpu) -> GpuInventory:
    return GpuInventory(VERSION, devices, "nvml", ())


def ld_cache(*paths: str, flags: int = 0x0303, old: int | None = None) -> bytes:
    """Return an ld.so.cache with these libraries. ``old`` is the number of entries of a preceding old table."""
    start = b"" if old is None else b"ld.so-1.7.0\0" + struct.pack("<I", old) + bytes(12 * old)
    start = start.ljust(-(-len(start) // 8) * 8, b"\0")
    offset, strings, entries = 48 + 24 * len(paths), b"", b""
    for path in paths:
        name = path.rpartition("/")[2]
        entries += struct.pack("<iIIIQ", flags, offset + len(strings), offset + len(strings) + len(name) + 1, 0, 0)
        strings += name.encode() + b"\0" + path.encode() + b"\0"
    header = b"glibc-ld.so.cache1.1" + struct.pack("<2I", len(paths), len(strings))
    return start + header.ljust(48, b"\0") + entries + strings
