# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what dnf, 4 or 5, and rpm print, and the order of their versions.

from __future__ import annotations

import re

from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import Candidate, Preview, last_words

_SECTION = re.compile(r"^(Installing|Upgrading|Downgrading|Reinstalling|Removing|Replacing)\b.*:$")
_REPLACED = re.compile(r"^\s+replacing\s+(\S+)")
_NOISE = re.compile(
    r"Failed loading plugin|Last metadata expiration|Unable to detect release version|=+$|Operation aborted|"
    r"\(try to add|Ignoring repositories|Updating and loading|Repositories loaded|Dependencies resolved"
)
ARCHITECTURES = ("x86_64", "aarch64", "noarch", "i686", "ppc64le", "s390x")
_ARCHITECTURE = re.compile(rf"\.({'|'.join(ARCHITECTURES)})$")


def candidates_of(output: str) -> dict[str, list[Candidate]]:
    """The versions in the output of dnf repoquery; of one repository, dnf would take the newest."""
    found: dict[str, list[Candidate]] = {}
    for line in output.splitlines():
        fields = line.split("\t")
        if len(fields) == 4:
            name, epoch, version, origin = fields
            found.setdefault(name, []).append(Candidate(with_epoch(epoch, version), origin))
    for name, offers in found.items():
        offers.sort(key=lambda offer: version_order(offer.version), reverse=True)
        found[name] = [offers[0]._replace(preferred=True), *offers[1:]]
    return found


def preview_of(output: str) -> Preview:
    """What dnf --assumeno would do.  A long name stands on a line of its own, and what is replaced has one too."""
    install: dict[str, str] = {}
    remove: list[str] = []
    downgrade: list[str] = []
    replaced: list[str] = []
    section = ""
    row: list[str] = []
    for line in output.splitlines():
        heading, gone = _SECTION.match(line), _REPLACED.match(line)
        if heading:
            section, row = heading.group(1), []
        elif not line.strip() or not line[0].isspace():
            # The summary, whose words are the same, has no colons but at its own head.
            section = section if line.startswith("=") else ""
        elif gone:
            replaced.append(_ARCHITECTURE.sub("", gone.group(1)))
        elif section:
            fields = line.split()
            row = fields if line[1:2].strip() else [*row, *fields]
            if len(row) >= 3:
                _sort_in(section, row, install, remove, downgrade)
    # An upgrade, for dnf 5, replaces its own former version.
    remove += [name for name in replaced if name not in install and name not in remove]
    return Preview(install, tuple(remove), tuple(downgrade))


def _sort_in(section: str, row: list[str], install: dict[str, str], remove: list[str], downgrade: list[str]) -> None:
    name, version = row[0], row[2]
    if section == "Removing":
        if name not in remove:
            remove.append(name)
    elif section != "Replacing":
        install[name] = version
        if section == "Downgrading" and name not in downgrade:
            downgrade.append(name)


def version_order(version: str) -> tuple[tuple[tuple[int, int, str], ...], ...]:
    """A key that sorts full versions as rpm does, where they are made of digits, letters and tildes."""
    epoch, colon, rest = version.partition(":")
    pieces = [epoch if colon else "0", *(rest if colon else version).split("-")]
    return tuple(_segments(piece) for piece in pieces)


def _segments(piece: str) -> tuple[tuple[int, int, str], ...]:
    parts = re.findall(r"~|\d+|[A-Za-z]+", piece)
    found = [(0, 0, "") if part == "~" else (3, int(part), "") if part.isdigit() else (2, 0, part) for part in parts]
    return (*found, (1, 0, ""))


def rows_of(output: str) -> list[list[str]]:
    return [fields for fields in (line.split("\t") for line in output.splitlines()) if len(fields) == 4]


def is_answered(said: str) -> bool:
    """Whether a preview failed only because nobody agreed to it."""
    return "Operation aborted" in said


def with_epoch(epoch: str, version: str) -> str:
    return version if epoch in ("0", "(none)", "") else f"{epoch}:{version}"


def words_of(output: str, errors: str) -> list[str]:
    """The last words, from the one on that is marked as the error; dnf has a lot to say before it."""
    said = last_words(output, errors, _noise)
    marked = [place for place, line in enumerate(said) if line.startswith("Error:")]
    return said[marked[-1] :] if marked else said


def _noise(line: str) -> bool:
    return bool(_NOISE.match(line))
