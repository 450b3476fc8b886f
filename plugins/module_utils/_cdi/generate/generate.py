# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Generate and validate a specification: choose mode and backend, and run nvidia-ctk where it is the backend.

The output of nvidia-ctk also depends on PATH, XDG_DATA_DIRS, NVIDIA_CTK_*, config.toml and the working directory.
All of these are pinned.
"""

from __future__ import annotations

import json
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import completeness, graphics, hook_program
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import modes as cdi_modes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import compare as cdi_compare
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import edits as cdi_edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import host_check, replaceable
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import versions as cdi_versions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import cdi_support, program_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import driver_files, file_lookup, inventory, procfs

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan

    Version = t.Tuple[int, ...]

    # A flag that may be repeated, its values in the request, and the name of the parameter.
    Repeated = t.Tuple[str, t.Sequence[str], str]


_CSV, _WSL = "csv", "wsl"
# The Windows library for GPUs in WSL, and the directory where Windows mounts it.
_WSL_LIBRARY, _WSL_FOLDER = "libdxcore.so", "/usr/lib/wsl/lib"
_TEGRA_RELEASE, _FAMILY, _TEGRA = "/etc/nv_tegra_release", "/sys/devices/soc0/family", "tegra"
_NVML_LIBRARY = "libnvidia-ml.so.1"


class UnpredictableError(core_errors.HostError):
    """In check mode, only a program that is not installed yet can generate the specification."""


class Generated(t.NamedTuple):
    """A specification that may be written, and how it was generated.

    ``variants`` are specifications for additional files, by the names in VARIANTS.
    ``limits`` are messages about fields and hooks that were left out. ``predicted`` is whether nvidia-ctk generates
    it in a real run, and could not be run in check mode.
    """

    document: dict[str, t.Any]
    variants: t.Mapping[str, dict[str, t.Any]]
    mode: str
    backend: str
    driver_version: str | None
    engines: tuple[cdi_support.CdiEngine, ...]
    limits: tuple[str, ...]
    warnings: tuple[str, ...]
    predicted: bool = False


class SpecGenerator:
    """Generates the specification that ``options`` describe, on one host."""

    def __init__(
        self, options: cdi_options.CdiOptions, host: hostfs.HostFS, run: core_plan.Runner, run_pinned: core_plan.Runner
    ) -> None:
        self._options = options
        self._host = host
        self._run = run
        self._run_pinned = run_pinned

    def execute(self, owned_by_unit: bool, allow_missing_hooks: bool = False) -> Generated:
        """Generate and validate the specification.

        owned_by_unit: a refresh unit writes the same file, so nvidia-ctk must generate it here too.
        allow_missing_hooks: report a missing hook program as a warning instead of an error.

        Raises NvidiaError for a request that cannot be generated, and HostError if the host lacks something that
        containers would need.
        """
        self._options = options = self._options._replace(request=cdi_options.checked(self._options.request, self._host))
        found, gpu_warnings = self._gpus()
        mode = self._mode(found)
        backend = _backend(options.backend, mode, owned_by_unit)
        documents, omitted, hook_messages = self._safe_documents(mode, backend, found)
        engines = cdi_support.engines_for(options.for_engines, self._host, self._run)
        downgraded = {name: cdi_versions.downgrade_spec(document, engines) for name, document in documents.items()}
        main = downgraded.pop("")
        required = _required(options, found, self._host) if mode == cdi_modes.NVML else None
        checked = host_check.check_host(main.document, self._host, required, allow_missing_hooks)
        if checked.errors:
            raise core_errors.HostError(f"{' '.join(checked.errors)} The specification was not written.")
        driver = procfs.loaded_driver(self._host) if found is None else None
        return Generated(
            document=main.document,
            variants={name: variant.document for name, variant in downgraded.items()},
            mode=mode,
            backend=backend,
            driver_version=found.version if found is not None else driver.version if driver is not None else None,
            engines=tuple(engines),
            limits=(*main.messages, *hook_messages),
            warnings=(
                *gpu_warnings,
                *omitted,
                *_gpus_without_mig_devices(found, mode),
                *_unknown_coherence(options, found, mode),
                *self._missing_cuda(mode, main.document),
                *self._missing_parts(mode, main.document, found),
                *checked.warnings,
                *(engine.warning for engine in engines if engine.warning),
            ),
            predicted=backend == cdi_options.NVIDIA_CTK and is_predicted(self._program(), self._host),
        )

    def _gpus(self) -> tuple[inventory.GpuInventory | None, tuple[str, ...]]:
        """Return the host's GPUs if the mode may need them, and warnings about them."""
        options, request = self._options, self._options.request
        if options.mode not in (cdi_options.AUTO, cdi_modes.NVML):
            return None, ()
        if options.mode == cdi_options.AUTO and (
            self._is_wsl() or (self._is_tegra() and not self._files().libraries(_NVML_LIBRARY))
        ):
            return None, ()
        try:
            found = inventory.read_inventory(
                self._host, request.driver_root, options.use_nvml, request.library_search_paths
            )
        except inventory.IntegratedGpuError:
            if options.mode != cdi_options.AUTO:
                raise
            # The mode will be csv, which does not need the inventory.
            return None, ()
        return found, found.warnings

    def _mode(self, found: inventory.GpuInventory | None) -> str:
        """Return the mode that "nvidia-ctk cdi generate --mode=auto" (1.20) would choose."""
        if self._options.mode != cdi_options.AUTO:
            return self._options.mode
        if found is None:
            return _WSL if self._is_wsl() else _CSV
        return _CSV if any(procfs.is_integrated(gpu.name) for gpu in found.gpus) else cdi_modes.NVML

    def _is_wsl(self) -> bool:
        path = file_lookup.under(self._options.request.driver_root, f"{_WSL_FOLDER}/{_WSL_LIBRARY}")
        return self._host.exists(path) or bool(self._files().libraries(_WSL_LIBRARY))

    def _is_tegra(self) -> bool:
        family = self._host.read_text(_FAMILY).strip().lower()
        return self._host.exists(_TEGRA_RELEASE) or family.startswith(_TEGRA)

    def _files(self) -> driver_files.DriverFiles:
        request = self._options.request
        return driver_files.DriverFiles(
            file_lookup.CachedFS(self._host), request.driver_root, request.library_search_paths
        )

    def _missing_parts(
        self, mode: str, document: t.Mapping[str, t.Any], found: inventory.GpuInventory | None
    ) -> list[str]:
        """Return warnings about GPUs, libraries and files for graphics that a specification lacks."""
        if mode != cdi_modes.NVML or found is None:
            return []
        problem = graphics.problem_of("The specification", document, self._host)
        missing = [f"{problem.message} {problem.advice}"] if problem else []
        if cdi_edits.selects_all(self._options.request.device_ids):
            missing += completeness.warnings_of(document, self._files(), found)
        return missing

    def _missing_cuda(self, mode: str, document: t.Mapping[str, t.Any]) -> list[str]:
        version = cdi_compare.driver_of(document)
        mounts = document.get("containerEdits", {}).get("mounts", ())
        name = f"libcuda.so.{version}"
        if (
            mode not in (cdi_modes.NVML, cdi_modes.MANAGEMENT)
            or not version
            or any(mount["hostPath"].endswith(name) for mount in mounts)
        ):
            return []
        folder = self._files().label
        return [f"There is no {name} below {folder}, so containers cannot use CUDA. Install the driver's CUDA library."]

    def _safe_documents(
        self, mode: str, backend: str, found: inventory.GpuInventory | None
    ) -> tuple[dict[str, dict[str, t.Any]], list[str], list[str]]:
        """Return _documents() as engines read them, without unsafe mounts and unknown hooks.

        Also return a warning for each of these mounts, and messages about the hooks.
        """
        kind, documents, warnings = self._options.kind, {}, []
        for name, document in self._documents(mode, backend, found).items():
            full_kind = f"{kind}.{name}" if name else kind
            documents[name] = _validated(document, full_kind)
            safe, omitted = replaceable.without_replaceable_mounts(documents[name], self._host)
            if omitted:
                # A device may have had no other edits.
                documents[name] = _validated(safe, full_kind)
                warnings += omitted
        hook_messages: list[str] = []
        if backend == cdi_options.NATIVE:
            # The program is run as root, after it was checked that no other user can replace it.
            documents, hook_messages = hook_program.without_unknown_hooks(
                documents, self._options.request, self._host, self._run_pinned
            )
        return documents, list(dict.fromkeys(warnings)), hook_messages

    def _documents(self, mode: str, backend: str, found: inventory.GpuInventory | None) -> dict[str, dict[str, t.Any]]:
        options = self._options
        if backend == cdi_options.NATIVE:
            return cdi_modes.generate_all(mode, options.request, found, self._host)

        program = self._program()
        if program is None:
            reason = f"{core_errors.option:mode}: {mode} needs it"
            if options.backend == cdi_options.NVIDIA_CTK:
                reason = f"{core_errors.option:backend} is nvidia-ctk"
            elif mode in cdi_modes.NATIVE_MODES:
                reason = "a refresh unit generates the same file with it"
            raise core_errors.HostError(
                f"There is no nvidia-ctk on this host, but {reason}. Install the NVIDIA Container Toolkit first (role"
                " gpufleet.nvidia.nvidia_toolkit)."
            )
        if not is_predicted(program, self._host):
            return generate_all_with(program, mode, options.request, self._run_pinned, self._host)
        if mode not in cdi_modes.NATIVE_MODES:
            raise UnpredictableError(
                f"Check mode cannot predict the specification, because {core_errors.option:mode}: {mode} needs"
                f" {program}, which an earlier task of this play would install."
            )
        # This refuses options that the version lacks.
        version = version_of(program, self._run_pinned, self._host)
        command_of(program, version, mode, options.request, ("", "json"))
        request = cdi_options.without_sockets(options.request) if version >= _NO_IPC_SINCE else options.request
        return cdi_modes.generate_all(mode, request, found, self._host)

    def _program(self) -> str | None:
        return find_program(self._host, self._options.request.cdi_hook_path)


