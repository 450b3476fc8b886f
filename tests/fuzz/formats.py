# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of what is fuzzed: a row for each format that the collection reads."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import STATE_DIR
from ansible_collections.gpufleet.nvidia.tests.fuzz import configuration
from ansible_collections.gpufleet.nvidia.tests.fuzz.mutators import JSON, TOML, Files, Syntax

if t.TYPE_CHECKING:
    import random
    from pathlib import Path


class Format(t.NamedTuple):
    """A format: its name, the syntax of its files, valid files, and the work on a mutation of them.

    ``target`` gets an empty directory. ``mutable``: what the paths of mutated files begin with. ``kinds``: whether a
    path can become a pipe, a directory or a link.
    """

    name: str
    syntax: Syntax
    seeds: t.Callable[[], t.Sequence[Files]]
    target: t.Callable[[Path, Files, random.Random], t.Any]
    mutable: str = ""
    kinds: bool = True


FORMATS = (
    Format("docker", JSON, configuration.docker_seeds, configuration.docker),
    Format("containerd", TOML, configuration.containerd_seeds, configuration.containerd),
    Format("crio", TOML, configuration.crio_seeds, configuration.crio),
    Format("toolkit-config", TOML, configuration.toolkit_config_seeds, configuration.toolkit_config),
    Format("records", JSON, configuration.record_seeds, configuration.records, STATE_DIR),
    Format("notes", JSON, configuration.note_seeds, configuration.notes, STATE_DIR),
)
