# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the locks of zypper from the file of libzypp. This needs no program, and works while zypper is running.

The format was seen with zypper 1.14.89 and libzypp 17.36.7: attributes of one lock on adjacent lines, and empty lines
between the locks.
"""

from __future__ import annotations

import contextlib
import fnmatch
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import saved_files

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import rpm


LOCKS = "/etc/zypp/locks"
# zypp.conf(5): the file of the host replaces that of the vendor, and drop-ins change single settings.
_CONFIG_FILES = ("/etc/zypp/zypp.conf", "/usr/etc/zypp/zypp.conf")
_DROP_INS = ("/usr/etc/zypp/zypp.conf.d/*.conf", "/etc/zypp/zypp.conf.d/*.conf")
_LOCK_SETTING = re.compile(r"^[ \t]*locksfile\.apply[ \t]*=.*$", re.MULTILINE)
_WITHOUT_LOCKS = "\n[main]\nlocksfile.apply = no\n"

_ATTRIBUTE = re.compile(r"^([a-z_]+): ?(.*)$")


class Lock(t.NamedTuple):
    """A lock of packages with one of ``names``, which are patterns.

    ``repository`` limits it to packages in a repository, and is empty for most locks. A lock of certain versions counts
    as a lock of all versions, because it is safe to refuse a change that zypper would permit.
    """

    names: tuple[str, ...]
    repository: str = ""

    def holds(self, name: str) -> bool:
        """Return whether an installed package cannot change. It is in no repository for zypper."""
        return not self.repository and any(fnmatch.fnmatchcase(name, pattern) for pattern in self.names)


class LockList(t.NamedTuple):
    """The list of locks of one host."""

    host: hostfs.HostFS

    def locks(self) -> list[Lock]:
        """Return the locks of packages."""
        return parse_locks(self.host.read_text(LOCKS))

    def exist(self) -> bool:
        return bool(self.locks())

    def held_names(self, rows: t.Sequence[rpm.Row]) -> set[str]:
        locks = self.locks()
        return {row.name for row in rows if any(lock.holds(row.name) for lock in locks)}

    def name_one_of(self, names: t.Collection[str]) -> bool:
        """Return whether a lock names one of these packages, not several by a pattern."""
        return any(name in names for lock in self.locks() for name in lock.names)

    def snapshot(self) -> list[saved_files.SavedFile]:
        return saved_files.snapshot_list(self.host, LOCKS)

    @contextlib.contextmanager
    def ignored(self) -> t.Iterator[list[str]]:
        """Yield the beginning of a command for which libzypp has the configuration of the host, but no locks."""
        text = _LOCK_SETTING.sub("", _configuration(self.host)) + _WITHOUT_LOCKS
        with lock.temp_directory(self.host, "the configuration of zypper") as (process_path, directory):
            try:
                with open(f"{process_path}/zypp.conf", "w", encoding="utf-8", errors="surrogateescape") as file:
                    file.write(text)
            except OSError as error:
                raise errors.os_error(f"The configuration of zypper in {directory}", "written", error) from error
            yield ["env", f"ZYPP_CONF={directory}/zypp.conf"]


def parse_locks(text: str) -> list[Lock]:
    """Return the locks of packages in a file of libzypp. Locks of patches, patterns and products are left out."""
    found = []
    names: list[str] = []
    fields: dict[str, str] = {}
    for line in [*text.splitlines(), ""]:
        attribute = _ATTRIBUTE.match(line.strip())
        if attribute is None:
            if names and fields.get("type", "package") == "package":
                found.append(Lock(tuple(names), fields.get("repo", "")))
            names, fields = [], {}
        elif attribute.group(1) == "solvable_name":
            names.append(attribute.group(2).strip())
        else:
            fields[attribute.group(1)] = attribute.group(2).strip()
    return found


def _configuration(host: hostfs.HostFS) -> str:
    """Return the text of the configuration files of libzypp, in the order in which they are read."""
    files = [path for path in _CONFIG_FILES if host.exists(path)][:1]
    # A drop-in of the host replaces that of the vendor with the same name.
    drop_ins = {posixpath.basename(path): path for pattern in _DROP_INS for path in host.glob(pattern)}
    files += [drop_ins[name] for name in sorted(drop_ins)]
    return "\n".join(host.read_text(path) for path in files)
