# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: CDI specifications as files: read as the CDI library of release 1.1.0 reads them, and
# written so that no reader takes a text for anything else.  Neither writing nor JSON needs PyYAML.

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_names import unique
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_yaml_text import (
    ADVICE,
    MOST_LEVELS,
    TOO_DEEP,
    check_escapes,
    decoded,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_yaml_writing import json_text, yaml_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import ConfigurationError, GpufleetError

# JSON that means something else in YAML: line breaks in texts, or between a key and its colon.
_LINE_BREAKS = re.compile('[\x85\u2028\u2029]|"[ \t]*[\r\n]\\s*:')


class _NotJsonError(Exception):
    """The text may still be YAML, as which the library reads all files."""


def parse(path: str, content: bytes) -> t.Any:
    """The data of the first document in ``content``, None if there is none.

    Raises ConfigurationError where the CDI library would refuse the file whatever its fields, and MissingPackageError
    where it is not JSON and there is no PyYAML.
    """
    text = decoded(path, content)
    begin = text.lstrip(" \r\n")[:1]
    if not begin:
        return None
    try:
        if begin in "{[":
            return _json(path, text)
    except _NotJsonError:
        pass
    # Who only writes need not wait for these imports, nor who has JSON for this one.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_yaml_reading import read_yaml  # noqa: PLC0415

    return read_yaml(path, text)


def render(document: t.Mapping[str, t.Any], format: str) -> bytes:  # noqa: A002
    """``document``, plain data, as a file in ``format`` (yaml or json) that parse() takes for the same.

    The order of keys stays.  Raises GpufleetError for a text that cannot stand in a file.
    """
    text = json_text(document) if format == "json" else yaml_text(document)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise GpufleetError(
            "A CDI specification is written in UTF-8, but a name in it is not in UTF-8. Rename the file or the folder."
        ) from error


# -- JSON --------------------------------------------------------------------------------------------------------------


def _json(path: str, text: str) -> t.Any:
    if _LINE_BREAKS.search(text):
        raise _NotJsonError
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_yaml_scalars import number  # noqa: PLC0415

    try:
        data = json.loads(text, object_pairs_hook=unique, parse_int=number, parse_float=number, parse_constant=_refuse)
    except RecursionError:
        raise ConfigurationError(path, TOO_DEEP, ADVICE) from None
    except ValueError:
        raise _NotJsonError from None
    except GpufleetError as error:
        what, _stop, advice = str(error).rpartition(". ")
        raise ConfigurationError(path, what[0].lower() + what[1:], advice) from error
    check_escapes(path, text)
    if _is_too_deep(data):
        raise ConfigurationError(path, TOO_DEEP, ADVICE)
    return data


def _refuse(_constant: str) -> t.NoReturn:
    """NaN and the like are no JSON, but texts in YAML."""
    raise _NotJsonError


def _is_too_deep(data: t.Any) -> bool:
    holders = [data]
    for _level in range(MOST_LEVELS + 1):
        holders = [value for value in holders if isinstance(value, (dict, list))]
        if not holders:
            return False
        holders = [each for value in holders for each in (value.values() if isinstance(value, dict) else value)]
    return True
