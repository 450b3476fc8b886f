# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fakes of a package manager and of its programs."""

from __future__ import annotations

import typing as t
from pathlib import Path

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import apt_sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import (
    PACKAGES,
    Candidate,
    Change,
    CommandError,
    Package,
    PackageFile,
    Preview,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.constants import (
    CONFIG_FILE,
    PROGRAMS,
    programs_in,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages.install import Installation
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages.packages import (
    InstallOptions,
    record_packages,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages.remove import Removal

if t.TYPE_CHECKING:
    import pytest

APT_SOURCE = apt_sources.REPOSITORY.source
ORIGIN = "https://packages.example/stable"
VERSIONS = ["1.20.0-1", "1.19.10-1", "1.19.1-2", "1.19.1-1", "1.18.2-1"]
# A source file of NVIDIA's previous instructions.
FORMER_LIST = "/etc/apt/sources.list.d/nvidia-docker.list"
FORMER_ENTRY = "deb https://nvidia.github.io/nvidia-docker/debian10/amd64 /\n"
ANYTHING: dict[str, t.Any] = {"minimum_version_policy": "ignore"}


def four(version: str, held: bool = False) -> dict[str, Package]:
    return {name: Package(version, held) for name in PACKAGES}


BASE = PACKAGES[1]
OTHERS = tuple(name for name in PACKAGES if name != BASE)


def base_package(version: str, held: bool = False) -> dict[str, Package]:
    return {BASE: Package(version, held)}


def write_file(root: str | Path, path: str, text: str) -> Path:
    """Write the file ``path`` below ``root``."""
    file = Path(root, path.lstrip("/"))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def stanza(name: str, status: str, version: str = "1.19.1-1", extra: str = "") -> str:
    """Return the entry of a package in a file of dpkg."""
    return f"Package: {name}\nStatus: {status}\nPriority: optional\n{extra}Version: {version}\nDescription: x\n y\n\n"


class FakePrograms:
    """A runner of commands. It records them, and returns the results for the first of ``answers`` in the command."""

    def __init__(self) -> None:
        self.ran: list[list[str]] = []
        self.answers: dict[str, list[tuple[int, str, str]]] = {}

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        self.ran.append(argv)
        for argument, answers in self.answers.items():
            if argument in argv:
                return answers.pop(0) if len(answers) > 1 else answers[0]
        return 0, "", ""


class FakePackageManager:
    """A package manager as PackageManager describes it, and the host that it changes."""

    name = "apt"
    repository = apt_sources.REPOSITORY
    records_reboot = True
    imports_keys = False
    readable = True
    warnings: tuple[str, ...] = ()

    def __init__(self, root: Path) -> None:
        self.root = root
        self.live = True
        self.path(lock.LOCK).mkdir(0o700, parents=True)
        self.packages: dict[str, Package] = {}
        self.configured_only: list[str] = []
        # The versions in the lists on the host, in this collection's repository, and in all repositories.
        self.listed: list[str] = []
        self.published: list[str] = []
        self.elsewhere: list[str] = []
        self.files: dict[str, PackageFile] = {}
        # The error messages of methods by name.
        self.failures: dict[str, str] = {}
        # The same, but only the first time.
        self.failures_once: dict[str, str] = {}
        # Further changes of every transaction.
        self.side_effects = Preview()
        self.cut_off = False
        self.can_hold = True
        self.can_change = True
        self.program_versions: dict[str, str] = {}
        # The calls of methods except those that read, in order.
        self.calls: list[str] = []
        self.changes: list[Change] = []
        # Whether each query for versions was limited to this collection's repository.
        self.asked_own: list[bool] = []
        # The settings that hide versions.
        self.settings: list[str] = []

    # -- tasks ----------------------------------------------------------------------------------------------------

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        name = argv[-2].rsplit("/", 1)[-1]
        version = self.program_versions.get(name, self._any_version())
        return 0, f"version {version.split('-')[0]}\n", ""

    def _any_version(self) -> str:
        return next(iter(self.packages.values())).version if self.packages else ""

    def task(self, **options: t.Any) -> Installation | Removal:
        work = Removal if options.get("state") == "absent" else Installation
        return work(InstallOptions(**options), self.host, self, self.run)

    def execute(self, check_mode: bool = False, **options: t.Any) -> dict[str, t.Any]:
        task = self.task(**options)
        return task.module_result(task.execute(check_mode))

    # -- the host ------------------------------------------------------------------------------------------------

    @property
    def host(self) -> HostFS:
        return HostFS(str(self.root), self.live)

    def path(self, inner: str) -> Path:
        return self.root / inner.lstrip("/")

    def write(self, inner: str, text: str = "") -> Path:
        return write_file(self.root, inner, text)

    def have(self, packages: t.Mapping[str, Package]) -> None:
        """Install packages that this collection did not install."""
        self.packages.update(packages)
        self._programs()

    def have_installed(self, packages: t.Mapping[str, Package]) -> None:
        """Install packages, and record that this collection installed them."""
        self.have(packages)
        record_packages(self.host, tuple(packages), renew=False)

    def file(self, path: str, name: str, version: str, architecture: str = "amd64") -> str:
        self.write(path)
        self.files[path] = PackageFile(path, name, version, architecture)
        return path

    def four_files(self, version: str) -> list[str]:
        return [self.file(f"/srv/{name}.deb", name, version) for name in PACKAGES]

    def base_file(self, version: str) -> list[str]:
        return [self.file(f"/srv/{BASE}.deb", BASE, version)]

    def snapshot(self) -> dict[str, t.Any]:
        found = {
            str(path.relative_to(self.root)): path.read_text() if path.is_file() else None
            for path in self.root.rglob("*")
        }
        return {**found, "packages": dict(self.packages)}

    def _programs(self) -> None:
        installed = programs_in(self.packages, PROGRAMS) if any(name in self.packages for name in PACKAGES) else ()
        for name in PROGRAMS:
            path = self.path(f"/usr/bin/{name}")
            if name in installed:
                self.write(f"/usr/bin/{name}").chmod(0o755)
            elif path.exists():
                path.unlink()

    # -- PackageManager ------------------------------------------------------------------------------------------

    def installed(self, names: t.Iterable[str]) -> dict[str, Package]:
        return {name: self.packages[name] for name in names if name in self.packages}

    def config_only(self, names: t.Iterable[str]) -> list[str]:
        return [name for name in names if name in self.configured_only]

    def interrupted(self) -> bool:
        return self.cut_off

    def refuse_interrupted(self, own: t.Collection[str]) -> None:
        if not own:
            raise HostError("Other packages are pending.")

    def repair_command(self, names: t.Sequence[str]) -> str:
        return f"dpkg --configure {' '.join(names)}"

    def repair(self, own: t.Sequence[str]) -> None:
        self._do("repair")
        assert own
        self.cut_off = False
        self.packages.update({name: self.packages[name]._replace(complete=True) for name in own})

    def candidates(
        self, names: t.Sequence[str], offline: bool = False, own: bool = False
    ) -> dict[str, list[Candidate]]:
        self.asked_own.append(own)
        self._do("candidates offline" if offline else "candidates")
        candidates = [Candidate(version, ORIGIN, preferred=not number) for number, version in enumerate(self.listed)]
        return {name: list(candidates) for name in names}

    def hiding(self, names: t.Sequence[str]) -> list[str]:
        assert names
        return self.settings

    def refresh(self, everything: bool = False) -> None:
        self._do("refresh everything" if everything else "refresh")
        source = self.path(APT_SOURCE)
        if source.exists() and "wrong" in source.read_text():
            raise CommandError("refresh", ["E: the source is wrong"], "")
        self.listed = [*self.published, *(self.elsewhere if everything else [])]

    def describe(self, files: t.Iterable[str]) -> list[PackageFile]:
        return [self.files[path] for path in files]

    def architecture(self) -> str:
        return "amd64"

    def require_transactions(self) -> None:
        if not self.can_change:
            raise HostError("Packages cannot change.")

    def preview(self, change: Change, offline: bool = False) -> Preview:
        del offline
        self._do("preview")
        return self.side_effects._replace(
            install={**change.install, **self.side_effects.install}, remove=(*change.remove, *self.side_effects.remove)
        )

    def break_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let every transaction install the packages and then fail in a script of one package."""
        apply = self.apply

        def breaking(change: Change) -> None:
            apply(change)
            self.packages[PACKAGES[1]] = self.packages[PACKAGES[1]]._replace(complete=False)
            self._do("broken")

        self.failures["broken"] = "dpkg: error processing package"
        monkeypatch.setattr(self, "apply", breaking)

    def apply(self, change: Change) -> None:
        assert not [name for name in change.install if self._held(name) and not change.change_held]
        self.changes.append(change)
        self._do("apply")
        described = {self.files[path].name: self.files[path].version for path in change.files}
        for name, version in {**change.install, **described}.items():
            self.packages[name] = Package(version)
        for name in change.remove:
            self.packages.pop(name, None)
        if not change.install and not change.files:
            self.configured_only = [name for name in self.configured_only if name not in change.remove]
        if (change.install or change.files) and not self.path(CONFIG_FILE).exists():
            self.write(CONFIG_FILE, "disable-require = false\n")
        self._programs()

    def require_holds(self) -> None:
        assert self.can_hold

    def hold(self, packages: t.Mapping[str, str]) -> None:
        self._do("hold")
        self._set_held(packages, True)

    def unhold(self, names: t.Sequence[str]) -> None:
        self._do("unhold")
        self._set_held(names, False)

    def _set_held(self, names: t.Iterable[str], held: bool) -> None:
        for name in names:
            self.packages[name] = self.packages[name]._replace(held=held)

    def _held(self, name: str) -> bool:
        return name in self.packages and self.packages[name].held

    def _do(self, call: str) -> None:
        self.calls.append(call)
        message = self.failures_once.pop(call, None) or self.failures.get(call)
        if message:
            raise CommandError(call, [message], "")
