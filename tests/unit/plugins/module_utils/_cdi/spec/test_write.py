# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.yaml_document import parse
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import inventory
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.inventory import GpuInventory
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.cdi_hosts import (
    BACKUPS,
    HOOK,
    OTHER_PATH,
    OTHER_SPEC,
    SPEC_PATH,
    CdiHost,
    Data,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    MULTIARCH,
    VERSION,
    mig_gpu,
    needs_root,
)

if t.TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_root


@pytest.fixture
def host(tmp_path: Path) -> CdiHost:
    return CdiHost(tmp_path / "host")


# -- writing and rewriting ---------------------------------------------------------------------------------------------


def test_write_and_remove(host: CdiHost) -> None:
    before = host.contents()

    predicted = host.cdi(check_mode=True)
    assert host.contents() == before
    done = host.cdi()
    assert (done["changed"], done["files"]) == (True, predicted["files"])
    assert done["path"] == SPEC_PATH
    assert done["reasons"] == ["It does not exist."]
    assert done["backup_files"][0]["backup"] is None
    assert (done["mode"], done["backend"], done["format"], done["kind"]) == ("nvml", "native", "yaml", "nvidia.com/gpu")
    assert (done["driver_version"], done["cdi_version"]) == (VERSION, "0.7.0")
    assert done["devices"] == sorted(["0", "1", *(gpu.uuid for gpu in host.devices), "all"])
    assert (host.mode(SPEC_PATH), host.mode("/etc/cdi")) == (0o644, 0o755)
    assert host.read(SPEC_PATH) == done["files"][0].after
    assert list(host.document()) == ["cdiVersion", "kind", "devices", "containerEdits"]

    again = host.cdi()
    assert (again["changed"], again["files"], again["reasons"], again["backup_files"]) == (False, [], [], [])

    assert host.cdi(state="absent", check_mode=True)["changed"]
    result = host.cdi(state="absent", purge_backups=True)
    assert (result["changed"], result["removed_files"], result["devices"]) == (True, [SPEC_PATH], [])
    assert host.contents() == before
    assert not host.cdi(state="absent")["changed"]


