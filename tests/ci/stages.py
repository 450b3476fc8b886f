# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stages of ./test: each a function of the workspace that raises when something is wrong."""

from __future__ import annotations

import concurrent.futures
import os
import pwd
import random
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import typing as t
from pathlib import Path

import sandbox
import venvs
from workspace import LOGS, OLDEST_CORE, OLDEST_NODE, ROOT, StageError, Workspace

if t.TYPE_CHECKING:
    import pythons

_NAMESPACE = "gpufleet.nvidia"
# What a tarball may hold at its top.
_PUBLISHED = {
    "CHANGELOG.rst", "FILES.json", "LICENSE", "MANIFEST.json", "README.md", "changelogs", "docs", "meta", "playbooks",
    "plugins", "roles",
}  # fmt: skip
_NOBODY = 65534
# They use the cores well, and a booted host takes 6 of the 128 inotify instances that root usually has.
_SCENARIOS_AT_ONCE = 2


def ruff(work: Workspace) -> None:
    """Style and likely bugs of the Python files."""
    work.run([work.tests.tool("ruff"), "check", "--cache-dir", work.cache / "ruff", "."])


def mypy(work: Workspace) -> None:
    """Types, strictly; in two runs, for the tools of this repository are no part of the collection."""
    command = [work.tests.tool("mypy"), "--config-file", str(work.tree / "pyproject.toml")]
    base = work.tree.relative_to(work.collections)
    work.run(
        [*command, "--cache-dir", str(work.cache / "mypy" / "collection"), str(base / "plugins"),
         str(base / "tests" / "unit"), str(base / "tests" / "browser")],
        environ={**work.tests.environ(), "MYPYPATH": str(work.collections)}, cwd=work.collections,
    )  # fmt: skip
    work.run(
        [*command, "--cache-dir", str(work.cache / "mypy" / "tools"), "quickstart.d", "tests/ci"],
        environ={**work.tests.environ(), "MYPYPATH": f"{work.tree}/quickstart.d:{work.tree}/tests/ci"},
    )


def unit(work: Workspace) -> None:
    """The unit tests with Ansible at hand: all of them."""
    _pytest(work, work.tests)


def unit_nodes(work: Workspace) -> None:
    """The unit tests on the other Pythons of this machine, without Ansible: all on the oldest, each on one more."""

    def one(part: Workspace, run: tuple[pythons.Python, int, int]) -> None:
        python, number, shares = run
        _pytest(part, part.venv("node", python), "--hypothesis-profile=few", f"--share={number}/{shares}")

    # On the one that runs this the stage "unit" tries more examples of the same.
    others = [python for python in work.interpreters.values() if python.minor != sys.version_info[1]]
    oldest, *between = others or work.interpreters.values()
    cores = os.cpu_count() or 1
    runs = [(oldest, number, cores) for number in range(1, cores + 1)]
    # What holds on the oldest and on the newest seldom fails between them, so those share the tests.
    runs += [(python, number, len(between)) for number, python in enumerate(between, 1)]
    named = {
        f"Python {python.name}, share {number} of {shares}": (python, number, shares) for python, number, shares in runs
    }
    _side_by_side(work, named, one, cores)


def lint(work: Workspace) -> None:
    """ansible-lint with the profile production, yamllint."""
    work.run([work.tests.tool("yamllint"), "--strict", "."])
    work.run([work.tests.tool("ansible-lint")], environ=work.tests.ansible_environ(work.collections))


def docs(work: Workspace) -> None:
    """The documentation of plugins and role, and the changelog's fragments."""
    # antsibull writes a log to HOME.
    environ = {**work.tests.ansible_environ(work.collections), "HOME": str(work.home)}
    work.run([work.tests.tool("antsibull-docs"), "lint-collection-docs", "--plugin-docs",
              "--validate-collection-refs=all", "."], environ=environ)  # fmt: skip
    work.run([work.tests.tool("antsibull-changelog"), "lint"], environ=environ)


