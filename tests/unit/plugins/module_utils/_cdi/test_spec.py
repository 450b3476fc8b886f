# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import json
import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import modes as cdi_modes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.host_check import same_meaning
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import CDI_OPTIONS, Request, options_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.records import record_for_unit
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import STATE_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import yaml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.yaml_document import parse, render
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import inventory
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.inventory import GpuInventory
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.cdi_hosts import HOOK, CdiHost, Data
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    MULTIARCH,
    VERSION,
    makes_nodes,
    mig_gpu,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import (
    FakeGpu,
    compiled,
    nvml_files,
)

if t.TYPE_CHECKING:
    from pathlib import Path

pytestmark = makes_nodes

PATH = "/etc/cdi/nvidia.yaml"
BACKUPS = "/var/lib/gpufleet-nvidia/backups"
OTHER = "/etc/cdi/gpu-by-hand.yaml"
BY_HAND = """\
cdiVersion: "0.5.0"
kind: nvidia.com/gpu
devices:
  - name: all  # of them
    containerEdits:
      deviceNodes:
        - path: /dev/nvidia0
"""
UNIT = """\
[Unit]
Description=A stand-in
[Service]
Type=oneshot
ExecStart=/usr/bin/nvidia-ctk cdi generate
[Install]
WantedBy=multi-user.target
"""


@pytest.fixture
def host(tmp_path: Path) -> CdiHost:
    return CdiHost(tmp_path / "host")


def document(host: CdiHost, path: str = PATH) -> Data:
    found: Data = parse(path, host.read(path))
    return found


def mode(host: CdiHost, path: str) -> int:
    return host.status(path).st_mode & 0o7777


# -- written, and written again ----------------------------------------------------------------------------------------


def test_there_and_back(host: CdiHost) -> None:
    before = host.contents()

    predicted = host.cdi(check_mode=True)
    assert host.contents() == before
    done = host.cdi()
    assert (done["changed"], done["files"]) == (True, predicted["files"])
    assert done["path"] == PATH
    assert done["reasons"] == ["It does not exist."]
    assert done["backup_files"][0]["backup"] is None
    assert (done["mode"], done["backend"], done["format"], done["kind"]) == ("nvml", "native", "yaml", "nvidia.com/gpu")
    assert (done["driver_version"], done["cdi_version"]) == (VERSION, "0.7.0")
    assert done["devices"] == sorted(["0", "1", *(gpu.uuid for gpu in host.devices), "all"])
    assert (mode(host, PATH), mode(host, "/etc/cdi")) == (0o644, 0o755)
    assert host.read(PATH) == done["files"][0].after
    assert list(document(host)) == ["cdiVersion", "kind", "devices", "containerEdits"]

    again = host.cdi()
    assert (again["changed"], again["files"], again["reasons"], again["backup_files"]) == (False, [], [], [])

    assert host.cdi(state="absent", check_mode=True)["changed"]
    gone = host.cdi(state="absent", purge_backups=True)
    assert (gone["changed"], gone["removed_files"], gone["devices"]) == (True, [PATH], [])
    assert host.contents() == before
    assert not host.cdi(state="absent")["changed"]


