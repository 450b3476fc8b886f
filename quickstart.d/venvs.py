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
# Environment variables of the caller that would make Python or pip use other directories.
_MISLEADING = ("PIP_PREFIX", "PIP_TARGET", "PIP_USER", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")


class VenvError(Exception):
    """A virtual environment cannot be created. The message is for the user."""


@dataclasses.dataclass(frozen=True)
class Venv:
    """A finished virtual environment."""

    path: Path

    @property
    def python(self) -> str:
        """Return the path of its interpreter."""
        return str(self.path / "bin" / "python")

    @property
    def site_packages(self) -> Path:
        """Return the directory of its packages."""
        (found,) = self.path.glob("lib/python3.*/site-packages")
        return found

    def tool(self, name: str) -> str:
        """Return the path of one of its commands."""
        return str(self.path / "bin" / name)

    def environ(self) -> dict[str, str]:
        """Return the caller's environment, with this virtual environment first in PATH."""
        environ = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
        environ["PATH"] = os.pathsep.join((str(self.path / "bin"), environ.get("PATH", os.defpath)))
        environ["VIRTUAL_ENV"] = str(self.path)
        return environ

    def ansible_environ(self, collections: Path) -> dict[str, str]:
        """Return an environment for Ansible without settings of the user from variables or from files in HOME."""
        environ = {name: value for name, value in self.environ().items() if not name.startswith("ANSIBLE_")}
        config = self.path / "ansible.cfg"
        config.touch()
        environ.update(
            ANSIBLE_CALLBACK_RESULT_FORMAT="yaml",
            ANSIBLE_COLLECTIONS_PATH=str(collections),
            ANSIBLE_CONFIG=str(config),
            ANSIBLE_HOME=str(self.path / "ansible-home"),
            ANSIBLE_NOCOWS="1",
            # Ansible only starts in a UTF-8 locale.
            LC_ALL="C.UTF-8",
        )
        return environ


def _requirement_text(path: Path) -> str:
    """Return the text of the file and of all files that it includes."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        lines.append(line)
        option, _blank, included = line.partition(" ")
        if option in ("-r", "-c"):
            lines.append(_requirement_text(path.parent / included.strip()))
    return "\n".join(lines)


def requirement_hash(requirements: Path, interpreter: t.Sequence[str]) -> str:
    """Return a digest of the requirements and of the interpreter (its path and version)."""
    text = "\0".join((_requirement_text(requirements), *interpreter))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def ensure(path: Path, requirements: Path, python: str = sys.executable) -> Venv:
    """Return the virtual environment at ``path``. It is created again unless it matches the requirements.

    A stamp file is completed last, so a killed run leaves an environment that is known to be incomplete. A lock makes a
    second run wait for the first.
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
            raise VenvError(f"{path} exists, but this command did not create it. Move it to another place.")
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
    # The child process holds the lock too. If this process is killed, the next run waits until the child has ended.
    done = subprocess.run(
        command, env=venv.environ(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, pass_fds=[lock],
    )  # fmt: skip
    if done.returncode != 0:
        raise VenvError(f"{venv.path} cannot be created: {' '.join(command)} failed.\n{done.stdout}")


def _read(stamp: Path) -> object:
    try:
        return json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _runs(python: str) -> bool:
    """Return whether the interpreter runs. The one that the environment refers to may have been removed."""
    try:
        return subprocess.run([python, "-c", ""], check=False).returncode == 0
    except OSError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
