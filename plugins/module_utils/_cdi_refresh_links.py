# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: units enabled by the links that systemctl would make, on a running host and in a tree
# alike.  systemctl itself would have systemd reload its units at once, by which containers of the legacy hook lose
# their GPUs.

from __future__ import annotations

import json
import os
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_units import is_enabled
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_data import check, load
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import STATE_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import is_masked, load_unit, unit_file
from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (
    explain,
    make_directories,
    remove_empty_directories,
    remove_file,
    replace_file,
    sync_folder,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

_FOLDER = "/etc/systemd/system"
# Which links are ours, so that only those are taken back.  It is no record of a file, and does not end like one.
_NOTE = f"{STATE_DIR}/cdi.refresh.links"


class Link(t.NamedTuple):
    """A link that makes the start of one unit another's, and the unit's file that it leads to."""

    path: str
    target: str


def wanted_links(host: HostRoot, name: str) -> list[Link]:
    """The links that are missing for the unit ``name``, which has its file, to be enabled.

    Raises HostError for a unit that is masked: somebody does not want it.
    """
    path = unit_file(host, name)
    unit = load_unit(host, name)
    if path is not None and is_masked(host, path):
        raise HostError(
            f"{name} is masked by {path}, so that it never starts. Take that back with systemctl unmask {name}, or use"
            " owner: collection."
        )
    if path is None or unit is None or is_enabled(host, name):
        return []
    return links_of(name, path, unit.wanted_by, unit.required_by)


def links_of(name: str, path: str, wanted_by: t.Iterable[str], required_by: t.Iterable[str] = ()) -> list[Link]:
    folders = [*(f"{unit}.wants" for unit in wanted_by), *(f"{unit}.requires" for unit in required_by)]
    return [Link(f"{_FOLDER}/{folder}/{name}", path) for folder in folders]


def our_links(host: HostRoot) -> list[Link]:
    """The links that earlier runs made and that are still there.  Raises HostError for a damaged note."""
    content = host.read(_NOTE)
    if content is None:
        return []
    try:
        links = [Link(*(check(text, str) for text in check(pair, list))) for pair in load(content)]
    except (TypeError, ValueError) as error:
        raise HostError(
            f"{_NOTE} is damaged. Move it away; which units this collection has enabled is then for you to decide."
        ) from error
    return [link for link in links if host.is_there(link.path)]


def change_links(host: HostRoot, made: t.Sequence[Link], removed: t.Sequence[Link]) -> None:
    """Make and remove links; the host's lock is held.  Raises HostError."""
    kept = [link for link in our_links(host) if link not in removed]
    if made:
        # First the note, so that what a killed run has made is known.
        _note(host, [*kept, *made])
    for link in removed:
        _remove(host, link.path)
    for link in made:
        _make(host, link)
    if not made:
        _note(host, kept)


def _note(host: HostRoot, links: t.Sequence[Link]) -> None:
    if links:
        make_directories(host, STATE_DIR, 0o700)
        text = json.dumps([list(link) for link in links], indent=2) + "\n"
        replace_file(host, _NOTE, text.encode("utf-8"), 0o600)
    elif host.is_there(_NOTE):
        remove_file(host, _NOTE)
        remove_empty_directories(host, [posixpath.dirname(STATE_DIR), STATE_DIR])


def _make(host: HostRoot, link: Link) -> None:
    folder = posixpath.dirname(link.path)
    make_directories(host, folder, 0o755)
    try:
        os.symlink(link.target, host.outer(link.path, last=False))
        sync_folder(host.outer(folder))
    except FileExistsError:
        return
    except OSError as error:
        raise explain(link.path, "made", error) from error


def _remove(host: HostRoot, path: str) -> None:
    try:
        os.unlink(host.outer(path, last=False))
    except FileNotFoundError:
        return
    except OSError as error:
        raise explain(path, "removed", error) from error
    remove_empty_directories(host, [posixpath.dirname(path)])
