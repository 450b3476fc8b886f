# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: where a CDI specification goes, and in which format.

from __future__ import annotations

import os
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_files import canonical
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_folders import SUFFIXES, counts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_names import kind_problem
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_parameters import JSON, YAML, CdiOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import GPU_KIND, SPECIFICATION_FOLDERS

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_units import Refresh
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# Where NVIDIA's instructions have it, and what for.
_USUAL_NAME = "nvidia"


class Place(t.NamedTuple):
    """Where a specification goes; ``owned`` is whether a refresh unit writes the same file, by nvidia-ctk."""

    path: str
    format: str
    owned: bool


def place_of(options: CdiOptions, host: HostRoot, refresh: Refresh | None, own: Refresh | None = None) -> Place:
    """The place that ``options`` name, or the usual one.  Raises GpufleetError for one that would be in vain.

    ``refresh`` and ``own`` are the refresh units of the toolkit and of this collection.
    """
    problem = kind_problem(options.kind)
    if problem:
        raise GpufleetError(f"vendor and class: the kind {options.kind} {problem}.")
    usual = _output(refresh, host)
    if options.path is None and usual and options.kind == GPU_KIND:
        if options.format is not None and not usual.endswith(f".{options.format}"):
            raise GpufleetError(
                f"format is {options.format}, but nvidia-cdi-refresh.service writes {usual}, and that is where this"
                " goes too. Leave format out, or name another path."
            )
        path = usual
    elif options.path is None:
        path = usual_path(options.kind, options.format or YAML)
    else:
        path = canonical(host, host.check_path("path", options.path))
    form = options.format or (JSON if path.endswith(f".{JSON}") else YAML)
    _refuse_odd(path, form, host)
    if options.exclusive and not counts(path):
        raise GpufleetError(
            f"exclusive is for a path that engines read, in {' or '.join(SPECIFICATION_FOLDERS)}, but path is {path}."
        )
    return Place(path, form, path in (usual, _output(own, host)))


def _output(refresh: Refresh | None, host: HostRoot) -> str:
    """The file that a refresh service writes, empty for none; one that systemd has to spell out is not known."""
    if refresh is None or not refresh.enabled or not posixpath.isabs(refresh.output):
        return ""
    # nvidia-ctk has it end so.
    suffix = "" if refresh.output.endswith(SUFFIXES) else f".{YAML}"
    return canonical(host, posixpath.normpath(refresh.output)) + suffix


def variant_path(path: str, variant: str) -> str:
    """Where the specification of a variant goes: beside the one at ``path``, as nvidia-ctk has it."""
    stem, extension = posixpath.splitext(path)
    return f"{stem}.{variant}{extension}"


def usual_path(kind: str, form: str) -> str:
    """Where a specification of ``kind`` goes if nobody says otherwise."""
    name = _USUAL_NAME if kind == GPU_KIND else kind.replace("/", "-")
    return f"{SPECIFICATION_FOLDERS[0]}/{name}.{form}"


def _refuse_odd(path: str, form: str, host: HostRoot) -> None:
    folder, name = posixpath.split(path)
    if folder in SPECIFICATION_FOLDERS and os.path.islink(host.outer(folder, last=False)):
        raise GpufleetError(f"{folder} is a link, which engines do not follow. Make it a folder, then run this again.")
    if folder in SPECIFICATION_FOLDERS and not counts(path):
        raise GpufleetError(f"path {path}: engines read only {' and '.join(SUFFIXES)} in {folder}. Let it end so.")
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), f".{form}")
    if suffix != f".{form}":
        raise GpufleetError(f"path {path} does not fit format: {form}. Leave one of them out, or let them agree.")