def package(work: Workspace) -> None:
    """The tarball: what it holds, whether it installs into an empty place and documents itself."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-package-") as name:
        directory = Path(name)
        tarball = _build(work, directory)
        with tarfile.open(tarball) as archive:
            strangers = {member.split("/")[0] for member in archive.getnames()} - _PUBLISHED
        if strangers:
            raise StageError(f"the tarball holds what does not belong there: {', '.join(sorted(strangers))}")
        environ = work.tests.ansible_environ(directory)
        work.run([work.tests.tool("ansible-galaxy"), "collection", "install", tarball, "--offline",
                  "--collections-path", directory], environ=environ, cwd=directory)  # fmt: skip
        installed = directory / "ansible_collections" / "gpufleet" / "nvidia"
        modules = [f"{_NAMESPACE}.{path.stem}" for path in sorted(installed.glob("plugins/modules/*.py"))]
        roles = [f"{_NAMESPACE}.{path.name}" for path in sorted(installed.glob("roles/*"))]
        filters = [f"{_NAMESPACE}.{path.stem}" for path in sorted(installed.glob("plugins/filter/*.py"))]
        for kind, names in (("module", modules), ("role", roles), ("filter", filters)):
            if not names:
                raise StageError(f"the tarball holds no {kind}")
            output = work.run([work.tests.tool("ansible-doc"), "--type", kind, *names], environ=environ, cwd=directory)
            missing = [name for name in names if name not in output.replace("\x1b", "")]
            if missing:
                raise StageError(f"ansible-doc does not know {', '.join(missing)}")


def sandbox_host(work: Workspace) -> None:
    """The quickstart's sandbox on the newest ansible-core and on the oldest, the latter with the oldest node."""
    runs = [(work.tests, work.tests.python)]
    controller = next((work.interpreters[minor] for minor in reversed(OLDEST_CORE) if minor in work.interpreters), None)
    node = work.interpreters.get(OLDEST_NODE)
    if controller and node:
        # The bare interpreter: tomlkit is to come from the controller.
        runs.append((work.venv("oldest", controller), node.path))
    else:
        print("No Python for the oldest ansible-core with the oldest node on this machine.", file=work.log)
    for venv, node_python in runs:
        work.run([venv.tool("ansible"), "--version"], environ=venv.ansible_environ(work.collections))
        work.run([node_python, "--version"])
        sandbox.demonstrate(
            venv.tool("ansible-playbook"), venv.ansible_environ(work.collections), node_python, work.log
        )


