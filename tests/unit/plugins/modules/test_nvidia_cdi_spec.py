# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module nvidia_cdi_spec with the option refresh: the units and the specification in one task."""

from __future__ import annotations

import functools
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import generate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import undescribed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import write as spec
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs, plan

if t.TYPE_CHECKING:
    from pathlib import Path

SPEC = "/etc/cdi/nvidia.yaml"
UNIT = "etc/systemd/system/gpufleet-nvidia-cdi.service"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An offline tree with the toolkit's programs. The specification is not generated, because no program is run."""
    for name in ("usr/bin", "etc/systemd/system"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("nvidia-ctk", "nvidia-cdi-hook"):
        (tmp_path / "usr/bin" / name).touch(mode=0o755)

    execute_removal = spec.SpecWriter.execute

    def execute(writer: spec.SpecWriter, check_mode: bool, units: t.Any = None) -> dict[str, t.Any]:
        if writer.options.state == "absent":
            return execute_removal(writer, check_mode, units)
        # The units come first.
        assert (tmp_path / UNIT).exists() != check_mode
        file = plan.PlannedFile(SPEC, None, b"kind: nvidia.com/gpu\n")
        return {"changed": False, "files": [file], "path": SPEC, "backup_files": [{"path": SPEC}], "warnings": []}

    monkeypatch.setattr(spec.SpecWriter, "execute", execute)
    return tmp_path


@pytest.fixture
def run(tree: Path, run_module: t.Callable[..., dict[str, t.Any]]) -> t.Callable[..., dict[str, t.Any]]:
    return functools.partial(run_module, "nvidia_cdi_spec", host_root=str(tree))


def test_units_and_specification(tree: Path, run: t.Callable[..., dict[str, t.Any]]) -> None:
    assert run(refresh="auto", _ansible_check_mode=True)["changed"]
    assert not (tree / UNIT).exists()
    first = run(refresh="auto")
    assert first["changed"]
    assert (first["refresh"]["service"], first["specification"]) == ("gpufleet-nvidia-cdi.service", SPEC)
    assert not {"changed", "files", "warnings", "backup_files"} & set(first["refresh"])
    for entries, key in ((first["diff"], "after_header"), (first["backup_files"], "path")):
        paths = [entry[key] for entry in entries]
        assert paths.index(f"/{UNIT}") < paths.index(SPEC)
    second = run(refresh="auto")
    assert (second["changed"], second["refresh"]["changed_files"]) == (False, [])
    # Without the option no units are reported.
    assert "refresh" not in run()


def test_removal_of_units_and_specification(tree: Path, run: t.Callable[..., dict[str, t.Any]]) -> None:
    run(refresh="auto")
    predicted = run(refresh="auto", state="absent", _ansible_check_mode=True)
    assert (tree / UNIT).exists()
    removed = run(refresh="auto", state="absent")
    assert not (tree / UNIT).exists()
    for name in ("changed", "diff", "removed_files", "refresh"):
        assert predicted[name] == removed[name]
    assert (removed["changed"], removed["refresh"]["service"], removed["device_count"]) == (True, None, 0)
    assert not run(refresh="auto", state="absent")["changed"]


# -- hosts without a driver --------------------------------------------------------------------------------------------

REASON = "No GPU can be described on this host. No NVIDIA driver is loaded"


@pytest.fixture
def without_driver(
    tree: Path, run: t.Callable[..., dict[str, t.Any]], monkeypatch: pytest.MonkeyPatch
) -> t.Callable[..., dict[str, t.Any]]:
    """A running host without a driver, on which the specification must not be generated."""

    def fail(_writer: object, *_arguments: object) -> t.NoReturn:
        raise AssertionError

    monkeypatch.setattr(spec.SpecWriter, "execute", fail)
    (tree / "sys/bus").mkdir(parents=True)

    def run_live(**params: t.Any) -> dict[str, t.Any]:
        # No unit is started, because no systemd runs in the tree.
        return run(**{"host_root_live": True, "for_engines": [], **params})

    monkeypatch.setattr(generate, "version_of", lambda *_arguments: (1, 20))
    return run_live


@pytest.mark.parametrize("policy", ["warn", "ignore"])
def test_a_host_without_a_driver_gets_the_units(
    tree: Path, without_driver: t.Callable[..., dict[str, t.Any]], policy: str
) -> None:
    first = without_driver(refresh="auto", when_no_driver=policy)
    assert (first["changed"], first["specification"], first["devices"], first["device_count"]) == (True, None, [], 0)
    assert first["refreshed_by"] == "gpufleet-nvidia-cdi.service"
    assert first["not_described"].startswith(REASON)
    assert first["not_described"].endswith(
        "A refresh unit writes the CDI specification when the host starts with its driver."
    )
    assert (tree / UNIT).exists()
    assert not without_driver(refresh="auto", when_no_driver=policy)["changed"]


@pytest.mark.parametrize("refresh", [{}, {"refresh": "auto"}])
def test_without_a_unit_the_task_must_run_again(
    tree: Path, without_driver: t.Callable[..., dict[str, t.Any]], refresh: dict[str, str]
) -> None:
    (tree / "usr/bin/nvidia-ctk").unlink()
    result = without_driver(when_no_driver="ignore", **refresh)
    assert (result["changed"], result["refreshed_by"]) == (False, None)
    assert result["not_described"].endswith("Run this task again on the running host, with its driver.")


def test_a_missing_driver_can_be_an_error(tree: Path, without_driver: t.Callable[..., dict[str, t.Any]]) -> None:
    failed = without_driver(refresh="auto", when_no_driver="fail")
    assert failed["failed"]
    assert failed["msg"].startswith(REASON)
    assert not (tree / UNIT).exists()


@pytest.mark.parametrize("policy", ["fail", "warn", "ignore"])
def test_an_offline_tree_gets_the_units(
    tree: Path, without_driver: t.Callable[..., dict[str, t.Any]], policy: str
) -> None:
    result = without_driver(host_root_live=False, refresh="auto", when_no_driver=policy)
    assert "is an offline tree, in which there are no GPUs to describe" in result["not_described"]
    assert (tree / UNIT).exists()


@pytest.mark.parametrize(
    ("files", "mode", "described"),
    [
        ([], "auto", False),
        ([("proc/driver/nvidia/version", "580.95.05")], "auto", True),
        # A GPU without its driver.
        ([("sys/bus/pci/devices/1/vendor", "0x10de"), ("sys/bus/pci/devices/1/class", "0x030200")], "nvml", False),
        # WSL and Tegra.
        ([("dev/dxg", "")], "auto", True),
        ([("proc/device-tree/compatible", "nvidia,tegra234\0")], "auto", True),
        # Modes that need no GPU driver, and one that does.
        ([], "mofed", True), ([], "csv", True), ([], "management", False),
    ],
)  # fmt: skip
def test_specification_needs_a_driver(tmp_path: Path, files: list[tuple[str, str]], mode: str, described: bool) -> None:
    for name, content in [*files, ("sys/bus/pci/file", "")]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    host = hostfs.HostFS(str(tmp_path), live=True)
    assert (undescribed.missing_driver(mode, host, "ignore") is None) == described


@pytest.mark.parametrize(("live", "policy", "warned"), [(True, "warn", 1), (True, "ignore", 0), (False, "warn", 0)])
def test_warning_about_a_missing_driver(tmp_path: Path, live: bool, policy: str, warned: int) -> None:
    missing = undescribed.missing_driver("auto", hostfs.HostFS(str(tmp_path), live), policy)
    assert missing is not None
    result = missing.result(options.CdiOptions(), None)
    assert result["warnings"] == [result["not_described"]] * warned


def test_unreadable_specification_is_reported_before_units_change(
    tree: Path, run: t.Callable[..., dict[str, t.Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = errors.MissingPackageError("PyYAML is needed.")
    missing.details = {"needed": "yaml"}

    def fail(_writer: object) -> t.NoReturn:
        raise missing

    monkeypatch.setattr(spec.SpecWriter, "read_specifications", fail)
    assert run(refresh="auto")["needed"] == "yaml"
    assert not (tree / UNIT).exists()


@pytest.mark.parametrize("check_mode", [False, True])
def test_failure_after_the_units_changed(
    tree: Path, run: t.Callable[..., dict[str, t.Any]], monkeypatch: pytest.MonkeyPatch, check_mode: bool
) -> None:
    def fail(_writer: object, _check_mode: bool, _units: object) -> t.NoReturn:
        raise errors.HostError("The specification is invalid.")

    monkeypatch.setattr(spec.SpecWriter, "execute", fail)
    failed = run(refresh="auto", _ansible_check_mode=check_mode)
    assert (failed["failed"], failed["changed"], (tree / UNIT).exists()) == (True, not check_mode, not check_mode)
