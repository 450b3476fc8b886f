# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what an engine says of a configuration, without the secrets in it.  An engine quotes what
# it dislikes in its own manner, so they are known by their values, not by the names beside them.

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_document import JsonDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._masking import (
    MASK,
    SHORTEST_HIDDEN,
    is_secret,
    mask_urls,
    secrets_of,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import Unit

# dockerd on a setting that stands in the unit and in the file: both values, of all kinds.
_CONFLICT = re.compile(r"\(from flag: .*\)")
_NEXT_CONFLICT = re.compile(r", ([\w.-]+): \(from flag: ")


def without_secrets(said: str, syntax: str, contents: t.Iterable[bytes], unit: Unit | None) -> str:
    """``said`` about files with ``contents``, in an engine that starts with the flags of ``unit``."""
    said = _CONFLICT.sub(_without_values, said)
    hidden = set(_secret_flags(unit.arguments if unit is not None else ()))
    for content in contents:
        hidden.update(secrets_of(_read(syntax, content)))
    spellings = {spelling for value in hidden for spelling in (value, json.dumps(value)[1:-1], value.strip())}
    for spelling in sorted(spellings - {""}, key=len, reverse=True):
        pattern = re.escape(spelling)
        # A short secret is hidden only where it stands alone.
        said = re.sub(pattern if len(spelling) >= SHORTEST_HIDDEN else rf"(?<!\w){pattern}(?!\w)", MASK, said)
    return mask_urls(said)


def _without_values(found: re.Match[str]) -> str:
    shown = f"(from flag: {MASK}, from file: {MASK})"
    return shown + "".join(f", {name}: {shown}" for name in _NEXT_CONFLICT.findall(found.group()))


def _read(syntax: str, content: bytes) -> t.Any:
    try:
        if syntax == "json":
            return JsonDocument.from_bytes("", content).value()
        # Docker's users need not wait for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import (  # noqa: PLC0415
            TomlDocument,
        )

        return TomlDocument.from_bytes("", content).value()
    except GpufleetError:
        return None


def _secret_flags(arguments: t.Sequence[str]) -> t.Iterator[str]:
    """The values of ``--name value``, ``--name=value`` and ``--option name=value`` whose name is that of a secret."""
    for word, following in zip(arguments, [*arguments[1:], ""]):
        name, sign, value = word.lstrip("-").partition("=")
        if word.startswith("-") and not sign and is_secret(name):
            yield following
        while sign:
            if is_secret(name):
                yield value
            name, sign, value = value.partition("=")