def quickstart(work: Workspace) -> None:
    """./quickstart as a stranger runs it: a fresh copy, an empty HOME, not root where that can be arranged."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-quickstart-") as name:
        directory = Path(name)
        clone, home = directory / "clone", directory / "home"
        home.mkdir()
        shutil.copytree(work.tree, clone, symlinks=True, ignore=shutil.ignore_patterns("output", "__pycache__"))
        path = os.pathsep.join(
            entry for entry in os.environ.get("PATH", os.defpath).split(os.pathsep) if not entry.endswith("/shims")
        )
        # pip's settings may lie in the HOME that is not there any more, as with ansible-test.
        pip = home / ".config" / "pip" / "pip.conf"
        pip.parent.mkdir(parents=True)
        shutil.copy(work.home / ".config" / "pip" / "pip.conf", pip)
        user = None
        if os.geteuid() == 0:
            user = _NOBODY
            for entry in (directory, *directory.rglob("*")):
                os.chown(entry, user, user, follow_symlinks=False)
        environ = {"HOME": str(home), "PATH": path, "TERM": "dumb"}
        if user and not _finds_python(clone, environ, user):
            print("No interpreter within reach of another user: running as root.", file=work.log)
            user = None
        work.run([clone / "quickstart"], environ=environ, cwd=directory, user=user)


def sanity(work: Workspace) -> None:
    """ansible-test sanity, without a file of exceptions."""
    ignored = sorted(str(path.relative_to(work.tree)) for path in work.tree.glob("tests/sanity/ignore*"))
    if ignored:
        raise StageError(f"there are exceptions: {', '.join(ignored)}")
    _offer_pip(work)
    work.run([work.tests.tool("ansible-test"), "sanity", "--color", "no"], environ=work.ansible_test_environ())


def integration(work: Workspace) -> None:
    """ansible-test integration: the targets, which touch nothing but directories of their own."""
    targets = work.tree / "tests" / "integration" / "targets"
    if not any(targets.glob("*/")):
        raise StageError("there is no integration target")
    work.run([work.tests.tool("ansible-test"), "integration", "--color", "no"], environ=work.ansible_test_environ())


def browser(work: Workspace) -> None:
    """The page of an audit in Chromium, which is installed where it is missing (Debian; as root)."""
    _provide_chromium(work)
    _pytest(work, work.tests, "tests/browser", PYTHONPATH=str(work.collections))


def importer(work: Workspace) -> None:
    """galaxy-importer: what Galaxy checks in an upload."""
    venv = work.venv("importer")
    with tempfile.TemporaryDirectory(prefix="gpufleet-importer-") as name:
        directory = Path(name)
        tarball = _build(work, directory)
        config = directory / "galaxy-importer.cfg"
        # The linters and tests that it would call run in stages of their own.
        config.write_text("[galaxy-importer]\ncheck_required_tags = True\nrun_ansible_lint = False\n", encoding="utf-8")
        environ = {**venv.ansible_environ(directory), "GALAXY_IMPORTER_CONFIG": str(config)}
        output = work.run([venv.python, "-m", "galaxy_importer.main", tarball], environ=environ, cwd=directory)
    complaints = [line for line in output.splitlines() if line.startswith(("ERROR", "WARNING"))]
    if complaints:
        raise StageError("; ".join(complaints))


def molecule(work: Workspace) -> None:
    """Every molecule scenario on booted test hosts."""
    if os.geteuid() != 0:
        raise StageError("the molecule scenarios need root")
    scenarios = [path.parent.name for path in work.tree.glob("molecule/*/molecule.yml")]
    if not scenarios:
        raise StageError("there is no molecule scenario")
    # Where time is short, it is not always the same ones that are left out.
    random.shuffle(scenarios)
    environ = work.tests.ansible_environ(work.collections)
    # Molecule gives its scenarios an ansible.cfg of their own.
    del environ["ANSIBLE_CONFIG"]
    environ.update(
        # What molecule keeps of its scenarios lies there.
        ANSIBLE_HOME=str(work.collections / "ansible-home"),
        GPUFLEET_CACHE=str(work.cache),
        MOLECULE_GLOB="molecule/*/molecule.yml",
    )
    hosts = work.tree / "tests" / "hosts"
    work.run([hosts / "prepare"], environ=environ)

    def one(part: Workspace, scenario: str) -> None:
        # The hosts' environment is a file for a shell.
        part.run(["sh", "-c", '. "$0"; exec "$@"', hosts / "env", part.tests.tool("molecule"), "test",
                  "--scenario-name", scenario], environ=environ)  # fmt: skip

    _side_by_side(work, {scenario: scenario for scenario in scenarios}, one, _SCENARIOS_AT_ONCE, until=work.until)
    if len(work.left_out) == len(scenarios):
        raise StageError("there was no time for any scenario")


_Item = t.TypeVar("_Item")


def _side_by_side(
    work: Workspace,
    items: t.Mapping[str, _Item],
    one: t.Callable[[Workspace, _Item], None],
    at_once: int | None,
    *,
    until: float | None = None,
) -> None:
    """Call the function for each named item, some at a time; the log has what each wrote in one piece.

    What one of them has written so far can be read in a file of its own.
    """

    def run(name: str) -> tuple[str, str, float]:
        started = time.monotonic()
        if until is not None and started > until:
            work.left_out.append(name)
            return "Left out for lack of time.\n", "", 0
        print(f"-- {name} begins", file=work.log, flush=True)
        complaint = ""
        path = LOGS / f"{work.stage}-{re.sub('[^A-Za-z0-9.]+', '-', name)}.log"
        with path.open("w", encoding="utf-8") as log:
            try:
                one(Workspace(work.stage, log), items[name])
            except (StageError, venvs.VenvError) as error:
                complaint = str(error)
        return path.read_text(encoding="utf-8"), complaint, time.monotonic() - started

    failures = []
    with concurrent.futures.ThreadPoolExecutor(max_workers=at_once) as pool:
        runs = {pool.submit(run, name): name for name in items}
        for done in concurrent.futures.as_completed(runs):
            output, complaint, seconds = done.result()
            name = runs[done]
            print(f"-- {name}, {seconds:.0f} s:\n{output}", end="", file=work.log, flush=True)
            failures += [f"{name}: {complaint}"] if complaint else []
    if failures:
        raise StageError("; ".join(failures))


def _pytest(work: Workspace, venv: venvs.Venv, *arguments: str, **variables: str) -> None:
    """Run tests of the clone; nothing that they leave behind lies in it."""
    with work.scratch() as scratch:
        environ = {
            **venv.environ(),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(work.cache / "hypothesis"),
            "TMPDIR": str(scratch),
            **variables,
        }
        work.run([venv.python, "-B", "-m", "pytest", "-p", "no:cacheprovider", "--quiet", *arguments], environ, ROOT)


def _provide_chromium(work: Workspace) -> None:
    if shutil.which("chromium") and shutil.which("chromedriver"):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise StageError("the commands chromium and chromedriver are missing: apt-get install chromium chromium-driver")
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    environ = {**work.tests.environ(), "DEBIAN_FRONTEND": "noninteractive"}
    install = [*apt, "install", "-y", "--no-install-recommends", "chromium", "chromium-driver"]
    try:
        work.run(install, environ=environ)
    except StageError:
        work.run([*apt, "update"], environ=environ)
        work.run(install, environ=environ)


def _build(work: Workspace, directory: Path) -> Path:
    """Build from the clone, with all that lies about there: build_ignore has to hold."""
    work.run([work.tests.tool("ansible-galaxy"), "collection", "build", ROOT, "--output-path", directory],
             environ=work.tests.ansible_environ(directory), cwd=directory)  # fmt: skip
    (tarball,) = directory.glob("*.tar.gz")
    return tarball


def _offer_pip(work: Workspace) -> None:
    """Put get_pip.py where ansible-test looks before it downloads, for each version that it asks for."""
    source = work.tests.site_packages / "ansible_test" / "_internal" / "python_requirements.py"
    versions = set(re.findall(r"pip='([0-9.]+)'", source.read_text(encoding="utf-8")))
    if not versions:
        raise StageError("cannot tell which pip this ansible-test asks for")
    cache = work.home / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    for version in versions:
        shutil.copy(Path(__file__).with_name("get_pip.py"), cache / f"get_pip_{version.replace('.', '_')}.py")


def _finds_python(clone: Path, environ: t.Mapping[str, str], user: int) -> bool:
    try:
        pwd.getpwuid(user)
    except KeyError:
        return False
    done = subprocess.run(
        [clone / "quickstart", "--help"], env=environ, user=user, group=user, extra_groups=[], cwd=clone.parent,
        stdin=subprocess.DEVNULL, capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode == 0
