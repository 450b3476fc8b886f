# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the directory of one toolkit version contains: programs, wrapper scripts, config.toml.

Each wrapper uses the files of its own version, so a container start never mixes two versions.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import shlex
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_parser
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import installed as toolkit_installed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import configure as toolkit_configure
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import settings as toolkit_settings
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import manifest as toolkit_manifest

if t.TYPE_CHECKING:
    KeyPath = t.Tuple[str, ...]


HOOK = "nvidia-container-runtime-hook"
CLI = "nvidia-container-cli"
CTK = "nvidia-ctk"

# NVIDIA_CTK_CONFIG_FILE_PATH names config.toml: first 1.18.0, last without it 1.17.9. Before, XDG_CONFIG_HOME named the
# directory that contains nvidia-container-runtime/config.toml, and the hook has an option for config.toml.
_CONFIG_VARIABLE_SINCE = (1, 18)
_WRAPPER_HEAD = """\
#!/bin/sh
# Written by Ansible, gpufleet.nvidia.nvidia_toolkit_install. What is changed here by hand does not last.
"""
# Like the wrappers of NVIDIA's installer, this starts ordinary containers on a node without the driver. It runs no
# program to find that out, and it tries more than one runtime. sysfs shows the module with one check; /proc/modules has
# to be read line by line.
_WITHOUT_DRIVER = """\
loaded=
if [ -d /sys/module/nvidia ]; then
    loaded=yes
else
    while read -r module rest; do
        if [ "$module" = nvidia ]; then
            loaded=yes
            break
        fi
    done 2>/dev/null </proc/modules
fi
if [ -z "$loaded" ]; then
    echo {program}': the kernel module nvidia is not loaded, a low-level runtime takes over' >&2
    for runtime in {runtimes}; do
        case $runtime in
            /*) [ -f "$runtime" ] && [ -x "$runtime" ] || continue ;;
            *) command -v "$runtime" >/dev/null || continue ;;
        esac
        exec "$runtime" "$@"
    done
    echo {program}': no low-level runtime was found, looked for '{names} >&2
    exit 127
fi
"""
# The directory comes before the existing value of the variable. An unset variable adds no colon: an empty entry in PATH
# or LD_LIBRARY_PATH would mean the working directory, which for these programs is the directory of an OCI bundle.
_VARIABLE = """\
{name}={folder}"${{{name}:+:${name}}}"
export {name}
"""


class WrapperContext(t.NamedTuple):
    """What the wrappers of one version refer to.

    ``folder`` is the directory of the version, and ``dest`` the path of the current version that all other programs
    use. ``runtimes`` are the low-level runtimes to use without a driver: the first one that exists is used.
    ``version`` is None if it is unknown.
    """

    folder: str
    dest: str
    runtimes: t.Sequence[str]
    version: str | None = None


def wrapper(program: str, context: WrapperContext) -> str:
    """Return the wrapper script of ``program``."""
    lines = [_WRAPPER_HEAD]
    if program in toolkit_constants.RUNTIMES:
        runtimes = " ".join(map(shlex.quote, context.runtimes))
        names = shlex.quote(", ".join(context.runtimes))
        lines.append(_WITHOUT_DRIVER.format(program=program, runtimes=runtimes, names=names))
    # nvidia-ctk writes the programs that it finds in PATH into CDI specifications, which outlive a version.
    lines.append(_variable("PATH", context.dest if program == CTK else context.folder))
    if program == CLI:
        lines.append(_variable("LD_LIBRARY_PATH", context.folder))
    older = context.version is not None and _numbers(context.version) < _CONFIG_VARIABLE_SINCE
    config = shlex.quote(f"{context.folder}/{toolkit_constants.OWN_CONFIG_FILE}")
    if program in (*toolkit_constants.RUNTIMES, HOOK):
        lines.append(f"NVIDIA_CTK_CONFIG_FILE_PATH={config}\nexport NVIDIA_CTK_CONFIG_FILE_PATH\n")
        if older:
            lines.append(f"XDG_CONFIG_HOME={shlex.quote(f'{context.folder}/.config')}\nexport XDG_CONFIG_HOME\n")
    options = f" -config {config}" if older and program == HOOK else ""
    lines.append(f'exec {shlex.quote(f"{context.folder}/{program}{toolkit_constants.REAL_SUFFIX}")}{options} "$@"\n')
    return "".join(lines)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall("[0-9]+", version)[:2])


def _variable(name: str, folder: str) -> str:
    return _VARIABLE.format(name=name, folder=shlex.quote(folder))


RUNTIMES_KEY = "nvidia-container-runtime.runtimes"
_CONFIG_HEAD = (
    "# Written by Ansible, gpufleet.nvidia.nvidia_toolkit_install. What is changed here by hand does not last.\n"
)


