# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the files of Podman: containers.conf with its drop-ins, and its hook directories.

Podman 5 (containers/common 0.63, pkg/config/new.go) reads /usr/share, then /etc, then the drop-ins in /etc by name;
each overrides the ones before. Podman 6 (container-libs, storage/pkg/configfile) reads the main file in /etc or
else in /usr/share, then the drop-ins of all directories sorted by name; a drop-in hides one of its name in an
earlier directory, and links do not count. A user's home, modules and CONTAINERS_CONF are not read.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base

    KeyPath = t.Tuple[str, ...]

    Version = t.Tuple[int, ...]


MAIN = "/etc/containers/containers.conf"
DROP_IN = "/etc/containers/containers.conf.d/99-gpufleet-nvidia.conf"
CDI_DIRS: KeyPath = ("engine", "cdi_spec_dirs")

_PACKAGED_MAIN = "/usr/share/containers/containers.conf"
_FOLDER = posixpath.dirname(DROP_IN)
# Podman 6, for root.
_ALL_FOLDERS = (
    "/usr/share/containers/containers.conf.d",
    "/usr/share/containers/containers.rootful.conf.d",
    _FOLDER,
    "/etc/containers/containers.rootful.conf.d",
)
_MIXED_SINCE = (6,)
_ADVICE = 'Make it an array of folders, such as ["/etc/cdi", "/var/run/cdi"].'


class ConfFile(t.NamedTuple):
    """One file, and what it says."""

    path: str
    document: toml_document.TomlDocument


class Reading(t.NamedTuple):
    """What has been read so far: the folders, and whether later files add to them instead of replacing them."""

    folders: tuple[str, ...]
    appends: bool = False

    def after(self, value: t.Sequence[t.Any]) -> Reading:
        """What it is once ``value`` was read too (containers.conf(5), "Appending to string arrays")."""
        said = [entry["append"] for entry in value if isinstance(entry, dict)]
        appends = said[-1] if said else self.appends
        folders = tuple(entry for entry in value if isinstance(entry, str))
        return Reading((*self.folders, *folders) if appends else folders, appends)


class ContainersConf:
    """All files in the order in which a Podman of ``version`` reads them.

    ``default`` are the folders where no file names any, ``ours`` stands for the drop-in as it is to be.  Raises
    ConfigurationError where a file, or the setting in it, is not what Podman reads.
    """

    def __init__(
        self, files: engines_base.Files, version: Version, default: t.Sequence[str], ours: toml_document.TomlDocument
    ) -> None:
        self._default = tuple(default)
        self.files: list[ConfFile] = []
        for path in _paths(files, version):
            document = ours if path == DROP_IN else _document(files, path)
            if document is not None:
                _check(document)
                self.files.append(ConfFile(path, document))

    def reading(self, before: str | None = None) -> Reading:
        """What all files say, or those that are read earlier than ``before``."""
        found = Reading(self._default)
        for path, document in self.files:
            if path == before:
                break
            if document.has(*CDI_DIRS):
                found = found.after(document.value(*CDI_DIRS))
        return found

    def hiding(self, path: str) -> str | None:
        """The file that is read in the place of ``path``."""
        name = posixpath.basename(path)
        others = (file.path for file in self.files if file.path != path)
        return next((other for other in others if posixpath.basename(other) == name), None)


def _paths(files: engines_base.Files, version: Version) -> list[str]:
    """The files that are read, with ours whether or not it is there."""
    if version < _MIXED_SINCE:
        drop_ins = {**_drop_ins(files, _FOLDER), posixpath.basename(DROP_IN): DROP_IN}
        return [_PACKAGED_MAIN, MAIN, *(drop_ins[name] for name in sorted(drop_ins))]
    mixed: dict[str, str] = {}
    for folder in _ALL_FOLDERS:
        mixed.update(_drop_ins(files, folder))
        if folder == _FOLDER:
            mixed[posixpath.basename(DROP_IN)] = DROP_IN
    real = {name: path for name, path in mixed.items() if path == DROP_IN or not _is_link(files, path)}
    main = MAIN if files.read(MAIN) is not None else _PACKAGED_MAIN
    return [main, *(real[name] for name in sorted(real))]


def _drop_ins(files: engines_base.Files, folder: str) -> dict[str, str]:
    return {
        posixpath.basename(path): path
        for path in files.walk(folder)
        if posixpath.dirname(path) == folder and path.endswith(".conf")
    }


def _is_link(files: engines_base.Files, path: str) -> bool:
    folder, name = posixpath.split(path)
    return files.resolve(path) != posixpath.join(files.resolve(folder), name)


def _document(files: engines_base.Files, path: str) -> toml_document.TomlDocument | None:
    content = files.read(path)
    return None if content is None else toml_document.TomlDocument.from_bytes(path, content)


def _check(document: toml_document.TomlDocument) -> None:
    value = toml_plan.require(document, CDI_DIRS, list, _ADVICE) or ()
    if not all(isinstance(entry, str) or _is_attribute(entry) for entry in value):
        raise document.error(CDI_DIRS, f"{'.'.join(CDI_DIRS)} holds what is no folder", _ADVICE)


def _is_attribute(entry: t.Any) -> bool:
    """Whether an entry is Podman's word on what becomes of earlier ones."""
    return isinstance(entry, dict) and list(entry) == ["append"] and isinstance(entry["append"], bool)
