# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import contextlib
import io
import os
import signal
import subprocess
import sys
import time
import typing as t
import zipfile

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _cdi_refresh_commands, _cdi_refresh_main
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_parameters import CdiOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_main import Commands, NothingToDo, Refresh
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_options import options_to_json
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_program import (
    build,
    interpreter,
    is_current,
    yaml_sources,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.refresh_hosts import parse_sources_once

if t.TYPE_CHECKING:
    from pathlib import Path

ROOMS = "ansible_collections/gpufleet/nvidia/plugins/module_utils"
PYTHON = "/usr/bin/python3"
YAML = {"yaml/__init__.py": b"__version__ = '6.0'\n"}


@pytest.fixture(autouse=True)
def _parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parse_sources_once(monkeypatch)


def entries(program: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(program)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def imported(source: bytes) -> set[str]:
    """The packages that any statement of a source names, those for type checkers left out."""
    tree = ast.parse(source)
    skipped = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    below = {id(child) for node in skipped for child in ast.walk(node)}
    nodes = [node for node in ast.walk(tree) if id(node) not in below]
    plain = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {(node.module or "").split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}


def test_the_same_sources_give_the_same_bytes() -> None:
    assert build(PYTHON, YAML) == build(PYTHON, YAML)
    assert build(PYTHON, {}) != build(PYTHON, YAML)
    with zipfile.ZipFile(io.BytesIO(build(PYTHON, YAML))) as archive:
        told = {(entry.date_time, entry.compress_type, entry.create_system) for entry in archive.infolist()}
    assert told == {((1980, 1, 1, 0, 0, 0), zipfile.ZIP_STORED, 3)}
    assert build("/usr/bin/python3.12", YAML).startswith(b"#!/usr/bin/python3.12 -I\n")


def test_it_holds_its_rooms_and_nothing_of_ansible() -> None:
    held = entries(build(PYTHON, {}))
    rooms = {name.rpartition("/")[2] for name in held}
    assert {"_cdi_refresh_main.py", "_cdi_specification.py", "_cdi_modes.py", "_plan_writer.py"} <= rooms
    # The last is named for type checkers only.
    assert not {"_module.py", "_engines.py", "_cdi_refresh_plans.py", "_judging.py"} & rooms
    named = {package for source in held.values() for package in imported(source)}
    assert "ansible" not in named
    standard = getattr(sys, "stdlib_module_names", None)
    if standard is not None:
        assert named - set(standard) <= {"ansible_collections", "yaml"}


def test_it_is_current_until_something_of_it_changes() -> None:
    program = build(PYTHON, YAML)
    assert is_current(program, PYTHON, YAML)
    assert is_current(program, PYTHON, None)
    assert not is_current(program, "/usr/bin/python3.12", YAML)
    assert not is_current(program, PYTHON, {})
    assert not is_current(program, PYTHON, {"yaml/__init__.py": b""})
    assert not is_current(b"#!/bin/sh\n", PYTHON, {})
    assert not is_current(program[:-1], PYTHON, YAML)
    assert not is_current(program.replace(b"from __future__", b"from __Future__"), PYTHON, YAML)


def test_a_room_that_is_gone_makes_it_old() -> None:
    program = build(PYTHON, {})
    content = io.BytesIO(program)
    with zipfile.ZipFile(content, "a") as archive:
        archive.writestr(f"{ROOMS}/_gone.py", "")
    assert not is_current(content.getvalue(), PYTHON, {})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is not there"),
        (options_to_json(CdiOptions(mode="gdrcopy", path="/nowhere/x.txt")), "gdrcopy"),
    ],
)
def test_it_runs_alone(tmp_path: Path, content: bytes | None, words: str) -> None:
    program, options = tmp_path / "program", tmp_path / "cdi.json"
    program.write_bytes(build(sys.executable, {}))
    if content is not None:
        options.write_bytes(content)
    argv = [sys.executable, "-I", "-S", str(program), str(options)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={}, cwd="/")
    assert done.returncode == 1
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_interpreter_of_this_host_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/venv/bin/python")
    assert interpreter(HostRoot()) == "/opt/venv/bin/python"


def test_sources_of_pyyaml() -> None:
    assert yaml_sources({"yaml/__init__.py": "x"}) == {"yaml/__init__.py": b"x"}
    pytest.importorskip("yaml")
    # What this process imports need not be there for the unit's: not even its own may be left out.
    found = yaml_sources(None)
    assert found is not None
    assert "yaml/__init__.py" in found
    assert all(name.endswith(".py") for name in found)
    assert found == yaml_sources(None)


def test_pyyaml_of_the_program_works_where_python_has_none(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    program = tmp_path / "program"
    program.write_bytes(build(sys.executable, yaml_sources(None) or {}))
    code = "import sys; sys.path.insert(0, sys.argv[1]); import yaml; print(yaml.safe_load('a: [1]'), yaml.__file__)"
    argv = [sys.executable, "-I", "-S", "-c", code, str(program)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env={}, cwd="/")
    assert done.stdout == f"{{'a': [1]}} {program}/yaml/__init__.py\n"


# -- its commands ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["sh", "-c", "echo out; echo err >&2; exit 3"], (3, "out\n", "err\n")),
        (["sh", "-c", "kill -9 $$"], (-9, "", "")),
        (["env"], (0, "A=b\nPATH=/bin:/usr/bin\n", "")),
        (["cat"], (0, "", "")),
    ],
)
def test_commands(argv: list[str], expected: tuple[int, str, str]) -> None:
    status, output, errors = _cdi_refresh_commands.run_pinned(argv, {"PATH": "/bin:/usr/bin", "A": "b"})
    assert (status, "".join(sorted(output.splitlines(keepends=True))), errors) == expected


