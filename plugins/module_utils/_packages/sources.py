# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of this collection's package repository, package sources that conflict with it, and access to its server.

If two sources have the same address but different keys (Signed-By), apt refuses both. dnf accepts both and may use
either.
"""

from __future__ import annotations

import posixpath
import re
import typing as t
from urllib.parse import urlsplit

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# The names, without suffix, of the source files that NVIDIA's old and new installation instructions create.
NVIDIA_SOURCE_NAMES = (
    "nvidia-docker",
    "libnvidia-container",
    "nvidia-container-runtime",
    "nvidia-container-toolkit",
)
# The first part of the addresses in these files, without the scheme.
NVIDIA_ADDRESSES = (
    "nvidia.github.io/libnvidia-container",
    "nvidia.github.io/nvidia-docker",
    "nvidia.github.io/nvidia-container-runtime",
)
# The repository of this collection and its files. No other instructions use these names.
DNF_REPOSITORY = "gpufleet-nvidia-container-toolkit"
APT_SOURCE = "/etc/apt/sources.list.d/gpufleet-nvidia-container-toolkit.sources"
DNF_SOURCE = "/etc/yum.repos.d/gpufleet-nvidia-container-toolkit.repo"
REPOSITORY_FILES = (
    APT_SOURCE,
    "/etc/apt/preferences.d/gpufleet-nvidia-container-toolkit",
    "/etc/apt/apt.conf.d/95gpufleet-nvidia-container-toolkit",
    DNF_SOURCE,
)
# The names of key files contain sixteen hexadecimal digits of the key's fingerprint.
_SHORT_FINGERPRINT = "[0-9A-Fa-f]" * 16
KEY_PATTERNS = (
    f"/usr/share/keyrings/gpufleet-nvidia-container-toolkit-{_SHORT_FINGERPRINT}.asc",
    f"/etc/pki/rpm-gpg/RPM-GPG-KEY-gpufleet-nvidia-container-toolkit-{_SHORT_FINGERPRINT}",
)
# The role stores fetched keys here until it installs them.
STAGED_KEYS = f"/var/cache/gpufleet-nvidia-key-{_SHORT_FINGERPRINT}.asc"

# The problem code of a task that fails because this host cannot connect to the repository.
UNREACHABLE = "repository-unreachable"
_CONNECT_SECONDS = 5
_PORTS = {"https": 443}

_APT_MAIN = "/etc/apt/sources.list"
_APT_FOLDER = "/etc/apt/sources.list.d"
_DNF_FOLDER = "/etc/yum.repos.d"
# apt ignores files with other names, so they cannot conflict (sources.list(5)).
_APT_NAME = re.compile(r"[A-Za-z0-9_.-]+\.(?:list|sources)")

_ONE_LINE = re.compile(r"(?:deb|deb-src)\s+(?:\[[^]]*\]\s*)?([^\s[]\S*)(?:\s+(\S+))?")
_OPTIONS_OR_COMMENT = re.compile(r"(\[[^]]*\])|#.*")
# Scheme ("https", "mirror+http"), user and password, host, port, path. The groups are the host and the path.
_ADDRESS = re.compile(r"(?:[a-z0-9.+-]+:/*)?(?:[^/@]*@)?([^/:]*)(?::[0-9]+)?(/.*)?", re.IGNORECASE)
# The values that mean false for apt (sources.list(5), apt.conf(5)) or dnf (dnf.conf(5)).
_FALSE = ("no", "false", "without", "off", "disable", "0")
# Architectures in addresses, and the variables that apt and dnf replace with an architecture.
_ARCHITECTURES = ("$(ARCH)", "$basearch", "$arch", "amd64", "arm64", "x86_64", "aarch64", "ppc64el", "ppc64le")
_ADDRESS_KEYS = ("baseurl", "mirrorlist", "metalink")


class Entry(t.NamedTuple):
    """One address of a source. ``line`` counts from 1.

    ``flat`` is true for a repository without suites, such as NVIDIA's. apt treats two suites of one address as two
    sources.
    """

    line: int
    address: str
    flat: bool = True


class MixedSourceFile(t.NamedTuple):
    """A file that has entries for NVIDIA's packages and also other entries.

    ``line`` and ``address`` are those of the first entry for NVIDIA's packages. ``address`` has no user and password.
    """

    path: str
    line: int
    address: str


class Conflicts(t.NamedTuple):
    """The files that conflict. ``files`` can be removed as a whole. The user must edit those in ``mixed``."""

    files: list[str]
    mixed: list[MixedSourceFile]


def conflicts(host: hostfs.HostFS, family: str, address: str | None = None) -> Conflicts:
    """Return the sources on ``host`` that conflict with this collection's source.

    A source conflicts if it has the same address, or an address of NVIDIA's. A file with a name from NVIDIA's
    instructions also conflicts if each of its addresses looks like a mirror of the toolkit's packages. Disabled sources
    and files that cannot be read do not conflict.

    Args:
        host: The host.
        family: ``apt`` or ``dnf``.
        address: The address of this collection's source, if it is known.
    """
    found = Conflicts([], [])
    for path in _apt_files(host) if family == "apt" else host.glob(f"{_DNF_FOLDER}/*.repo"):
        active = _entries(path, host.read_text(path))
        conflicting = [entry for entry in active if is_nvidia_address(entry.address) or _is_same(entry, address)]
        if path in REPOSITORY_FILES or not active:
            continue
        if conflicting and len(conflicting) < len(active):
            found.mixed.append(MixedSourceFile(path, conflicting[0].line, _plain(conflicting[0].address)))
        elif conflicting or (_has_nvidia_name(path) and all(_looks_like_toolkit(entry.address) for entry in active)):
            found.files.append(path)
    return found


def own_files(host: hostfs.HostFS) -> list[str]:
    """Return the existing files of this collection's repository, including keys that are fetched but not installed."""
    keys = [path for pattern in (*KEY_PATTERNS, STAGED_KEYS) for path in host.glob(pattern)]
    return [path for path in REPOSITORY_FILES if host.lexists(path)] + keys


