# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The options of a runtime, whose names containerd compares without case: kubespray 2.24 to 2.27 writes systemdCgroup.

All releases read the name itself, and the name with its first letter or all letters in lower case. Of several spellings
in one table, the release decides which one has effect (valueFromTree in marshal.go of pelletier/go-toml 1.9.5
for containerd 1.x, GenerateRuntimeOptions in internal/cri/config/config.go for 2.0.0 to 2.3.4).
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan

if t.TYPE_CHECKING:
    KeyPath = t.Tuple[str, ...]


# The path of the program in the table of a runtime.
PROGRAM: KeyPath = ("options", "BinaryName")
# The fields of the options of runc (api/types/runc/options/oci.pb.go), and two of containerd 1.x.
_NAMES = {
    name.lower(): name
    for name in (
        PROGRAM[-1],
        "Root",
        "SystemdCgroup",
        "ShimCgroup",
        "NoPivotRoot",
        "NoNewKeyring",
        "IoUid",
        "IoGid",
        "CriuPath",
        "CriuImagePath",
        "CriuWorkPath",
        "TaskApiAddress",
        "TaskApiVersion",
        "Runtime",
        "RuntimeRoot",
    )
}


def _name(key: str) -> str:
    return _NAMES.get(key.lower(), key)


def canonical(entry: t.Any) -> t.Any:
    """Return the table of a runtime with the names of containerd for its options.

    The CRI reports the built-in options with empty values beside those of the files.
    """
    options = toml_plan.lookup(entry, PROGRAM[:-1])
    if not isinstance(options, dict):
        return entry
    found: dict[str, t.Any] = {}
    for key, value in options.items():
        name = _name(key)
        if name not in found or (value and (key == name or not found[name])):
            found[name] = value
    return {**entry, PROGRAM[0]: found}


def program_of(entry: t.Any) -> t.Any:
    """Return the program of a runtime, None if it has none."""
    return toml_plan.lookup(canonical(entry), PROGRAM)


def key_of(options: t.Any, name: str) -> str:
    """Return the key of the option ``name`` in a table of options; ``name`` if there is none."""
    return next((key for key in options if _name(key) == name), name) if isinstance(options, dict) else name


def undefined_key(options: t.Any) -> tuple[str, str] | None:
    """Return a key that not every release reads as the same option as others do, and the name of the option."""
    for key in options if isinstance(options, dict) else ():
        name = _name(key)
        is_read = key in (name, name.lower(), name[:1].lower() + name[1:])
        if not is_read or (key != name and any(other != key and _name(other) == name for other in options)):
            return key, name
    return None