class ConfigInputs(t.NamedTuple):
    """The inputs of config.toml.

    ``settings`` have precedence over ``profile`` and ``debug``, and these over NVIDIA's defaults. ``real_ldconfig``
    says whether the root of the driver has sbin/ldconfig.real.
    """

    driver_root: str
    runtimes: t.Sequence[str]
    settings: t.Mapping[str, t.Any]
    profile: str | None = None
    debug: bool | None = None
    real_ldconfig: bool = False
    allow_unknown: bool = False
    in_container: bool = False


class OwnConfig(t.NamedTuple):
    """The text of config.toml, and the effective settings by dotted keys."""

    text: str
    settings: dict[str, t.Any]
    warnings: tuple[str, ...]


def own_config(inputs: ConfigInputs, programs: t.Collection[str], folder: str) -> OwnConfig:
    """Return config.toml for ``programs`` in ``folder``. Raises NvidiaError for invalid settings."""
    values = {tuple(key.split(".")): value for key, value in _default_values(inputs, programs, folder).items()}
    values.update(
        toolkit_configure.SettingsRequest(
            inputs.settings, inputs.profile, inputs.debug, allow_unknown=inputs.allow_unknown
        ).values()
    )
    # None resets a setting to its default, so the file does not contain it.
    data = _nested({path: value for path, value in values.items() if value is not None})
    toolkit_settings.check_ldconfig(data)
    defaults = {toolkit_settings.LDCONFIG_KEY: f"@{toolkit_settings.REAL_LDCONFIG}"} if inputs.real_ldconfig else {}
    settings = toolkit_settings.effective(data, defaults)
    unsafe = toolkit_settings.unsafe_settings(settings, in_container=inputs.in_container)
    return OwnConfig(_CONFIG_HEAD + "".join(_lines(data)), settings, tuple(unsafe))


def _default_values(inputs: ConfigInputs, programs: t.Collection[str], folder: str) -> dict[str, t.Any]:
    """Return the settings that NVIDIA's installer (1.20) always writes, with the programs of this version."""
    ldconfig = posixpath.join(inputs.driver_root, "sbin/ldconfig.real" if inputs.real_ldconfig else "sbin/ldconfig")
    paths = {CLI: "nvidia-container-cli.path", HOOK: "nvidia-container-runtime-hook.path", CTK: "nvidia-ctk.path"}
    return {
        "accept-nvidia-visible-devices-as-volume-mounts": False,
        "accept-nvidia-visible-devices-envvar-when-unprivileged": True,
        "nvidia-container-cli.root": inputs.driver_root,
        "nvidia-container-cli.ldconfig": f"@{ldconfig}",
        RUNTIMES_KEY: list(inputs.runtimes),
        "nvidia-container-runtime-hook.skip-mode-detection": True,
        **{key: f"{folder}/{name}" for name, key in paths.items() if name in programs},
    }


def _nested(values: t.Mapping[KeyPath, t.Any]) -> dict[str, t.Any]:
    """Return nested tables with all settings in the order of the packages' file."""
    positions = {setting.path: position for position, setting in enumerate(toolkit_settings.SETTINGS)}
    data: dict[str, t.Any] = {}
    for path in sorted(values, key=lambda path: (positions.get(path, len(positions)), path)):
        table = data
        for name in path[:-1]:
            table = table.setdefault(name, {})
        table[path[-1]] = values[path]
    return data


