# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""./quickstart: install the collection in a virtual environment of its own, and run its playbook."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import typing as t
from pathlib import Path

import sandbox
import venvs

_ROOT = Path(__file__).resolve().parent.parent
_HELP = """\
./quickstart                  demonstrates the collection on a sandbox, a directory tree with the configuration of a
                              GPU machine: check mode, a run, a second run, and a removal. No other files are changed.
./quickstart --directory      the same with the toolkit in a directory, and an upgrade of it.
./quickstart --host [ARG...]  configures this machine (with sudo unless you are root). The arguments are passed to
                              ansible-playbook: --check --diff shows what would change.
./quickstart ARG...           passes all other arguments to ansible-playbook gpufleet.nvidia.site:
                              ./quickstart -i INVENTORY -b --check --diff
./quickstart --help           this text

Each first creates .venv with ansible-core and this collection. ./quickstart needs Python 3.11+, not root.
To restore the previous state: .venv/bin/ansible-playbook gpufleet.nvidia.remove --limit=HOSTS ARG...
"""
_COMMANDS = """\
./quickstart --directory                       the same with the toolkit in a directory, and an upgrade of it
./quickstart --host --check --diff             what would change on this machine
./quickstart -i INVENTORY -b --check --diff    what would change on your hosts"""


def _install_collection(venv: venvs.Venv) -> Path:
    """Build this collection and install it in the virtual environment. Return the directory of its collections."""
    collections = venv.site_packages
    galaxy = venv.tool("ansible-galaxy")
    environ = venv.ansible_environ(collections)
    with tempfile.TemporaryDirectory(prefix="gpufleet-build-") as work:
        _quiet([galaxy, "collection", "build", str(_ROOT), "--output-path", work], environ)
        (tarball,) = Path(work).glob("*.tar.gz")
        # An interrupted run may have left an incomplete directory.
        shutil.rmtree(collections / "ansible_collections", ignore_errors=True)
        _quiet([galaxy, "collection", "install", str(tarball), "--collections-path", str(collections), "--offline"],
               environ)  # fmt: skip
    return collections


def _quiet(command: t.Sequence[str], environ: t.Mapping[str, str]) -> None:
    done = subprocess.run(
        command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stdout}")


def _collections_paths(config: str, environ: t.Mapping[str, str]) -> list[str]:
    """Return where Ansible searches for collections, by the user's settings in the environment or an ansible.cfg."""
    # Colors would make the output invalid JSON.
    done = subprocess.run(
        [config, "dump", "--format", "json"], env={**environ, "ANSIBLE_NOCOLOR": "1"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{config} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")
    settings = {entry["name"]: entry["value"] for entry in json.loads(done.stdout) if "name" in entry}
    return [str(path) for path in settings["COLLECTIONS_PATHS"]]


def _set_home(fallback: Path) -> None:
    """Set HOME where it is missing: the shell then leaves "~" as it is, and Ansible makes a directory of that name."""
    if not os.environ.get("HOME"):
        os.environ.pop("HOME", None)
        try:
            os.environ["HOME"] = str(Path.home())
        except RuntimeError:
            # The user has no account, as in some containers.
            os.environ["HOME"] = str(fallback)


def _sudo() -> list[str]:
    """Return the options with which the tasks of ansible-playbook run as root."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo is None:
        sys.exit("--host needs root, and sudo is not installed. Run it as root, or install sudo.")
    without_password = subprocess.run([sudo, "--non-interactive", "true"], capture_output=True, check=False)
    return ["--become"] if without_password.returncode == 0 else ["--become", "--ask-become-pass"]


def main() -> None:
    """Run the command of the command line."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in ("-h", "--help"):
        print(_HELP, end="")
        return
    started = time.monotonic()
    print("== Install the collection in .venv", flush=True)
    try:
        venv = venvs.ensure(_ROOT / ".venv", _ROOT / "requirements" / "quickstart.txt")
    except venvs.VenvError as error:
        sys.exit(str(error))
    _set_home(venv.path)
    collections = _install_collection(venv)
    core = next(collections.glob("ansible_core-*.dist-info")).name.split("-")[1].removesuffix(".dist")
    print(f"-> ansible-core {core} on Python {platform.python_version()}, and the collection of this clone.")
    playbook = venv.tool("ansible-playbook")
    if arguments in ([], ["--directory"]):
        try:
            sandbox.demonstrate(playbook, venv.ansible_environ(collections), venv.python, directory=bool(arguments))
        except sandbox.SandboxError as error:
            sys.exit(f"\nFAILED: {error}")
        print(f"\nDone in {time.monotonic() - started:.0f} s. Next:")
        print(_COMMANDS)
        return
    if arguments[0] == "--host":
        environ = venv.ansible_environ(collections)
        target = ["-i", "localhost,", "-c", "local", "-e", f"ansible_python_interpreter={venv.python}", *_sudo()]
        arguments = arguments[1:]
    else:
        # The user's settings (ssh, vault, ansible.cfg) are used to reach the hosts. Only this collection is added.
        environ = venv.environ()
        known = _collections_paths(venv.tool("ansible-config"), environ)
        environ["ANSIBLE_COLLECTIONS_PATH"] = os.pathsep.join((str(collections), *known))
        target = []
    sys.stdout.flush()
    os.execve(playbook, [playbook, "gpufleet.nvidia.site", *target, *arguments], environ)


if __name__ == "__main__":
    main()
