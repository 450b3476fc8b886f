# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, MissingPackageError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.yaml_parser import MAX_BYTES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.checks import CdiCheck, judge_folders
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import write

if t.TYPE_CHECKING:
    from pathlib import Path

FOLDERS = ["/etc/cdi", "/var/run/cdi"]
LIBRARY = "/usr/lib/libcuda.so.580.1"


def text(*names: str, kind: str = "nvidia.com/gpu", library: str = LIBRARY) -> str:
    devices = [{"name": name, "containerEdits": {"env": ["A=1"]}} for name in names]
    edits = {"mounts": [{"hostPath": library, "containerPath": library}]}
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices, "containerEdits": edits})


def judged(root: Path, **files: str) -> CdiCheck:
    write(root, {LIBRARY.lstrip("/"): "", **{f"etc/cdi/{name}.json": content for name, content in files.items()}})
    return judge_folders(HostFS(str(root)), FOLDERS)


def test_one_that_serves(tmp_path: Path) -> None:
    assert judged(tmp_path, a=text("0")) == CdiCheck(ok=True, detail="/etc/cdi/a.json describes nvidia.com/gpu.")
    # A file that is skipped is in nobody's way, and one of another kind is nobody's concern.
    found = judged(tmp_path, b=text(), c="[", d=text("0", kind="example.com/net", library="/gone"), e=text("1"))
    assert found == CdiCheck(ok=True, detail="/etc/cdi/a.json, /etc/cdi/e.json describe nvidia.com/gpu.")


def test_far_too_large_together(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="The CDI specifications in /etc/cdi are larger than 4 MiB in total"):
        judged(tmp_path, **{f"f{number}": text("0") + " " * (MAX_BYTES // 4) for number in range(5)})


def test_none(tmp_path: Path) -> None:
    found = judged(tmp_path, d=text("0", kind="example.com/net"))
    assert not found.ok
    assert found.detail == "No specification in /etc/cdi or /var/run/cdi describes nvidia.com/gpu."
    assert found.advice == "Make one with gpufleet.nvidia.nvidia_cdi_spec."


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            {"a": text("0"), "b": text("0")},
            "/etc/cdi/a.json and /etc/cdi/b.json define the same devices in one directory",
        ),
        ({"a": text()}, "Engines skip /etc/cdi/a.json. devices is empty."),
        ({"a": "["}, "Engines skip /etc/cdi/a.json. /etc/cdi/a.json, line "),
        (
            {"a": text("0", library="/gone")},
            "/etc/cdi/a.json does not fit this host. These paths no longer exist: /gone.",
        ),
    ],
)
def test_those_that_do_not_serve(tmp_path: Path, files: dict[str, str], words: str) -> None:
    found = judged(tmp_path, **files)
    assert not found.ok
    assert words in found.detail
    assert "with gpufleet.nvidia.nvidia_cdi_spec" in found.advice


def test_another_driver(tmp_path: Path) -> None:
    write(tmp_path, {"sys/module/nvidia/version": "590.1\n"})
    assert "It is for driver 580.1, but the driver is 590.1." in judged(tmp_path, a=text("0")).detail


def test_only_what_engines_take_a_device_from_has_to_fit(tmp_path: Path) -> None:
    write(tmp_path, {"var/run/cdi/nvidia.json": text("0")})
    assert judged(tmp_path, old=text("0", library="/gone")).ok
    # The later folder is a link, which the library does not read.
    os.rename(tmp_path / "var/run/cdi", tmp_path / "cdi")
    (tmp_path / "var/run/cdi").symlink_to("/cdi")
    assert "/gone" in judged(tmp_path).detail


def test_yaml_without_a_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "_import", lambda _name: None)
    monkeypatch.setattr(bundled, "_registered", {})
    write(tmp_path, {"etc/cdi/a.yaml": "kind: nvidia.com/gpu\n"})
    with pytest.raises(MissingPackageError, match="PyYAML") as caught:
        judged(tmp_path)
    assert caught.value.details == {"needed": "yaml"}
