# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which key of a table an engine reads for a setting, if the file contains other spellings of its name.

The engines are written in Go, whose decoders assign keys to the fields of a struct. They accept other spellings than
that of the field, each decoder in its own way. Keys of a Go map, such as the names of runtimes and plugins, are exact.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document, toml_parser

if t.TYPE_CHECKING:
    KeyPath = t.Tuple[str, ...]

    # Returns the keys among those of a table that set the field of this name, in the order of their assignment: the
    # last one has effect. Of a decoder without a defined order, see ``is_ordered``.
    Assigns = t.Callable[[t.Iterable[str], str], t.List[str]]


# The name that stands for all other keys of a Go map in ``Fields``.
ANY = "*"


class Fields(t.NamedTuple):
    """The names of the fields of a struct, each with those of its value, None for a value without fields.

    ``is_map``: it is a Go map, whose keys are exact.
    """

    names: t.Mapping[str, Fields | None]
    is_map: bool = False


def fields(*names: str, **tables: Fields) -> Fields:
    """Return the fields of a struct with these values and these tables."""
    return Fields({**dict.fromkeys(names), **tables})


def keys(inner: Fields | None, *names: str) -> Fields:
    """Return a Go map whose keys (by default all) have values with the fields ``inner``."""
    return Fields(dict.fromkeys(names or (ANY,), inner), is_map=True)


class Decoder(t.NamedTuple):
    """The rules of one decoder.

    - ``is_ordered``: of several keys for one field, it is known which one has effect.
    - ``merges_maps``: of two keys for one Go map, entries of the same name are merged. Otherwise, the later entry
      replaces the earlier one.
    """

    assigns: Assigns
    is_ordered: bool = True
    merges_maps: bool = True

    def keys_of(self, table: t.Any, name: str) -> list[str]:
        """Return the keys of ``table`` that set the field ``name``, the one that has effect last."""
        return self.assigns(table, name) if isinstance(table, dict) else []

    def key_of(self, table: t.Any, name: str) -> str:
        """Return the key of ``table`` that has effect for the field ``name``; ``name`` if there is none."""
        return (self.keys_of(table, name) or [name])[-1]

    def canonical(self, table: t.Mapping[str, t.Any], known: Fields | None) -> dict[str, t.Any]:
        """Return the table as the decoder reads it, with the names of the fields as keys. Other keys stay."""
        if known is None:
            return dict(table)
        if known.is_map:
            inner = {key: known.names.get(key, known.names.get(ANY)) for key in table}
            return {key: self._canonical(value, inner[key]) for key, value in table.items()}
        found: dict[str, t.Any] = {}
        # No decoder assigns a key to a field with other letters. Most keys are no field, and most fields have no key.
        letters = {key.lower() for key in table}
        assigned = {name: self.assigns(table, name) for name in known.names if name.lower() in letters}
        field_of = {key: name for name, keys in assigned.items() for key in keys}
        for key, value in table.items():
            name = field_of.get(key)
            if name is None:
                # A key that no decoder assigns may still have the name of a field in other letters.
                found.setdefault(key, value)
            elif name not in found:
                found[name] = self._assigned(table, name, assigned[name], known)
        return found

    def _canonical(self, value: t.Any, known: Fields | None) -> t.Any:
        return self.canonical(value, known) if isinstance(value, dict) else value

    def _assigned(self, table: t.Mapping[str, t.Any], name: str, keys: t.Sequence[str], known: Fields) -> t.Any:
        """Return the value of a field after all assignments: those of tables add up."""
        result: t.Any = None
        for key in keys:
            value = self._canonical(table[key], known.names[name])
            result = self._merged(result, value, known.names[name])
        return result

    def _merged(self, below: t.Any, above: t.Any, known: Fields | None) -> t.Any:
        """Return the value of a field that has the fields ``known`` after the second assignment."""
        if not isinstance(below, dict) or not isinstance(above, dict):
            return above
        if not self.merges_maps and (known is None or known.is_map):
            return {**below, **above}
        inner = known.names if known is not None else {}
        return {**below, **{name: self._merged(below.get(name), above[name], inner.get(name)) for name in above}}

    def document(self, document: toml_document.TomlDocument, known: Fields) -> toml_document.TomlDocument:
        """Return the document with the data as the decoder reads it. It is only for reading: its text is unchanged."""
        data = self.canonical(document.data, known)
        if toml_parser.equal(data, document.data):
            return document
        return toml_document.TomlDocument(document.path, document.text, data, document.bom)

    def check_order(self, document: toml_document.TomlDocument, known: Fields, advice: str) -> None:
        """Raise ConfigurationError if it depends on chance, or on the release, which of two keys has effect."""
        if self.is_ordered:
            return
        for path, name, keys, struct in self._spellings(document.data, known, ()):
            orders = (keys, keys[::-1])
            one, other = (self._assigned(document.value(*path), name, order, struct) for order in orders)
            if not toml_parser.equal(one, other):
                raise document.error(
                    (*path, keys[-1]),
                    f"{' and '.join('.'.join((*path, key)) for key in keys)} both set {name}, and it is undefined which"
                    " one has effect",
                    advice,
                )

    def check_spelling(self, document: toml_document.TomlDocument, known: Fields, program: str) -> None:
        """Raise ConfigurationError for a key that sets a field under another name than that of the field."""
        for path, name, keys, _struct in self._spellings(document.data, known, ()):
            other = next((key for key in keys if key != name), None)
            if other is not None:
                raise document.error(
                    (*path, other),
                    f"{program} reads {'.'.join((*path, other))} as {name}, so it would conflict with the entries of"
                    " this task",
                    f"Rename it to {name}.",
                )

    def _spellings(
        self, table: t.Any, known: Fields, path: KeyPath
    ) -> t.Iterator[tuple[KeyPath, str, list[str], Fields]]:
        """Yield the path of each table with fields, the name of a field, the keys that set it, and the fields."""
        if not isinstance(table, dict):
            return
        for name, inner in known.names.items():
            if known.is_map:
                found = list(table) if name == ANY else [name] * (name in table)
            else:
                found = self.assigns(table, name)
            if found and not known.is_map:
                yield path, name, found, known
            if inner is not None:
                for key in found:
                    yield from self._spellings(table[key], inner, (*path, key))


