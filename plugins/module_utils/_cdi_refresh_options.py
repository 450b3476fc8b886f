# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: which CDI specification is to be kept fresh, in a file on the host, for the program that
# does so without Ansible.

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_parameters import CdiOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import ConfigurationError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_data import load

OPTIONS_FILE = "/etc/gpufleet-nvidia/cdi.json"
_SCHEMA = 1
_REQUEST = "request"
# What is of no concern after the task.
_LEFT_OUT = ("state", "purge_backups")
# Fields whose defaults do not tell what they may hold.
_MAY_BE_NONE: dict[str, type] = {"path": str, "format": str, "use_nvml": bool, "backup_dir": str}
_ADVICE = "Run nvidia_cdi_refresh again, which writes this file."


def options_to_json(options: CdiOptions) -> bytes:
    """``options`` as options_from_json() reads them; the same options give the same bytes."""
    fields = {name: value for name, value in options._asdict().items() if name not in (*_LEFT_OUT, _REQUEST)}
    fields[_REQUEST] = options.request._asdict()
    return (json.dumps({"schema": _SCHEMA, "options": fields}, indent=2) + "\n").encode("utf-8")


def options_from_json(path: str, content: bytes) -> CdiOptions:
    """The options in ``content``; fields that it lacks are at their defaults.

    Raises ConfigurationError for what is no such text, and for fields that are unknown or of another type: an option
    that nobody heeds would make another specification than the task had asked for.
    """
    try:
        data = load(content)
    except ValueError as error:
        line, column = (error.lineno, error.colno) if isinstance(error, json.JSONDecodeError) else (None, None)
        raise ConfigurationError(path, "this is not JSON", _ADVICE, line, column) from error
    if not isinstance(data, dict) or not isinstance(data.get("options"), dict) or set(data) != {"schema", "options"}:
        raise ConfigurationError(path, "this is not what nvidia_cdi_refresh writes", _ADVICE)
    if data["schema"] != _SCHEMA:
        raise ConfigurationError(path, "another version of the collection gpufleet.nvidia wrote this", _ADVICE)
    fields = dict(data["options"])
    request = fields.pop(_REQUEST, {})
    if not isinstance(request, dict):
        raise ConfigurationError(path, f"{_REQUEST} is not a dictionary", _ADVICE)
    known = {name: value for name, value in CdiOptions()._asdict().items() if name not in (*_LEFT_OUT, _REQUEST)}
    return CdiOptions(
        **_checked(path, fields, known),
        request=Request(**_checked(path, request, Request()._asdict())),
    )


def _checked(path: str, fields: t.Mapping[str, t.Any], known: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    found = {}
    for name, value in fields.items():
        if name not in known:
            raise ConfigurationError(path, f"the option {name} is not known", _ADVICE)
        if not _fits(name, value, known[name]):
            raise ConfigurationError(path, f"the option {name} is not of its type", _ADVICE)
        found[name] = tuple(value) if isinstance(value, list) else value
    return found


def _fits(name: str, value: t.Any, default: t.Any) -> bool:
    if name in _MAY_BE_NONE:
        return value is None or isinstance(value, _MAY_BE_NONE[name])
    if isinstance(default, tuple):
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return isinstance(value, bool) if isinstance(default, bool) else isinstance(value, str)