def test_an_unchanged_file_is_not_parsed(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a host without PyYAML needs none."""
    host.cdi()

    def refuse(*_args: object) -> t.NoReturn:
        raise AssertionError

    monkeypatch.setattr("ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.registry._parsed", refuse)
    assert not host.cdi()["changed"]


@pytest.mark.parametrize("edit", ["reordered", "commented", "json"])
def test_what_means_the_same_stays(host: CdiHost, edit: str) -> None:
    host.cdi()
    found = document(host)
    if edit == "reordered":
        found["devices"].reverse()
    text = json.dumps(found)
    path = PATH
    if edit == "json":
        host.cdi(state="absent")
        path = "/etc/cdi/nvidia.json"
    elif edit == "commented":
        text = f"# by hand\n{host.read(PATH).decode()}"
    else:
        text = f"---\n{text}\n"
    host.file(path, text.encode())
    assert not host.cdi(path=path)["changed"]
    assert host.read(path) == text.encode()


def test_another_format_is_written_anew(host: CdiHost) -> None:
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
    host.file(PATH, host.read(PATH).replace(VERSION.encode(), b"550.163.01"))


def _another_gpu(host: CdiHost) -> None:
    found = document(host)
    gone = {"1", host.devices[1].uuid}
    found["devices"] = [device for device in found["devices"] if device["name"] not in gone]
    host.file(PATH, json.dumps(found).encode().replace(b"{", b"---\n{", 1))


def _mode(path: str, mode: int) -> t.Callable[[CdiHost], None]:
    return lambda host: (host.path / path.lstrip("/")).chmod(mode)


def _content(text: str) -> t.Callable[[CdiHost], None]:
    return lambda host: host.file(PATH, text.encode())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_other_driver, "It is for driver"),
        (_new_major, "It has device number 510:0 for /dev/nvidia-uvm instead of 508:0."),
        (_another_gpu, "It lacks the devices"),
        (_lost_library, "These paths no longer exist"),
        (_content("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n"), "Engines skip it."),
        (_content("cdiVersion: ["), "Engines skip it."),
        (_content(BY_HAND), "It lacks the devices"),
        (_mode(PATH, 0o600), "It has mode 0600 instead of 0644."),
        (_mode("/etc/cdi", 0o700), "Unprivileged users cannot read the directory /etc/cdi."),
    ],
    ids=["driver", "major", "gpu", "library", "faulty", "broken", "by hand", "private", "private folder"],
)
def test_what_is_stale_is_replaced(host: CdiHost, change: t.Callable[[CdiHost], None], reason: str) -> None:
    host.cdi()
    written = host.read(PATH)
    change(host)
    found = host.read(PATH)

    done = host.cdi()
    assert done["changed"]
    assert any(reason in message for message in done["reasons"]), done["reasons"]
    assert not host.cdi()["changed"]
    assert (mode(host, PATH), mode(host, "/etc/cdi")) == (0o644, 0o755)
    if found != written:
        backup = done["backup_files"][0]["backup"]
        assert host.read(backup) == found
        assert (os.path.dirname(backup), mode(host, backup)) == (BACKUPS, 0o600)


def test_what_stood_there_comes_back(host: CdiHost) -> None:
    host.file(PATH, BY_HAND.encode(), 0o640)
    os.chown(host.path / PATH.lstrip("/"), 1, 2)
    before = host.contents()
    host.cdi()
    assert mode(host, PATH) == 0o644
    host.cdi(request=Request(all_device=False))
    done = host.cdi(state="absent", purge_backups=True)
    assert done["restored_files"] == [PATH]
    assert host.contents() == before
    assert not host.cdi(state="absent")["changed"]
    assert host.contents() == before


def test_it_comes_back_although_others_have_written_in_between(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.file(PATH, BY_HAND.encode())
    host.cdi()
    host.file(PATH, BY_HAND.replace("of them", "of these").encode())
    host.cdi()
    # Nor does the host need a parser of YAML for that.
    monkeypatch.setattr(yaml_document, "parse", None)
    assert host.cdi(state="absent")["restored_files"] == [PATH]
    assert host.read(PATH) == BY_HAND.encode()


@pytest.mark.parametrize("path", [PATH, "/var/run/cdi/nvidia.json"])
def test_engines_notice_each_change(host: CdiHost, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Docker and containerd watch their folders, and do not see a file that is moved in from elsewhere."""
    folder = os.path.dirname(path)
    host.file(f"{folder}/theirs.json", json.dumps(parse(path, BY_HAND.encode())).encode())
    sources: list[str] = []
    replace = os.replace

    def noting(source: str, target: str) -> None:
        if os.path.dirname(target).endswith(folder):
            sources.append(os.path.dirname(source))
        replace(source, target)

    monkeypatch.setattr(os, "replace", noting)
    host.cdi(path=path, exclusive=True)
    host.cdi(path=path, request=Request(all_device=False))
    host.cdi(state="absent")
    assert host.has(f"{folder}/theirs.json")
    assert sources == [f"{host.path}{folder}"] * 3


def test_what_others_have_written_since_goes_with_a_copy(host: CdiHost) -> None:
    host.cdi()
    host.file(PATH, BY_HAND.encode())
    done = host.cdi(state="absent")
    assert (done["changed"], done["removed_files"]) == (True, [PATH])
    assert host.read(done["backup_files"][0]["backup"]) == BY_HAND.encode()
    assert not host.has(PATH)


def test_what_was_never_ours_stays(host: CdiHost) -> None:
    host.file(PATH, BY_HAND.encode())
    before = host.contents()
    done = host.cdi(state="absent")
    assert not done["changed"]
    assert any("This module did not write" in warning for warning in done["warnings"])
    assert host.contents() == before


def test_what_has_become_of_another_kind_stays(host: CdiHost) -> None:
    host.cdi()
    changed = BY_HAND.replace("nvidia.com", "example.com").encode()
    host.file(PATH, changed)
    done = host.cdi(state="absent")
    assert any("no longer describes nvidia.com/gpu" in warning for warning in done["warnings"])
    assert host.read(PATH) == changed
    assert not host.has(STATE_DIR)


def test_a_host_that_started_anew(host: CdiHost) -> None:
    """What was in /run is gone, and no concern of anybody."""
    host.folder("/run")
    host.link("/var/run", "/run")
    path = "/var/run/cdi/nvidia.yaml"
    host.cdi(path=path)
    assert host.has("/run/cdi/nvidia.yaml")
    (host.path / "run/cdi/nvidia.yaml").unlink()
    assert host.cdi(path="/run/cdi/nvidia.yaml")["changed"]
    assert not host.cdi(path=path)["changed"]
    (host.path / "run/cdi/nvidia.yaml").unlink()
    host.cdi(path=path, state="absent")
    assert not host.has(f"{STATE_DIR}")


# -- other files -------------------------------------------------------------------------------------------------------


def test_a_collision_is_said(host: CdiHost) -> None:
    host.file(OTHER, BY_HAND.encode())
    done = host.cdi()
    (conflict,) = done["conflicts"]
    assert (conflict["path"], conflict["effect"]) == (OTHER, "collides")
    assert conflict["devices"] == ["nvidia.com/gpu=all"]
    assert any(OTHER in warning and "exclusive" in warning for warning in done["warnings"])
    assert host.read(OTHER) == BY_HAND.encode()
    assert not host.cdi()["changed"]


def test_exclusive_removes_and_absent_brings_back(host: CdiHost) -> None:
    host.file(OTHER, BY_HAND.encode(), 0o600)
    host.file("/etc/cdi/gds.yaml", BY_HAND.replace("/gpu", "/gds").encode())
    before = host.contents()
    predicted = host.cdi(exclusive=True, check_mode=True)
    assert host.contents() == before
    done = host.cdi(exclusive=True)
    assert (done["changed"], done["removed_files"]) == (True, [OTHER])
    assert done["files"] == predicted["files"]
    assert not host.has(OTHER)
    assert host.has("/etc/cdi/gds.yaml")
    kept = {entry["path"]: entry["backup"] for entry in done["backup_files"]}
    assert host.read(kept[OTHER]) == BY_HAND.encode()
    assert not host.cdi(exclusive=True)["changed"]

    done = host.cdi(state="absent", purge_backups=True)
    assert done["restored_files"] == [OTHER]
    assert host.contents() == before


def test_what_came_back_by_itself_is_not_overwritten(host: CdiHost) -> None:
    host.file(OTHER, BY_HAND.encode())
    host.cdi(exclusive=True)
    newer = BY_HAND.replace("0.5.0", "0.6.0").encode()
    host.file(OTHER, newer)
    done = host.cdi(state="absent")
    assert host.read(OTHER) == newer
    assert any(OTHER in warning for warning in done["warnings"])
    assert not host.has(STATE_DIR)


def test_our_own_file_moves(host: CdiHost) -> None:
    """Two files of ours would take the devices from each other, or one of them would go stale."""
    host.cdi()
    done = host.cdi(format="json")
    assert done["removed_files"] == [PATH]
    assert not host.has(PATH)
    assert host.has("/etc/cdi/nvidia.json")
    assert not host.cdi(format="json")["changed"]
    before = done["path"]
    assert before == "/etc/cdi/nvidia.json"
    host.cdi(state="absent")
    assert not host.has("/etc/cdi")


def test_a_second_kind_is_a_file_of_its_own(host: CdiHost) -> None:
    host.cdi()
    done = host.cdi(request=Request(class_="all-nodes"), mode="management")
    assert done["path"] == "/etc/cdi/nvidia.com-all-nodes.yaml"
    assert (done["conflicts"], done["removed_files"], done["devices"]) == ([], [], ["all"])
    host.cdi(state="absent")
    assert host.has("/etc/cdi/nvidia.com-all-nodes.yaml")
    assert not host.has(PATH)


def test_a_broken_file_of_others_is_said(host: CdiHost) -> None:
    host.file(OTHER, b"{")
    assert any(OTHER in warning for warning in host.cdi()["warnings"])


@pytest.mark.parametrize("target", ["nvidia.yaml", "/opt/specs/gpu.yaml"])
def test_links_are_left_to_their_owners(host: CdiHost, target: str) -> None:
    """A second name of our own file, and a file that may be of use elsewhere."""
    host.file("/opt/specs/gpu.yaml", BY_HAND.encode())
    host.cdi()
    host.link("/etc/cdi/gpu.yaml", target)
    done = host.cdi()
    assert not done["changed"]
    assert any("/etc/cdi/gpu.yaml" in warning for warning in done["warnings"])
    before = host.contents()
    with pytest.raises(HostError, match="is a link"):
        host.cdi(exclusive=True)
    assert host.contents() == before


def test_the_record_of_what_made_room_outlives_a_wrong_path(host: CdiHost) -> None:
    host.file(OTHER, BY_HAND.encode())
    host.cdi(exclusive=True)
    done = host.cdi(state="absent", path=OTHER)
    assert not done["changed"]
    assert any("moved away" in warning for warning in done["warnings"])
    host.cdi(state="absent")
    assert host.read(OTHER) == BY_HAND.encode()


def test_the_record_outlives_a_wrong_kind(host: CdiHost) -> None:
    host.file(PATH, BY_HAND.encode())
    host.cdi()
    done = host.cdi(state="absent", path=PATH, request=Request(class_="gds"))
    assert not done["changed"]
    assert any("vendor and class" in warning for warning in done["warnings"])
    host.cdi(state="absent")
    assert host.read(PATH) == BY_HAND.encode()


def test_the_usual_path_that_made_room_keeps_its_mode(host: CdiHost) -> None:
    host.file(PATH, BY_HAND.encode(), 0o600)
    os.chown(host.path / PATH.lstrip("/"), 7, 8)
    before = host.contents()
    host.cdi(path="/etc/cdi/gpu.yaml", exclusive=True)
    host.cdi(state="absent", purge_backups=True)
    assert host.contents() == before


@pytest.mark.parametrize("between", ["edited", "edited and written anew", "deleted", "broken"])
def test_the_original_comes_back_whatever_happened(host: CdiHost, between: str) -> None:
    host.file(PATH, BY_HAND.encode())
    host.cdi()
    if between == "deleted":
        (host.path / PATH.lstrip("/")).unlink()
    else:
        host.file(PATH, b"{" if between == "broken" else BY_HAND.replace("0.5.0", "0.6.0").encode())
    if between.endswith("anew"):
        host.cdi()
    host.cdi(state="absent", purge_backups=True)
    assert host.read(PATH) == BY_HAND.encode()


def test_what_made_room_last_comes_back(host: CdiHost) -> None:
    newer = BY_HAND.replace("0.5.0", "0.6.0").encode()
    host.file(OTHER, BY_HAND.encode())
    host.cdi(exclusive=True)
    host.file(OTHER, newer)
    host.cdi(exclusive=True)
    host.cdi(state="absent", purge_backups=True)
    assert host.read(OTHER) == newer


def test_our_own_file_moves_though_somebody_added_a_comment(host: CdiHost) -> None:
    host.cdi()
    seen = b"# seen\n" + host.read(PATH)
    host.file(PATH, seen)
    assert not host.cdi()["changed"]
    done = host.cdi(format="json")
    assert (done["removed_files"], host.has(PATH)) == ([PATH], False)
    assert any(PATH in warning for warning in done["warnings"])
    host.cdi(state="absent")
    assert host.read(PATH) == seen


def test_another_mode_needs_another_class(host: CdiHost) -> None:
    host.node("/dev/nvidia-fs0", 500, 0)
    host.cdi()
    before = host.contents()
    with pytest.raises(NvidiaError, match="class: gds"):
        host.cdi(mode="gds", path="/etc/cdi/gds.yaml")
    assert host.contents() == before
    assert host.cdi(mode="gds", request=Request(class_="gds"))["changed"]
    assert not host.cdi()["changed"]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("/dev/nvidia-uvm", "nvidia-modprobe -u -c 0"),
        ("/dev/nvidiactl", "nvidia-modprobe -c 0"),
        ("/dev/nvidia1", "Run nvidia-smi as root"),
        (HOOK, "Install the NVIDIA Container Toolkit"),
    ],
)
def test_nothing_partial_is_written(host: CdiHost, missing: str, message: str) -> None:
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
        ("/dev/nvidia1", (1, 1), "/dev/nvidia1 has device number 1:1, but the driver uses 195:1."),
        ("/dev/nvidiactl", (195, 0), "/dev/nvidiactl has device number 195:0, but the driver uses 195:255."),
        ("/dev/nvidia-modeset", (195, 255), "but the driver uses 195:254."),
        ("/dev/nvidia-uvm", (510, 1), "/dev/nvidia-uvm has device number 510:1, but the driver uses minor number 0."),
        ("/dev/nvidia-uvm-tools", (510, 0), "but the driver uses minor number 1."),
    ],
)
@pytest.mark.parametrize("mode", ["nvml", "management"])
def test_a_node_with_wrong_numbers(host: CdiHost, mode: str, path: str, numbers: tuple[int, int], message: str) -> None:
    (host.path / path.lstrip("/")).unlink()
    host.node(path, *numbers)
    before = host.contents()
    for require in (True, False):
        with pytest.raises(HostError) as caught:
            host.cdi(mode=mode, require_devices=require)
        assert message in str(caught.value)
        assert f"Remove {path}." in str(caught.value)
    assert host.contents() == before


