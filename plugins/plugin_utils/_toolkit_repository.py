# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of the toolkit's package repository: what the role nvidia_toolkit lets the module write.

Private to this collection. The module accepts only these names (module_utils/_packages/sources.py).
"""

from __future__ import annotations

import typing as t
from urllib.parse import urlsplit

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import apt_sources, rpm_sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import sources as packages_sources

Files = t.List[t.Dict[str, str]]
_HEADER = "# Written by Ansible, gpufleet.nvidia.nvidia_toolkit. What is changed here by hand does not last."
_NAME = packages_base.REPOSITORY_NAME
# The module replaces it by the address of the proxy, which may contain a password.
_PROXY = "@PROXY@"


class Repository(t.NamedTuple):
    """The settings of the repository. ``url`` and ``pin_priority`` are empty if they are not set."""

    base_url: str
    channel: str
    url: str
    fingerprint: str
    # The key itself. Without it, the fetched key is used.
    key: str
    gpgcheck: bool
    pin_priority: str
    has_proxy: bool
    # The mode of a file with the address of the proxy, which may contain a password.
    proxy_mode: str

    @classmethod
    def of(cls, values: t.Mapping[str, t.Any]) -> Repository:
        """Read the settings of the role. The address of the proxy is not kept."""
        proxy = str(values["proxy"] or "")
        return cls(
            base_url=str(values["base_url"]),
            channel=str(values["channel"]),
            url=str(values["repository_url"] or ""),
            fingerprint=str(values["key_fingerprint"]).replace(" ", "").upper(),
            key=str(values["key"] or ""),
            gpgcheck=boolean(values["repository_gpgcheck"], strict=False),
            pin_priority=str(values["pin_priority"] or ""),
            has_proxy=bool(proxy),
            proxy_mode="0600" if "@" in proxy else "0644",
        )

    @property
    def staged_key(self) -> str:
        """The file on the host with the fetched key, until it is installed."""
        return packages_base.with_digits(packages_sources.STAGED_KEYS, self.fingerprint)

    def files(self, manager: str) -> Files:
        """Return the files for a package manager, none for an unknown one."""
        row = MANAGERS.get(manager)
        if row is None:
            return []
        key = {"content": f"{self.key.strip()}\n"} if self.key else {"src": self.staged_key}
        key_file = packages_base.with_digits(row.repository.key_pattern, self.fingerprint)
        address = self.url or f"{self.base_url}/{self.channel}{row.architecture}"
        return [{"path": key_file, **key}, *row.files(self, address, key_file)]


def can_use_key(manager: str, has_gpg: bool) -> bool:
    """Return whether the installation accepts a key on a host with this package manager."""
    return manager in MANAGERS and (has_gpg or not MANAGERS[manager].needs_gpg)


def _apt_files(settings: Repository, address: str, key_file: str) -> Files:
    host = urlsplit(address).hostname or ""
    source = ["Types: deb", f"URIs: {address}", "Suites: /", f"Signed-By: {key_file} {settings.fingerprint}"]
    path, pin_path, proxy_path = apt_sources.REPOSITORY.files
    files = [{"path": path, "content": _text(source)}]
    if settings.pin_priority:
        pin = [
            f"Package: {' '.join(packages_base.PACKAGES)}",
            f'Pin: origin "{host}"',
            f"Pin-Priority: {settings.pin_priority}",
        ]
        files.append({"path": pin_path, "content": _text(pin)})
    if settings.has_proxy:
        proxy = [f'Acquire::{scheme}::Proxy::{host} "{_PROXY}";' for scheme in ("http", "https")]
        files.append({"path": proxy_path, "content": _text(proxy), "mode": settings.proxy_mode})
    return files


def _dnf_files(settings: Repository, address: str, key_file: str) -> Files:
    # With another value in dnf.conf, dnf would skip a repository with a wrong signature instead of failing.
    return _repo_file(rpm_sources.DNF, settings, address, key_file, "skip_if_unavailable=0")


def _zypper_files(settings: Repository, address: str, key_file: str) -> Files:
    # With gpgcheck alone, zypper does not check the packages of a repository whose signature is valid.
    return _repo_file(rpm_sources.ZYPPER, settings, address, key_file, "pkg_gpgcheck=1", "autorefresh=1")


def _repo_file(
    repository: packages_base.Repository, settings: Repository, address: str, key_file: str, *own: str
) -> Files:
    """Return the file with the repository. dnf and zypper have the same format, and ``own`` settings."""
    lines = [
        f"[{_NAME}]",
        "name=NVIDIA Container Toolkit",
        f"baseurl={address}",
        "enabled=1",
        f"gpgkey=file://{key_file}",
        "gpgcheck=1",
        f"repo_gpgcheck={int(settings.gpgcheck)}",
        *own,
        *([f"priority={settings.pin_priority}"] if settings.pin_priority else ()),
        *([f"proxy={_PROXY}"] if settings.has_proxy else ()),
    ]
    return [{"path": repository.source, "content": _text(lines), "mode": settings.proxy_mode}]


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in (_HEADER, *lines))


class _Manager(t.NamedTuple):
    """The repository of one package manager.

    ``architecture`` is the end of the default address, ``needs_gpg`` says whether the module checks the key with gpg.
    """

    repository: packages_base.Repository
    architecture: str
    needs_gpg: bool
    files: t.Callable[[Repository, str, str], Files]


MANAGERS = {
    "apt": _Manager(apt_sources.REPOSITORY, "/deb/$(ARCH)", needs_gpg=False, files=_apt_files),
    "dnf": _Manager(rpm_sources.DNF, "/rpm/$basearch", needs_gpg=True, files=_dnf_files),
    "zypper": _Manager(rpm_sources.ZYPPER, "/rpm/$basearch", needs_gpg=True, files=_zypper_files),
}
