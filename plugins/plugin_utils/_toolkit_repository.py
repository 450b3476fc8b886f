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

Files = t.List[t.Dict[str, str]]
_HEADER = "# Written by Ansible, gpufleet.nvidia.nvidia_toolkit. What is changed here by hand does not last."
_NAME = "gpufleet-nvidia-container-toolkit"
_PACKAGES = "nvidia-container-toolkit nvidia-container-toolkit-base libnvidia-container-tools libnvidia-container1"
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
    def key_id(self) -> str:
        """The part of the fingerprint in the names of key files."""
        return self.fingerprint[-16:].lower()

    @property
    def staged_key(self) -> str:
        """The file on the host with the fetched key, until it is installed."""
        return f"/var/cache/gpufleet-nvidia-key-{self.key_id}.asc"

    def files(self, manager: str) -> Files:
        """Return the files for a package manager, none for an unknown one."""
        row = MANAGERS.get(manager)
        if row is None:
            return []
        key = {"content": f"{self.key.strip()}\n"} if self.key else {"src": self.staged_key}
        key_file = f"{row.key_file}-{self.key_id}{row.key_suffix}"
        address = self.url or f"{self.base_url}/{self.channel}{row.architecture}"
        return [{"path": key_file, **key}, *row.files(self, address, key_file)]


def can_use_key(manager: str, has_gpg: bool) -> bool:
    """Return whether the installation accepts a key on a host with this package manager."""
    return manager in MANAGERS and (has_gpg or not MANAGERS[manager].needs_gpg)


def _apt_files(settings: Repository, address: str, key_file: str) -> Files:
    host = urlsplit(address).hostname or ""
    source = ["Types: deb", f"URIs: {address}", "Suites: /", f"Signed-By: {key_file} {settings.fingerprint}"]
    files = [{"path": f"/etc/apt/sources.list.d/{_NAME}.sources", "content": _text(source)}]
    if settings.pin_priority:
        pin = [f"Package: {_PACKAGES}", f'Pin: origin "{host}"', f"Pin-Priority: {settings.pin_priority}"]
        files.append({"path": f"/etc/apt/preferences.d/{_NAME}", "content": _text(pin)})
    if settings.has_proxy:
        proxy = [f'Acquire::{scheme}::Proxy::{host} "{_PROXY}";' for scheme in ("http", "https")]
        path = f"/etc/apt/apt.conf.d/95{_NAME}"
        files.append({"path": path, "content": _text(proxy), "mode": settings.proxy_mode})
    return files


def _dnf_files(settings: Repository, address: str, key_file: str) -> Files:
    # With another value in dnf.conf, dnf would skip a repository with a wrong signature instead of failing.
    return _repo_file("/etc/yum.repos.d", settings, address, key_file, "skip_if_unavailable=0")


def _zypper_files(settings: Repository, address: str, key_file: str) -> Files:
    # With gpgcheck alone, zypper does not check the packages of a repository whose signature is valid.
    return _repo_file("/etc/zypp/repos.d", settings, address, key_file, "pkg_gpgcheck=1", "autorefresh=1")


def _repo_file(folder: str, settings: Repository, address: str, key_file: str, *own: str) -> Files:
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
    return [{"path": f"{folder}/{_NAME}.repo", "content": _text(lines), "mode": settings.proxy_mode}]


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in (_HEADER, *lines))


class _Manager(t.NamedTuple):
    """The repository of one package manager.

    ``key_file`` and ``key_suffix`` are the parts of the key file's path around the ID of the key, ``architecture`` is
    the end of the default address, ``needs_gpg`` says whether the module checks the key with gpg.
    """

    key_file: str
    key_suffix: str
    architecture: str
    needs_gpg: bool
    files: t.Callable[[Repository, str, str], Files]


# A row writes the files that REPOSITORY in module_utils/_packages/NAME_sources.py lists.
MANAGERS = {
    "apt": _Manager(f"/usr/share/keyrings/{_NAME}", ".asc", "/deb/$(ARCH)", needs_gpg=False, files=_apt_files),
    "dnf": _Manager(f"/etc/pki/rpm-gpg/RPM-GPG-KEY-{_NAME}", "", "/rpm/$basearch", needs_gpg=True, files=_dnf_files),
    "zypper": _Manager(f"/etc/zypp/RPM-GPG-KEY-{_NAME}", "", "/rpm/$basearch", needs_gpg=True, files=_zypper_files),
}
