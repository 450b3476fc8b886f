# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The package sources of apt: the files that it reads, their entries, and the files of this collection among them."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


_MAIN = "/etc/apt/sources.list"
_FOLDER = "/etc/apt/sources.list.d"
# apt ignores files with other names, so they cannot conflict (sources.list(5)).
_NAME = re.compile(r"[A-Za-z0-9_.-]+\.(?:list|sources)")

_ONE_LINE = re.compile(r"(?:deb|deb-src)\s+(?:\[[^]]*\]\s*)?([^\s[]\S*)(?:\s+(\S+))?")
_OPTIONS_OR_COMMENT = re.compile(r"(\[[^]]*\])|#.*")


def _source_files(host: hostfs.HostFS) -> list[str]:
    names = [name for name in host.readable_entries(_FOLDER) if _NAME.fullmatch(name)]
    return [_MAIN, *(f"{_FOLDER}/{name}" for name in names)]


def _entries(path: str, text: str) -> t.Iterator[packages_base.Entry]:
    return parse_list(text) if path.endswith(".list") else parse_deb822(text)


def parse_list(text: str) -> t.Iterator[packages_base.Entry]:
    """Yield the active entries of a ``.list`` file."""
    for number, line in enumerate(text.splitlines(), 1):
        # A number sign inside the options does not begin a comment.
        found = _ONE_LINE.match(_OPTIONS_OR_COMMENT.sub(lambda match: match.group(1) or "", line).strip())
        if found is not None:
            yield packages_base.Entry(number, found.group(1), (found.group(2) or "/").endswith("/"))


def parse_deb822(text: str) -> t.Iterator[packages_base.Entry]:
    """Yield the active entries of a ``.sources`` file: one for each address of each stanza."""
    for stanza in stanzas(text):
        fields = {name: " ".join(value for _line, value in values).strip() for name, values in stanza.items()}
        if fields.get("enabled", "").lower() not in packages_base.FALSE:
            flat = all(suite.endswith("/") for suite in fields.get("suites", "").split())
            for line, value in stanza.get("uris", ()):
                yield from (packages_base.Entry(line, address, flat) for address in value.split())


# The lines of each field with their numbers, by the field's name in lower case.
_Stanza = t.Dict[str, t.List[t.Tuple[int, str]]]


def stanzas(text: str) -> t.Iterator[_Stanza]:
    """Yield the stanzas of a file in the format deb822."""
    stanza: _Stanza = {}
    values: list[tuple[int, str]] = []
    # The added empty line ends the last stanza.
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            yield stanza
            stanza, values = {}, []
        elif line[0] in " \t":
            values.append((number, line.strip()))
        else:
            name, _colon, value = line.partition(":")
            values = stanza.setdefault(name.strip().lower(), [])
            values.append((number, value.strip()))


REPOSITORY = packages_base.Repository(
    files=(
        f"{_FOLDER}/{packages_base.REPOSITORY_NAME}.sources",
        f"/etc/apt/preferences.d/{packages_base.REPOSITORY_NAME}",
        f"/etc/apt/apt.conf.d/95{packages_base.REPOSITORY_NAME}",
    ),
    key_pattern=f"/usr/share/keyrings/{packages_base.REPOSITORY_NAME}-{packages_base.SHORT_FINGERPRINT}.asc",
    source_files=_source_files,
    entries=_entries,
)
