# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the toolkit in a directory of its own, for hosts whose packages are not to be touched:
# what the user asks, and what is told afterwards.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _backups
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._parsed_folders import PARSED_FOLDERS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import BACKUP_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import (
    DIRECTORY,
    LATER_PROGRAMS,
    OWN_CONFIG_FILE,
    PROGRAMS,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_directory_plan import check_dest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_parts import open_vulnerabilities
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_policies import Policies
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_version_reading import VersionReader

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import PlannedFile
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_manifest import Manifest
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_source import Sent
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_version_reading import Damage
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_version_store import Label, VersionStore


class DirectoryOptions(t.NamedTuple):
    """What the user asks, as documented in nvidia_toolkit_install.

    ``components`` and ``low_level_runtimes`` are None where nothing is said.  ``sent`` stands for a source on the
    controller.
    """

    dest: str = DIRECTORY
    src: str | None = None
    files: tuple[str, ...] = ()
    sent: Sent | None = None
    components: tuple[str, ...] | None = None
    driver_root: str = "/"
    settings: t.Mapping[str, t.Any] = {}
    profile: str | None = None
    allow_unknown: bool = False
    debug: bool | None = None
    default_runtime: str | None = None
    low_level_runtimes: tuple[str, ...] | None = None
    create_device_nodes: bool = False
    thorough: bool = False
    version: str | None = None
    running_gpu_containers: str = "fail"
    minimum_version: str | None = None
    minimum_version_policy: str = "warn"
    backup_dir: str = BACKUP_DIR


class Tools(t.NamedTuple):
    """What a task needs of Ansible: commands, an unpacker of packages into a folder, and SELinux labels."""

    run: Runner
    unpack: t.Callable[[list[str], str], None]
    label: Label


class DirectoryOutcome(t.NamedTuple):
    """What was done, or in check mode what would be.

    ``before`` and ``after`` are lines for people, one for each name.  ``kept`` are versions that are no longer needed
    but used, with their users.
    """

    changed: bool
    version: str | None = None
    path: str | None = None
    previous: str | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    config: PlannedFile | None = None
    settings: t.Mapping[str, t.Any] = {}
    programs: tuple[str, ...] = ()
    kept: t.Mapping[str, t.Sequence[str]] = {}
    removed: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()
    backups: tuple[t.Mapping[str, str | None], ...] = ()


class DirectoryTask(Policies):
    """The toolkit in one directory of one host, for one task."""

    def __init__(self, options: DirectoryOptions, host: HostRoot, tools: Tools) -> None:
        super().__init__(options.running_gpu_containers, options.minimum_version, options.minimum_version_policy)
        self.options = options
        self.host = host
        self.tools = tools
        dest = host.check_path("dest", options.dest)
        check_dest(dest)
        self.store = VersionReader(host, dest)
        self.backup_dir = host.check_path("backup_dir", options.backup_dir)
        _backups.check_backup_dir(host, self.backup_dir, (*PARSED_FOLDERS, dest, self.store.folder))

    def writing(self) -> VersionStore:
        """The versions, to be changed."""
        # An unchanged host need not wait for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_version_store import (  # noqa: PLC0415
            VersionStore,
        )

        return VersionStore(self.host, self.store.dest)

    def remove(self, name: str) -> None:
        """Remove a version; files in it that nobody has installed stay."""
        left = self.writing().remove(name)
        if left:
            self.warn(f"{', '.join(left)} did not come with the toolkit, and stays.")

    def current(self) -> Manifest | None:
        """The current version, None where there is none or where it is not whole."""
        name = self.store.current()
        return None if name is None else self.store.manifest(name)

    def result(self, outcome: DirectoryOutcome) -> dict[str, t.Any]:
        """The module's result as documented, but for the diff of config.toml."""
        version, dest = outcome.version, self.store.dest
        installed = [name for name in (*PROGRAMS, *LATER_PROGRAMS) if name in outcome.programs]
        return {
            "changed": outcome.changed,
            "version": version,
            "packages": {},
            "programs": {name: {"path": f"{dest}/{name}", "version": version} for name in installed},
            "origin": None,
            "open_cves": _open_cves(version, bool(outcome.programs)),
            "gpu_containers": [],
            "reboot_required": None,
            "removed_sources": [],
            "written_files": [],
            "restored_files": [],
            "backup_files": [dict(backup) for backup in outcome.backups],
            "installed_path": outcome.path,
            "previous_path": outcome.previous,
            "kept_paths": {path: list(users) for path, users in outcome.kept.items()},
            "removed_paths": list(outcome.removed),
            "repaired_files": list(outcome.repaired),
            "device_nodes": list(outcome.device_nodes),
            "settings": dict(outcome.settings),
            "warnings": self.warnings,
        }

    def read_config(self, path: str) -> bytes | None:
        """A config.toml, None where there is none or where it cannot be one."""
        try:
            return self.host.read(path)
        except HostError:
            return None

    def save_config(self, name: str, damage: Damage | None) -> list[dict[str, str | None]]:
        """Keep a copy of a config.toml that somebody has edited, or may have (None), before its version goes."""
        path = f"{self.store.path(name)}/{OWN_CONFIG_FILE}"
        edited = damage is None or OWN_CONFIG_FILE in damage.changed
        content = self.read_config(path) if edited else None
        if content is None:
            return []
        backup = _backups.save(self.host, self.backup_dir, f"{self.store.dest}/{OWN_CONFIG_FILE}", content)
        self.warn(
            f"{self.store.dest}/{OWN_CONFIG_FILE} was edited by hand, or may have been; its copy is {backup}. Put"
            " what it should say into config."
        )
        return [{"path": f"{self.store.dest}/{OWN_CONFIG_FILE}", "backup": backup, "checksum": "absent"}]


def lines_of(manifest: Manifest | None, damage: Damage | None = None) -> tuple[str, ...]:
    """What a version holds, a line for each name."""
    if manifest is None:
        return ()
    changed = damage.changed if damage is not None else ()
    lines = {
        name: line(name, entry.mode, entry.known.sha256 if entry.known else "", entry.target)
        + (" (not as it was installed)" if name in changed else "")
        for name, entry in manifest.files.items()
    }
    lines.update((name, f"{name} (not from here)") for name in (damage.strangers if damage is not None else ()))
    return tuple(lines[name] for name in sorted(lines))


def line(name: str, mode: int, sha256: str, target: str) -> str:
    """One name of a version, for people to compare."""
    return f"{name} -> {target}" if target else f"{name} {mode:04o} {sha256[:16]}"


def _open_cves(version: str | None, there: bool) -> list[dict[str, t.Any]] | None:
    if version is None:
        return None if there else []
    return [entry._asdict() for entry in open_vulnerabilities(version)]