def _backend(backend: str, mode: str, owned_by_unit: bool) -> str:
    if backend == cdi_options.NATIVE and mode not in cdi_modes.NATIVE_MODES:
        raise core_errors.NvidiaError(
            f"{core_errors.option:backend}: native does not support {core_errors.option:mode}: {mode}. Set"
            f" {core_errors.option:backend} to auto or nvidia-ctk."
        )
    if backend != cdi_options.AUTO:
        return backend
    return cdi_options.NVIDIA_CTK if owned_by_unit or mode not in cdi_modes.NATIVE_MODES else cdi_options.NATIVE


def _required(
    options: cdi_options.CdiOptions, found: inventory.GpuInventory | None, host: hostfs.HostFS
) -> host_check.Required | None:
    """Return what the specification must contain. If ``device_ids`` selects devices, only those are required."""
    if not options.require_devices or found is None or cdi_options.NONE in options.request.device_ids:
        return None
    selected = cdi_modes.selected_gpus(found, options.request.device_ids)
    return cdi_modes.required_of(selected, inventory.mig_nodes(host, selected))


def _gpus_without_mig_devices(found: inventory.GpuInventory | None, mode: str) -> list[str]:
    empty = (
        [str(gpu.number) for gpu in found.gpus if gpu.mig and not gpu.migs] if found and mode == cdi_modes.NVML else []
    )
    return [
        f"GPU {index} is in MIG mode, but has no MIG devices, so containers cannot use it. Create MIG devices, then run"
        " this task again."
        for index in empty
    ]


