# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The package sources of zypper: the files that it reads, their entries, and the files of this collection among them.

The files have the format of dnf. The key is in zypper's own directory, of which it reads only subdirectories and files
with other names. The directories with the keys of SUSE belong to packages.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import dnf_sources

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


_FOLDER = "/etc/zypp/repos.d"


def _source_files(host: hostfs.HostFS) -> list[str]:
    return host.glob(f"{_FOLDER}/*.repo")


def _entries(_path: str, text: str) -> t.Iterator[packages_base.Entry]:
    return dnf_sources.parse_repo(text)


REPOSITORY = packages_base.Repository(
    files=(f"{_FOLDER}/{packages_base.REPOSITORY_NAME}.repo",),
    key_pattern=f"/etc/zypp/RPM-GPG-KEY-{packages_base.REPOSITORY_NAME}-{packages_base.SHORT_FINGERPRINT}",
    source_files=_source_files,
    entries=_entries,
)
