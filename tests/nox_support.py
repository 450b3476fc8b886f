# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the sessions of noxfile.py need: commands, lock files, copies of the tree, interpreters, HOME of ansible-test.

The functions write only below .nox, the cache directory and the temporary directory.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import itertools
import json
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import typing as t
from pathlib import Path

if t.TYPE_CHECKING:
    import nox

_PRIVATE_DIRECTORY = 0o700


def _home() -> Path:
    """Return the user's HOME, or a directory in its place if HOME is missing, or the user cannot write to it.

    Users of containers and services often have no HOME.
    """
    with contextlib.suppress(RuntimeError):
        home = Path.home()
        if home.is_dir() and os.access(home, os.W_OK | os.X_OK):
            return home
    # It is not below .nox, because ansible-lint and ansible-test ask git for the files of a tree.
    home = Path(tempfile.gettempdir(), f"gpufleet-nvidia-{os.geteuid()}")
    home.mkdir(_PRIVATE_DIRECTORY, exist_ok=True)
    status = home.lstat()
    if (status.st_uid, stat.S_IMODE(status.st_mode)) != (os.geteuid(), _PRIVATE_DIRECTORY) or home.is_symlink():
        sys.exit(f"{home} is not a directory that only this user can open. Remove it, or set HOME to a directory.")
    return home


