# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fuzz targets that read: CDI specifications, units, archives, libraries, the linker's cache, and files of the kernel.

describe_host() must not raise an exception for any of these files. It reports files that it cannot read as problems.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import stat
import typing as t
from pathlib import Path

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.host_info import describe_host
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.validate import validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.yaml_document import parse, render
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.driver_files import cached_libraries
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.elf import minimum_size, read_elf, read_soname
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import checkpoint
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.processes import started
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.source import find_parts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.unpack import (
    read_tar,
    unpack,
    write_entries,
)
from ansible_collections.gpufleet.nvidia.tests.fuzz.trees import Snapshot, assert_same, lay, snapshot
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures.elf_programs import library, program
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import elf, ld_cache
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import (
    CONTROL_GROUP,
    PID,
    SOCKET,
    UNIT,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import INFORMATION, mig_minors
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.package_archives import member, tar

if t.TYPE_CHECKING:
    import random

    from ansible_collections.gpufleet.nvidia.tests.fuzz.mutators import Files

_FILES = Path(__file__).resolve().parents[1] / "unit/files"
_MODES = 0o755


def run(_argv: t.Sequence[str]) -> tuple[int, str, str]:
    """Return the result of a missing program, in place of running one."""
    return 127, "", "there is no such program"


def described(folder: Path, live: bool, *subjects: str) -> dict[str, t.Any]:
    """Return the result of nvidia_container_info. It must be valid JSON, and the files must not change."""
    before = snapshot(folder)
    result = describe_host(HostFS(str(folder), live), run, subjects)
    json.dumps(result, allow_nan=False)
    assert_same(before, snapshot(folder), "reading changed a file")
    return result


# -- CDI specifications ----------------------------------------------------------------------------------------------


def cdi(folder: Path, files: Files, _rng: random.Random) -> None:
    """Read specifications. An accepted one must be unchanged after rendering and parsing it again.

    The kind in a JSON file must be the one that Python's json module reads.
    """
    lay(folder, files)
    described(folder, False, "cdi")
    for path, content in files.items():
        if isinstance(content, bytes):
            _check_specification(path, content)


def _check_specification(path: str, content: bytes) -> None:
    data = parse(path, content)
    if validate(data).errors:
        # The collection never writes such a document.
        return
    for form in ("yaml", "json"):
        try:
            written = render(data, form)
        except NvidiaError:
            continue
        if parse(path, written) != data:
            raise AssertionError(f"{path}, rendered as {form} and parsed again, differs: {written[:2_000]!r}")
    if content.lstrip()[:1] == b"{":
        try:
            expected = json.loads(content.decode("utf-8"))
        except (ValueError, RecursionError):
            return
        if isinstance(expected, dict) and expected.get("kind") != data.get("kind"):
            raise AssertionError(f"the kind in {path} is read as {data.get('kind')!r}")


def cdi_json_seeds() -> list[Files]:
    """Return the smallest specifications that nvidia-ctk generated, and a minimal one, in JSON."""
    paths = sorted((_FILES / "cdi").glob("*.json"), key=lambda path: path.stat().st_size)
    small = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0", "containerEdits": {}}]}
    documents = [json.dumps(json.loads(path.read_text("utf-8"))).encode() for path in paths[:3]]
    return [{"/etc/cdi/nvidia.json": content} for content in (*documents, json.dumps(small).encode())]


def cdi_yaml_seeds() -> list[Files]:
    """Return the specifications of cdi_json_seeds() in YAML, and a host with two specification files."""
    found: list[Files] = []
    for files in cdi_json_seeds():
        for content in files.values():
            document = json.loads(content) if isinstance(content, bytes) else {}
            found.append({"/var/run/cdi/nvidia.yaml": render(document, "yaml")})
    return [
        *found,
        {**found[-1], "/etc/cdi/other.yaml": b"---\ncdiVersion: '0.6.0'\nkind: nvidia.com/gpu\ndevices: []\n"},
    ]


# -- units and files of the kernel -----------------------------------------------------------------------------------


def units(folder: Path, files: Files, rng: random.Random) -> None:
    """Describe a host from the units of engines and of the CDI refresh, with drop-ins and environment files."""
    lay(folder, files)
    described(folder, rng.choice((False, True)), "engines", "cdi")


_DOCKER_UNIT = b"""\
[Unit]
Description=x
After=network.target \\
  # a comment
  containerd.service
[Service]
Environment="A=b c" D=e
EnvironmentFile=-/etc/default/docker
ExecStart=/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock $DOCKER_OPTS ${A}
Slice=a-b.slice
[Install]
WantedBy=multi-user.target
"""


def units_seeds() -> list[Files]:
    """Hosts with Docker and containerd, with CRI-O, with K3s, and with the units of a CDI refresh."""
    systemd = "/usr/lib/systemd/system"
    docker: Files = {
        UNIT: _DOCKER_UNIT,
        f"{systemd}/docker.socket": f"[Socket]\nListenStream={SOCKET}\n".encode(),
        "/etc/systemd/system/docker.service.d/10-x.conf": b"[Service]\nExecStart=\n"
        b"ExecStart=/usr/bin/dockerd --config-file=/etc/docker/%p.json\n",
        "/etc/default/docker": b"DOCKER_OPTS='--host=unix:///run/x.sock' # x\nB=\"c\"\n",
        f"{systemd}/containerd.service": b"[Service]\nExecStart=/usr/bin/containerd --config /etc/c.toml -l info\n",
        "/usr/bin/dockerd": b"#!/bin/sh\n",
    }
    crio: Files = {
        f"{systemd}/crio.service": b"[Service]\nEnvironmentFile=-/etc/sysconfig/crio\n"
        b"ExecStart=/usr/bin/crio \\\n $A $B\n",
        "/etc/sysconfig/crio": b"A=--config=/etc/crio.conf\nB=-d\n",
    }
    rancher: Files = {
        "/etc/systemd/system/k3s.service": b"[Service]\nEnvironmentFile=-/etc/systemd/system/k3s.service.env\n"
        b"ExecStart=/usr/local/bin/k3s server --data-dir /x\n",
        "/etc/systemd/system/k3s.service.env": b"K3S_TOKEN=x\n",
        "/etc/rancher/k3s/config.yaml": b"data-dir: /var/lib/x\ndefault-runtime: nvidia\n",
        "/usr/local/bin/k3s": b"#!/bin/sh\n",
    }
    refresh: Files = {
        f"{systemd}/nvidia-cdi-refresh.service": b"[Service]\nEnvironmentFile=-/etc/nvidia-container-toolkit/"
        b"nvidia-cdi-refresh.env\nExecStart=/usr/bin/nvidia-ctk cdi generate\n[Install]\nWantedBy=multi-user.target\n",
        f"{systemd}/nvidia-cdi-refresh.path": b"[Path]\nPathChanged=/lib/modules/%v/modules.dep\n",
        "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env": b"A='b'\n"
        b"NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/cdi/nvidia.yaml\n",
    }
    return [docker, crio, rancher, refresh]


def procfs(folder: Path, files: Files, _rng: random.Random) -> None:
    """Describe a host from the files of /proc and /sys about GPUs, processes and control groups."""
    lay(folder, files)
    described(folder, False, "gpus", "toolkit")
    described(folder, True, "engines")
    started(HostFS(str(folder)), PID)


def procfs_seeds() -> list[Files]:
    """A host with two GPUs and a running Docker."""
    driver = "/proc/driver/nvidia"
    files: Files = {
        f"{driver}/version": b"NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue\nGCC version: x\n",
        f"{driver}-caps/mig-minors": mig_minors(2).encode(),
        "/sys/module/nvidia/version": b"550.163.01\n",
        "/sys/module/nvidia/refcnt": b"5\n",
        f"/proc/{PID}/comm": b"dockerd\n",
        f"/proc/{PID}/cmdline": b"/usr/bin/dockerd\0-H\0fd://\0",
        f"/proc/{PID}/stat": f"{PID} (dockerd) S ".encode() + b"1 " * 40 + b"\n",
        CONTROL_GROUP: f"{PID}\n".encode(),
        UNIT: _DOCKER_UNIT,
        "/var/lib/dpkg/status": b"Package: nvidia-container-toolkit\nStatus: install ok installed\n"
        b"Version: 1.17.0-1\n\n",
        "/etc/os-release": b'ID=debian\nVERSION_ID="12"\n',
        "/etc/apt/sources.list.d/nvidia.list": b"deb [signed-by=/x] https://nvidia.github.io/x/deb/$(ARCH) /\n",
    }
    for number, bus in enumerate(("0000:07:00.0", "0000:0f:00.0")):
        text = INFORMATION.format(name="NVIDIA A100", uuid=f"GPU-{number}", bus=bus, minor=number, excluded="No")
        files[f"{driver}/gpus/{bus}/information"] = text.encode()
        files[f"/sys/bus/pci/devices/{bus}/vendor"] = b"0x10de\n"
        files[f"/sys/bus/pci/devices/{bus}/class"] = b"0x030200\n"
    return [files]


# -- files of the kubelet --------------------------------------------------------------------------------------------

KUBELET_FILES = "/var/lib/kubelet/"
_UUIDS = ("GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c", "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f::1")


def kubelet(folder: Path, files: Files, _rng: random.Random) -> None:
    """A node whose kubelet does not run, so its checkpoint is read."""
    lay(folder, files)
    answer = described(folder, True, "engines", "kubernetes", "findings")
    assert answer["kubernetes"]["distribution"] == "kubelet"


def kubelet_seeds() -> list[Files]:
    """The checkpoints of current and of old versions, with a configuration."""
    found = []
    for devices in ({"0": [_UUIDS[0]], "1": None}, list(_UUIDS)):
        entry = {
            "PodUID": "8b3f",
            "ContainerName": "cuda",
            "ResourceName": "nvidia.com/gpu",
            "DeviceIDs": devices,
            "AllocResp": "CigKFk5WSURJQQ==",
        }
        data = {"PodDeviceEntries": [entry], "RegisteredDevices": {"nvidia.com/gpu": list(_UUIDS), "x/y": []}}
        config = {"containerRuntimeEndpoint": "unix:///run/crio/crio.sock"}
        files: Files = {
            "/usr/lib/systemd/system/kubelet.service": f"[Service]\nExecStart=/usr/bin/kubelet"
            f" --config={KUBELET_FILES}config.yaml\n".encode(),
            "/etc/default/kubelet": b"KUBELET_EXTRA_ARGS=",
            f"{KUBELET_FILES}config.yaml": json.dumps(config).encode(),
            checkpoint.PATH: json.dumps({"Data": data, "Checksum": 1, "BootID": "6b1f"}).encode(),
        }
        found.append(files)
    return found


# -- binary files ----------------------------------------------------------------------------------------------------


def _unpack(name: str, content: bytes, folder: Path, target: Path) -> None:
    if name.endswith(".deb"):
        lay(folder, {"a.deb": content})
        unpack([str(folder / "a.deb")], str(target))
    else:
        write_entries(read_tar(content, name), str(target), name)


def archives(folder: Path, files: Files, _rng: random.Random) -> None:
    """Unpack an archive. It must write only below one directory: regular files, directories and links.

    No file may have set-user-ID, set-group-ID, or write permission for group or others.
    """
    target = folder / "unpacked"
    target.mkdir()
    lay(folder, {"outside": b"x", "a.deb": b""})
    before = snapshot(folder)
    try:
        for name, content in files.items():
            if isinstance(content, bytes):
                _unpack(name, content, folder, target)
        find_parts(HostFS(str(target), False), None, "the archive")
    except NvidiaError as error:
        if "does not contain" not in str(error):
            raise
    finally:
        # A refusal may come after some files were written.
        lay(folder, {"a.deb": b""})
        _check_unpacked(folder, before)


def _check_unpacked(folder: Path, before: Snapshot) -> None:
    after = snapshot(folder)
    made = {path for path in after if path.startswith("/unpacked/")}
    assert_same(before, {path: entry for path, entry in after.items() if path not in made}, "a file outside changed")
    for path in made:
        status = os.lstat(folder / path[1:])
        kinds = stat.S_ISREG(status.st_mode), stat.S_ISDIR(status.st_mode), stat.S_ISLNK(status.st_mode)
        if not any(kinds) or (not kinds[2] and stat.S_IMODE(status.st_mode) & ~_MODES):
            raise AssertionError(f"{path} has the mode {stat.filemode(status.st_mode)}")


def archives_seeds() -> list[Files]:
    """Return archives as in packages, also with pax headers as for .rpm, and whole .deb packages if dpkg-deb exists."""
    content = program("echo", size=300)
    tars = tar(
        member("./", kind=b"5", mode=0o755),
        member("./usr/bin/nvidia-ctk", content, mode=0o755),
        member("./usr/lib/libnvidia-container.so.1", kind=b"2", linkname="libnvidia-container.so.1.2"),
        member("./usr/bin/nvidia-other", kind=b"1", linkname="./usr/bin/nvidia-ctk"),
        member("./usr/" + "long/" * 30 + "name", b"x"),
    )
    pax = tar(
        member("./usr/bin/nvidia-ctk", content, mode=0o755),
        member("x", b"x", pax_headers={"path": "./usr/bin/nvidia-é", "mtime": "1.5", "size": "1"}),
        member("x", kind=b"1", linkname="./usr/bin/nvidia-é"),
    )
    found: list[Files] = [{"/a.tar": tars}, {"/a.tar": pax}]
    if shutil.which("dpkg-deb"):
        control = tar(
            member("./control", b"Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n")
        )
        parts = {"debian-binary": b"2.0\n", "control.tar.gz": gzip.compress(control, mtime=0)}
        found.append({"/a.deb": _ar({**parts, "data.tar.gz": gzip.compress(tars, mtime=0)})})
        found.append({"/a.deb": _ar({**parts, "data.tar": tars})})
    return found


def _ar(members: t.Mapping[str, bytes]) -> bytes:
    """An archive as that of a Debian package (deb(5))."""
    archive = b"!<arch>\n"
    for name, content in members.items():
        archive += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        archive += content + b"\n" * (len(content) % 2)
    return archive


def elf_files(folder: Path, files: Files, _rng: random.Random) -> None:
    """Read the header, soname and minimum size of ELF files, and find the toolkit's files among them."""
    for content in files.values():
        if isinstance(content, bytes):
            header, soname = read_elf(content), read_soname(io.BytesIO(content))
            if minimum_size(content) < 0 or (header and header.bits not in (32, 64)) or (soname and len(soname) > 4096):
                raise AssertionError(f"{header}, {soname!r:.200}")
    lay(folder, files)
    try:
        find_parts(HostFS(str(folder), False), ["ctk"], "the directory")
    except NvidiaError as error:
        if files.get("/usr/bin/nvidia-ctk") == program("echo"):
            raise AssertionError(f"only libx.so was mutated, but nvidia-ctk is refused: {error}") from error


def elf_files_seeds() -> list[Files]:
    """Programs and libraries of both byte orders."""
    libraries = [elf("libcuda.so.1", order=order) for order in "<>"]
    found = [*libraries, program("echo"), library("1.19.1")]
    return [{"/usr/bin/nvidia-ctk": program("echo"), "/usr/lib/libx.so": content} for content in found]


def linker_caches(_folder: Path, files: Files, _rng: random.Random) -> None:
    """Read the linker's cache. Its paths must be absolute, without NUL, and fewer than the bytes of the cache."""
    for content in files.values():
        if isinstance(content, bytes):
            found = cached_libraries(content)
            if len(found) > len(content) or any(not path.startswith("/") or "\0" in path for path in found):
                raise AssertionError(f"{found[:5]}")


def linker_caches_seeds() -> list[Files]:
    """Return a cache of the new format, and one of the new format after a table of the old format."""
    paths = [f"/usr/lib/x86_64-linux-gnu/lib{number}.so.{number}" for number in range(30)]
    return [{"/etc/ld.so.cache": content} for content in (ld_cache(*paths), ld_cache(*paths, old=5))]
