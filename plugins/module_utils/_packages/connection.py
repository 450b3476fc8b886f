# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Access of a host to the server of a package repository, and advice for a host without access."""

from __future__ import annotations

import socket
import typing as t
from urllib.parse import urlsplit

# The problem code of a task that fails because this host cannot connect to the repository.
UNREACHABLE = "repository-unreachable"
_CONNECT_SECONDS = 5
_PORTS = {"https": 443}


class Endpoint(t.NamedTuple):
    """A host name or address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def endpoint(url: str | None) -> Endpoint | None:
    """Return the host and the port of ``url``, without user and password, or None if it contains no host name."""
    try:
        parts = urlsplit(url or "")
        return Endpoint(parts.hostname, parts.port or _PORTS.get(parts.scheme, 80)) if parts.hostname else None
    except ValueError:
        return None


def connection_error(url: str | None, proxy: str | None) -> str | None:
    """Return why this host cannot connect to the proxy or, without one, to the host of ``url``; None if it can.

    This is checked after apt-get, dnf or zypper has failed, because their exit status is the same for an unreachable
    host and for a wrong signature.
    """
    peer = endpoint(proxy or url)
    if peer is None:
        return None
    try:
        socket.create_connection(peer, _CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:
        # Python raises UnicodeError, which has no strerror, for a host name with an empty label or with a label of more
        # than 63 characters.
        return f"This host cannot connect to {peer}: {getattr(error, 'strerror', None) or error}."
    return None


def access_advice(url: str | None, proxy: str | None) -> str:
    """Return the advice for a host without access to ``url``; empty if ``url`` contains no host name."""
    peer = endpoint(url)
    if peer is None:
        return ""
    used = endpoint(proxy) if proxy else None
    return (
        f"The repository is on {peer.host}; nvidia_toolkit_proxy (proxy) is {used or ('set' if proxy else 'not set')}."
        f" If this host has no access to {peer.host}, set nvidia_toolkit_proxy to a proxy or nvidia_toolkit_base_url to"
        " a mirror. To install without a repository, set nvidia_toolkit_source (source) to files, directory or"
        " existing."
    )