def _unknown_coherence(options: cdi_options.CdiOptions, found: inventory.GpuInventory | None, mode: str) -> list[str]:
    if cdi_options.COHERENCE not in options.request.feature_flags or found is None or mode != cdi_modes.NVML:
        return []
    unknown = [str(gpu.number) for gpu in found.gpus if gpu.coherent is None or found.source != "nvml"]
    warning = (
        f"NVML does not report whether GPU {', '.join(unknown)} is coherent, so it is in neither of the additional"
        f" specifications. Make NVML usable, or remove {cdi_options.COHERENCE} from"
        f" {core_errors.option:feature_flags}."
    )
    return [warning] if unknown else []


def _validated(document: t.Mapping[str, t.Any], kind: str) -> dict[str, t.Any]:
    """Return the specification as engines read it. Raises NvidiaError if engines would not load it."""
    result = cdi_validate.validate(document)
    if result.errors:
        raise core_errors.NvidiaError(
            f"The specification was not written, because engines would reject it: {' '.join(map(str, result.errors))}"
            f" Check {core_errors.option:vendor}, {core_errors.option:class},"
            f" {core_errors.option:device_name_strategies} and {core_errors.option:device_ids}."
        )
    if result.document["kind"] != kind:
        raise core_errors.HostError(
            f"nvidia-ctk generated the kind {result.document['kind']} instead of {kind}. Reinstall the NVIDIA Container"
            " Toolkit."
        )
    # Equal documents may differ in the order of fields; this keeps the order of ``document``.
    return dict(document) if document == result.document else result.document