def _apt_files(host: hostfs.HostFS) -> list[str]:
    names = [name for name in host.readable_entries(_APT_FOLDER) if _APT_NAME.fullmatch(name)]
    return [_APT_MAIN, *(f"{_APT_FOLDER}/{name}" for name in names)]


def _has_nvidia_name(path: str) -> bool:
    folder, name = posixpath.split(path)
    return folder in (_APT_FOLDER, _DNF_FOLDER) and posixpath.splitext(name)[0] in NVIDIA_SOURCE_NAMES


def _entries(path: str, text: str) -> list[Entry]:
    kind = posixpath.splitext(path)[1]
    return list({".list": parse_list, ".sources": parse_deb822, ".repo": parse_repo}[kind](text))


def is_nvidia_address(address: str) -> bool:
    """Return whether ``address`` is one of NVIDIA's addresses for the toolkit, with any scheme."""
    plain = _plain(address)
    return any((plain + "/").startswith(known + "/") for known in NVIDIA_ADDRESSES)


def _is_same(entry: Entry, address: str | None) -> bool:
    """Return whether a flat entry has the host and the path of ``address``.

    Different architectures in the paths are treated as equal.
    """
    return entry.flat and bool(address) and _comparable(entry.address) == _comparable(str(address))


def _comparable(address: str) -> list[str]:
    return ["$" if part in _ARCHITECTURES else part for part in _plain(address).split("/")]


def _looks_like_toolkit(address: str) -> bool:
    _host, _slash, path = _plain(address).partition("/")
    return any(name in path for name in NVIDIA_SOURCE_NAMES)


def _plain(address: str) -> str:
    """Return the host in lower case and the path, without scheme, user and port."""
    found = _ADDRESS.fullmatch(address)
    host, path = found.groups() if found is not None else ("", address)
    return host.lower() + re.sub("/+", "/", path or "").rstrip("/")


# -- parsers of the files ----------------------------------------------------------------------------------------


def parse_list(text: str) -> t.Iterator[Entry]:
    """Yield the active entries of a ``.list`` file."""
    for number, line in enumerate(text.splitlines(), 1):
        # A number sign inside the options does not begin a comment.
        found = _ONE_LINE.match(_OPTIONS_OR_COMMENT.sub(lambda match: match.group(1) or "", line).strip())
        if found is not None:
            yield Entry(number, found.group(1), (found.group(2) or "/").endswith("/"))


def parse_deb822(text: str) -> t.Iterator[Entry]:
    """Yield the active entries of a ``.sources`` file: one for each address of each stanza."""
    for stanza in _stanzas(text):
        fields = {name: " ".join(value for _line, value in values).strip() for name, values in stanza.items()}
        if fields.get("enabled", "").lower() not in _FALSE:
            flat = all(suite.endswith("/") for suite in fields.get("suites", "").split())
            for line, value in stanza.get("uris", ()):
                yield from (Entry(line, address, flat) for address in value.split())


# The lines of each field with their numbers, by the field's name in lower case.
_Stanza = t.Dict[str, t.List[t.Tuple[int, str]]]


def _stanzas(text: str) -> t.Iterator[_Stanza]:
    stanza: _Stanza = {}
    values: list[tuple[int, str]] = []
    # The added empty line ends the last stanza.
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            yield stanza
            stanza, values = {}, []
        elif line[0] in " \t":
            values.append((number, line.strip()))
        else:
            name, _colon, value = line.partition(":")
            values = stanza.setdefault(name.strip().lower(), [])
            values.append((number, value.strip()))


def parse_repo(text: str) -> t.Iterator[Entry]:
    """Yield the active entries of a ``.repo`` file: one for each address of each section."""
    pending: list[Entry] = []
    enabled = True
    key = ""
    # The added section header ends the last section.
    for number, line in enumerate([*text.splitlines(), "[end]"], 1):
        if line.startswith("["):
            yield from pending if enabled else ()
            pending, enabled, key = [], True, ""
        elif line.strip() and not line.lstrip().startswith(("#", ";")):
            value = line
            if line[0] not in " \t":
                key, _sign, value = line.partition("=")
                key = key.strip().lower()
            if key in _ADDRESS_KEYS:
                pending += [Entry(number, address) for address in value.replace(",", " ").split()]
            elif key == "enabled":
                enabled = value.strip().lower() not in _FALSE


# -- connections -------------------------------------------------------------------------------------------------------


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

    This is checked after apt-get or dnf has failed, because their exit status is the same for an unreachable host and
    for a wrong signature.
    """
    # Only a failed task needs this import.
    import socket  # noqa: PLC0415

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