def test_numbers_that_the_kernel_gave_out(host: CdiHost) -> None:
    devices = "Character devices:\n{}\n\nBlock devices:\n  8 sd\n 77 nvidia-uvm\n"
    for right in (("195 nvidia-frontend", "510 nvidia-uvm"), ("195 nvidia", "195 nvidiactl", "510 nvidia-uvm"), ()):
        host.file("/proc/devices", devices.format("\n".join(right)).encode())
        host.cdi()
    host.file("/proc/devices", devices.format("195 nvidia\n511 nvidia-uvm").encode())
    with pytest.raises(HostError, match=r"/dev/nvidia-uvm has device number 510:0, but the driver uses 511:0\."):
        host.cdi()


def test_wrong_numbers_behind_a_dev_root(host: CdiHost) -> None:
    host.node("/run/dev/nvidia0", 195, 1)
    host.folder("/run/driver/dev")
    for node in (host.path / "dev").glob("nvidia*"):
        if node.name != "nvidia0":
            node.rename(host.path / "run/driver/dev" / node.name)
    host.node("/run/driver/dev/nvidia0", 195, 7)
    with pytest.raises(
        HostError, match=r"/run/driver/dev/nvidia0 has device number 195:7, but the driver uses 195:0\."
    ):
        host.cdi(request=Request(dev_root="/run/driver"))


