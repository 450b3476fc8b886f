# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what installing and removing the toolkit's packages have in common: what the user asks,
# what is there, who would be hurt, and what is told afterwards.

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._backups import check_backup_dir
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import notes_of, reboot_required
from ansible_collections.gpufleet.nvidia.plugins.module_utils._parsed_folders import PARSED_FOLDERS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import BACKUP_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import FORMER_PACKAGES, PACKAGES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_containers import running
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_parts import (
    one_version,
    open_to,
    programs,
    upstream,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_policies import Policies
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_repository import (
    RepositoryFile,
    RepositoryPlan,
    check_files,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_traces import check_cache

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import (
        CommandError,
        Package,
        PackageManager,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_parts import Program

# Where any file would be taken for a source of packages.
SOURCE_FOLDERS = ("/etc/apt/sources.list.d", "/etc/apt/preferences.d", "/etc/apt/apt.conf.d", "/etc/yum.repos.d")
# How apt-get and dnf, 4 and 5, tell of a package that they could not fetch.
_NOT_DOWNLOADED = re.compile(
    r"Failed to fetch|Unable to fetch|Error downloading|Failed to download|Cannot download|Status code: 4|No more mirr"
)


class InstallOptions(t.NamedTuple):
    """What the user asks, as documented in nvidia_toolkit_install."""

    state: str = "present"
    source: str = "repository"
    version: str | None = None
    files: tuple[str, ...] = ()
    pending: bool = False
    repository_files: tuple[RepositoryFile, ...] | None = None
    proxy: str | None = None
    hold: bool | None = None
    remove_conflicts: bool = True
    running_gpu_containers: str = "fail"
    minimum_version: str | None = None
    minimum_version_policy: str = "warn"
    backup_dir: str = BACKUP_DIR
    package_cache: str | None = None
    keep_unrecorded: bool = False


class State(t.NamedTuple):
    """The installed packages: the four, and those that they replace."""

    packages: dict[str, Package]
    former: dict[str, Package]

    @property
    def half(self) -> tuple[str, ...]:
        """Those that were left half installed."""
        return tuple(name for name, package in {**self.packages, **self.former}.items() if not package.whole)

    def lines(self) -> list[str]:
        """One line for each, for people to compare."""
        every = {**self.packages, **self.former}
        return [
            f"{name} {package.version}{' (held)' if package.held else ''}{'' if package.whole else ' (half installed)'}"
            for name, package in sorted(every.items())
        ]


class Outcome(t.NamedTuple):
    """What was done, or in check mode what would be; ``unrecorded`` packages were left by a removal."""

    changed: bool
    before: State
    after: State
    origin: str | None = None
    removed_sources: tuple[str, ...] = ()
    removed_files: tuple[str, ...] = ()
    repository: RepositoryPlan = RepositoryPlan()
    backups: tuple[t.Mapping[str, str | None], ...] = ()
    foretold: bool = False
    unrecorded: tuple[str, ...] = ()


class ToolkitTask(Policies):
    """The packages of one host, for one task."""

    def __init__(self, options: InstallOptions, host: HostRoot, manager: PackageManager | None, run: Runner) -> None:
        super().__init__(options.running_gpu_containers, options.minimum_version, options.minimum_version_policy)
        self.options = options
        self.host = host
        self.run = run
        self._manager = manager
        self.backup_dir = host.check_path("backup_dir", options.backup_dir)
        check_backup_dir(host, self.backup_dir, (*PARSED_FOLDERS, *SOURCE_FOLDERS))
        self.cache = None if options.package_cache is None else check_cache(host, options.package_cache)
        self.files = tuple(host.check_path("files", path) for path in options.files)
        files = options.repository_files
        self.repository_files = None if files is None else check_files(files, options.proxy)
        self.gpu_containers: list[str] = []
        self._programs: dict[str, Program] | None = None
        self._check_options()

    @property
    def manager(self) -> PackageManager:
        """Raises HostError where there is none to be asked."""
        if self._manager is None:
            raise HostError(
                "The package manager of this host is not known: /etc/os-release names no distribution with apt or dnf."
                " Install the NVIDIA Container Toolkit by other means, and set source: existing."
            )
        return self._manager

    def look(self) -> State:
        """Read what is installed."""
        if self._manager is None:
            return State({}, {})
        found = self._manager.installed((*PACKAGES, *FORMER_PACKAGES))
        return State(
            {name: found[name] for name in PACKAGES if name in found},
            {name: found[name] for name in FORMER_PACKAGES if name in found},
        )

    def guard_containers(self) -> None:
        """Tell of containers that lose their GPU when package scripts make systemd read its units again."""
        self.gpu_containers = running(self.host)
        self.guard(
            self.gpu_containers,
            "got their GPU from NVIDIA's legacy hook and lose it when package scripts let systemd read its units"
            " again.",
            "Stop them first, or let them use CDI",
            "They have to be created again.",
        )

    def ask_programs(self) -> dict[str, Program]:
        """The toolkit's programs as they are now, to be told of in the end."""
        self._programs = programs(self.host, self.run)
        return self._programs

    def result(self, outcome: Outcome) -> dict[str, t.Any]:
        """The module's result as documented."""
        found = self.ask_programs() if self._programs is None else self._programs
        versions = {name: package.version for name, package in outcome.after.packages.items()}
        version = one_version(versions, {} if outcome.foretold else found)
        open_cves = open_to(versions, {} if outcome.foretold else found)
        removed = [f"{path} (source)" for path in outcome.removed_sources]
        removed += [f"{path} (file)" for path in outcome.removed_files]
        packages_diff = {
            "before_header": "packages",
            "after_header": "packages",
            "before": _text([*outcome.before.lines(), *removed]),
            "after": _text(outcome.after.lines()),
        }
        return {
            "changed": outcome.changed,
            "diff": [packages_diff, *outcome.repository.diff()],
            # What is not known yet is no version.
            "version": version if version is not None and upstream(version) else None,
            "packages": {
                name: {"version": package.version, "held": package.held}
                for name, package in {**outcome.after.packages, **outcome.after.former}.items()
            },
            "programs": {name: {"path": entry.path, "version": entry.version} for name, entry in found.items()},
            "origin": outcome.origin,
            "open_cves": None if open_cves is None else [entry._asdict() for entry in open_cves],
            "gpu_containers": self.gpu_containers,
            "reboot_required": reboot_required(self.host, self._manager),
            "removed_sources": list(outcome.removed_sources),
            "written_files": [file.path for file in outcome.repository.files],
            "restored_files": [file.path for file in outcome.repository.back],
            "unrecorded": list(outcome.unrecorded),
            "backup_files": [dict(backup) for backup in outcome.backups],
            "warnings": [*self.warnings, *notes_of(self._manager)],
        }

    def _check_options(self) -> None:
        options = self.options
        if options.files and options.source != "files":
            raise GpufleetError("files is for source: files only. Leave one of the two out.")
        if options.source == "files" and options.state == "present" and not options.files:
            raise GpufleetError("source: files needs files, the paths of all four packages on the host.")
        if self.repository_files and options.source != "repository":
            raise GpufleetError("repository_files is for source: repository only. Leave one of the two out.")
        if options.source != "existing" and not self.host.live:
            raise HostError(
                "Packages cannot be installed or removed in an offline tree: their scripts would have to run in it."
                " Install them where the image is built (chroot) with host_root_live: true, or set source: existing."
            )


def explain_failure(error: CommandError, before: State, after: State) -> HostError:
    """A failed transaction in words that say what became of the packages."""
    if after == before:
        state = "The packages are as they were."
    else:
        state = f"The packages are now: {', '.join(after.lines()) or 'none of them installed'}."
        if any(not package.whole for package in after.packages.values()):
            state += " The next run brings what is half installed to its end."
    failure = HostError(f"{error} {state}")
    failure.details = {"changed": after != before}
    return failure


def not_downloaded(error: CommandError) -> bool:
    """Whether a transaction failed because a package could not be fetched, say since the lists are older than it."""
    return any(_NOT_DOWNLOADED.search(line) for line in error.said)


def _text(lines: t.Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
