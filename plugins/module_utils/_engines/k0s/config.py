# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the containerd configuration of k0s: the main file, the drop-ins, and whether k0s manages the main file.

This module does not plan changes. k0s 1.27.5 to 1.35.7 merges the CRI settings of drop-ins entry by entry, in lexical
order. From 1.36.1 on, containerd merges them (k0s, pkg/component/worker/containerd of 1.27 to 1.36; pull request 7713).
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import options as containerd_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes

if t.TYPE_CHECKING:
    Version = t.Tuple[int, ...]


MAIN = "/etc/k0s/containerd.toml"
DROP_INS = "/etc/k0s/containerd.d"
DATA_DIR = "/var/lib/k0s"
# The settings that k0s merged at its last start, defaults first. Newer releases leave the merging to containerd and do
# not create this file.
GENERATED = "/run/k0s/containerd-cri.toml"
# Marks a main file that k0s rewrites at each start: the first line in 1.36 and newer, any line in older releases
# (isK0sManagedConfig in pkg/component/worker/containerd/component.go). First 1.36.1, last without it 1.35.7.
MARKER = "# k0s_managed=true"

# The first releases of k0s that read drop-ins, that merge drop-ins, and that contain containerd 2 (k0s #7178). Releases
# up to 1.27.4 concatenate drop-ins (k0s #3283 and pull request 3426). First 1.27.1, 1.27.5 and 1.36.1, last without it
# 1.26.15, 1.27.4 and 1.35.7; there is no 1.27.0 and no 1.36.0.
READS_SINCE, MERGES_SINCE, CONTAINERD_2_SINCE = (1, 27, 1), (1, 27, 5), (1, 36)
# Lower limits of the containerd versions in k0s 1.27.1 (1.7.0) and in k0s 1.36 (1.36.1 has 2.3.1), for a k0s that does
# not run. Version 4 of the format and a main file of the user are then read as 2.0 reads them.
CONTAINERD_SINCE, CONTAINERD_2 = (1, 7), containerd_config.READ_SINCE[3]
# The last minor release of containerd 1 is 1.7. So a version from 1.8 up to 2.0 is one of k0s.
_ABOVE_CONTAINERD_1 = (1, 8)


def is_release(version: Version | None) -> bool:
    """Return whether ``version`` is a version of k0s. Otherwise it is one of containerd.

    The program k0s prints its own version. The CRI reports that of containerd.
    """
    return version is not None and _ABOVE_CONTAINERD_1 <= version < CONTAINERD_2


def containerd_of(version: Version | None, running: Version | None = None) -> Version | None:
    """Return the version of the containerd in a k0s release, as precisely as this collection needs it.

    A version of containerd is returned unchanged. The version of a ``running`` containerd has precedence, because that
    process reads the files even if k0s was upgraded since.
    """
    if version is not None and not is_release(version):
        return version
    if running is not None or version is None:
        return running
    if version >= CONTAINERD_2_SINCE:
        return CONTAINERD_2
    return CONTAINERD_SINCE if version >= READS_SINCE else (1, 6)


def is_managed(text: str, containerd: Version | None) -> bool:
    """Return whether k0s manages a main file with this text. ``containerd`` is the version of the containerd in k0s."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    only_first = containerd is not None and containerd >= CONTAINERD_2
    return MARKER in (lines[:1] if only_first else lines)


class K0sFiles(containerd_config.ContainerdFiles):
    """All files of k0s' containerd.

    ``managed`` is True if k0s manages the main file, and False if the user does. In the latter case, the files are read
    as containerd reads them.
    """

    managed = True

    def _load(self, path: str) -> list[containerd_config.ContainerdFile]:
        real = self._files.resolve(path)
        main = self._document(real)
        self.managed = main is None or is_managed(main.text, self.engine_version)
        if not self.managed:
            return super()._load(path)
        # k0s or its containerd merges the tables. All files have the version of the main file, so no version is merged
        # or migrated: a k0s whose containerd migrates files does not start with drop-ins of another version
        # (internal/pkg/sysinfo/probes/containerd.go of 1.36.1).
        self.merges, self.migrates, self.merges_versions = True, False, False
        loaded = {
            real: containerd_config.ContainerdFile(real, main or toml_document.TomlDocument.from_bytes(real, b""))
        }
        for name in self.expand(f"{DROP_INS}/*.toml"):
            drop_in = self._files.resolve(name)
            document = self._document(drop_in)
            if document is not None:
                loaded.setdefault(drop_in, containerd_config.ContainerdFile(drop_in, document))
        return list(loaded.values())

    def _version(self) -> int:
        return self.main_version() if self.managed else super()._version()

    def main_version(self) -> int:
        """Return the format version in which k0s writes the main file: at least 3 for containerd 2, otherwise 2."""
        written = super().main_version()
        if not self.managed:
            return written
        # The main file may have a later version that its containerd reads too, such as 4 with containerd 2.3.
        if self.engine_version is None or (written > containerd_config.default_version(self.engine_version) > 2):
            return max(written, 2)
        return containerd_config.default_version(self.engine_version)

    def cri(self) -> dict[str, t.Any]:
        return toml_plan.merged(self._builtin_runtimes(), super().cri()) if self.managed else super().cri()

    def _builtin_runtimes(self) -> dict[str, t.Any]:
        """Return the CRI settings with the built-in runtime runc, with its options from GENERATED."""
        path = (*containerd_config.RUNTIMES, runtimes.BUILTIN_DEFAULT)
        generated = toml_plan.lookup(self._generated(), path)
        options = toml_plan.lookup(generated, containerd_options.PROGRAM[:-1])
        runtime_type = toml_plan.lookup(generated, ("runtime_type",))
        runc: dict[str, t.Any] = {
            "runtime_type": runtime_type if isinstance(runtime_type, str) and runtime_type else runtimes.BUILTIN_TYPE,
            # GENERATED contains all options. Those that are not set have empty values.
            "options": {name: value for name, value in options.items() if value} if isinstance(options, dict) else {},
        }
        runtimes_table: dict[str, t.Any] = {}
        toml_plan.put(runtimes_table, path, toml_plan.plain_copy(runc))
        return runtimes_table

    def _generated(self) -> dict[str, t.Any]:
        try:
            content = self._files.read(GENERATED)
            document = toml_document.TomlDocument.from_bytes(GENERATED, content or b"")
        except (errors.ConfigurationError, errors.HostError):
            # The file is not needed: k0s creates it again at its next start.
            return {}
        found = document.value(*self.cri_path)
        return found if isinstance(found, dict) else {}

    def wrong_versions(self) -> list[tuple[containerd_config.ContainerdFile, str]]:
        """Return drop-ins in a format version that k0s does not accept, each with a setting that shows its version."""
        found = []
        other_paths = [path for path in dict.fromkeys(containerd_config.CRI_TABLE.values()) if path != self.cri_path]
        for file in self.files[1:]:
            version = file.document.value("version")
            tables = [f"[{'.'.join(path)}]" for path in other_paths if file.document.has(*path)]
            if version is not None and version != self.version:
                found.append((file, f"version = {version}"))
            elif tables:
                found.append((file, tables[0]))
        return found


def drop_in_name(path: str) -> str | None:
    """Return the name of a drop-in that k0s reads, None for a file that it does not read."""
    folder, name = posixpath.split(path)
    return name if folder == DROP_INS and name.endswith(".toml") else None