ROOT = Path(__file__).resolve().parents[1]
HOME = _home()
CACHE = Path(
    os.environ.get("GPUFLEET_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or HOME / ".cache", "gpufleet-nvidia")
).absolute()
# The output of the commands that failed in the last run of ./test.
FAILED = ROOT / ".nox" / "failed"
# The names of the unit tests that the last run of ./test skipped, by session.
SKIPPED = ROOT / ".nox" / "skipped"
# The environment of the session "tools".
TOOLS = ROOT / ".nox" / "tools"
_PRIVATE_MODE = 0o600
_MEMORY_WANTED = 2 << 30
# The first of the user IDs of which one without an account is taken.
_ORDINARY_USERS = 54399
# ansible-test downloads get-pip.py for its virtual environments. This program does the same work with the pip of the
# interpreter and the package index that pip is configured for.
_GET_PIP = """\
import subprocess, sys
arguments = [argument for argument in sys.argv[1:] if argument not in ("--no-setuptools", "--no-wheel")]
for command in (["ensurepip"], ["pip", "install", *arguments]):
    subprocess.run([sys.executable, "-m", *command], check=True)
"""


def install(session: nox.Session, name: str) -> None:
    """Install a lock file of requirements/, unless the environment already has what the file asks for."""
    lock = ROOT / "requirements" / f"{name}.txt"
    stamp = Path(session.virtualenv.location) / "installed.sha256"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != digest:
        session.install("--quiet", "-r", str(lock))
        stamp.write_text(digest, encoding="utf-8")


def run(session: nox.Session, *command: str | Path, env: dict[str, str] | None = None) -> str:
    """Run a command, by preference one of the tools, and return its output, which is empty if the session runs alone.

    Beside other sessions, the output is shown only if the command fails. Its file then stays, so that ./test can repeat
    the end of it.
    """
    tool = TOOLS / "bin" / command[0]
    path = f"{TOOLS / 'bin'}:{os.environ['PATH']}"
    environ = {"PATH": path, "LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1", **(env or {})}
    arguments = [str(tool if tool.exists() else command[0]), *map(str, command[1:])]
    if not session.parallel:
        session.run(*arguments, external=True, env=environ)
        return ""
    FAILED.mkdir(parents=True, exist_ok=True)
    log = FAILED / f"{session.name}.log"
    with log.open("w", encoding="utf-8") as file:
        try:
            session.run(*arguments, external=True, env=environ, stdout=file)
        except BaseException:
            print(log.read_text(encoding="utf-8", errors="replace"), flush=True)
            raise
    output = log.read_text(encoding="utf-8", errors="replace")
    log.unlink()
    return output


def pytest(session: nox.Session, python: str | Path, *arguments: str, **variables: str) -> None:
    """Run tests of the clone on an interpreter."""
    with scratch() as folder:
        environ = {"TMPDIR": str(folder), "HYPOTHESIS_STORAGE_DIRECTORY": str(session.cache_dir / "hypothesis"),
                   "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
        output = run(session, python, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments,
                     *session.posargs, env={**environ, **variables})  # fmt: skip
    if output:
        session.log(output.splitlines()[-1])


def unit_tests(session: nox.Session, python: str | Path, *arguments: str, **variables: str) -> None:
    """Run the unit tests in parallel, and keep the bytecode in the cache of nox.

    Without it, each worker would rewrite the assertions of all test files again, which takes several seconds. The names
    of the skipped tests are written to SKIPPED, for ./test and for ``skipped_units``.
    """
    SKIPPED.mkdir(parents=True, exist_ok=True)
    variables["GPUFLEET_SKIPPED"] = str(SKIPPED / f"{session.name}.json")
    # One worker more than cores, because some tests wait for a time limit.
    workers = str((os.cpu_count() or 1) + 1)
    bytecode = {"PYTHONPYCACHEPREFIX": str(session.cache_dir / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
    pytest(session, python, "-n", workers, "--dist", "worksteal", *arguments, **bytecode, **variables)


def units_as_new_user(session: nox.Session) -> list[str]:
    """Run ``./test --list`` and ``./test units`` in a fresh copy as an ordinary user without HOME.

    Returns the names of the tests that were skipped.
    """
    with tempfile.TemporaryDirectory(prefix="gpufleet-units-") as name:
        clone = shutil.copytree(copy_tree(session.name), Path(name, "clone"), symlinks=True)
        nightly = os.environ.get("GPUFLEET_NIGHTLY", "")
        command = as_new_user(clone / "test", Path(name), TOOLS / "bin" / "python", GPUFLEET_NIGHTLY=nightly)
        run(session, *command, "--list")
        run(session, *command, "units")
        skipped = json.loads((clone / SKIPPED.relative_to(ROOT) / "units.json").read_text(encoding="utf-8"))
    return sorted(test for tests in skipped.values() for test in tests)


def copy_tree(purpose: str) -> Path:
    """Copy the clone to a physical path that ends in ansible_collections/gpufleet/nvidia, as ansible-test demands.

    The copy has the files that git tracks and those that it does not ignore. Each clone and purpose has a copy of its
    own, so that sessions can run at the same time. Returns that path.
    """
    clone = hashlib.sha256(os.fsencode(ROOT)).hexdigest()[:8]
    tree = CACHE / "trees" / f"{clone}-{purpose}" / "ansible_collections" / "gpufleet" / "nvidia"
    shutil.rmtree(tree, ignore_errors=True)
    listing = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listing.split(b"\0")):
        source, target = ROOT / os.fsdecode(name), tree / os.fsdecode(name)
        if os.path.lexists(source):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return tree


def ansible_environment(tree: Path) -> dict[str, str]:
    """Return the settings with which Ansible finds the collection in a copied tree, and none of the caller's."""
    collections = tree.parents[2]
    config = collections / "ansible.cfg"
    config.touch()
    return {"ANSIBLE_COLLECTIONS_PATH": str(collections), "ANSIBLE_CONFIG": str(config),
            "ANSIBLE_HOME": str(collections / "ansible-home")}  # fmt: skip


def pip_settings(python: str | Path) -> str:
    """Return the caller's pip settings as a pip.conf, for commands that run with another HOME."""
    settings = {}
    # The same setting can come from a file and from the environment; the last one counts.
    for line in _output(python, "-m", "pip", "config", "list").splitlines():
        name, _equals, value = line.partition("=")
        settings[name.rpartition(".")[2]] = str(ast.literal_eval(value)).strip().replace("\n", "\n  ")
    return "\n".join(["[global]", *(f"{name} = {value}" for name, value in settings.items()), ""])


def write_pip_settings(path: Path, python: str | Path) -> None:
    """Write the caller's pip settings to a pip.conf."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # An index address may hold a password.
    path.touch(_PRIVATE_MODE)
    path.write_text(pip_settings(python), encoding="utf-8")


def ansible_test_home(purpose: str, python: str | Path) -> Path:
    """Make a HOME for ansible-test, with a get-pip.py for each version that it asks for.

    ``python`` is the interpreter that has ansible-core. ansible-test reads pip's settings only from HOME.
    """
    home = CACHE / "homes" / purpose
    write_pip_settings(home / ".config" / "pip" / "pip.conf", python)
    source = _output(python, "-c", "import ansible_test._internal.python_requirements as found; print(found.__file__)")
    versions = set(re.findall(r"pip='([0-9.]+)'", Path(source.strip()).read_text(encoding="utf-8")))
    if not versions:
        sys.exit(f"{source.strip()} names no pip version. Adapt tests/nox_support.py to this ansible-core.")
    cache = home / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    for version in versions:
        (cache / f"get_pip_{version.replace('.', '_')}.py").write_text(_GET_PIP, encoding="utf-8")
    return home


def ansible_test(session: nox.Session, *arguments: str) -> None:
    """Run ansible-test in a copy of the tree."""
    home = ansible_test_home(session.name, TOOLS / "bin" / "python")
    with session.chdir(copy_tree(session.name)):
        for options in arguments:
            run(session, "ansible-test", *options.split(), "--color", "no", *session.posargs, env={"HOME": str(home)})


def molecule(session: nox.Session, scenario: str, seconds: int) -> str:
    """Run a molecule scenario on booted hosts, twice if the first attempt does not end in time. Returns the output."""
    tree = copy_tree(session.name)
    environ = {**ansible_environment(tree), "GPUFLEET_CACHE": str(CACHE), "MOLECULE_GLOB": "molecule/*/molecule.yml"}
    # Molecule gives each scenario an ansible.cfg of its own.
    del environ["ANSIBLE_CONFIG"]
    with session.chdir(tree):
        run(session, "tests/hosts/prepare", env=environ)
        # The file with the environment of the hosts is written for a shell.
        return run(session, "python", "-B", "tests/limited.py", str(seconds), "sh", "-c", '. "$0"; exec "$@"',
                   "tests/hosts/env", "molecule", "test", "--scenario-name", scenario, *session.posargs,
                   env=environ)  # fmt: skip


def tracing_problem() -> str:
    """Return why strace cannot trace a process, as without strace and in some containers; empty if it can."""
    if not shutil.which("strace"):
        return "There is no strace: apt-get install strace"
    done = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, text=True, check=False)
    return f"strace cannot trace a process here: {done.stderr.strip()}" if done.returncode else ""


def ssh_problem() -> str:
    """Return why ansible-test cannot create a key for SSH, as in a container whose user has no account."""
    if not shutil.which("ssh-keygen"):
        return "ansible-test needs ssh-keygen: apt-get install openssh-client"
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        return f"ansible-test needs an account for the user {os.geteuid()}, because ssh-keygen does"
    return ""


def as_new_user(program: Path, directory: Path, python: str | Path, **variables: str) -> list[str | Path]:
    """Return a command that runs a program without HOME, login session and terminal, and in another locale and zone.

    The environment has only ``variables`` and pip's settings. Root becomes a user that has no account, as in some
    containers, and owns the directory, if the program finds a Python then; a continuous integration fails otherwise.
    ``python`` is an interpreter with pip.
    """
    settings = directory / "pip.conf"
    write_pip_settings(settings, python)
    command: list[str | Path] = [
        "env", "-i", f"PIP_CONFIG_FILE={settings}", *(f"{name}={value}" for name, value in variables.items()),
        "LANG=C", "TERM=dumb", "TZ=XXX-12:45",
    ]  # fmt: skip
    if os.geteuid() == 0:
        uid = _unused_uid()
        for entry in (directory, *directory.rglob("*")):
            os.chown(entry, uid, uid, follow_symlinks=False)
        user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *command,
                f"PATH={os.defpath}:{os.environ['PATH']}"]  # fmt: skip
        if subprocess.run([*user, program, "--help"], cwd=directory, capture_output=True, check=False).returncode == 0:
            return [*user, program]
        if os.environ.get("CI") == "true":
            sys.exit(f"User {uid} finds no Python for {program.name}: apt-get install python3-venv")
    return [*command, f"PATH={os.environ['PATH']}", program]


def _unused_uid() -> int:
    """Return the ID of a user without an account."""
    used = {account.pw_uid for account in pwd.getpwall()}
    return next(uid for uid in itertools.count(_ORDINARY_USERS) if uid not in used)


@contextlib.contextmanager
def scratch() -> t.Iterator[Path]:
    """Give a temporary directory, in memory if enough is free: the tests make very many small files."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-", dir=_memory_directory()) as name:
        # Some tests read files there as another user.
        Path(name).chmod(0o755)
        yield Path(name)


def _memory_directory() -> str | None:
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return None
    fits = status.f_bavail * status.f_frsize >= _MEMORY_WANTED and not status.f_flag & os.ST_NOEXEC
    return "/dev/shm" if fits and os.access("/dev/shm", os.W_OK) else None


def path_with_interpreters(path: str, home: Path) -> str:
    """Return PATH without pyenv's shims, which exist for versions that do not run, and with pyenv's real versions."""
    entries = [entry for entry in path.split(os.pathsep) if not entry.endswith("/shims")]
    pyenv = Path(os.environ.get("PYENV_ROOT") or home / ".pyenv")
    return os.pathsep.join([*entries, *(str(found) for found in sorted(pyenv.glob("versions/3.*/bin"), reverse=True))])


def interpreters() -> dict[str, str]:
    """Return the paths of the Python interpreters in PATH that run, by version, such as 3.12."""
    found = {}
    for minor in range(8, 15):
        path = shutil.which(f"python3.{minor}")
        if path and subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            found[f"3.{minor}"] = path
    return found


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
