# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Virtual environments that follow their requirement file, and the environment in which Ansible runs from one."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import typing as t

if t.TYPE_CHECKING:
    from pathlib import Path

_STAMP = "gpufleet-venv.json"
# Settings of the caller that would send Python or pip somewhere else.
_MISLEADING = ("PIP_PREFIX", "PIP_TARGET", "PIP_USER", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")


class VenvError(Exception):
    """A virtual environment cannot be made; the message is for the person at the terminal."""


@dataclasses.dataclass(frozen=True)
class Venv:
    """A finished virtual environment."""

    path: Path

    @property
    def python(self) -> str:
        """The path of its interpreter."""
        return str(self.path / "bin" / "python")

    @property
    def site_packages(self) -> Path:
        """Where its packages are."""
        (found,) = self.path.glob("lib/python3.*/site-packages")
        return found

    def tool(self, name: str) -> str:
        """The path of one of its commands."""
        return str(self.path / "bin" / name)

    def environ(self) -> dict[str, str]:
        """The caller's environment with this virtual environment in front."""
        environ = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
        environ["PATH"] = os.pathsep.join((str(self.path / "bin"), environ.get("PATH", os.defpath)))
        environ["VIRTUAL_ENV"] = str(self.path)
        return environ

    def ansible_environ(self, collections: Path) -> dict[str, str]:
        """An environment for Ansible that no setting of the user reaches, nor any file in HOME."""
        environ = {name: value for name, value in self.environ().items() if not name.startswith("ANSIBLE_")}
        config = self.path / "ansible.cfg"
        config.touch()
        environ.update(
            ANSIBLE_CALLBACK_RESULT_FORMAT="yaml",
            ANSIBLE_COLLECTIONS_PATH=str(collections),
            ANSIBLE_CONFIG=str(config),
            ANSIBLE_HOME=str(self.path / "ansible-home"),
            ANSIBLE_NOCOWS="1",
            # Ansible refuses to start in any locale but UTF-8.
            LC_ALL="C.UTF-8",
        )
        return environ


def _requirement_text(path: Path) -> str:
    """The file and all that it includes."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        lines.append(line)
        option, _blank, included = line.partition(" ")
        if option in ("-r", "-c"):
            lines.append(_requirement_text(path.parent / included.strip()))
    return "\n".join(lines)


def requirement_hash(requirements: Path, interpreter: t.Sequence[str]) -> str:
    """A name for the content that the file gives on the interpreter (its path and version)."""
    text = "\0".join((_requirement_text(requirements), *interpreter))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def ensure(path: Path, requirements: Path, python: str = sys.executable) -> Venv:
    """The virtual environment at the path, made (anew) unless it already is what the requirements ask for.

    A stamp is written last, so that a killed run leaves nothing that counts as finished; a lock makes a second
    run wait for the first.
    """
    path = path.absolute()
    interpreter = subprocess.run(
        [python, "-c", "import os, sys; print(os.path.realpath(sys.executable), sys.version)"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    wanted = {"hash": requirement_hash(requirements, [interpreter]), "path": str(path)}
    stamp = path / _STAMP
    path.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        venv = Venv(path)
        if _read(stamp) == wanted and _runs(venv.python):
            return venv
        if not stamp.exists() and any(path.iterdir()):
            raise VenvError(f"{path} exists and was not made by this command: move it away first.")
        stamp.write_text("{}", encoding="utf-8")
        for child in path.iterdir():
            if child != stamp:
                _remove(child)
        _call([python, "-m", "venv", str(path)], venv, lock)
        _call([venv.python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check",
               "--requirement", str(requirements)], venv, lock)  # fmt: skip
        stamp.write_text(json.dumps(wanted), encoding="utf-8")
        return venv
    finally:
        os.close(lock)


def _call(command: t.Sequence[str], venv: Venv, lock: int) -> None:
    # The child holds the lock too: what a killed run has left running is waited for.
    done = subprocess.run(
        command, env=venv.environ(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, pass_fds=[lock],
    )  # fmt: skip
    if done.returncode != 0:
        raise VenvError(f"cannot make {venv.path}: {' '.join(command)}\n{done.stdout}")


def _read(stamp: Path) -> object:
    try:
        return json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _runs(python: str) -> bool:
    """False where the interpreter below has been removed since."""
    try:
        return subprocess.run([python, "-c", ""], check=False).returncode == 0
    except OSError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