PROGRAM = "nvidia-ctk"
# The first version with nvidia-cdi-hook, and with each flag without a row below. First 1.16.0, last without it 1.15.0.
_OLDEST = (1, 16)
# The versions that introduced later flags (cmd/nvidia-ctk/cdi/generate/generate.go), and the newest of them. Those of
# 1.18: first 1.18.0, last without them 1.17.9. Those of 1.19: first 1.19.0, last without them 1.18.2.
_SINCE = {
    "disable-hook": (1, 18),
    "enable-hook": (1, 18),
    "feature-flag": (1, 18),
    "no-all-device": (1, 19),
    "device-id": (1, 19),
    "csv.compat-container-root": (1, 19),
}
# The first version that knows the feature flag disable-ipc-discoverer (pkg/nvcdi/api.go). Others ignore it. First
# 1.19.1, last without it 1.19.0.
_NO_IPC_SINCE = (1, 19, 1)
NEWEST = max(*_SINCE.values(), _NO_IPC_SINCE)
# Earlier versions never add groups. First 1.19.0, last without it 1.18.2.
_GIDS_SINCE = (1, 19)
# A line of nvidia-ctk's log that reports an error. The message may be quoted as in Go.
_ERROR = re.compile(r'level=(?:error|fatal|panic) msg=("(?:[^"\\]|\\.)*"|\S+)')
_PANIC = re.compile(r"^(?:panic|fatal error): .*", re.MULTILINE)
_MAX_CHARACTERS = 400


def find_program(host: hostfs.HostFS, cdi_hook_path: str) -> str | None:
    """Return the path of the host's nvidia-ctk, or None. The one beside the hook program has its version."""
    beside = posixpath.join(posixpath.dirname(cdi_hook_path), PROGRAM)
    return host.find_executable([beside, f"/usr/bin/{PROGRAM}", PROGRAM])


def is_predicted(program: str | None, host: hostfs.HostFS) -> bool:
    """Return whether ``program`` cannot be run in check mode, because an earlier task of the play would install it."""
    return program is not None and host.predicted is not None and host.is_predicted(host.resolve(program))


def generate_all_with(
    program: str, mode: str, request: cdi_options.Request, run_pinned: core_plan.Runner, host: hostfs.HostFS
) -> dict[str, cdi_edits.Data]:
    """Return the specification of ``mode`` as plain data, generated by ``program``, a nvidia-ctk of the host.

    ``mode`` is any mode that ``program`` supports. The result also has the specifications of VARIANTS, by the same
    names as in the result of ``modes.generate_all()``.

    Raises NvidiaError for a request that this version does not support. Raises HostError if ``program`` cannot be run
    or fails; the error contains its own message.
    """
    if not host.live:
        raise core_errors.HostError(
            f"This specification needs {program}, but programs of an offline {core_errors.option:host_root} are not"
            f" run. Set {core_errors.option:backend}: native and one of its modes, or"
            f" {core_errors.option:host_root_live}: true if a running system is mounted there."
        )
    request = cdi_options.checked(request, host)
    version = version_of(program, run_pinned, host)
    # Reading JSON needs no additional package on the host.
    argv = command_of(program, version, mode, request, ("", "json"))
    printed = _run_program(argv, f"failed to generate mode {mode}", _advice(mode), run_pinned, host)
    return _parsed(program, request, printed)