@pytest.mark.parametrize(("minor", "right"), [(3, True), (4, False)])
def test_the_numbers_of_a_capability(host: CdiHost, monkeypatch: pytest.MonkeyPatch, minor: int, right: bool) -> None:
    divided = mig_gpu(host.devices[1], (0, 7, 0, False))
    monkeypatch.setattr(inventory, "read_inventory", lambda *_args: GpuInventory(VERSION, (divided,), "nvml", ()))
    host.mig_nodes([divided])
    (host.path / "dev/nvidia-caps/nvidia-cap3").unlink()
    host.node("/dev/nvidia-caps/nvidia-cap3", 511, minor)
    if right:
        assert host.cdi()["changed"]
        return
    with pytest.raises(HostError, match="nvidia-cap3 has device number 511:4, but the driver uses minor number 3"):
        host.cdi()


def test_what_is_there_if_that_will_do(host: CdiHost) -> None:
    (host.path / "dev/nvidia-uvm").unlink()
    assert host.cdi(require_devices=False)["changed"]
    assert b'/dev/nvidia-uvm"' not in host.read(PATH)


def test_the_hook_may_come_in_check_mode(tmp_path: Path) -> None:
    host = CdiHost(tmp_path / "host", hook=False)
    done = host.cdi(check_mode=True)
    assert any(HOOK in warning for warning in done["warnings"])
    with pytest.raises(HostError, match="nvidia-cdi-hook"):
        host.cdi()
    assert host.cdi(request=Request(hooks="none"))["changed"]
    assert "hooks" not in json.dumps(document(host))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/etc/cdi/nvidia.yml"}, "engines read only"),
        ({"path": "nvidia.yaml"}, "not an absolute path"),
        ({"path": "/etc/cdi/nvidia.json", "format": "yaml"}, "make them match"),
        ({"request": Request(vendor="nvidia")}, None),
        ({"request": Request(vendor="-x")}, "vendor"),
        ({"request": Request(class_="a/../b")}, "class"),
        ({"request": Request(device_ids=("7",))}, "7"),
        ({"mode": "csv", "backend": "native"}, "does not support mode csv"),
        ({"mode": "csv"}, "no nvidia-ctk"),
        ({"backend": "nvidia-ctk"}, "no nvidia-ctk"),
        ({"for_engines": ("rkt",)}, "rkt"),
        ({"backup_dir": "/etc/cdi/old"}, "every file is configuration"),
    ],
)
def test_bad_input(host: CdiHost, options: dict[str, t.Any], message: str | None) -> None:
    before = host.contents()
    if message is None:
        assert host.cdi(check_mode=True, **options)["path"] == "/etc/cdi/nvidia-gpu.yaml"
        return
    with pytest.raises(NvidiaError, match=message):
        host.cdi(**options)
    assert host.contents() == before


