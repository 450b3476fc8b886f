# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: CDI specifications made by NVIDIA's own generator, "nvidia-ctk cdi generate".  A task lets
# it print what it has made; the same arguments, with a file to write, are the command of this collection's unit.
#
# What it makes depends on more than its arguments: on PATH, XDG_DATA_DIRS and variables that begin with NVIDIA_CTK_,
# and where no driver root is named, on the toolkit's config.toml and on the working directory.  All of that is pinned.

from __future__ import annotations

import json
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_edits import ALL
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_modes import MODES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import NO_GIDS, NONE, VARIANTS, checked
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_yaml import parse
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import SERVICE_PATH

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_edits import Data
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import Request
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

    # argv and the whole environment; returns the exit status, standard output and standard error.
    PinnedRunner = t.Callable[[t.List[str], t.Mapping[str, str]], t.Tuple[int, str, str]]

    Version = t.Tuple[int, ...]
    # A flag that may be given several times, what the request has for it, and which parameter that is.
    Repeated = t.Tuple[str, t.Sequence[str], str]

PROGRAM = "nvidia-ctk"
# The search path of the toolkit's own refresh service; programs of the driver are looked up in it, too.
_ENVIRONMENT = {"PATH": ":".join(SERVICE_PATH)}
# The first with nvidia-cdi-hook.
_OLDEST = (1, 16)
# Since when later flags are there (NVIDIA's releases; its changelog and source), and the newest of these versions.
_SINCE = {
    "disable-hook": (1, 18),
    "enable-hook": (1, 18),
    "feature-flag": (1, 18),
    "no-all-device": (1, 19),
    "device-id": (1, 19),
    "csv.compat-container-root": (1, 19),
}
NEWEST = max(_SINCE.values())
# Before, nobody got additional groups.
_GIDS_SINCE = (1, 19)
_VERSION = re.compile(r"(?<![\w.])v?([0-9]+(?:\.[0-9]+)+)")
# A line of its log that tells of an error; the message is quoted as in Go where it has to be.
_ERROR = re.compile(r'level=(?:error|fatal|panic) msg=("(?:[^"\\]|\\.)*"|\S+)')
_PANIC = re.compile(r"^(?:panic|fatal error): .*", re.MULTILINE)
_MOST_WORDS = 400


class Output(t.NamedTuple):
    """Where a specification goes, standard output if ``path`` is empty, and in which format."""

    path: str
    format: str


def find_program(host: HostRoot, cdi_hook_path: str) -> str | None:
    """The host's nvidia-ctk: the one beside its hooks, for these are of one version; None where there is none."""
    beside = posixpath.join(posixpath.dirname(cdi_hook_path), PROGRAM)
    return host.find_executable([beside, f"/usr/bin/{PROGRAM}", PROGRAM])


def generate_all_with(
    program: str, mode: str, request: Request, run_pinned: PinnedRunner, host: HostRoot
) -> dict[str, Data]:
    """The specification of ``mode``, any that ``program`` (a nvidia-ctk of the host) knows, as plain data.

    With it come those of VARIANTS, by the names that generate_all() in _cdi_modes gives them.

    Raises GpufleetError for a request that this version cannot be told, HostError where it cannot be run or fails, in
    its own words.
    """
    if not host.live:
        raise HostError(
            f"{program} would have to be run for this specification, but nothing of an offline host_root is. Use"
            " backend: native with one of its modes, or set host_root_live: true if a running system is mounted there."
        )
    request = checked(request, host)
    version = version_of(program, run_pinned, host)
    # In JSON, which no host needs a package for.
    argv = command_of(program, version, mode, request, Output("", "json"))
    printed = _printed(argv, f"made no specification for mode {mode}", _advice(mode), run_pinned, host)
    return _parsed(program, request, printed)


def version_of(program: str, run_pinned: PinnedRunner, host: HostRoot) -> Version:
    """The version of ``program``.  Raises HostError where it cannot be run or is too old."""
    advice = "Reinstall the NVIDIA Container Toolkit."
    output = _printed([program, "--version"], "does not tell its version", advice, run_pinned, host)
    match = _VERSION.search(output)
    if match is None:
        raise HostError(f"{program} --version prints no version. {advice}")
    version = tuple(int(part) for part in match.group(1).split("."))
    if version < _OLDEST:
        raise HostError(
            f"{program} is of version {match.group(1)}, but the first that makes specifications with nvidia-cdi-hook is"
            f" {_text(_OLDEST)}. Install a newer NVIDIA Container Toolkit, or use nvidia_cdi_spec with backend: native"
            " and without a refresh unit."
        )
    return version


