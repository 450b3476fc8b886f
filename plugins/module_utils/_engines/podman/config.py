# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the files of Podman: containers.conf with its drop-ins, and its hook directories.

Podman 5 (containers/common 0.63, pkg/config/new.go) reads /usr/share, then /etc, then the drop-ins in /etc by name.
Each file overrides the ones before. Podman 6 (container-libs, storage/pkg/configfile) reads the main file in /etc, or
else in /usr/share, then the drop-ins of all directories sorted by name. A drop-in hides one of the same name in an
earlier directory, and links are ignored. This file does not read a user's home, modules and CONTAINERS_CONF.
"""

from __future__ import annotations

import itertools
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import key_names, toml_plan

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base

    KeyPath = t.Tuple[str, ...]

    Version = t.Tuple[int, ...]


MAIN = "/etc/containers/containers.conf"
DROP_IN = "/etc/containers/containers.conf.d/99-gpufleet-nvidia.conf"
CDI_DIRS: KeyPath = ("engine", "cdi_spec_dirs")
_FIELDS = key_names.fields(engine=key_names.fields(CDI_DIRS[-1]))

_PACKAGED_MAIN = "/usr/share/containers/containers.conf"
_FOLDER = posixpath.dirname(DROP_IN)
# The directories of Podman 6 for root.
_ALL_FOLDERS = (
    "/usr/share/containers/containers.conf.d",
    "/usr/share/containers/containers.rootful.conf.d",
    _FOLDER,
    "/etc/containers/containers.rootful.conf.d",
)
# Last without it 5.8.2. Read in 6.0.0-dev of May 2026 (storage/pkg/configfile); no release of 6 was read.
_MIXED_SINCE = (6,)
_ADVICE = 'Make it an array of directories, such as ["/etc/cdi", "/var/run/cdi"].'


class ConfFile(t.NamedTuple):
    """One file and its content."""

    path: str
    document: toml_document.TomlDocument


class CdiDirs(t.NamedTuple):
    """The setting after some of the files: its directories, and whether later files append to them or replace them."""

    folders: tuple[str, ...]
    appends: bool = False

    def after(self, value: t.Sequence[t.Any]) -> CdiDirs:
        """Return the setting after ``value`` was read too (containers.conf(5), "Appending to string arrays")."""
        attributes = [entry["append"] for entry in value if isinstance(entry, dict)]
        appends = attributes[-1] if attributes else self.appends
        folders = tuple(entry for entry in value if isinstance(entry, str))
        return CdiDirs((*self.folders, *folders) if appends else folders, appends)


class ContainersConf:
    """All files in the order in which a Podman of ``version`` reads them.

    ``default`` are the directories that are used if no file names any. ``own`` is the planned content of the drop-in of
    this collection, None for its present content.

    Raises ConfigurationError if a file, or the setting in it, is not valid for Podman.
    """

    def __init__(
        self,
        files: engines_base.Files,
        version: Version,
        default: t.Sequence[str] = (),
        own: toml_document.TomlDocument | None = None,
    ) -> None:
        self._default = tuple(default)
        self.files: list[ConfFile] = []
        for path in _paths(files, version):
            document = own if own is not None and path == DROP_IN else _document(files, path)
            if document is not None:
                key_names.check(document, _FIELDS, "Podman")
                _check(document)
                self.files.append(ConfFile(path, document))

    def cdi_dirs(self, before: str | None = None) -> CdiDirs:
        """Return the setting after all files, or after those that are read before the file ``before``."""
        read = itertools.takewhile(lambda file: file.path != before, self.files)
        return next((setting for _file, setting in reversed([*self._settings(read)])), CdiDirs(self._default))

    def replacing_file(self) -> ConfFile | None:
        """Return the last file whose setting replaces that of the files before it."""
        settings = [*self._settings(self.files)]
        return next((file for file, setting in reversed(settings) if not setting.appends), None)

    def _settings(self, files: t.Iterable[ConfFile]) -> t.Iterator[tuple[ConfFile, CdiDirs]]:
        """Yield each file that has the setting, with the setting after this file."""
        setting = CdiDirs(self._default)
        for file in files:
            if file.document.has(*CDI_DIRS):
                setting = setting.after(file.document.value(*CDI_DIRS))
                yield file, setting

    def overriding_file(self, path: str) -> str | None:
        """Return the file that is read instead of ``path``, None if there is none."""
        name = posixpath.basename(path)
        others = (file.path for file in self.files if file.path != path)
        return next((other for other in others if posixpath.basename(other) == name), None)


def check_syntax(files: engines_base.Files, version: Version | None) -> None:
    """Read all files. A Podman that cannot parse one of them starts no container, in every release.

    Raises ConfigurationError for a file that is not valid TOML.
    """
    for path in _paths(files, version or ()):
        _document(files, path)


def _paths(files: engines_base.Files, version: Version) -> list[str]:
    """Return the files that are read. The drop-in of this collection is included even if it does not exist."""
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
        raise document.error(CDI_DIRS, f"{'.'.join(CDI_DIRS)} contains an entry that is not a path", _ADVICE)


def _is_attribute(entry: t.Any) -> bool:
    """Return whether an entry is the attribute that tells Podman to append to or replace earlier entries."""
    return isinstance(entry, dict) and list(entry) == ["append"] and isinstance(entry["append"], bool)
