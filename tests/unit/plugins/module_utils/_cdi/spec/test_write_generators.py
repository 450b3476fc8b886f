# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import modes as cdi_modes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import (
    CdiOptions,
    Request,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.compare import same_meaning
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.records import record_for_unit
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.write import SpecWriter
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.yaml_document import parse, render
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import inventory
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.inventory import GpuInventory
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.cdi_hosts import (
    OWN_FLAGS,
    OWN_SERVICE,
    SPEC_PATH,
    CdiHost,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    VERSION,
    needs_root,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import (
    FakeGpu,
    compiled,
    nvml_files,
)

if t.TYPE_CHECKING:
    from pathlib import Path


pytestmark = needs_root


@pytest.fixture
def host(tmp_path: Path) -> CdiHost:
    return CdiHost(tmp_path / "host")


# -- coherent GPUs -----------------------------------------------------------------------------------------------------

COHERENT, NONCOHERENT = "/etc/cdi/nvidia.coherent.yaml", "/etc/cdi/nvidia.noncoherent.yaml"
FLAG = Request(feature_flags=("enable-coherent-annotations",))


def _coherent(host: CdiHost, monkeypatch: pytest.MonkeyPatch, *coherent: bool | None) -> GpuInventory:
    found = tuple(gpu._replace(coherent=value) for gpu, value in zip(host.devices, coherent))
    gpu_inventory = GpuInventory(VERSION, found, "nvml", ())
    monkeypatch.setattr(inventory, "read_inventory", lambda *_args: gpu_inventory)
    return gpu_inventory


def test_coherent_variants(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.folder("/var/lib")
    before = host.contents()
    _coherent(host, monkeypatch, True, False)
    host.cdi()
    main = host.read(SPEC_PATH)
    assert not host.has(COHERENT)

    predicted = host.cdi(request=FLAG, check_mode=True)
    done = host.cdi(request=FLAG)
    assert (done["changed"], done["files"]) == (True, predicted["files"])
    assert done["reasons"] == [f"{path}: It does not exist." for path in (COHERENT, NONCOHERENT)]
    assert (host.read(SPEC_PATH), host.mode(COHERENT), host.mode(NONCOHERENT)) == (main, 0o644, 0o644)
    for path, kind, gpu in ((COHERENT, "coherent", 0), (NONCOHERENT, "noncoherent", 1)):
        found = host.document(path)
        assert found["kind"] == f"nvidia.com/gpu.{kind}"
        assert [device["name"] for device in found["devices"]] == [str(gpu), host.devices[gpu].uuid, "all"]
    again = host.cdi(request=FLAG)
    assert (again["changed"], again["warnings"], again["conflicts"]) == (False, [], [])

    # Only files of variants that are no longer needed are removed.
    _coherent(host, monkeypatch, True, True)
    done = host.cdi(request=FLAG)
    assert (done["removed_files"], host.has(NONCOHERENT), host.has(COHERENT)) == ([NONCOHERENT], False, True)
    done = host.cdi()
    assert (done["removed_files"], host.has(COHERENT), host.read(SPEC_PATH)) == ([COHERENT], False, main)
    assert not host.cdi()["changed"]

    host.cdi(request=FLAG)
    result = host.cdi(state="absent", purge_backups=True)
    assert sorted(result["removed_files"]) == [COHERENT, SPEC_PATH]
    assert host.contents() == before


def test_variants_follow_the_path(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    _coherent(host, monkeypatch, True, False)
    host.cdi(request=FLAG)
    done = host.cdi(request=FLAG, path="/var/run/cdi/gpu.json")
    assert sorted(done["removed_files"]) == [COHERENT, NONCOHERENT, SPEC_PATH]
    json.loads(host.read("/var/run/cdi/gpu.coherent.json"))
    assert not host.cdi(request=FLAG, path="/var/run/cdi/gpu.json")["changed"]
    host.cdi(state="absent", path="/var/run/cdi/gpu.json")
    assert not [path for path in host.contents() if "run/cdi/gpu" in path]


def test_edited_variant_is_replaced(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    _coherent(host, monkeypatch, True, False)
    host.cdi(request=FLAG)
    written = host.read(COHERENT)
    host.file(COHERENT, written.replace(b"/dev/nvidia1", b"/dev/nvidia0"))
    done = host.cdi(request=FLAG)
    assert (host.read(COHERENT), len(done["reasons"]), len(done["backup_files"])) == (written, 1, 1)
    assert done["reasons"][0].startswith(f"{COHERENT}: Its devices")


def test_class_named_like_a_variant(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    _coherent(host, monkeypatch, True, True)
    path = "/etc/cdi/nvidia.com-gpu.coherent.yaml"
    assert host.cdi(request=Request(class_="gpu.coherent"))["path"] == path
    assert (host.cdi()["removed_files"], host.has(path)) == ([], True)
    host.cdi(state="absent")
    assert host.has(path)


def test_coherence_needs_nvml(host: CdiHost) -> None:
    done = host.cdi(request=FLAG)
    assert any("does not report whether GPU 0, 1 is coherent" in message for message in done["warnings"])
    assert not host.has(COHERENT)
    assert not host.has(NONCOHERENT)


def test_variants_of_nvidia_ctk(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = cdi_modes.generate_all("nvml", FLAG, _coherent(host, monkeypatch, True, False), host.host())
    host.nvidia_ctk(monkeypatch, "".join(map(json.dumps, documents.values())))
    done = host.cdi(request=FLAG, backend="nvidia-ctk")
    assert done["backend"] == "nvidia-ctk"
    assert host.document(COHERENT) == documents["coherent"]
    assert host.document(NONCOHERENT) == documents["noncoherent"]


# -- integrated GPUs ---------------------------------------------------------------------------------------------------


def _rename_gpus(host: CdiHost, name: str) -> None:
    for file in (host.path / "proc/driver/nvidia/gpus").glob("*/information"):
        file.write_text(file.read_text().replace("NVIDIA A100", name))


@pytest.mark.parametrize(
    ("name", "integrated"),
    [("NVIDIA Thor", True), ("Orin (nvgpu)", True), ("NVIDIA H100", False)],
)
def test_integrated_gpu_needs_csv(host: CdiHost, name: str, integrated: bool) -> None:
    _rename_gpus(host, name)
    host.file("/etc/nv_tegra_release", b"# R38 (release)\n")
    if not integrated:
        assert host.cdi()["mode"] == "nvml"
        return
    with pytest.raises(HostError, match="mode: csv needs it"):
        host.cdi()
    assert host.cdi(mode="nvml")["mode"] == "nvml"


def test_integrated_gpu_with_incomplete_nvml(host: CdiHost, tmp_path: Path) -> None:
    """NVML reports no PCI address on Orin."""
    fake = FakeGpu("0000:01:00.0", 0, "Orin (nvgpu)")
    nvml_files(host.path, compiled(tmp_path), [fake], "fail nvmlDeviceGetPciInfo_v3 0 3", folder="usr/lib64")
    with pytest.raises(HostError, match="mode: csv needs it"):
        host.cdi(use_nvml=True)
    with pytest.raises(HostError, match="nvmlDeviceGetPciInfo_v3 returned 3"):
        host.cdi(use_nvml=True, mode="nvml")


# -- engines -----------------------------------------------------------------------------------------------------------


def test_oldest_engine_limits_the_version(host: CdiHost) -> None:
    done = host.cdi(for_engines=("podman:4.9.3",))
    assert done["cdi_version"] == "0.5.0"
    assert any("podman" in message for message in done["limits"])
    assert set(done["limits"]) <= set(done["warnings"])
    assert done["engines"][0]["name"] == "podman"
    assert b"additionalGids" not in host.read(SPEC_PATH)
    again = host.cdi(for_engines=("podman:4.9.3",))
    assert (again["changed"], again["limits"]) == (False, done["limits"])
    assert not set(done["limits"]) & set(again["warnings"])
    assert host.cdi(for_engines=())["cdi_version"] == "0.7.0"


# -- refresh units -----------------------------------------------------------------------------------------------------


def test_file_of_toolkit_service(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = host.enable_refresh(monkeypatch)
    done = host.cdi(use_nvml=False)
    assert (done["path"], done["backend"]) == ("/var/run/cdi/nvidia.yaml", "nvidia-ctk")
    assert same_meaning(host.document("/run/cdi/nvidia.yaml"), parse("printed", printed.encode()))
    # The service writes a file with the same meaning.
    host.file("/run/cdi/nvidia.yaml", b"# the service\n" + host.read("/run/cdi/nvidia.yaml"))
    assert not host.cdi(use_nvml=False)["changed"]
    # The file of the service stays.
    result = host.cdi(use_nvml=False, state="absent")
    assert host.read("/run/cdi/nvidia.yaml").startswith(b"# the service")
    assert any("Another program has changed" in warning for warning in result["warnings"])
    assert not host.cdi(use_nvml=False, state="absent")["changed"]


def test_file_of_own_unit(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of devices and nodes and the header may differ, but not the edits."""
    found = json.loads(host.enable_refresh(monkeypatch, OWN_SERVICE, OWN_FLAGS))
    found["devices"].reverse()
    for device in found["devices"]:
        device["containerEdits"]["deviceNodes"].reverse()
    host.file(SPEC_PATH, b"# the unit\n" + render(found, "yaml"))
    done = host.cdi(use_nvml=False)
    assert (done["path"], done["backend"], done["changed"]) == (SPEC_PATH, "nvidia-ctk", False)
    found["containerEdits"]["hooks"].reverse()
    host.file(SPEC_PATH, render(found, "yaml"))
    (reason,) = host.cdi(use_nvml=False, check_mode=True)["reasons"]
    assert reason.endswith(" differ in hooks.")


def test_change_of_path_of_own_unit(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = host.enable_refresh(monkeypatch, OWN_SERVICE, OWN_FLAGS.replace("nvidia.yaml", "new.yaml"))
    record_for_unit(host.host(), SPEC_PATH, "nvidia.com/gpu", None)
    host.file(SPEC_PATH, b"# the unit\n" + render(json.loads(printed), "yaml"))
    done = host.cdi(use_nvml=False, path="/etc/cdi/new.yaml")
    assert (done["removed_files"], done["backend"]) == ([SPEC_PATH], "nvidia-ctk")
    host.cdi(use_nvml=False, state="absent")
    assert not host.has(SPEC_PATH)


# -- check mode before the toolkit is installed ------------------------------------------------------------------------

PROGRAMS = ("/usr/bin/nvidia-ctk", "/usr/bin/nvidia-cdi-hook")
LEFT = "/var/run/cdi/nvidia.yaml"
# A file that the toolkit's service has written is removed with the change of the units.
UNITS = {"service": OWN_SERVICE, "specification": SPEC_PATH, "changed_files": ["/run/cdi/nvidia.yaml"]}
KEYS = ("changed", "path", "devices", "device_count", "refreshed_by", "backend", "mode", "not_described")


def in_check_mode(host: CdiHost, **options: t.Any) -> t.Any:
    """Return the result of check mode in a play that would install the toolkit 1.20.0 and its units."""
    predicted = host.host().with_programs("1.20.0", PROGRAMS)
    given = CdiOptions(use_nvml=False, **options)
    return SpecWriter(given, predicted, host.run, host.pinned).execute(check_mode=True, units=UNITS)


def test_specification_of_a_toolkit_that_would_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = CdiHost(tmp_path / "host", hook=False)
    host.live = True
    predicted = in_check_mode(host)
    assert not any("nvidia-ctk" in argv for argv in host.ran)
    host.program(PROGRAMS[1])
    host.enable_refresh(monkeypatch, OWN_SERVICE, OWN_FLAGS)
    done = host.cdi(use_nvml=False)
    assert {name: predicted[name] for name in KEYS} == {name: done[name] for name in KEYS}
    assert (done["refreshed_by"], done["path"], done["device_count"]) == (OWN_SERVICE, SPEC_PATH, 2)
    assert (predicted["warnings"], predicted["files"][0].after) == (done["warnings"], done["files"][0].after)
    # The nvidia-ctk of the new version may generate something else.
    (warning,) = in_check_mode(host)["warnings"]
    assert "Check mode cannot run the nvidia-ctk that an earlier task" in warning
    host.file(LEFT, host.read(SPEC_PATH))
    assert (in_check_mode(host)["changed"], in_check_mode(host)["conflicts"]) == (False, [])


@pytest.mark.parametrize("exists", [False, True])
def test_mode_that_only_the_missing_program_supports(tmp_path: Path, exists: bool) -> None:
    host = CdiHost(tmp_path / "host")
    host.live = True
    if exists:
        host.file(SPEC_PATH, b"{}")
    result = in_check_mode(host, mode="csv")
    assert (result["changed"], result["devices"], result["path"]) == (not exists, [], None)
    assert result["warnings"] == [result["not_described"]]
    assert "mode: csv needs /usr/bin/nvidia-ctk" in result["not_described"]