def command_of(program: str, version: Version, mode: str, request: Request, output: Output) -> list[str]:
    """The command that writes the specification to ``output``.

    Every option that the environment could set otherwise is given, also where it is empty.  Raises GpufleetError that
    names the first option that ``version`` lacks.
    """
    arguments = [
        program,
        "--quiet",
        "cdi",
        "generate",
        f"--output={output.path}",
        f"--format={output.format}",
        f"--mode={mode}",
        f"--vendor={request.vendor}",
        f"--class={request.class_}",
        f"--driver-root={request.driver_root}",
        f"--dev-root={request.dev_root}",
        f"--nvidia-cdi-hook-path={request.cdi_hook_path}",
        f"--ldconfig-path={request.ldconfig_path}",
    ]
    for flag, values, parameter in _repeated(version, request):
        if values:
            _refuse_unknown(program, version, flag, parameter)
        for value in values:
            if "," in value:
                raise GpufleetError(f"{parameter}: {program} takes {value!r} for several, as it has a comma in it.")
            arguments.append(f"--{flag}={value}")
    if not request.all_device:
        _refuse_unknown(program, version, "no-all-device", "all_device: false")
        arguments.append("--no-all-device")
    return arguments


def _repeated(version: Version, request: Request) -> list[Repeated]:
    flags = [flag for flag in request.feature_flags if flag != NO_GIDS or version >= _GIDS_SINCE]
    # What is enabled goes before what is disabled.
    without_hooks = request.hooks == NONE
    compat = request.csv_compat_container_root
    disabled = (ALL,) if without_hooks else request.disabled_hooks
    return [
        ("device-name-strategy", request.device_name_strategies, "device_name_strategies"),
        ("library-search-path", request.library_search_paths, "library_search_paths"),
        ("config-search-path", request.config_search_paths, "config_search_paths"),
        ("csv.file", request.csv_files, "csv_files"),
        ("csv.ignore-pattern", request.csv_ignore_patterns, "csv_ignore_patterns"),
        ("csv.compat-container-root", (compat,) if compat else (), "csv_compat_container_root"),
        ("disable-hook", disabled, "hooks: none" if without_hooks else "disabled_hooks"),
        ("enable-hook", () if without_hooks else request.enabled_hooks, "enabled_hooks"),
        ("feature-flag", flags, "feature_flags"),
        ("device-id", () if request.device_ids == (ALL,) else request.device_ids, "device_ids"),
    ]


def _refuse_unknown(program: str, version: Version, flag: str, parameter: str) -> None:
    since = _SINCE.get(flag, _OLDEST)
    if version < since:
        raise GpufleetError(
            f"{parameter} needs nvidia-ctk {_text(since)} (its --{flag}), but {program} is of version {_text(version)}."
            f" Install a newer NVIDIA Container Toolkit, leave out {parameter}, or use nvidia_cdi_spec with backend:"
            " native and without a refresh unit."
        )


def _printed(argv: t.Sequence[str], failure: str, advice: str, run_pinned: PinnedRunner, host: HostRoot) -> str:
    status, output, errors = run_pinned(host.argv(argv), dict(_ENVIRONMENT))
    if status:
        words = _words(errors) or _words(output) or f"it ends with status {status}"
        raise HostError(f"{argv[0]} {failure}: {words}. {advice}")
    return output


def _parsed(program: str, request: Request, output: str) -> dict[str, Data]:
    """The first specification, and those of VARIANTS that follow it."""
    text = rest = output.strip()
    documents = []
    try:
        while rest:
            _data, end = json.JSONDecoder().raw_decode(rest)
            documents.append(parse(program, rest[:end].encode("utf-8", "surrogateescape")))
            rest = rest[end:].lstrip()
    except (ValueError, RecursionError, GpufleetError):
        documents = []
    if not documents or not all(isinstance(document, dict) and document for document in documents):
        what = "something that is no specification" if text else "nothing"
        raise HostError(f"{program} ended well, but printed {what}. Reinstall the NVIDIA Container Toolkit.")
    variants = {str(document.get("kind")): document for document in documents[1:]}
    kinds = {variant: f"{request.vendor}/{request.class_}.{variant}" for variant in VARIANTS}
    return {"": documents[0], **{name: variants[kind] for name, kind in kinds.items() if kind in variants}}


def _words(errors: str) -> str:
    """What it says, cut down to its last error: the rest of its log is about what it did before."""
    found = [_unquoted(match.group(1)) for match in _ERROR.finditer(errors)] or _PANIC.findall(errors)
    lines = [line.strip() for line in (found[-1:] or errors.splitlines()) if line.strip()]
    words = " ".join(lines[-1].split()) if lines else ""
    return (words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]}…").rstrip(".")


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text)) if text.startswith('"') else text
    except ValueError:
        return text.strip('"')


def _advice(mode: str) -> str:
    if mode in MODES:
        return "Check that the driver is loaded (nvidia-smi), or set backend: native."
    return "Check that the host is what the mode is for, and that its driver is there."


def _text(version: Version) -> str:
    return ".".join(map(str, version))