def test_a_private_folder_stays_private(host: CdiHost) -> None:
    host.folder("/root")
    (host.path / "root").chmod(0o700)
    host.cdi(path="/root/nvidia.yaml")
    assert mode(host, "/root") == 0o700


def test_a_folder_that_is_a_link(host: CdiHost) -> None:
    host.folder("/opt/cdi")
    host.link("/etc/cdi", "/opt/cdi")
    with pytest.raises(NvidiaError, match="do not follow"):
        host.cdi()


@pytest.mark.parametrize("missing", [["nvidia-cap3"], ["nvidia-cap3", "nvidia-cap4"]])
def test_mig_devices_without_their_capabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: list[str]
) -> None:
    host = CdiHost(tmp_path / "host", count=1)
    gpu = mig_gpu(host.devices[0], (0, 7, 0, False))
    host.mig_nodes([gpu])
    for name in missing:
        (host.path / "dev/nvidia-caps" / name).unlink()
    monkeypatch.setattr(inventory, "read_inventory", lambda *_a, **_k: GpuInventory(VERSION, (gpu,), "nvml", ()))
    with pytest.raises(NvidiaError, match="nvidia-cap"):
        host.cdi()


def test_a_gpu_without_mig_devices_is_said(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = host.devices[1]._replace(mig=True)
    found = GpuInventory(VERSION, (host.devices[0], empty), "nvml", ())
    monkeypatch.setattr(inventory, "read_inventory", lambda *_a, **_k: found)
    assert any("GPU 1 is in MIG mode" in warning for warning in host.cdi()["warnings"])


def test_a_single_device_without_its_node(host: CdiHost) -> None:
    (host.path / "dev/nvidia1").unlink()
    with pytest.raises(NvidiaError, match="/dev/nvidia1"):
        host.cdi(request=Request(device_ids=("0",)))
    assert host.cdi(request=Request(device_ids=("1",)))["changed"]


@pytest.mark.parametrize("odd", [{"devices": None}, {"containerEdits": None}, {"devices": ["x"]}, {"kind": "a.b/gpu"}])
def test_odd_words_of_the_reference(host: CdiHost, monkeypatch: pytest.MonkeyPatch, odd: Data) -> None:
    host.cdi()
    printed = json.dumps({**document(host), **odd})
    host.cdi(state="absent")
    host.live = True
    host.program("/usr/bin/nvidia-ctk")
    monkeypatch.setattr(host, "pinned", lambda argv, _e: (0, "version 1.20.0" if "--version" in argv else printed, ""))
    with pytest.raises(NvidiaError):
        host.cdi(backend="nvidia-ctk", use_nvml=False, for_engines=("podman:4.9.3",))


@pytest.mark.parametrize("mode", ["nvml", "management"])
def test_a_driver_without_libcuda_gives_a_warning(host: CdiHost, mode: str) -> None:
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
def test_a_wrong_driver_root_is_named(host: CdiHost, mode: str, root: str, message: str) -> None:
    host.folder("/usr/share")
    with pytest.raises(HostError) as caught:
        host.cdi(mode=mode, request=Request(driver_root=root, dev_root="/"))
    assert message in str(caught.value)


# -- coherent GPUs -----------------------------------------------------------------------------------------------------

COHERENT, NONCOHERENT = "/etc/cdi/nvidia.coherent.yaml", "/etc/cdi/nvidia.noncoherent.yaml"
FLAG = Request(feature_flags=("enable-coherent-annotations",))


def _coherent(host: CdiHost, monkeypatch: pytest.MonkeyPatch, *coherent: bool | None) -> GpuInventory:
    found = tuple(gpu._replace(coherent=value) for gpu, value in zip(host.devices, coherent))
    machine = GpuInventory(VERSION, found, "nvml", ())
    monkeypatch.setattr(inventory, "read_inventory", lambda *_args: machine)
    return machine


def test_coherent_gpus_have_files_of_their_own(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.folder("/var/lib")
    before = host.contents()
    _coherent(host, monkeypatch, True, False)
    host.cdi()
    main = host.read(PATH)
    assert not host.has(COHERENT)

    predicted = host.cdi(request=FLAG, check_mode=True)
    done = host.cdi(request=FLAG)
    assert (done["changed"], done["files"]) == (True, predicted["files"])
    assert done["reasons"] == [f"{path}: It does not exist." for path in (COHERENT, NONCOHERENT)]
    assert (host.read(PATH), mode(host, COHERENT), mode(host, NONCOHERENT)) == (main, 0o644, 0o644)
    for path, kind, gpu in ((COHERENT, "coherent", 0), (NONCOHERENT, "noncoherent", 1)):
        found = document(host, path)
        assert found["kind"] == f"nvidia.com/gpu.{kind}"
        assert [device["name"] for device in found["devices"]] == [str(gpu), host.devices[gpu].uuid, "all"]
    again = host.cdi(request=FLAG)
    assert (again["changed"], again["warnings"], again["conflicts"]) == (False, [], [])

    # What is not wanted any more goes, and only that.
    _coherent(host, monkeypatch, True, True)
    done = host.cdi(request=FLAG)
    assert (done["removed_files"], host.has(NONCOHERENT), host.has(COHERENT)) == ([NONCOHERENT], False, True)
    done = host.cdi()
    assert (done["removed_files"], host.has(COHERENT), host.read(PATH)) == ([COHERENT], False, main)
    assert not host.cdi()["changed"]

    host.cdi(request=FLAG)
    gone = host.cdi(state="absent", purge_backups=True)
    assert sorted(gone["removed_files"]) == [COHERENT, PATH]
    assert host.contents() == before


def test_files_of_coherent_gpus_move_with_the_specification(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    _coherent(host, monkeypatch, True, False)
    host.cdi(request=FLAG)
    done = host.cdi(request=FLAG, path="/var/run/cdi/gpu.json")
    assert sorted(done["removed_files"]) == [COHERENT, NONCOHERENT, PATH]
    json.loads(host.read("/var/run/cdi/gpu.coherent.json"))
    assert not host.cdi(request=FLAG, path="/var/run/cdi/gpu.json")["changed"]
    host.cdi(state="absent", path="/var/run/cdi/gpu.json")
    assert not [path for path in host.contents() if "run/cdi/gpu" in path]


def test_an_edited_file_of_coherent_gpus_is_replaced(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    _coherent(host, monkeypatch, True, False)
    host.cdi(request=FLAG)
    written = host.read(COHERENT)
    host.file(COHERENT, written.replace(b"/dev/nvidia1", b"/dev/nvidia0"))
    done = host.cdi(request=FLAG)
    assert (host.read(COHERENT), len(done["reasons"]), len(done["backup_files"])) == (written, 1, 1)
    assert done["reasons"][0].startswith(f"{COHERENT}: Its devices")


def test_the_files_of_another_task_for_such_a_class_stay(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    _coherent(host, monkeypatch, True, True)
    path = "/etc/cdi/nvidia.com-gpu.coherent.yaml"
    assert host.cdi(request=Request(class_="gpu.coherent"))["path"] == path
    assert (host.cdi()["removed_files"], host.has(path)) == ([], True)
    host.cdi(state="absent")
    assert host.has(path)


def test_coherence_is_unknown_without_nvml(host: CdiHost) -> None:
    done = host.cdi(request=FLAG)
    assert any("does not report whether GPU 0, 1 is coherent" in message for message in done["warnings"])
    assert not host.has(COHERENT)
    assert not host.has(NONCOHERENT)


def test_nvidia_ctk_reports_coherent_gpus(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = cdi_modes.generate_all("nvml", FLAG, _coherent(host, monkeypatch, True, False), host.host())
    host.live = True
    host.program("/usr/bin/nvidia-ctk")
    printed = "".join(map(json.dumps, documents.values()))
    monkeypatch.setattr(host, "run", lambda argv: (0, "version 1.20.0" if "--version" in argv else printed, ""))
    done = host.cdi(request=FLAG, backend="nvidia-ctk")
    assert done["backend"] == "nvidia-ctk"
    assert document(host, COHERENT) == documents["coherent"]
    assert document(host, NONCOHERENT) == documents["noncoherent"]


# -- integrated GPUs ---------------------------------------------------------------------------------------------------


def _rename_gpus(host: CdiHost, name: str) -> None:
    for file in (host.path / "proc/driver/nvidia/gpus").glob("*/information"):
        file.write_text(file.read_text().replace("NVIDIA A100", name))


@pytest.mark.parametrize(
    ("name", "integrated"),
    [("NVIDIA Thor", True), ("Orin (nvgpu)", True), ("NVIDIA H100", False)],
)
def test_an_integrated_gpu_needs_csv(host: CdiHost, name: str, integrated: bool) -> None:
    _rename_gpus(host, name)
    host.file("/etc/nv_tegra_release", b"# R38 (release)\n")
    if not integrated:
        assert host.cdi()["mode"] == "nvml"
        return
    with pytest.raises(HostError, match="mode csv needs it"):
        host.cdi()
    assert host.cdi(mode="nvml")["mode"] == "nvml"


def test_an_integrated_gpu_of_which_nvml_does_not_report_all(host: CdiHost, tmp_path: Path) -> None:
    """On Orin NVML has no PCI address."""
    fake = FakeGpu("0000:01:00.0", 0, "Orin (nvgpu)")
    nvml_files(host.path, compiled(tmp_path), [fake], "fail nvmlDeviceGetPciInfo_v3 0 3", folder="usr/lib64")
    with pytest.raises(HostError, match="mode csv needs it"):
        host.cdi(use_nvml=True)
    with pytest.raises(HostError, match="nvmlDeviceGetPciInfo_v3 returned 3"):
        host.cdi(use_nvml=True, mode="nvml")


def test_the_options_of_mode_csv(host: CdiHost) -> None:
    host.live = True
    host.program("/usr/bin/nvidia-ctk")
    host.commands["/usr/bin/nvidia-ctk"] = (0, "version 1.20.0", "")
    options = {"csv_files": ["/opt/a.csv"], "csv_ignore_patterns": ["*.so"], "csv_compat_container_root": "/opt/compat"}
    params = {name: option.get("default") for name, option in CDI_OPTIONS.items()}
    request = options_of({"state": "present", **params, **options}).request
    with pytest.raises(HostError, match="The output of /usr/bin/nvidia-ctk"):
        host.cdi(mode="csv", request=request)
    assert {*host.ran[-1]} >= {
        "--csv.file=/opt/a.csv",
        "--csv.ignore-pattern=*.so",
        "--csv.compat-container-root=/opt/compat",
    }


def test_no_driver(host: CdiHost) -> None:
    (host.path / "proc/driver/nvidia/version").unlink()
    with pytest.raises(HostError, match="modprobe nvidia"):
        host.cdi()


# -- engines -----------------------------------------------------------------------------------------------------------


def test_the_weakest_engine_decides(host: CdiHost) -> None:
    done = host.cdi(for_engines=("podman:4.9.3",))
    assert done["cdi_version"] == "0.5.0"
    assert any("podman" in message for message in done["limits"])
    assert set(done["limits"]) <= set(done["warnings"])
    assert done["engines"][0]["name"] == "podman"
    assert b"additionalGids" not in host.read(PATH)
    again = host.cdi(for_engines=("podman:4.9.3",))
    assert (again["changed"], again["limits"]) == (False, done["limits"])
    assert not set(done["limits"]) & set(again["warnings"])
    assert host.cdi(for_engines=())["cdi_version"] == "0.7.0"


def test_a_folder_that_an_engine_does_not_read(host: CdiHost) -> None:
    host.folder("/run")
    host.link("/var/run", "/run")
    done = host.cdi(path="/var/run/cdi/nvidia.yaml", for_engines=("podman:5.5.1",))
    assert any("podman 5.5.1" in warning for warning in done["warnings"])


# -- refresh units -----------------------------------------------------------------------------------------------------


def yaml_of(found: Data) -> bytes:
    return render(found, "yaml")


TOOLKITS, OURS = "nvidia-cdi-refresh.service", "gpufleet-nvidia-cdi.service"


def refreshing(host: CdiHost, monkeypatch: pytest.MonkeyPatch, name: str = TOOLKITS, flags: str = "") -> str:
    """An enabled refresh service, and a nvidia-ctk that prints what the native generator makes: that text."""
    host.live = True
    host.folder("/run")
    host.link("/var/run", "/run")
    host.cdi(use_nvml=False)
    printed = json.dumps(document(host))
    host.cdi(use_nvml=False, state="absent")
    unit = UNIT.replace("generate\n", f"generate {flags}\n")
    host.file(f"/usr/lib/systemd/system/{name}", unit.encode())
    host.link(f"/etc/systemd/system/multi-user.target.wants/{name}", f"/usr/lib/systemd/system/{name}")
    host.program("/usr/bin/nvidia-ctk")

    def pinned(argv: list[str], _environment: t.Mapping[str, str]) -> tuple[int, str, str]:
        if "--version" in argv:
            return 0, "NVIDIA Container Toolkit CLI version 1.20.0\n", ""
        return 0, printed, ""

    monkeypatch.setattr(host, "pinned", pinned)
    return printed


def test_the_service_and_we_write_the_same_file(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = refreshing(host, monkeypatch)
    done = host.cdi(use_nvml=False)
    assert (done["path"], done["backend"]) == ("/var/run/cdi/nvidia.yaml", "nvidia-ctk")
    assert same_meaning(document(host, "/run/cdi/nvidia.yaml"), parse("printed", printed.encode()))
    # What the service writes in its own way is the same.
    host.file("/run/cdi/nvidia.yaml", b"# the service\n" + host.read("/run/cdi/nvidia.yaml"))
    assert not host.cdi(use_nvml=False)["changed"]
    # So it is the service's now.
    gone = host.cdi(use_nvml=False, state="absent")
    assert host.read("/run/cdi/nvidia.yaml").startswith(b"# the service")
    assert any("Another program has changed" in warning for warning in gone["warnings"])
    assert not host.cdi(use_nvml=False, state="absent")["changed"]


FLAGS = f"--output={PATH} --vendor=nvidia.com --class=gpu"


def test_what_our_unit_has_written_stays(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of nvidia-ctk, and with another header; but not with other edits."""
    found = json.loads(refreshing(host, monkeypatch, OURS, FLAGS))
    found["devices"].reverse()
    for device in found["devices"]:
        device["containerEdits"]["deviceNodes"].reverse()
    host.file(PATH, b"# the unit\n" + yaml_of(found))
    done = host.cdi(use_nvml=False)
    assert (done["path"], done["backend"], done["changed"]) == (PATH, "nvidia-ctk", False)
    found["containerEdits"]["hooks"].reverse()
    host.file(PATH, yaml_of(found))
    assert host.cdi(use_nvml=False, check_mode=True)["reasons"] == ["The edits for all devices differ in hooks."]


def test_what_our_unit_has_written_is_removed(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no task has written it; and what a user had there before comes back."""
    printed = refreshing(host, monkeypatch, OURS, FLAGS)
    for original in (None, BY_HAND.encode()):
        if original is not None:
            host.file(PATH, original)
        record_for_unit(host.host(), PATH, "nvidia.com/gpu", original)
        host.file(PATH, b"# the unit\n" + yaml_of(json.loads(printed)))
        assert not host.cdi(use_nvml=False)["changed"]
        gone = host.cdi(use_nvml=False, state="absent", purge_backups=True)
        assert gone["changed"]
        assert (host.read(PATH) if host.has(PATH) else None) == original
        assert not host.cdi(use_nvml=False, state="absent")["changed"]


def test_another_path_for_our_unit(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = refreshing(host, monkeypatch, OURS, FLAGS.replace("nvidia.yaml", "new.yaml"))
    record_for_unit(host.host(), PATH, "nvidia.com/gpu", None)
    host.file(PATH, b"# the unit\n" + yaml_of(json.loads(printed)))
    done = host.cdi(use_nvml=False, path="/etc/cdi/new.yaml")
    assert (done["removed_files"], done["backend"]) == ([PATH], "nvidia-ctk")
    host.cdi(use_nvml=False, state="absent")
    assert not host.has(PATH)


# -- killed ------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


@pytest.mark.parametrize("state", ["present", "absent"])
def test_killed_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_points: t.Callable[[int], list[int]], state: str
) -> None:
    """After a kill at any step the next run ends the work, and its removal restores what was there before."""
    steps = _changes_until(NEVER, tmp_path / "whole", monkeypatch, state)
    assert steps > 5
    for step in kill_points(steps):
        assert _changes_until(step, tmp_path / f"{step}", monkeypatch, state) >= step


# No run changes the disk so often.
NEVER = 100


def _changes_until(step: int, folder: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> int:
    """Kill a run at ``step`` and let further runs end its work; how many changes it began."""
    host = CdiHost(folder)
    # Every host has these; a run that is killed right after making them leaves them.
    host.folder("/run")
    host.folder("/var/lib")
    host.file(OTHER, BY_HAND.encode())
    host.file(PATH, BY_HAND.replace("all", "0").encode(), 0o600)
    before = host.contents()
    if state == "absent":
        host.cdi(exclusive=True)
    with monkeypatch.context() as patch:
        changes = _die_at(patch, step)
        with contextlib.suppress(Killed):
            host.cdi(exclusive=True, state=state, purge_backups=state == "absent")
    begun = len(changes)
    for path in (PATH, OTHER):
        # Each file is whole.
        assert not host.has(path) or parse(path, host.read(path))["kind"] == "nvidia.com/gpu"
    if state == "present":
        host.cdi(exclusive=True)
        assert not host.cdi(exclusive=True)["changed"]
    host.cdi(state="absent", purge_backups=True)
    # A run that is killed while it removes backups may leave some.
    left = {path: found for path, found in host.contents().items() if "gpufleet-nvidia" not in path}
    assert left == before, f"killed at step {step}"
    assert not list((host.path / STATE_DIR.lstrip("/")).glob("*.json"))
    return begun


def _die_at(monkeypatch: pytest.MonkeyPatch, step: int) -> list[str]:
    """Die just before that change of the disk; the list names the changes that were begun."""
    changes: list[str] = []

    def counting(name: str) -> None:
        function: t.Callable[..., t.Any] = getattr(os, name)

        def wrapped(*args: t.Any, **more: t.Any) -> t.Any:
            # The kernel releases the lock of a killed process.
            if args[0] != "lock":
                changes.append(name)
                if len(changes) == step:
                    raise Killed
            return function(*args, **more)

        monkeypatch.setattr(os, name, wrapped)

    for name in ("replace", "unlink", "mkdir", "rmdir", "chmod", "chown"):
        counting(name)
    return changes
