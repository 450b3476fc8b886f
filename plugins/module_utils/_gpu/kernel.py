# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report whether the running and the next kernel have the module nvidia, and facts about one that is not loaded."""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


_RELEASE = "/proc/sys/kernel/osrelease"
_MODULES = "/lib/modules"
# systemd writes this file in a container (container_interface of systemd).
_CONTAINER = "/run/systemd/container"
# depmod writes this file, and modprobe finds modules in it (modules.dep(5)). The real files have up to 2 MB.
_DEPENDENCIES = "modules.dep"
# The highest number of kernels that are inspected.
_MAX_KERNELS = 20
# The file of the module nvidia: Debian's packages name it nvidia-current, nvidia-tesla-535 or nvidia-legacy-390xx, also
# with -open behind it. Other modules of the driver, such as nvidia-uvm, and of the kernel have other names.
_MODULE = re.compile(
    r"(?m)^((?:[^:\n]*/)?nvidia(?:-(?:current|tesla|legacy)(?:-[0-9]+(?:xx)?)?(?:-open)?)?\.ko(?:\.(?:gz|xz|zst))?):"
)
_PARTS = re.compile("[0-9]+|[A-Za-z]+")
_LETTERS = re.compile(r"[A-Za-z]+")
# Debian adds its own version since Debian 13, as in 6.12.41+deb13-amd64.
_DEBIAN = re.compile(r"deb[0-9]+")

# What decides whether the kernel refuses a module without a valid signature: module_sig_check() in
# kernel/module/signing.c of Linux 6.12, and security/lockdown/lockdown.c.
_SIGNATURE_RULES = ("/sys/module/module/parameters/sig_enforce", "/sys/kernel/security/lockdown")
# modinfo prints sig_id for each signed module, and the signer only if it was built with OpenSSL.
_FIELDS = ("version", "vermagic", "sig_id", "signer")


def describe_kernel(host: hostfs.HostFS) -> dict[str, t.Any]:
    """Return the report of the kernel of ``host``, which has a GPU.

    Unknown values are None. No error is raised.
    """
    release = host.read_text(_RELEASE).strip() or os.uname().release
    # A host without any modules below this directory keeps them elsewhere, and a system container has none of the
    # running kernel, even if it has packages of other kernels.
    is_unknown = not _kernels(host) or host.exists(_CONTAINER)
    has_modules = host.exists(f"{_MODULES}/{release}/{_DEPENDENCIES}") or (None if is_unknown else False)
    newest = _next_release(host, release)
    return {
        "release": release,
        "has_modules": has_modules,
        "module": _module_of(host, release) if has_modules else None,
        "next_release": newest,
        "next_module": _module_of(host, newest) if newest else None,
    }


def unloaded_module(host: hostfs.HostFS, run: core_plan.Runner, report: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    """Yield sentences with what the kernel and modinfo say about the module of a driver that is not loaded.

    ``report`` is the result of describe_kernel(). No error is raised.
    """
    module, dependencies = report["module"], f"{_MODULES}/{report['release']}/{_DEPENDENCIES}"
    if module is None:
        if report["has_modules"] is not None:
            yield f"{dependencies} {'has no module nvidia' if report['has_modules'] else 'does not exist'}."
        return
    status, output, error = run(host.argv(["modinfo", module]))
    if status:
        yield f"modinfo {module} fails: {' '.join(error.split())}."
    else:
        fields = {name: value.strip() for name, _colon, value in (line.partition(":") for line in output.splitlines())}
        said = [f"{name} {core_text.quoted(fields[name])}" for name in _FIELDS if fields.get(name)]
        yield f"modinfo {module} prints {', '.join([*said, *([] if 'sig_id' in fields else ['no signature'])])}."
    for path in _SIGNATURE_RULES:
        content = host.read_text(path).strip()
        if content:
            yield f"{path}: {core_text.quoted(content)}."


# -- installed kernels -----------------------------------------------------------------------------------------------


def _module_of(host: hostfs.HostFS, release: str) -> str | None:
    """Return the path of the module nvidia that modprobe loads with this kernel."""
    found = _MODULE.search(host.read_text(f"{_MODULES}/{release}/{_DEPENDENCIES}"))
    return os.path.join(f"{_MODULES}/{release}", found.group(1)) if found else None


def _kernels(host: hostfs.HostFS) -> list[str]:
    """Return the releases of the installed kernels, oldest first, at most _MAX_KERNELS of the newest.

    The image of a kernel is in /boot, or in the directory of its modules (kernel-install(8)).
    """
    names = sorted(host.readable_entries(_MODULES), key=_sort_key)[-_MAX_KERNELS:]
    return [
        name
        for name in names
        if host.exists(f"{_MODULES}/{name}/{_DEPENDENCIES}")
        and (host.exists(f"/boot/vmlinuz-{name}") or host.exists(f"{_MODULES}/{name}/vmlinuz"))
    ]


def _next_release(host: hostfs.HostFS, release: str) -> str | None:
    """Return the newest kernel of the same flavor if it is newer than ``release``; boot loaders start it by default.

    A kernel of another flavor, such as one for debugging, is no default.
    """
    newer = [
        name for name in _kernels(host) if _sort_key(name) > _sort_key(release) and _flavor(name) == _flavor(release)
    ]
    return newer[-1] if newer else None


def _sort_key(release: str) -> list[tuple[int, str]]:
    """Return a key with which numbers in ``release`` are compared as numbers.

    Separators do not count, and letters come before numbers, as for rpm: 553.el8 is older than 553.16.1.el8.
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _PARTS.findall(release[:200])]


def _flavor(release: str) -> list[str]:
    """Return the letters of ``release``: generic of 6.8.0-45-generic, cloud and amd of 6.1.0-18-cloud-amd64."""
    return _LETTERS.findall(_DEBIAN.sub("", release))