def _same_letters(keys: t.Iterable[str], name: str) -> list[str]:
    lowered = name.lower()
    return [key for key in keys if key.lower() == lowered]


def _first_of_four(keys: t.Iterable[str], name: str) -> list[str]:
    tried = (name, name.lower(), name.upper(), name[:1].lower() + name[1:])
    return [key for key in tried if key in keys][:1]


def _sorted(keys: t.Iterable[str], name: str) -> list[str]:
    return sorted(_same_letters(keys, name))


def _of_any_release(keys: t.Iterable[str], name: str) -> list[str]:
    return list(dict.fromkeys([*_sorted(keys, name)[-1:], *_first_of_four(keys, name)]))


# containerd 1.x: valueFromTree in marshal.go of github.com/pelletier/go-toml 1.9.5 tries four spellings and takes the
# first one that exists.
GO_TOML_1 = Decoder(_first_of_four)
# The files of containerd 2.x: go-toml 2 ignores case (structFields in unmarshaler.go of 2.2 and 2.3), and assigns the
# keys in the order of the file.
GO_TOML_2 = Decoder(_same_letters)
# The settings of a plugin and the options of a runtime in containerd 2.x: the table is written as TOML, which sorts its
# keys, and then decoded (Decode in cmd/containerd/server/config/config.go and GenerateRuntimeOptions in
# internal/cri/config/config.go of 2.0.0 to 2.3.4). Capital letters come first.
GO_TOML_2_SORTED = Decoder(_sorted)
# A containerd of an unknown release.
CONTAINERD = Decoder(_of_any_release, is_ordered=False)
# CRI-O: unifyStruct in decode.go of github.com/BurntSushi/toml (0.3.1 to 1.6.0) ignores case and iterates over a Go
# map, so the order is random. unifyMap replaces entries.
BURNT_SUSHI = Decoder(_same_letters, is_ordered=False, merges_maps=False)
# Docker: encoding/json ignores case, and assigns the keys in the order of the file. Only in the objects of runtimes:
# dockerd does not start with a setting whose name is spelled in another way (findConfigurationConflicts in
# daemon/config/config.go, 20.10.24 and 28.5.2).
GO_JSON = Decoder(_same_letters, merges_maps=False)
