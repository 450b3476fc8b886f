# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the containerd configuration of k0s: its main file, its drop-ins, and who manages them.

k0s merges the CRI settings of drop-ins entry by entry, in lexical order; in releases after 1.36.0 its containerd
does (k0s, pkg/component/worker/containerd of 1.27 to 1.36; pull request 7713).
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes

if t.TYPE_CHECKING:
    Version = t.Tuple[int, ...]


MAIN = "/etc/k0s/containerd.toml"
DROP_INS = "/etc/k0s/containerd.d"
DATA_DIR = "/var/lib/k0s"
# What k0s merged at its last start, defaults first.  Newer ones leave the merging to containerd and make no such file.
GENERATED = "/run/k0s/containerd-cri.toml"
# What marks a main file that k0s writes anew at each start: its first line in 1.36.1 and newer, any line in older
# releases (isK0sManagedConfig in pkg/component/worker/containerd/component.go of 1.35.7 and 1.36.1).
MARKER = "# k0s_managed=true"

# The releases of k0s from which on drop-ins are read; are merged (until then they are laid behind each other, k0s #3283
# and pull request 3426 of August 2023, after 1.27.4); and are for a containerd 2 (k0s #7178).
READS_SINCE, MERGES_SINCE, CONTAINERD_2_SINCE = (1, 27, 1), (1, 27, 5), (1, 36)
# The containerd of k0s 1.27.1, and that of 1.36.
CONTAINERD_SINCE, CONTAINERD_2 = (1, 7), containerd_config.READ_SINCE[3]
# No containerd 1.x is newer than 1.7.
_NO_CONTAINERD = (1, 8)


def is_release(version: Version | None) -> bool:
    """Whether a version is that of k0s itself, as its program tells it, and not of its containerd, as the CRI does."""
    return version is not None and _NO_CONTAINERD <= version < CONTAINERD_2


def containerd_of(version: Version | None, running: Version | None = None) -> Version | None:
    """The version of containerd that comes with a release of k0s, as far as it matters.

    That of a containerd is its own.  One that is ``running`` reads what is written, to whatever release k0s was brought
    since.
    """
    if version is not None and not is_release(version):
        return version
    if running is not None or version is None:
        return running
    if version >= CONTAINERD_2_SINCE:
        return CONTAINERD_2
    return CONTAINERD_SINCE if version >= READS_SINCE else (1, 6)


def is_managed(text: str, containerd: Version | None) -> bool:
    """Whether k0s writes a main file itself that it finds; ``containerd`` is the version that comes with k0s."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    only_first = containerd is not None and containerd >= CONTAINERD_2
    return MARKER in (lines[:1] if only_first else lines)


class K0sFiles(containerd_config.ContainerdFiles):
    """All files of k0s' containerd; one whose main file is the user's own is read as containerd reads it.

    ``managed`` says which of the two it is.
    """

    managed = True

    def _load(self, path: str) -> list[containerd_config.ConfigFile]:
        real = self._files.resolve(path)
        main = self._document(real)
        self.managed = main is None or is_managed(main.text, self.engine_version)
        if not self.managed:
            return super()._load(path)
        # A k0s with a containerd that migrates does not start with drop-ins of another version
        # (internal/pkg/sysinfo/probes/containerd.go of 1.36.1).
        self.merges, self.migrates = True, False
        loaded = {real: containerd_config.ConfigFile(real, main or toml_document.TomlDocument.from_bytes(real, b""))}
        for name in self.expand(f"{DROP_INS}/*.toml"):
            drop_in = self._files.resolve(name)
            document = self._document(drop_in)
            if document is not None:
                loaded.setdefault(drop_in, containerd_config.ConfigFile(drop_in, document))
        return list(loaded.values())

    def _version(self) -> int:
        """That of the main file as k0s writes it: for a containerd 2 it is 3 at least, else 2."""
        written = super()._version()
        if not self.managed:
            return written
        if self.engine_version is None or (written > containerd_config.fresh_version(self.engine_version) > 2):
            return max(written, 2)
        return containerd_config.fresh_version(self.engine_version)

    def cri(self) -> dict[str, t.Any]:
        return toml_plan.merged(self._base(), super().cri()) if self.managed else super().cri()

    def _base(self) -> dict[str, t.Any]:
        """What k0s begins with, as far as it says anything of runtimes."""
        shown = toml_plan.lookup(self._generated(), (*containerd_config.RUNTIMES, runtimes.BUILTIN_DEFAULT))
        options = toml_plan.lookup(shown, containerd_config.PROGRAM[:-1])
        kind = toml_plan.lookup(shown, ("runtime_type",))
        runc: dict[str, t.Any] = {"runtime_type": kind if isinstance(kind, str) and kind else runtimes.BUILTIN_TYPE}
        # All options are printed, also those that are not set.
        runc["options"] = {name: value for name, value in options.items() if value} if isinstance(options, dict) else {}
        base: dict[str, t.Any] = {}
        toml_plan.put(base, (*containerd_config.RUNTIMES, runtimes.BUILTIN_DEFAULT), toml_plan.plain_copy(runc))
        return base

    def _generated(self) -> dict[str, t.Any]:
        try:
            content = self._files.read(GENERATED)
            document = toml_document.TomlDocument.from_bytes(GENERATED, content or b"")
        except (errors.ConfigurationError, errors.HostError):
            # k0s makes it anew.
            return {}
        found = document.value(*self.cri_path)
        return found if isinstance(found, dict) else {}

    def mistaken(self) -> list[tuple[containerd_config.ConfigFile, str]]:
        """Drop-ins in another version of the format than k0s takes, with what gives them away."""
        found = []
        for file in self.files[1:]:
            version = file.document.value("version")
            others = [root for root in dict.fromkeys(containerd_config.CRI_TABLE.values()) if root != self.cri_path]
            tables = [".".join(root) for root in others if file.document.has(*root)]
            if version is not None and version != self.version:
                found.append((file, f"version = {version}"))
            elif tables:
                found.append((file, tables[0]))
        return found


def drop_in_name(path: str) -> str | None:
    """The name of a drop-in that k0s would read, None for a file that it would not."""
    folder, name = posixpath.split(path)
    return name if folder == DROP_INS and name.endswith(".toml") else None
