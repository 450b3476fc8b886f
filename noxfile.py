# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sessions that check this repository. `nox -l` lists them, `./test` runs the default ones.

Tags: "quick" for the inner loop, "molecule" for booted hosts, "ci" for the scenarios of .ci/run, "nightly" for what a
full run adds. GPUFLEET_NIGHTLY=1 makes the tests run in full: all points at which a run is killed, all Debian releases,
thousands of examples.

Sessions start in the order of this file. Short ones come last, so that all cores are in use until the end."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import typing as t
from pathlib import Path

import antsibull_nox
import nox

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tests"))
import nox_support
from nox_support import run

CI = os.environ.get("CI") == "true"
NIGHTLY = os.environ.get("GPUFLEET_NIGHTLY") == "1"
# The Python versions of hosts, oldest first; "units" runs on the Python of the tools.
HOST_PYTHONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
# Older releases of ansible-core by the name of their lock file: the Python versions of a controller, best first, and
# that of a host, and whether a default run includes it. 2.19 is the newest release for hosts with Python 3.8.
OLD_CORES = {
    "2.16.3": (("3.12", "3.11"), None, True),
    "2.16": (("3.12", "3.11"), None, False),
    "2.17.5": (("3.12", "3.11"), None, False),
    "2.18.0": (("3.12", "3.11"), None, False),
    "2.19": (("3.13", "3.12", "3.11"), "3.8", True),
}

# The scenarios that each run of .ci/run includes: one engine in depth, the documented examples, and batches of hosts.
CI_SCENARIOS = ("docker", "examples", "rolling")
# The most lines of output of ./quickstart.
QUICKSTART_LINES = 120

os.environ["HOME"] = str(nox_support.HOME)
os.environ["PATH"] = nox_support.path_with_interpreters(os.environ.get("PATH", os.defpath), nox_support.HOME)
nox.options.allow_parallel = True
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = CI
nox.options.envdir = str(ROOT / ".nox")


def skip(session: nox.Session, reason: str) -> t.NoReturn:
    """Skip the session; a continuous integration fails instead."""
    (session.error if CI else session.skip)(reason)


def tool_session(name: str, *, tags: t.Sequence[str] = (), default: bool = True) -> t.Callable[[t.Any], t.Any]:
    """Register a session that uses the environment of the session "tools"."""
    return nox.session(name=name, venv_backend="none", requires=["tools"], tags=list(tags), default=default)


@nox.session(default=False)
def tools(session: nox.Session) -> None:
    """Install what the other sessions use; they run it when needed."""
    nox_support.install(session, "tests")


@tool_session("units", tags=["quick"])
def units(session: nox.Session) -> None:
    """Run all unit tests on the Python of the tools, with Ansible installed.

    Root in a continuous integration runs them as a user without an account, and then those that this user skips.
    """
    if not (CI and os.geteuid() == 0):
        nox_support.unit_tests(session, "python")
        return
    names = Path(session.create_tmp(), "skipped.txt")
    names.write_text("\n".join(nox_support.units_as_new_user(session)), encoding="utf-8")
    nox_support.unit_tests(session, "python", f"@{names}")


def units_on_host(session: nox.Session) -> None:
    """Run the unit tests without Ansible on a Python of hosts."""
    nox_support.install(session, "units")
    # The session "units" tries thousands of examples in a nightly run. hypothesis no longer supports Python 3.8.
    unwanted = ["hypothesis"] if session.python == "3.8" else []
    unwanted += [] if NIGHTLY else ["one_python"]
    selection = " and ".join(f"not {marker}" for marker in unwanted)
    nox_support.unit_tests(session, Path(session.bin, "python"), "-m", selection, GPUFLEET_NIGHTLY="0")


for version in HOST_PYTHONS:
    # virtualenv supports no Python 3.8 any more.
    nox.session(name=f"units-{version}", python=version, venv_backend="venv", tags=["nightly"],
                default=version == "3.8")(units_on_host)  # fmt: skip


