# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what a live containerd says of its own plugins, as `ctr plugins ls` shows it.  The unit is
# active and the socket answers even where the plugin that serves Kubernetes could not be loaded.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._grpc import call, fields

# containerd's api/services/introspection/v1/introspection.proto, the same in 1.6, 1.7 and 2.1.
_PLUGINS = "/containerd.services.introspection.v1.Introspection/Plugins"
# PluginsResponse: plugins; Plugin: type, id, init_err; google.rpc.Status: message.
_PLUGIN, _TYPE, _ID, _ERROR, _MESSAGE = 1, 1, 2, 7, 2
# The CRI is one plugin up to 1.7 and three from 2.0 on.
_CRI_TYPES = ("io.containerd.cri.v1",)
_CRI_ID = "cri"
_GRPC_TYPE = "io.containerd.grpc.v1"


class Plugin(t.NamedTuple):
    """One plugin; ``error`` is why it could not be loaded, empty if it was."""

    kind: str
    identifier: str
    error: str

    @property
    def name(self) -> str:
        return f"{self.kind}.{self.identifier}"

    @property
    def serves_cri(self) -> bool:
        return self.kind in _CRI_TYPES or (self.kind == _GRPC_TYPE and self.identifier == _CRI_ID)


def plugins(socket_path: str) -> list[Plugin] | None:
    """All plugins that the containerd behind ``socket_path`` tried to load, None where nobody answers properly."""
    try:
        answer = list(fields(call(socket_path, _PLUGINS, b"")))
        return [_plugin(content) for number, content in answer if number == _PLUGIN]
    except (OSError, ValueError):
        return None


def _plugin(message: bytes) -> Plugin:
    entries = dict(fields(message))
    error = dict(fields(entries[_ERROR])).get(_MESSAGE, b"unknown error") if _ERROR in entries else b""
    kind, identifier = (entries.get(number, b"").decode("utf-8", "replace") for number in (_TYPE, _ID))
    return Plugin(kind, identifier, error.decode("utf-8", "replace"))