def version_of(program: str, run_pinned: core_plan.Runner, host: hostfs.HostFS) -> Version:
    """Return the version of ``program``. Raises HostError if it cannot be run or is too old.

    A program that an earlier task of the play would install is not run. An unknown version is assumed to be the newest.
    """
    advice = "Reinstall the NVIDIA Container Toolkit."
    if host.predicted is not None and is_predicted(program, host):
        return core_text.parse_version(host.predicted.version or "") or NEWEST
    printed, problem = program_version.read_version([program, "--version"], host, run_pinned)
    version = core_text.parse_version(printed or "")
    if version is None:
        raise core_errors.HostError(f"{program} failed to report its version: {problem}. {advice}")
    if version < _OLDEST:
        raise core_errors.HostError(
            f"{program} has version {core_text.dotted(version)}, but specifications with nvidia-cdi-hook need"
            f" {core_text.dotted(_OLDEST)}. Install a newer NVIDIA Container Toolkit, or use nvidia_cdi_spec with"
            f" {core_errors.option:backend}: native and without a refresh unit."
        )
    return version


def command_of(
    program: str, version: Version, mode: str, request: cdi_options.Request, output: tuple[str, str]
) -> list[str]:
    """Return the command that writes the specification to ``output``, a path and a format. "" is standard output.

    The command passes every option that the environment could set otherwise, even if it is empty. Raises NvidiaError
    with the name of the first option that ``version`` lacks.
    """
    single = {
        "output": output[0],
        "format": output[1],
        "mode": mode,
        "vendor": request.vendor,
        "class": request.class_,
        "driver-root": request.driver_root,
        "dev-root": request.dev_root,
        "nvidia-cdi-hook-path": request.cdi_hook_path,
        "ldconfig-path": request.ldconfig_path,
    }
    arguments = [program, "--quiet", "cdi", "generate"]
    for flag, value in single.items():
        # nvidia-ctk 1.18 and 1.19 refuse "--flag=" without a value, but accept an empty argument (seen on 1.18.0,
        # 1.18.2 and 1.19.1).
        arguments += [f"--{flag}={value}"] if value else [f"--{flag}", ""]
    for flag, values, parameter in _repeated_flags(version, request):
        if values:
            _require_version(program, version, flag, parameter)
        for value in values:
            if "," in value:
                raise core_errors.NvidiaError(
                    f"{parameter}: {value!r} contains a comma, which {program} reads as a separator. Use a value"
                    " without commas."
                )
            arguments.append(f"--{flag}={value}")
    if not request.all_device:
        _require_version(program, version, "no-all-device", f"{core_errors.option:all_device}: false")
        arguments.append("--no-all-device")
    return arguments