@tool_session("sanity")
def sanity(session: nox.Session) -> None:
    """Run ansible-test sanity on one Python; import and compile also on the oldest Python of hosts."""
    if list(ROOT.glob("tests/sanity/ignore*")):
        session.error("tests/sanity has an ignore file. Fix the findings instead.")
    # The newest ansible-core supports hosts from Python 3.9 on; 3.8 is covered by the session "units-3.8".
    oldest = next(version for version in HOST_PYTHONS[1:] if version in nox_support.interpreters())
    nox_support.ansible_test(session, f"sanity --python 3.{sys.version_info[1]}",
                             f"sanity --python {oldest} --test import --test compile")  # fmt: skip


@tool_session("integration")
def integration(session: nox.Session) -> None:
    """Run the integration targets, which write only into temporary directories."""
    if problem := nox_support.ssh_problem():
        skip(session, problem)
    nox_support.ansible_test(session, "integration")


@tool_session("plays")
def plays(session: nox.Session) -> None:
    """Run site.yml with ansible-playbook for hosts whose modules answer from files."""
    nox_support.pytest(session, "python", "tests/plays")


@tool_session("lock-check")
def lock_check(session: nox.Session) -> None:
    """Compare the lock files with their inputs, and resolve each on every Python of a controller."""
    run(session, "python", "-B", "tests/locks.py", "check")


@tool_session("ansible-lint")
def ansible_lint(session: nox.Session) -> None:
    """Run ansible-lint."""
    tree = nox_support.copy_tree("ansible-lint")
    with session.chdir(tree):
        run(session, "ansible-lint", "--offline", env=nox_support.ansible_environment(tree))


@tool_session("quickstart")
def quickstart(session: nox.Session) -> None:
    """Run the demonstrations of ./quickstart in a fresh copy, as a user without HOME, and without account if root.

    Also run the plays of hostile hosts with the newest ansible-core.
    """
    with tempfile.TemporaryDirectory(prefix="gpufleet-quickstart-") as name:
        clone = shutil.copytree(nox_support.copy_tree("quickstart"), Path(name, "clone"), symlinks=True)
        command = nox_support.as_new_user(clone / "quickstart", Path(name), nox_support.TOOLS / "bin" / "python")
        # The output is empty if the session runs alone.
        lines = run(session, *command).count("\n")
        if lines > QUICKSTART_LINES:
            session.error(f"./quickstart printed {lines} lines. A new user reads {QUICKSTART_LINES} at most.")
        run(session, *command, "--directory")
    environ = nox_support.ansible_environment(nox_support.copy_tree("quickstart"))
    run(session, "python", "-B", "tests/hostile_hosts.py", nox_support.TOOLS / "bin" / "ansible-playbook", env=environ)


def quickstart_on_old_core(session: nox.Session) -> None:
    """Run the plays of ./quickstart, and those of hostile hosts, with an older ansible-core."""
    core = session.name.partition("-")[2]
    nox_support.install(session, f"core-{core}")
    node = OLD_CORES[core][1]
    interpreter = shutil.which(f"python{node}") if node else Path(session.bin, "python")
    environ = nox_support.ansible_environment(nox_support.copy_tree(session.name))
    for program in ("quickstart.d/sandbox.py", "tests/hostile_hosts.py"):
        run(session, Path(session.bin, "python"), "-B", program, Path(session.bin, "ansible-playbook"),
            interpreter or skip(session, f"There is no Python {node} for the host."), env=environ)  # fmt: skip


for core, (pythons, _node, default) in OLD_CORES.items():
    python = next((found for found in pythons if shutil.which(f"python{found}")), pythons[0])
    nox.session(name=f"quickstart-{core}", python=python, tags=["nightly"], default=default)(quickstart_on_old_core)


