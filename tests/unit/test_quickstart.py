# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How ./quickstart finds Python, treats the user's Ansible settings, and shortens the output of Ansible."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    pytest.skip("./quickstart runs on Python 3.11 and newer", allow_module_level=True)

FOLDER = Path(__file__).resolve().parents[2] / "quickstart.d"
CONFIG = shutil.which("ansible-config", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))


@pytest.fixture
def quickstart(monkeypatch: pytest.MonkeyPatch) -> t.Iterator[t.Any]:
    if not FOLDER.is_dir():
        pytest.skip("only the repository has it")
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("quickstart")
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.skipif(CONFIG is None, reason="needs Ansible")
@pytest.mark.parametrize("in_environment", [False, True], ids=["ansible.cfg", "environment"])
def test_the_owner_s_collections_stay_in_reach(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quickstart: t.Any, in_environment: bool
) -> None:
    (tmp_path / "ansible.cfg").write_text("[defaults]\ncollections_path = /srv/one:relative\n")
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environ.update(LC_ALL="C.UTF-8", HOME=str(tmp_path))
    expected = ["/srv/one", str(tmp_path / "relative")]
    if in_environment:
        environ["ANSIBLE_COLLECTIONS_PATH"] = "/srv/two"
        expected = ["/srv/two"]
    assert quickstart._collections_paths(CONFIG, environ) == expected


OUTPUT = """\
PLAY [Check] ****
TASK [one : Read the host] ****
ok: [sandbox]
included: /a/b.yml for sandbox

PLAY [Configure] ****
TASK [one : Install] ****
included: /a/c.yml for sandbox
TASK [one : Change a file] ****
--- before: /etc/one
+++ after: /etc/one
@@ -1,2 +1,2 @@
 kept
-old
\\ No newline at end of file
+new
--- before: /etc/two (absent)
+++ after: /etc/two
@@ -0,0 +1,2 @@
+first
+second
\\ No newline at end of file
changed: [sandbox]
[WARNING]: a warning
TASK [one : Fail] ****
fatal: [sandbox]: FAILED! =>
    msg: it failed
TASK [Report the state of the host] ****
ok: [sandbox] => (item=toolkit 1.19.1)
PLAY RECAP ****
sandbox : ok=1 changed=1
"""


@pytest.mark.parametrize("colour", ["", "\x1b[0;33m"])
@pytest.mark.parametrize("with_diff", [False, True])
def test_shows_what_changes_or_fails(quickstart: t.Any, colour: str, with_diff: bool) -> None:
    shown = quickstart.sandbox.shortened([colour + line for line in OUTPUT.splitlines(True)], with_diff=with_diff)
    lines = OUTPUT.splitlines()
    assert [line.replace(colour, "").rstrip() for line in shown] == [
        lines[5],
        lines[8],
        *([*lines[9:18], "@@ -0,0 +1,2 @@ (not shown)"] if with_diff else []),
        *lines[22:27],
        *lines[28:],
    ]


def find_python(directory: Path, working: t.Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run find_python where only the named interpreters can make virtual environments; all others are found as well."""
    for name in ("python3", *(f"python3.{minor}" for minor in range(8, 15))):
        program = directory / name
        program.write_text(f"#!/bin/sh\nexit {0 if name in working else 1}\n", encoding="utf-8")
        program.chmod(0o755)
    return subprocess.run(
        ["/bin/sh", "-c", '. "$0"; find_python', str(FOLDER / "find-python")],
        env={"PATH": str(directory), "HOME": str(directory)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("working", "expected"),
    [
        (["python3.11"], "python3.11"),
        (["python3.14"], "python3.14"),
        (["python3.11", "python3.13", "python3"], "python3.13"),
        (["python3"], "python3"),
    ],
)
@pytest.mark.usefixtures("quickstart")
def test_takes_the_first_python_that_works(tmp_path: Path, working: list[str], expected: str) -> None:
    done = find_python(tmp_path, working)
    assert (done.returncode, done.stdout) == (0, f"{expected}\n")


@pytest.mark.usefixtures("quickstart")
def test_says_which_package_is_missing(tmp_path: Path) -> None:
    done = find_python(tmp_path, [])
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "apt install python3-venv" in done.stderr


@pytest.mark.parametrize("home", [None, ""])
def test_sets_home_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quickstart: t.Any, home: str | None
) -> None:
    def unknown(uid: int) -> t.NoReturn:
        raise KeyError(uid)

    if home is None:
        monkeypatch.delenv("HOME", raising=False)
    else:
        monkeypatch.setenv("HOME", home)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    quickstart._set_home(tmp_path)
    assert os.environ["HOME"] == str(tmp_path)


def test_keeps_the_home_of_a_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quickstart: t.Any) -> None:
    monkeypatch.setenv("HOME", "/srv/home")
    quickstart._set_home(tmp_path)
    assert os.environ["HOME"] == "/srv/home"
