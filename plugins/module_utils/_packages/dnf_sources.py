# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The package sources of dnf: the files that it reads, their entries, and the files of this collection among them."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


_FOLDER = "/etc/yum.repos.d"
_ADDRESS_KEYS = ("baseurl", "mirrorlist", "metalink")


def _source_files(host: hostfs.HostFS) -> list[str]:
    return host.glob(f"{_FOLDER}/*.repo")


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


REPOSITORY = packages_base.Repository(
    files=(f"{_FOLDER}/{packages_base.REPOSITORY_NAME}.repo",),
    key_pattern=f"/etc/pki/rpm-gpg/RPM-GPG-KEY-{packages_base.REPOSITORY_NAME}-{packages_base.SHORT_FINGERPRINT}",
    source_files=_source_files,
    entries=_entries,
)
