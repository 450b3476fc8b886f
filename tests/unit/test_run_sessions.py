# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What ./test says about skipped tests, and how it runs without HOME."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    pytest.skip("needs Python 3.11, as ./test does", allow_module_level=True)

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> t.Iterator[t.Any]:
    if not (TESTS / "run.py").is_file():
        pytest.skip("needs a clone of the repository")
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(TESTS))
    yield importlib.import_module("run")
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_counts_the_tests_that_no_session_ran(
    runner: t.Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skipped = {
        "units": {"needs root": ["a.py::one", "a.py::two[x::y]", "b.py::one"], "needs gcc": ["c.py::one"]},
        # This session ran b.py::one, and no test of c.py.
        "units-3.8": {"needs root": ["a.py::one", "a.py::two[x::y]"], "needs Ansible": ["c.py", "d.py"]},
    }
    for name, reasons in skipped.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(reasons))
    results = [
        {"name": "units", "result": "success", "reason": None},
        {"name": "browser", "result": "skipped", "reason": "There is no chromium: apt-get install chromium"},
    ]
    runner._print_skips(results, tmp_path)
    assert capsys.readouterr().out == (
        "\nSkipped:\n"
        "  Session browser: There is no chromium: apt-get install chromium\n"
        "  1 unit tests: needs gcc\n"
        "  2 unit tests: needs root\n"
    )


def test_says_nothing_if_all_tests_ran(runner: t.Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "units.json").write_text("{}")
    runner._print_skips([{"name": "units", "result": "success", "reason": None}], tmp_path)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("kind", ["missing", "a file", "empty", "of the user"])
@pytest.mark.usefixtures("runner")
def test_needs_no_home(tmp_path: Path, kind: str) -> None:
    home = tmp_path / "home"
    if kind == "a file":
        home.touch()
    elif kind == "of the user":
        home.mkdir()
    # Python takes an empty HOME for /.
    environ = {"HOME": "" if kind == "empty" else str(home), "TMPDIR": str(tmp_path)}
    if kind == "empty" and os.access("/", os.W_OK):
        pytest.skip("needs a user who cannot write to /")
    code = "import nox_support; print(nox_support.HOME, nox_support.CACHE)"
    command = [sys.executable, "-B", "-c", code]
    done = subprocess.run(command, env=environ, cwd=TESTS, capture_output=True, text=True, check=True)
    own = home if kind == "of the user" else tmp_path / f"gpufleet-nvidia-{os.geteuid()}"
    assert done.stdout.split() == [str(own), f"{own}/.cache/gpufleet-nvidia"]
    # An existing directory is used again, but not one that others can open.
    again = subprocess.run(command, env=environ, cwd=TESTS, capture_output=True, text=True, check=True)
    assert again.stdout == done.stdout
    own.chmod(0o755)
    opened = subprocess.run(command, env=environ, cwd=TESTS, capture_output=True, text=True, check=False)
    assert opened.returncode == (0 if kind == "of the user" else 1)
    assert (f"{own} is not a directory that only this user can open" in opened.stderr) == (kind != "of the user")


# The program of a user without an account, for whom Python finds no HOME.
WITHOUT_ACCOUNT = """\
import pwd, sys
def unknown(uid):
    raise KeyError(uid)
pwd.getpwuid = unknown
import run, venvs
venvs.ensure = lambda path, _requirements: venvs.Venv(path)
sys.exit(run.main())
"""
# Real nox asks for HOME when it is imported.
NOX = """\
#!/bin/sh
[ -d "$HOME" ] || exit 9
case "$*" in
    *--json*) echo '[{"session": "lint"}]' ;;
    *--report*) echo '{"sessions": [{"name": "lint", "result": "success", "reason": null}]}' >.nox/report.json ;;
    *) echo "* lint" ;;
esac
"""


@pytest.mark.parametrize(("option", "last"), [("--list", "* lint"), ("--quick", "1 passed, 0 failed, 0 skipped")])
@pytest.mark.usefixtures("runner")
def test_nox_gets_a_home_of_a_user_without_an_account(tmp_path: Path, option: str, last: str) -> None:
    for name in ("tests/run.py", "tests/nox_support.py", "quickstart.d/venvs.py"):
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        shutil.copy(TESTS.parent / name, target)
    nox = tmp_path / ".nox" / "runner" / "bin" / "nox"
    nox.parent.mkdir(parents=True)
    nox.write_text(NOX, encoding="utf-8")
    nox.chmod(0o755)
    environ = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-B", "-c", WITHOUT_ACCOUNT, option]
    done = subprocess.run(command, env=environ, cwd=tmp_path / "tests", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, [last]), done.stderr
