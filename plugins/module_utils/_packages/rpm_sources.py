# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The package sources of dnf and zypper: the files that they read, their entries, and those of this collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


_ADDRESS_KEYS = ("baseurl", "mirrorlist", "metalink")


def _entries(_path: str, text: str) -> t.Iterator[packages_base.Entry]:
    return parse_repo(text)


def parse_repo(text: str) -> t.Iterator[packages_base.Entry]:
    """Yield the active entries of a ``.repo`` file: one for each address of each section."""
    pending: list[packages_base.Entry] = []
    enabled = True
    key = ""
    # The added section header ends the last section.
    for number, line in enumerate([*text.splitlines(), "[end]"], 1):
        if line.startswith("["):
            yield from pending if enabled else ()
            pending, enabled, key = [], True, ""
        elif line.strip() and not line.lstrip().startswith(("#", ";")):
            value = line
            if line[0] not in " \t":
                key, _sign, value = line.partition("=")
                key = key.strip().lower()
            if key in _ADDRESS_KEYS:
                pending += [packages_base.Entry(number, address) for address in value.replace(",", " ").split()]
            elif key == "enabled":
                enabled = value.strip().lower() not in packages_base.FALSE


def _repository(folder: str, keys: str) -> packages_base.Repository:
    """Return the sources in ``folder``, with keys in the directory ``keys``."""

    def source_files(host: hostfs.HostFS) -> list[str]:
        return host.glob(f"{folder}/*.repo")

    key = f"{keys}/RPM-GPG-KEY-{packages_base.REPOSITORY_NAME}-{packages_base.SHORT_FINGERPRINT}"
    return packages_base.Repository(
        (f"{folder}/{packages_base.REPOSITORY_NAME}.repo",), key, source_files, entries=_entries
    )


DNF = _repository("/etc/yum.repos.d", "/etc/pki/rpm-gpg")
ZYPPER = _repository("/etc/zypp/repos.d", "/etc/zypp")