def test_a_command_that_is_not_there() -> None:
    status, _output, errors = _cdi_refresh_commands.run(["/nowhere/program"])
    assert status == 127
    assert "/nowhere/program cannot be run" in errors


def test_a_command_that_does_not_end() -> None:
    status, output, errors = _cdi_refresh_commands.run_pinned(
        ["sh", "-c", "echo $$; sleep 60 & wait"], {"PATH": "/bin:/usr/bin"}, limit=0.5
    )
    assert status == 124
    assert "did not end" in errors
    with contextlib.suppress(ChildProcessError):
        # Unless it has ended already.
        assert os.WTERMSIG(os.waitpid(int(output), 0)[1]) == signal.SIGKILL


# -- when it has nothing to do, and when it waits ----------------------------------------------------------------------


def host(tmp_path: Path, files: t.Mapping[str, str]) -> HostRoot:
    for path, text in files.items():
        place = tmp_path / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return HostRoot.of(str(tmp_path), live=True)


GPU = {"/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n", "/sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n"}
OTHER = {"/sys/bus/pci/devices/0000:01:00.0/vendor": "0x8086\n"}
MODULE = {"/proc/sys/kernel/osrelease": "6.1\n", "/lib/modules/6.1/modules.dep": "updates/nvidia.ko.zst:\n"}


@pytest.mark.parametrize(
    ("files", "words"), [(OTHER, "has no GPU of NVIDIA"), (GPU, "No driver of NVIDIA is installed")]
)
def test_nothing_to_do(tmp_path: Path, files: dict[str, str], words: str) -> None:
    with pytest.raises(NothingToDo, match=words):
        Refresh(CdiOptions(), host(tmp_path, files), lambda _argv: (0, "", "")).execute()


def test_a_driver_that_is_installed_and_does_not_load_is_a_failure(tmp_path: Path) -> None:
    ran: list[list[str]] = []

    def run(argv: list[str]) -> tuple[int, str, str]:
        ran.append(argv[2:])
        return 9, "", ""

    tree = host(tmp_path, {**GPU, **MODULE, "/usr/bin/nvidia-smi": "", "/proc/uptime": "5000.0 1\n"})
    (tmp_path / "usr/bin/nvidia-smi").chmod(0o755)
    with pytest.raises(HostError):
        Refresh(CdiOptions(use_nvml=False), tree, run).execute()
    assert ran == [["/usr/bin/nvidia-smi", "-L"]]


@pytest.mark.parametrize(("status", "woken"), [(0, 3), (9, 3), (124, 1)])
def test_a_driver_that_hangs_is_not_asked_again(tmp_path: Path, status: int, woken: int) -> None:
    ran: list[list[str]] = []

    def run(argv: list[str]) -> tuple[int, str, str]:
        ran.append(argv[2:])
        return status, "", ""

    tools = ("usr/bin/nvidia-smi", "usr/bin/nvidia-modprobe")
    tree = host(tmp_path, {**GPU, **MODULE, **dict.fromkeys(tools, ""), "/proc/uptime": "5000.0 1\n"})
    for tool in tools:
        (tmp_path / tool).chmod(0o755)
    with pytest.raises(HostError):
        Refresh(CdiOptions(use_nvml=False), tree, run).execute()
    assert len([argv for argv in ran if argv[0].endswith(("smi", "modprobe"))]) == woken


def test_commands_end_before_systemd_ends_the_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    limits: list[float] = []

    def run(_argv: list[str], _environment: t.Mapping[str, str], limit: float) -> tuple[int, str, str]:
        limits.append(limit)
        now[0] += limit
        return 124, "", ""

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(_cdi_refresh_main, "run_pinned", run)
    commands = Commands()
    commands.wake(["a"])
    commands.run(["b"])
    commands.run_pinned(["c"], {})
    assert limits == [20.0, 60.0, 25.0]
    commands.run(["d"])
    assert now[0] < 100.0 + 120.0


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), RecursionError("too deep"), ValueError("a\nb")])
def test_whatever_goes_wrong_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def execute(_self: Refresh) -> str:
        raise error

    monkeypatch.setattr(Refresh, "execute", execute)
    options = tmp_path / "cdi.json"
    options.write_bytes(options_to_json(CdiOptions()))
    assert _cdi_refresh_main.main([str(options)]) == 1
    told = capsys.readouterr()
    assert len(told.err.splitlines()) == 1
    assert error.__class__.__name__ in told.err


@pytest.mark.parametrize(("uptime", "tries"), [("20.0 1\n", 4), ("5000.0 1\n", 1), ("", 4)])
def test_it_waits_only_while_the_host_boots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uptime: str, tries: int
) -> None:
    now = [100.0]
    made: list[float] = []

    def make(_self: Refresh) -> str:
        made.append(now[0])
        raise HostError("not yet")

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(_cdi_refresh_main, "PATIENCE", 7.0)
    monkeypatch.setattr(Refresh, "_make", make)
    with pytest.raises(HostError, match="not yet"):
        Refresh(CdiOptions(mode="mofed"), host(tmp_path, {"/proc/uptime": uptime})).execute()
    assert len(made) == tries