def test_unchanged_file_is_not_parsed(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without PyYAML does not need it."""
    host.cdi()

    def refuse(*_args: object) -> t.NoReturn:
        raise AssertionError

    monkeypatch.setattr("ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.registry._parsed", refuse)
    assert not host.cdi()["changed"]


@pytest.mark.parametrize("edit", ["reordered", "commented", "json"])
def test_file_with_same_meaning_stays(host: CdiHost, edit: str) -> None:
    host.cdi()
    found = host.document()
    if edit == "reordered":
        found["devices"].reverse()
    text = json.dumps(found)
    path = SPEC_PATH
    if edit == "json":
        host.cdi(state="absent")
        path = "/etc/cdi/nvidia.json"
    elif edit == "commented":
        text = f"# by hand\n{host.read(SPEC_PATH).decode()}"
    else:
        text = f"---\n{text}\n"
    host.file(path, text.encode())
    assert not host.cdi(path=path)["changed"]
    assert host.read(path) == text.encode()


def test_format_change(host: CdiHost) -> None:
    path = "/srv/cdi/spec"
    host.cdi(path=path)
    done = host.cdi(path=path, format="json")
    assert (done["changed"], done["reasons"]) == (True, ["Its format is not json."])
    json.loads(host.read(path))
    assert not host.cdi(path=path, format="json")["changed"]
    assert any("Engines do not read /srv/cdi" in warning for warning in done["warnings"])


def _new_major(host: CdiHost) -> None:
    (host.path / "dev/nvidia-uvm").unlink()
    host.node("/dev/nvidia-uvm", 508, 0)


def _lost_library(host: CdiHost) -> None:
    (host.path / f"{MULTIARCH}/libnvidia-glcore.so.{VERSION}".lstrip("/")).unlink()


def _other_driver(host: CdiHost) -> None:
    host.file(SPEC_PATH, host.read(SPEC_PATH).replace(VERSION.encode(), b"550.163.01"))


def _another_gpu(host: CdiHost) -> None:
    found = host.document()
    result = {"1", host.devices[1].uuid}
    found["devices"] = [device for device in found["devices"] if device["name"] not in result]
    host.file(SPEC_PATH, json.dumps(found).encode().replace(b"{", b"---\n{", 1))


def _mode(path: str, mode: int) -> t.Callable[[CdiHost], None]:
    return lambda host: (host.path / path.lstrip("/")).chmod(mode)


def _content(text: str) -> t.Callable[[CdiHost], None]:
    return lambda host: host.file(SPEC_PATH, text.encode())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_other_driver, "It is for driver"),
        (_new_major, "It has device number 510:0 for /dev/nvidia-uvm instead of 508:0."),
        (_another_gpu, "It lacks the devices"),
        (_lost_library, "These paths no longer exist"),
        (_content("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n"), "Engines skip it."),
        (_content("cdiVersion: ["), "Engines skip it."),
        (_content(OTHER_SPEC), "It lacks the devices"),
        (_mode(SPEC_PATH, 0o600), "It has mode 0600 instead of 0644."),
        (_mode("/etc/cdi", 0o700), "Unprivileged users cannot read the directory /etc/cdi."),
    ],
    ids=["driver", "major", "gpu", "library", "faulty", "broken", "by hand", "private", "private folder"],
)
def test_stale_file_is_replaced(host: CdiHost, change: t.Callable[[CdiHost], None], reason: str) -> None:
    host.cdi()
    written = host.read(SPEC_PATH)
    change(host)
    found = host.read(SPEC_PATH)

    done = host.cdi()
    assert done["changed"]
    assert any(reason in message for message in done["reasons"]), done["reasons"]
    assert not host.cdi()["changed"]
    assert (host.mode(SPEC_PATH), host.mode("/etc/cdi")) == (0o644, 0o755)
    if found != written:
        backup = done["backup_files"][0]["backup"]
        assert host.read(backup) == found
        assert (os.path.dirname(backup), host.mode(backup)) == (BACKUPS, 0o600)


@pytest.mark.parametrize("path", [SPEC_PATH, "/var/run/cdi/nvidia.json"])
def test_files_are_replaced_in_their_directory(host: CdiHost, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Docker and containerd do not notice a file that is moved from another directory."""
    folder = os.path.dirname(path)
    host.file(f"{folder}/other.json", json.dumps(parse(path, OTHER_SPEC.encode())).encode())
    sources: list[str] = []
    replace = os.replace

    def record_source(source: str, target: str) -> None:
        if os.path.dirname(target).endswith(folder):
            sources.append(os.path.dirname(source))
        replace(source, target)

    monkeypatch.setattr(os, "replace", record_source)
    host.cdi(path=path, exclusive=True)
    host.cdi(path=path, request=Request(all_device=False))
    host.cdi(state="absent")
    assert host.has(f"{folder}/other.json")
    assert sources == [f"{host.path}{folder}"] * 3


# -- other files -------------------------------------------------------------------------------------------------------


def test_conflict_is_a_warning(host: CdiHost) -> None:
    host.file(OTHER_PATH, OTHER_SPEC.encode())
    done = host.cdi()
    (conflict,) = done["conflicts"]
    assert (conflict["path"], conflict["effect"]) == (OTHER_PATH, "collides")
    assert conflict["devices"] == ["nvidia.com/gpu=all"]
    assert any(OTHER_PATH in warning and "exclusive" in warning for warning in done["warnings"])
    assert host.read(OTHER_PATH) == OTHER_SPEC.encode()
    assert not host.cdi()["changed"]


def test_change_of_path(host: CdiHost) -> None:
    """The file at the previous path would collide or become stale."""
    host.cdi()
    done = host.cdi(format="json")
    assert done["removed_files"] == [SPEC_PATH]
    assert not host.has(SPEC_PATH)
    assert host.has("/etc/cdi/nvidia.json")
    assert not host.cdi(format="json")["changed"]
    before = done["path"]
    assert before == "/etc/cdi/nvidia.json"
    host.cdi(state="absent")
    assert not host.has("/etc/cdi")


def test_second_kind(host: CdiHost) -> None:
    host.cdi()
    done = host.cdi(request=Request(class_="all-nodes"), mode="management")
    assert done["path"] == "/etc/cdi/nvidia.com-all-nodes.yaml"
    assert (done["conflicts"], done["removed_files"], done["devices"]) == ([], [], ["all"])
    host.cdi(state="absent")
    assert host.has("/etc/cdi/nvidia.com-all-nodes.yaml")
    assert not host.has(SPEC_PATH)


def test_invalid_foreign_file_is_a_warning(host: CdiHost) -> None:
    host.file(OTHER_PATH, b"{")
    assert any(OTHER_PATH in warning for warning in host.cdi()["warnings"])


@pytest.mark.parametrize("target", ["nvidia.yaml", "/opt/specs/gpu.yaml"])
def test_exclusive_removes_no_links(host: CdiHost, target: str) -> None:
    host.file("/opt/specs/gpu.yaml", OTHER_SPEC.encode())
    host.cdi()
    host.link("/etc/cdi/gpu.yaml", target)
    done = host.cdi()
    assert not done["changed"]
    assert any("/etc/cdi/gpu.yaml" in warning for warning in done["warnings"])
    before = host.contents()
    with pytest.raises(HostError, match="is a link"):
        host.cdi(exclusive=True)
    assert host.contents() == before


def test_change_of_path_of_edited_file(host: CdiHost) -> None:
    host.cdi()
    commented = b"# seen\n" + host.read(SPEC_PATH)
    host.file(SPEC_PATH, commented)
    assert not host.cdi()["changed"]
    done = host.cdi(format="json")
    assert (done["removed_files"], host.has(SPEC_PATH)) == ([SPEC_PATH], False)
    assert any(SPEC_PATH in warning for warning in done["warnings"])
    host.cdi(state="absent")
    assert host.read(SPEC_PATH) == commented


def test_other_mode_needs_other_class(host: CdiHost) -> None:
    host.node("/dev/nvidia-fs0", 500, 0)
    host.cdi()
    before = host.contents()
    with pytest.raises(NvidiaError, match="class: gds"):
        host.cdi(mode="gds", path="/etc/cdi/gds.yaml")
    assert host.contents() == before
    assert host.cdi(mode="gds", request=Request(class_="gds"))["changed"]
    assert not host.cdi()["changed"]


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("/dev/nvidia-uvm", "nvidia-modprobe -u -c 0"),
        ("/dev/nvidiactl", "nvidia-modprobe -c 255"),
        ("/dev/nvidia1", "Run nvidia-smi as root"),
        (HOOK, "Install the NVIDIA Container Toolkit"),
    ],
)
def test_missing_path_is_refused(host: CdiHost, missing: str, message: str) -> None:
    host.cdi()
    (host.path / missing.lstrip("/")).unlink()
    before = host.contents()
    with pytest.raises(HostError, match=message) as caught:
        host.cdi()
    assert missing in str(caught.value)
    assert "The specification was not written" in str(caught.value)
    assert host.contents() == before


