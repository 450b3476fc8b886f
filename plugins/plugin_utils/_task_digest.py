# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: one word for a task, by which a host knows again what it was asked before.

from __future__ import annotations

import hashlib
import json
import os
import typing as t

_PLUGINS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What a host runs.
_FOLDERS = ("modules", "module_utils")


def code_digest() -> str:
    """One word for what hosts are told to run: another version of this collection may answer otherwise."""
    digest = hashlib.sha256()
    for folder in _FOLDERS:
        for name in sorted(os.listdir(os.path.join(_PLUGINS, folder))):
            if name.endswith(".py"):
                with open(os.path.join(_PLUGINS, folder, name), "rb") as stream:
                    digest.update(b"%s %d\n" % (os.fsencode(name), os.fstat(stream.fileno()).st_size))
                    digest.update(stream.read())
    return digest.hexdigest()


def task_digest(code: str, arguments: t.Mapping[str, t.Any]) -> str | None:
    """One word for a task with these arguments, carried out by ``code``; None for what JSON cannot hold."""
    try:
        told = json.dumps([code, dict(arguments)], sort_keys=True)
    except (TypeError, ValueError):
        return None
    return hashlib.sha256(told.encode()).hexdigest()
