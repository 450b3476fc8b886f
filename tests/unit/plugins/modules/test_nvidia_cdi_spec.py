# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module nvidia_cdi_spec with the option refresh: the units and the specification in one task."""

from __future__ import annotations

import functools
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import spec
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, plan

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

    def execute(_writer: spec.SpecWriter, check_mode: bool) -> dict[str, t.Any]:
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
    assert run(refresh="collection", _ansible_check_mode=True)["changed"]
    assert not (tree / UNIT).exists()
    first = run(refresh="collection")
    assert first["changed"]
    assert (first["refresh"]["owner"], first["specification"]) == ("collection", SPEC)
    assert not {"changed", "files", "warnings", "backup_files"} & set(first["refresh"])
    for entries, key in ((first["diff"], "after_header"), (first["backup_files"], "path")):
        paths = [entry[key] for entry in entries]
        assert paths.index(f"/{UNIT}") < paths.index(SPEC)
    second = run(refresh="collection")
    assert (second["changed"], second["refresh"]["changed_files"]) == (False, [])
    # Without the option no units are reported.
    assert "refresh" not in run()


def test_removal_refuses_the_option(tree: Path, run: t.Callable[..., dict[str, t.Any]]) -> None:
    run(refresh="collection")
    failed = run(refresh="collection", state="absent")
    assert failed["failed"]
    assert "remove the units with nvidia_cdi_refresh" in failed["msg"]
    assert (tree / UNIT).exists()


def test_unreadable_specification_is_reported_before_units_change(
    tree: Path, run: t.Callable[..., dict[str, t.Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = errors.MissingPackageError("PyYAML is needed.")
    missing.details = {"needed": "yaml"}

    def fail(_writer: object) -> t.NoReturn:
        raise missing

    monkeypatch.setattr(spec.SpecWriter, "read_specifications", fail)
    assert run(refresh="collection")["needed"] == "yaml"
    assert not (tree / UNIT).exists()


@pytest.mark.parametrize("check_mode", [False, True])
def test_failure_after_the_units_changed(
    tree: Path, run: t.Callable[..., dict[str, t.Any]], monkeypatch: pytest.MonkeyPatch, check_mode: bool
) -> None:
    def fail(_writer: object, _check_mode: bool) -> t.NoReturn:
        raise errors.HostError("The specification is invalid.")

    monkeypatch.setattr(spec.SpecWriter, "execute", fail)
    failed = run(refresh="collection", _ansible_check_mode=check_mode)
    assert (failed["failed"], failed["changed"], (tree / UNIT).exists()) == (True, not check_mode, not check_mode)