def _repeated_flags(version: Version, request: cdi_options.Request) -> list[Repeated]:
    flags = [flag for flag in request.feature_flags if flag != cdi_options.NO_GIDS or version >= _GIDS_SINCE]
    if version >= _SINCE["feature-flag"]:
        # nvidia-ctk also mounts what any user has created at /tmp/nvidia-mps. Versions before _NO_IPC_SINCE ignore the
        # flag, but a unit with this command may run a later version.
        flags = list(dict.fromkeys([*flags, cdi_options.NO_IPC]))
    # For nvidia-ctk, enabled hooks have precedence over disabled hooks. So hooks: none must not pass any enabled hook.
    without_hooks = request.hooks == cdi_options.NONE
    compat = request.csv_compat_container_root
    disabled = (cdi_edits.ALL,) if without_hooks else request.disabled_hooks
    switch = f"{core_errors.option:hooks}: none" if without_hooks else f"{core_errors.option:disabled_hooks}"
    device_ids = () if request.device_ids == (cdi_edits.ALL,) else request.device_ids
    return [
        ("device-name-strategy", request.device_name_strategies, f"{core_errors.option:device_name_strategies}"),
        ("library-search-path", request.library_search_paths, f"{core_errors.option:library_search_paths}"),
        ("config-search-path", request.config_search_paths, f"{core_errors.option:config_search_paths}"),
        ("csv.file", request.csv_files, f"{core_errors.option:csv_files}"),
        ("csv.ignore-pattern", request.csv_ignore_patterns, f"{core_errors.option:csv_ignore_patterns}"),
        ("csv.compat-container-root", (compat,) if compat else (), f"{core_errors.option:csv_compat_container_root}"),
        ("disable-hook", disabled, switch),
        ("enable-hook", () if without_hooks else request.enabled_hooks, f"{core_errors.option:enabled_hooks}"),
        ("feature-flag", flags, f"{core_errors.option:feature_flags}"),
        ("device-id", device_ids, f"{core_errors.option:device_ids}"),
    ]


def _require_version(program: str, version: Version, flag: str, parameter: str) -> None:
    first_version = _SINCE.get(flag, _OLDEST)
    if version < first_version:
        raise core_errors.NvidiaError(
            f"{parameter} needs nvidia-ctk {core_text.dotted(first_version)} (--{flag}), but {program} has version"
            f" {core_text.dotted(version)}. Install a newer NVIDIA Container Toolkit, remove {parameter}, or use"
            f" nvidia_cdi_spec with {core_errors.option:backend}: native and without a refresh unit."
        )


def _run_program(
    argv: t.Sequence[str], failure: str, advice: str, run_pinned: core_plan.Runner, host: hostfs.HostFS
) -> str:
    status, output, errors = run_pinned(host.argv(argv))
    if status:
        message = _error_message(errors) or _error_message(output) or f"exit status {status}"
        raise core_errors.HostError(f"{argv[0]} {failure}: {message}. {advice}")
    return output


def _parsed(program: str, request: cdi_options.Request, output: str) -> dict[str, cdi_edits.Data]:
    """Return the first specification and the specifications of VARIANTS that follow it."""
    # The import is needed for nvidia-ctk only.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import yaml_document  # noqa: PLC0415

    text = rest = output.strip()
    documents = []
    try:
        while rest:
            _data, end = json.JSONDecoder().raw_decode(rest)
            documents.append(yaml_document.parse(program, rest[:end].encode("utf-8", "surrogateescape")))
            rest = rest[end:].lstrip()
    except (ValueError, RecursionError, core_errors.NvidiaError):
        documents = []
    if not documents or not all(isinstance(document, dict) and document for document in documents):
        reason = "is not a specification" if text else "is empty"
        raise core_errors.HostError(f"The output of {program} {reason}. Reinstall the NVIDIA Container Toolkit.")
    variants = {str(document.get("kind")): document for document in documents[1:]}
    kinds = {variant: f"{request.vendor}/{request.class_}.{variant}" for variant in cdi_options.VARIANTS}
    return {"": documents[0], **{name: variants[kind] for name, kind in kinds.items() if kind in variants}}


def _error_message(errors: str) -> str:
    """Return the last error in nvidia-ctk's log, shortened. The other lines describe earlier steps."""
    found = [_unquoted(match.group(1)) for match in _ERROR.finditer(errors)] or _PANIC.findall(errors)
    lines = [line.strip() for line in (found[-1:] or errors.splitlines()) if line.strip()]
    message = " ".join(lines[-1].split()) if lines else ""
    return (message if len(message) <= _MAX_CHARACTERS else f"{message[:_MAX_CHARACTERS]}…").rstrip(".")


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text)) if text.startswith('"') else text
    except ValueError:
        return text.strip('"')


def _advice(mode: str) -> str:
    if mode in cdi_modes.NATIVE_MODES:
        return f"Check that the driver is loaded (nvidia-smi), or set {core_errors.option:backend}: native."
    return f"Check that mode {mode} is right for this host, and that its driver is installed."
