# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report whether the running and the next kernel have the module nvidia, and whether the kernel accepts its signature.

It reads files. Only for a compressed module that is not loaded, on a kernel that requires signatures, it runs modinfo.
"""

from __future__ import annotations

import os
import re
import struct
import typing as t

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

# Whether the kernel refuses modules without a valid signature: module_sig_check() in kernel/module/signing.c of Linux
# 6.12 does so if sig_enforce is set, or if the kernel is locked down (security/lockdown/lockdown.c).
_SIG_ENFORCE = "/sys/module/module/parameters/sig_enforce"
_LOCKDOWN = "/sys/kernel/security/lockdown"
_LOCKED = ("[integrity]", "[confidentiality]")
# Four bytes of attributes and one byte of content (Documentation/filesystems/efivarfs.rst, and section 3.3 of UEFI
# 2.10).
_SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_EFI = "/sys/firmware/efi"

# A signed module ends with a signature, struct module_signature (five bytes, three of padding, and the length of the
# signature), and this text (include/linux/module_signature.h of Linux 6.12).
_MARKER = b"~Module signature appended~\n"
_SIGNATURE = struct.Struct(">8xI")
_MAX_SIGNATURE = 1 << 16
# The object identifier of a common name, 2.5.4.3, in DER. scripts/sign-file.c writes no certificate into the signature,
# so the only name in it is that of the signer's issuer, which is the signer itself for the keys of dkms.
_COMMON_NAME = b"\x06\x03\x55\x04\x03"
_STRING_TYPES = (0x0C, 0x13, 0x14, 0x16)
_KEYS = "/proc/keys"
# /proc/keys cuts the name of the type "asymmetric" after nine characters (proc_keys_show() in security/keys/proc.c).
_ASYMMETRIC = " asymmetri "


class Signature(t.NamedTuple):
    """Whether a module is signed, and the name of its signer; None for what is not known."""

    signed: bool | None
    signer: str | None = None


def describe_kernel(host: hostfs.HostFS, run: core_plan.Runner, loaded: bool) -> dict[str, t.Any]:
    """Return the report of the kernel of ``host``, which has a GPU. ``loaded`` is whether the driver is loaded.

    Unknown values are None. No error is raised.
    """
    release = host.read_text(_RELEASE).strip() or os.uname().release
    # A host without any modules below this directory keeps them elsewhere, and a system container has none of the
    # running kernel, even if it has packages of other kernels.
    is_unknown = not _kernels(host) or host.exists(_CONTAINER)
    has_modules = host.exists(f"{_MODULES}/{release}/{_DEPENDENCIES}") or (None if is_unknown else False)
    module = _module_of(host, release) if has_modules else None
    newest = _next_release(host, release)
    secure_boot, required = _secure_boot(host), _requires_signatures(host)
    # A loaded module was accepted.
    is_checked = module is not None and not loaded and (secure_boot if required is None else required)
    signature = _signature(host, run, module) if module is not None and is_checked else Signature(None)
    return {
        "release": release,
        "has_modules": has_modules,
        "module": module,
        "next_release": newest,
        "next_module": _module_of(host, newest) if newest else None,
        "other_releases": [] if loaded or module else _releases_with_module(host, release),
        "secure_boot": secure_boot,
        "signature_required": required,
        "signed": signature.signed,
        "signer": signature.signer,
        "signer_trusted": _is_trusted(host, signature.signer) if signature.signer else None,
    }


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


def _releases_with_module(host: hostfs.HostFS, release: str) -> list[str]:
    return [name for name in _kernels(host) if name != release and _module_of(host, name) is not None]


def _sort_key(release: str) -> list[tuple[int, str]]:
    """Return a key with which numbers in ``release`` are compared as numbers.

    Separators do not count, and letters come before numbers, as for rpm: 553.el8 is older than 553.16.1.el8.
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _PARTS.findall(release[:200])]


def _flavor(release: str) -> list[str]:
    """Return the letters of ``release``: generic of 6.8.0-45-generic, cloud and amd of 6.1.0-18-cloud-amd64."""
    return _LETTERS.findall(_DEBIAN.sub("", release))


# -- signatures ------------------------------------------------------------------------------------------------------


def _secure_boot(host: hostfs.HostFS) -> bool | None:
    """Return whether the firmware has verified the boot loader; None if the variable cannot be read."""
    content = host.read_text(_SECURE_BOOT)
    if len(content) == 5:
        return content.endswith("\x01")
    return None if host.exists(_EFI) else False


def _requires_signatures(host: hostfs.HostFS) -> bool | None:
    """Return whether the kernel refuses unsigned modules; None if it does not show this."""
    enforced, lockdown = host.read_text(_SIG_ENFORCE).strip(), host.read_text(_LOCKDOWN)
    if enforced == "Y" or any(level in lockdown for level in _LOCKED):
        return True
    return False if lockdown else None


def _signature(host: hostfs.HostFS, run: core_plan.Runner, path: str) -> Signature:
    if not path.endswith(".ko"):
        return _signature_from_modinfo(host, run, path)
    end = host.read_end(path, _MAX_SIGNATURE)
    return Signature(None) if end is None else parse_signature(end)


def parse_signature(end: bytes) -> Signature:
    """Return the signature at the end of a module. ``end`` is its last 64 KiB."""
    if not end.endswith(_MARKER):
        return Signature(signed=False)
    footer = len(end) - len(_MARKER) - _SIGNATURE.size
    if footer < 0:
        return Signature(signed=True)
    (length,) = _SIGNATURE.unpack_from(end, footer)
    signature = end[max(0, footer - length) : footer]
    start = signature.find(_COMMON_NAME) + len(_COMMON_NAME)
    value = signature[start:]
    # The type and the length of the name, which has at most 64 characters (X.520).
    if start < len(_COMMON_NAME) or len(value) < 2 or value[0] not in _STRING_TYPES or value[1] >= 0x80:
        return Signature(signed=True)
    return Signature(signed=True, signer=value[2 : 2 + value[1]].decode("utf-8", "replace") or None)


def _signature_from_modinfo(host: hostfs.HostFS, run: core_plan.Runner, path: str) -> Signature:
    """Return the signature of a compressed module. The host's Python may be unable to decompress it."""
    status, output, _error = run(host.argv(["modinfo", path]))
    if status:
        return Signature(None)
    fields = dict(line.partition(":")[::2] for line in reversed(output.splitlines()) if ":" in line)
    # modinfo prints sig_id for each signed module, and the signer only if it was built with OpenSSL.
    return Signature("sig_id" in fields, fields.get("signer", "").strip() or None)


def _is_trusted(host: hostfs.HostFS, signer: str) -> bool | None:
    """Return whether the kernel has a key with the name of ``signer``; None if it shows no keys."""
    keys = [line for line in host.read_text(_KEYS).splitlines() if _ASYMMETRIC in line]
    return any(signer in line for line in keys) if keys else None