@pytest.mark.parametrize(
    ("path", "numbers", "message"),
    [
        ("/dev/nvidia0", (195, 77), "/dev/nvidia0 has device number 195:77, but the driver uses 195:0."),
        ("/dev/nvidia-uvm", (510, 1), "/dev/nvidia-uvm has device number 510:1, but the driver uses minor number 0."),
    ],
)
@pytest.mark.parametrize("mode", ["nvml", "management"])
def test_wrong_device_number(host: CdiHost, mode: str, path: str, numbers: tuple[int, int], message: str) -> None:
    (host.path / path.lstrip("/")).unlink()
    host.node(path, *numbers)
    before = host.contents()
    for require in (True, False):
        with pytest.raises(HostError) as caught:
            host.cdi(mode=mode, require_devices=require)
        assert message in str(caught.value)
        assert f"Remove {path}." in str(caught.value)
    assert host.contents() == before


def test_require_devices_false(host: CdiHost) -> None:
    (host.path / "dev/nvidia-uvm").unlink()
    assert host.cdi(require_devices=False)["changed"]
    assert b'/dev/nvidia-uvm"' not in host.read(SPEC_PATH)


def test_missing_hook_in_check_mode(tmp_path: Path) -> None:
    host = CdiHost(tmp_path / "host", hook=False)
    done = host.cdi(check_mode=True)
    assert any(HOOK in warning for warning in done["warnings"])
    with pytest.raises(HostError, match="nvidia-cdi-hook"):
        host.cdi()
    assert host.cdi(request=Request(hooks="none"))["changed"]
    assert "hooks" not in json.dumps(host.document())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/etc/cdi/nvidia.yml"}, "engines read only"),
        ({"path": "/etc/cdi/nvidia.json", "format": "yaml"}, "make them match"),
        ({"request": Request(vendor="nvidia")}, None),
        ({"request": Request(vendor="-x")}, "vendor"),
        ({"request": Request(class_="a/../b")}, "class"),
        ({"request": Request(device_ids=("7",))}, "7"),
        ({"mode": "csv", "backend": "native"}, "does not support mode: csv"),
        ({"mode": "csv"}, "no nvidia-ctk"),
        ({"backend": "nvidia-ctk"}, "no nvidia-ctk"),
        ({"for_engines": ("rkt",)}, "rkt"),
        ({"backup_dir": "/etc/cdi/old"}, "reads every file as configuration"),
    ],
)
def test_invalid_options(host: CdiHost, options: dict[str, t.Any], message: str | None) -> None:
    before = host.contents()
    if message is None:
        assert host.cdi(check_mode=True, **options)["path"] == "/etc/cdi/nvidia-gpu.yaml"
        return
    with pytest.raises(NvidiaError, match=message):
        host.cdi(**options)
    assert host.contents() == before


