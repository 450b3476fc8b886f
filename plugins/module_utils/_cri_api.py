# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: questions to a live CRI (containerd, CRI-O) over its Unix socket, without crictl.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._grpc import call, fields
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_data import load

# runtime.v1 of k8s.io/cri-api (api.proto).
_SERVICE = "/runtime.v1.RuntimeService/"
# StatusRequest: field 1, verbose, is true.
_VERBOSE = b"\x08\x01"
# VersionResponse: runtime_version.
_RUNTIME_VERSION = 3
# StatusResponse: status, info (a map: entries of key and value).
_STATUS, _INFO = 1, 2
_KEY, _VALUE = 1, 2


def status(socket_path: str) -> dict[str, t.Any] | None:
    """The CRI's configuration as it runs; CRI-O tells only its ``sandboxImage``, or nothing.

    None where no CRI answers properly behind ``socket_path``, or containerd's CRI is not loaded.
    The caller makes sure that a daemon runs: under socket activation the mere connection would start one.
    """
    try:
        return _status(call(socket_path, _SERVICE + "Status", _VERBOSE))
    except (OSError, ValueError):
        return None


def version(socket_path: str) -> str:
    """The version of the engine behind the CRI, empty where it does not tell."""
    try:
        answer = dict(fields(call(socket_path, _SERVICE + "Version", b"")))
        return answer.get(_RUNTIME_VERSION, b"").decode("utf-8")
    except (OSError, ValueError):
        return ""


def _status(answer: bytes) -> dict[str, t.Any] | None:
    told = list(fields(answer))
    # A status is in every proper answer.
    if not any(number == _STATUS for number, _content in told):
        return None
    entries = (dict(fields(content)) for number, content in told if number == _INFO)
    information = {entry.get(_KEY, b""): entry.get(_VALUE, b"") for entry in entries}
    config = load(information.get(b"config", b"{}"))
    return config if isinstance(config, dict) else None
