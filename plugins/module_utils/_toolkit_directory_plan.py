# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what the directory of one version of the toolkit holds, name by name.

from __future__ import annotations

import hashlib
import json
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import is_nvidia_program
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import OWN_CONFIG_FILE, VERSIONS_SUFFIX
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_manifest import Entry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_own_config import (
    RUNTIMES_KEY,
    Wanted,
    own_config,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_parts import upstream
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_settings import shown
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_wrappers import (
    HOOK,
    REAL_SUFFIX,
    UNWRAPPED,
    Surroundings,
    wrapper,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_manifest import PartDigest

# The name that the hook had first, which engines' hook files may still call.
_HOOK_LINK = "nvidia-container-toolkit"
_UNUSABLE = ":;$"
_CONFIG_MODE = 0o644


class Design(t.NamedTuple):
    """What is asked of an installation beside its parts.

    ``default_runtime`` takes over without a driver, None for the first low-level runtime of ``config``.
    """

    dest: str
    config: Wanted
    default_runtime: str | None = None


class Directory(t.NamedTuple):
    """The directory of one version, and what its config.toml amounts to (``settings`` without secrets)."""

    entries: dict[str, Entry]
    config: str
    settings: dict[str, t.Any]
    warnings: tuple[str, ...]


def check_dest(dest: str) -> None:
    """Raises GpufleetError for a path that the toolkit cannot be called by.

    The shell would take any; PATH and LD_LIBRARY_PATH have no way to quote, and ld.so(8) expands ``$``.
    """
    _check_words("dest", dest)
    found = [character for character in _UNUSABLE if character in dest]
    if found:
        raise GpufleetError(
            f"dest {dest!r} holds {' and '.join(found)}, which PATH and LD_LIBRARY_PATH cannot. Choose another path."
        )
    if dest == "/":
        raise GpufleetError("dest is the root of the file system. Choose a path such as /opt/nvidia/toolkit.")


def check_runtime(parameter: str, runtime: str, dest: str) -> None:
    """Raises GpufleetError for a low-level runtime that cannot be one."""
    _check_words(parameter, runtime)
    below = (runtime + "/").startswith(dest + "/")
    if is_nvidia_program(runtime) or below:
        raise GpufleetError(
            f"{parameter} {runtime!r}, which is the toolkit itself and would call itself for ever. Name a low-level"
            " runtime such as runc."
        )
    if not posixpath.isabs(runtime) and ("/" in runtime or runtime.startswith("-") or not runtime):
        raise GpufleetError(f"{parameter} {runtime!r} is neither an absolute path nor the name of a program.")


def _check_words(parameter: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GpufleetError(f"{parameter} {text!r} is not UTF-8, as configuration files have to be.") from None
    if not text.isprintable():
        raise GpufleetError(f"{parameter} {text!r} holds characters that cannot be printed. Choose another path.")


def content_digest(parts: t.Sequence[PartDigest], design: Design) -> str:
    """One word for all that makes a version what it is, wherever it will lie."""
    told = [[list(part) for part in parts], list(design)]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


def directory(parts: t.Sequence[PartDigest], design: Design, folder: str) -> Directory:
    """The directory at ``folder``.  Raises GpufleetError for settings that cannot be."""
    config = own_config(design.config, {part.name for part in parts}, folder)
    _check_files(config.settings, design.dest)
    runtimes = [*filter(None, [design.default_runtime]), *config.settings[RUNTIMES_KEY]]
    for runtime in runtimes:
        check_runtime(f"{RUNTIMES_KEY} has", runtime, design.dest)
    around = Surroundings(folder, design.dest, list(dict.fromkeys(runtimes)), version_in(parts))
    entries: dict[str, Entry] = {}
    for part in parts:
        entries.update(_entries_of(part, around))
    if HOOK in entries:
        entries[_HOOK_LINK] = Entry(0o777, target=HOOK)
    entries[OWN_CONFIG_FILE] = _text(config.text, _CONFIG_MODE)
    return Directory(entries, config.text, shown(config.settings), config.warnings)


def _check_files(settings: t.Mapping[str, t.Any], dest: str) -> None:
    """Refuse logs and the like among what is installed: they would be damage to it."""
    for key, value in settings.items():
        written = key.rpartition(".")[2] in ("debug", "ldcache")
        if written and isinstance(value, str) and (value + "/").startswith((f"{dest}/", f"{dest}{VERSIONS_SUFFIX}/")):
            raise GpufleetError(f"{key} is {value!r}, in the toolkit's own directory. Choose a place such as /var/log.")


def version_in(parts: t.Iterable[PartDigest]) -> str | None:
    """What the library's name tells of the version, without running anything."""
    names = [part.name.partition(".so.")[2] for part in parts if part.name.startswith("libnvidia-container.so.")]
    return upstream(names[0]) if names else None


def _entries_of(part: PartDigest, around: Surroundings) -> t.Iterator[tuple[str, Entry]]:
    if part.name.startswith("lib"):
        yield part.name, Entry((part.mode | 0o444) & 0o755, part.sha256, part.name)
        if part.soname and part.soname != part.name:
            yield part.soname, Entry(0o777, target=part.name)
        return
    mode = (part.mode | 0o111) & 0o755
    if part.name in UNWRAPPED:
        yield part.name, Entry(mode, part.sha256, part.name)
        return
    yield part.name + REAL_SUFFIX, Entry(mode, part.sha256, part.name)
    # Scripts have to be read too.
    yield part.name, _text(wrapper(part.name, around), mode | 0o444)


def _text(text: str, mode: int) -> Entry:
    content = text.encode()
    return Entry(mode, hashlib.sha256(content).hexdigest(), text=content)
