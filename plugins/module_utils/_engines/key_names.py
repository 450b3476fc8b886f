# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Keys that differ from the name of a setting in case only.

The engines are written in Go, whose decoders also accept such keys, each decoder in its own way. So these keys are
refused. Keys of a Go map, such as the names of runtimes and plugins, are exact.
"""

from __future__ import annotations

import typing as t

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document

    KeyPath = t.Tuple[str, ...]


# The name that stands for all other keys of a Go map in ``Fields``.
ANY = "*"


class Fields(t.NamedTuple):
    """The names of the fields of a struct, each with those of its value, None for a value without fields.

    ``is_map``: it is a Go map, whose keys are exact.
    """

    names: t.Mapping[str, Fields | None]
    is_map: bool = False

    def other_case(self, key: str) -> str | None:
        """Return the name of the field that ``key`` spells in another case, None if there is none."""
        if self.is_map or key in self.names:
            return None
        return next((name for name in self.names if name.lower() == key.lower()), None)


def fields(*names: str, **tables: Fields) -> Fields:
    """Return the fields of a struct with these values and these tables."""
    return Fields({**dict.fromkeys(names), **tables})


def keys(inner: Fields | None, *names: str) -> Fields:
    """Return a Go map whose keys (by default all) have values with the fields ``inner``."""
    return Fields(dict.fromkeys(names or (ANY,), inner), is_map=True)


def other_cases(table: t.Any, known: Fields, path: KeyPath = ()) -> t.Iterator[tuple[KeyPath, str]]:
    """Yield the path of each key that spells the name of a field in another case, with this name."""
    for key, value in table.items() if isinstance(table, dict) else ():
        name = known.other_case(key)
        inner = known.names.get(key, known.names.get(ANY))
        if name is not None:
            yield (*path, key), name
        elif inner is not None:
            yield from other_cases(value, inner, (*path, key))


def check(document: toml_document.TomlDocument, known: Fields, program: str) -> None:
    """Raise ConfigurationError for a key that spells the name of a field in another case."""
    for path, name in other_cases(document.data, known):
        raise document.error(path, problem(".".join(path), name, program), f"Rename it to {name}.")


def problem(key: str, name: str, program: str) -> str:
    """Return what is wrong with a key that spells ``name`` in another case."""
    return f"{key} differs from {name} in case only, and {program} may read, ignore or refuse it"