def _lines(data: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    """Return the lines of the file: the values at the top first, then each table that has values."""
    tables: dict[KeyPath, list[str]] = {(): []}
    for path, value in toml_parser.iter_leaves(data):
        line = f"{toml_parser.spell_name(path[-1])} = {toml_parser.spell_value(value)}\n"
        tables.setdefault(path[:-1], []).append(line)
    for path, lines in tables.items():
        if path:
            yield f"\n[{'.'.join(map(toml_parser.spell_name, path))}]\n"
        yield from lines


# The first name of the hook. Hook files of engines may still use it.
_HOOK_LINK = "nvidia-container-toolkit"
_FORBIDDEN_CHARACTERS = ":;$"
_CONFIG_MODE = 0o644


class DirectorySpec(t.NamedTuple):
    """The inputs of an installation, without its parts.

    ``default_runtime`` is used without a driver. None selects the first low-level runtime of ``config``.
    """

    dest: str
    config: ConfigInputs
    default_runtime: str | None = None


class DirectoryLayout(t.NamedTuple):
    """The files of one version, and the effective settings of its config.toml (``settings`` without secrets)."""

    entries: dict[str, toolkit_manifest.ManifestEntry]
    config: str
    settings: dict[str, t.Any]
    warnings: tuple[str, ...]


def check_dest(dest: str) -> None:
    """Raise NvidiaError if ``dest`` cannot be the directory of the toolkit's programs.

    The shell accepts any path, but PATH and LD_LIBRARY_PATH have no quoting, and ld.so(8) expands ``$``.
    """
    _check_text(f"{errors.option:dest} is", dest)
    found = [character for character in _FORBIDDEN_CHARACTERS if character in dest]
    if found:
        raise errors.NvidiaError(
            f"{errors.option:dest} {dest!r} contains {' and '.join(found)}, but PATH and LD_LIBRARY_PATH cannot. Choose"
            " another path."
        )
    if dest == "/":
        raise errors.NvidiaError(
            f"{errors.option:dest} is the root of the file system. Choose a path such as /opt/nvidia/toolkit."
        )


def check_runtime(parameter: str, runtime: str, dest: str) -> None:
    """Raise NvidiaError for a low-level runtime that is invalid or belongs to the toolkit."""
    _check_text(parameter, runtime)
    below = (runtime + "/").startswith(dest + "/")
    if engines_base.is_nvidia_program(runtime) or below:
        raise errors.NvidiaError(
            f"{parameter} {runtime!r}, a program of the toolkit, which would start itself in an endless loop. Use a"
            " low-level runtime such as runc."
        )
    if not posixpath.isabs(runtime) and ("/" in runtime or runtime.startswith("-") or not runtime):
        raise errors.NvidiaError(
            f"{parameter} {runtime!r}, which is neither an absolute path nor the name of a program. Correct it."
        )


def _check_text(parameter: str, text: str) -> None:
    if not core_text.is_unicode(text):
        raise errors.NvidiaError(f"{parameter} {text!r}, which is not valid UTF-8. Choose another path.")
    if not text.isprintable():
        raise errors.NvidiaError(f"{parameter} {text!r}, which contains nonprintable characters. Choose another path.")


def content_digest(parts: t.Sequence[toolkit_manifest.PartDigest], spec: DirectorySpec) -> str:
    """Return a digest of everything that defines a version, independent of its path."""
    # allow_unknown decides which settings are refused. It does not change what is written.
    config = [value for name, value in spec.config._asdict().items() if name != "allow_unknown"]
    fields = [[list(part) for part in parts], [spec.dest, config, spec.default_runtime]]
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()


def build_layout(parts: t.Sequence[toolkit_manifest.PartDigest], spec: DirectorySpec, folder: str) -> DirectoryLayout:
    """Return the directory at ``folder``. Raises NvidiaError for invalid settings."""
    config = own_config(spec.config, {part.name for part in parts}, folder)
    _check_files(config.settings, spec.dest)
    runtimes = [*filter(None, [spec.default_runtime]), *config.settings[RUNTIMES_KEY]]
    for runtime in runtimes:
        check_runtime(f"{RUNTIMES_KEY} contains", runtime, spec.dest)
    context = WrapperContext(folder, spec.dest, list(dict.fromkeys(runtimes)), version_in(parts))
    entries: dict[str, toolkit_manifest.ManifestEntry] = {}
    for part in parts:
        entries.update(_entries_of(part, context))
    if HOOK in entries:
        entries[_HOOK_LINK] = toolkit_manifest.ManifestEntry(0o777, target=HOOK)
    entries[toolkit_constants.OWN_CONFIG_FILE] = _text(config.text, _CONFIG_MODE)
    return DirectoryLayout(entries, config.text, toolkit_settings.masked(config.settings), config.warnings)


def _check_files(settings: t.Mapping[str, t.Any], dest: str) -> None:
    """Raise NvidiaError for settings that write logs or caches into the toolkit's directory.

    Such files would be reported as damage of the version.
    """
    for key, value in settings.items():
        written = key.rpartition(".")[2] in ("debug", "ldcache")
        if (
            written
            and isinstance(value, str)
            and (value + "/").startswith((f"{dest}/", f"{dest}{toolkit_constants.VERSIONS_SUFFIX}/"))
        ):
            raise errors.NvidiaError(
                f"{key} is {value!r}, in the directory of the toolkit. Choose a directory such as /var/log."
            )


def version_in(parts: t.Iterable[toolkit_manifest.PartDigest]) -> str | None:
    """Return the version in the library's name, without running a program. None if there is no library."""
    names = [part.name.partition(".so.")[2] for part in parts if part.name.startswith("libnvidia-container.so.")]
    return toolkit_installed.upstream_version(names[0]) if names else None


def _entries_of(
    part: toolkit_manifest.PartDigest, context: WrapperContext
) -> t.Iterator[tuple[str, toolkit_manifest.ManifestEntry]]:
    if part.name.startswith("lib"):
        yield part.name, toolkit_manifest.ManifestEntry((part.mode | 0o444) & 0o755, part.sha256, part.name)
        if part.soname and part.soname != part.name:
            yield part.soname, toolkit_manifest.ManifestEntry(0o777, target=part.name)
        return
    mode = (part.mode | 0o111) & 0o755
    if part.name in toolkit_constants.UNWRAPPED:
        yield part.name, toolkit_manifest.ManifestEntry(mode, part.sha256, part.name)
        return
    yield part.name + toolkit_constants.REAL_SUFFIX, toolkit_manifest.ManifestEntry(mode, part.sha256, part.name)
    # A shell has to read the script, so the script needs read permission too.
    yield part.name, _text(wrapper(part.name, context), mode | 0o444)


def _text(text: str, mode: int) -> toolkit_manifest.ManifestEntry:
    content = text.encode()
    return toolkit_manifest.ManifestEntry(mode, hashlib.sha256(content).hexdigest(), text=content)