def test_mode_of_other_folder_stays(host: CdiHost) -> None:
    host.folder("/root")
    (host.path / "root").chmod(0o700)
    host.cdi(path="/root/nvidia.yaml")
    assert host.mode("/root") == 0o700


def test_linked_folder_is_refused(host: CdiHost) -> None:
    host.folder("/opt/cdi")
    host.link("/etc/cdi", "/opt/cdi")
    with pytest.raises(NvidiaError, match="do not follow"):
        host.cdi()


@pytest.mark.parametrize("missing", [["nvidia-cap3"], ["nvidia-cap3", "nvidia-cap4"]])
def test_mig_without_capability_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: list[str]) -> None:
    host = CdiHost(tmp_path / "host", count=1)
    gpu = mig_gpu(host.devices[0], (0, 7, 0, False))
    host.mig_nodes([gpu])
    for name in missing:
        (host.path / "dev/nvidia-caps" / name).unlink()
    monkeypatch.setattr(inventory, "read_inventory", lambda *_a, **_k: GpuInventory(VERSION, (gpu,), "nvml", ()))
    with pytest.raises(NvidiaError, match="nvidia-cap"):
        host.cdi()


def test_mig_mode_without_mig_devices(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = host.devices[1]._replace(mig=True)
    found = GpuInventory(VERSION, (host.devices[0], empty), "nvml", ())
    monkeypatch.setattr(inventory, "read_inventory", lambda *_a, **_k: found)
    assert any("GPU 1 is in MIG mode" in warning for warning in host.cdi()["warnings"])


def test_selected_device_without_node(host: CdiHost) -> None:
    (host.path / "dev/nvidia1").unlink()
    with pytest.raises(NvidiaError, match="/dev/nvidia1"):
        host.cdi(request=Request(device_ids=("0",)))
    assert host.cdi(request=Request(device_ids=("1",)))["changed"]


@pytest.mark.parametrize(
    "change", [{"devices": None}, {"containerEdits": None}, {"devices": ["x"]}, {"kind": "a.b/gpu"}]
)
def test_invalid_output_of_nvidia_ctk(host: CdiHost, monkeypatch: pytest.MonkeyPatch, change: Data) -> None:
    host.cdi()
    printed = json.dumps({**host.document(), **change})
    host.cdi(state="absent")
    host.nvidia_ctk(monkeypatch, printed)
    with pytest.raises(NvidiaError):
        host.cdi(backend="nvidia-ctk", use_nvml=False, for_engines=("podman:4.9.3",))


@pytest.mark.parametrize("mode", ["nvml", "management"])
def test_missing_libcuda_is_a_warning(host: CdiHost, mode: str) -> None:
    class_ = "gpu" if mode == "nvml" else mode
    assert not [
        message for message in host.cdi(mode=mode, request=Request(class_=class_))["warnings"] if "libcuda" in message
    ]
    (host.path / f"{MULTIARCH}/libcuda.so.{VERSION}".lstrip("/")).unlink()
    warnings = host.cdi(mode=mode, request=Request(class_=class_))["warnings"]
    assert any(f"There is no libcuda.so.{VERSION} below /" in message for message in warnings)


@pytest.mark.parametrize("mode", ["nvml", "management"])
@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("/run/nvidia/drive", "below driver_root /run/nvidia/drive, which is not a directory on this host."),
        ("/usr/share", "below driver_root /usr/share."),
    ],
)
def test_wrong_driver_root(host: CdiHost, mode: str, root: str, message: str) -> None:
    host.folder("/usr/share")
    with pytest.raises(HostError) as caught:
        host.cdi(mode=mode, request=Request(driver_root=root, dev_root="/"))
    assert message in str(caught.value)