@tool_session("lint", tags=["quick"])
def lint(session: nox.Session) -> None:
    """Run ruff, mypy, yamllint and the schema of the workflows."""
    run(session, "ruff", "check", *session.posargs)
    run(session, "check-jsonschema", "--builtin-schema", "vendor.github-workflows",
        *sorted(ROOT.glob(".github/workflows/*.yml")))  # fmt: skip
    mypy: list[str | Path] = ["mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir"]
    run(session, *mypy, session.cache_dir / "mypy-tools", "noxfile.py", *sorted(ROOT.glob("tests/*.py")),
        "quickstart.d", env={"MYPYPATH": f"{ROOT}/tests:{ROOT}/quickstart.d"})  # fmt: skip
    tree = nox_support.copy_tree("lint")
    with session.chdir(tree.parents[2]):
        run(session, *mypy, session.cache_dir / "mypy-collection", tree / "plugins", tree / "tests/unit",
            *(tree / "tests" / name for name in ("browser", "compare_versions", "faults", "fuzz", "plays")),
            tree / "tests/compare_plays",
            env={"MYPYPATH": str(tree.parents[2])})  # fmt: skip
    with session.chdir(tree):
        run(session, "yamllint", "--strict", ".")


@tool_session("docs-check", tags=["quick"])
def docs_check(session: nox.Session) -> None:
    """Check the documentation of plugins and roles, and the changelog fragments."""
    tree = nox_support.copy_tree("docs-check")
    # antsibull writes a log file to HOME.
    environ = {**nox_support.ansible_environment(tree), "HOME": session.create_tmp()}
    with session.chdir(tree):
        options = ("--plugin-docs", "--validate-collection-refs=all")
        run(session, "antsibull-docs", "lint-collection-docs", *options, ".", env=environ)
        run(session, "antsibull-changelog", "lint", env=environ)


antsibull_nox.load_antsibull_nox_toml()


@tool_session("fuzz")
def fuzz(session: nox.Session) -> None:
    """Give mutated input to the readers of all formats: ten mutations for each format, 2,000 in a nightly run."""
    run(session, "python", "-B", "tests/fuzz", *session.posargs)


@tool_session("faults")
def faults(session: nox.Session) -> None:
    """Let system calls of the modules fail, and kill them there: at 12 points of each task, at all in a nightly run."""
    if problem := nox_support.tracing_problem():
        skip(session, problem)
    run(session, "python", "-B", "tests/faults", *session.posargs)


@tool_session("browser")
def browser(session: nox.Session) -> None:
    """Open the page of an audit in Chromium."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        skip(session, "There is no chromium or no chromedriver: apt-get install chromium chromium-driver")
    nox_support.pytest(session, "python", "tests/browser", PYTHONPATH=str(nox_support.copy_tree("browser").parents[2]))


@nox.session(name="build-import-check", requires=["tools"])
def build_import_check(session: nox.Session) -> None:
    """Build the tarball, install it into an empty directory, and run Galaxy's own checks on it."""
    nox_support.install(session, "importer")
    run(session, "python", "-B", "tests/tarball.py", Path(session.bin, "python"))


def molecule(session: nox.Session) -> None:
    """Run a molecule scenario on booted hosts. Needs root; installs podman and mmdebstrap where they are missing."""
    if os.geteuid() != 0:
        skip(session, "The test hosts need root.")
    output = nox_support.molecule(session, session.name.partition("-")[2], 4500 if NIGHTLY else 1800)
    if "The processes of this machine:" in output:
        session.warn("The first attempt did not end.\n" + output.partition("The processes of this machine:")[2])


for scenario in sorted(path.parent.name for path in ROOT.glob("molecule/*/molecule.yml")):
    in_ci = ["ci"] if scenario in CI_SCENARIOS else []
    tool_session(f"molecule-{scenario}", tags=["molecule", *in_ci], default=False)(molecule)


@tool_session("lock", default=False)
def lock(session: nox.Session) -> None:
    """Write the lock files of requirements/; `nox -s lock -- --upgrade` takes the newest versions."""
    run(session, "python", "-B", "tests/locks.py", "write", *session.posargs)


@nox.session(venv_backend="none", default=False)
def nightly(session: nox.Session) -> None:
    """Run every session in full, as before a release."""
    session.run("./test", "--nightly", external=True)
