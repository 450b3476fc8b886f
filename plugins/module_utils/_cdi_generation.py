# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: from what a task asks for to a CDI specification that may be written: made by our own
# rooms or by nvidia-ctk, brought down to what the host's engines accept, and judged.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_engines import CdiEngine, engines_for
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_host_check import (
    Required,
    check_host,
    driver_of,
    required_of,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_modes import MANAGEMENT, NVML, generate_all
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_modes import MODES as NATIVE_MODES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_parameters import AUTO, NATIVE, REFERENCE, CdiOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import COHERENCE, NONE, checked
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_rules import judge
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_selection import chosen_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._driver_files import DriverFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_machine import (
    IntegratedGpuError,
    Machine,
    is_integrated,
    machine,
    mig_nodes,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_presence import loaded_driver
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_lookup import Lookup, under

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_reference import PinnedRunner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner

_CSV, _WSL = "csv", "wsl"
# Windows' own library for its GPUs, and where it puts that.
_WSL_LIBRARY, _WSL_FOLDER = "libdxcore.so", "/usr/lib/wsl/lib"
_TEGRA_RELEASE, _FAMILY, _TEGRA = "/etc/nv_tegra_release", "/sys/devices/soc0/family", "tegra"
_NVML_LIBRARY = "libnvidia-ml.so.1"


class Generated(t.NamedTuple):
    """A specification that may be written, and how it came about.

    ``variants`` are specifications that go into files beside it, by the names of VARIANTS.
    ``limits`` say what was left out of it for which engine.
    """

    document: dict[str, t.Any]
    variants: t.Mapping[str, dict[str, t.Any]]
    mode: str
    backend: str
    driver_version: str | None
    engines: tuple[CdiEngine, ...]
    limits: tuple[str, ...]
    warnings: tuple[str, ...]


class Generation:
    """The way to the specification that ``options`` ask for, on one host."""

    def __init__(self, options: CdiOptions, host: HostRoot, run: Runner, run_pinned: PinnedRunner) -> None:
        self._options = options
        self._host = host
        self._run = run
        self._run_pinned = run_pinned

    def execute(self, owned_by_unit: bool, hooks_may_come: bool = False) -> Generated:
        """Make it and judge it.

        owned_by_unit: a refresh service writes the same file, so that it must come from the same program, nvidia-ctk.
        With ``hooks_may_come`` a missing program of hooks is a warning only.

        Raises GpufleetError for what nobody can make, HostError where the host lacks what containers would need.
        """
        options = self._options._replace(request=checked(self._options.request, self._host))
        found, doubts = self._machine(options)
        mode = self._mode(options, found)
        backend = _backend(options.backend, mode, owned_by_unit)
        made = self._documents(options, mode, backend, found)
        kinds = {name: f"{options.kind}.{name}" if name else options.kind for name in made}
        documents = {name: _judged(made[name], kinds[name]) for name in made}
        engines = engines_for(options.for_engines, self._host, self._run)
        sentences: tuple[str, ...] = ()
        if engines:
            # A host without engines need not wait for this import.
            from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_limits import (  # noqa: PLC0415
                limited,
            )

            _document, sentences = limited(documents[""], engines)
            documents = {name: limited(document, engines).document for name, document in documents.items()}
        document = documents.pop("")
        required = _required(options, found, self._host) if mode == NVML else None
        verdict = check_host(document, self._host, required, hooks_may_come)
        if verdict.errors:
            raise HostError(f"{' '.join(verdict.errors)} Nothing was written.")
        driver = loaded_driver(self._host) if found is None else None
        return Generated(
            document=document,
            variants=documents,
            mode=mode,
            backend=backend,
            driver_version=found.version if found is not None else driver.version if driver is not None else None,
            engines=tuple(engines),
            limits=sentences,
            warnings=(
                *doubts,
                *_left_out(found, mode),
                *_without_coherence(options, found, mode),
                *self._without_cuda(options, mode, document),
                *verdict.warnings,
                *(engine.doubt for engine in engines if engine.doubt),
            ),
        )

    def _machine(self, options: CdiOptions) -> tuple[Machine | None, tuple[str, ...]]:
        """The host's GPUs where the mode may be about them, and what is doubtful of that."""
        if options.mode not in (AUTO, NVML) or (options.mode == AUTO and self._is_wsl(options)):
            return None, ()
        if options.mode == AUTO and self._is_tegra() and not self._files(options).libraries(_NVML_LIBRARY):
            return None, ()
        request = options.request
        try:
            found = machine(self._host, request.driver_root, options.use_nvml, request.library_search_paths)
        except IntegratedGpuError:
            if options.mode != AUTO:
                raise
            # Mode csv does not need the rest.
            return None, ()
        return found, found.warnings

    def _mode(self, options: CdiOptions, found: Machine | None) -> str:
        """As the generator decides it ("nvidia-ctk cdi generate --mode=auto", 1.20)."""
        if options.mode != AUTO:
            return options.mode
        if found is None:
            return _WSL if self._is_wsl(options) else _CSV
        return _CSV if any(is_integrated(gpu.name) for gpu in found.gpus) else NVML

    def _is_wsl(self, options: CdiOptions) -> bool:
        path = under(options.request.driver_root, f"{_WSL_FOLDER}/{_WSL_LIBRARY}")
        return self._host.exists(path) or bool(self._files(options).libraries(_WSL_LIBRARY))

    def _is_tegra(self) -> bool:
        family = self._host.read_text(_FAMILY).strip().lower()
        return self._host.exists(_TEGRA_RELEASE) or family.startswith(_TEGRA)

    def _files(self, options: CdiOptions) -> DriverFiles:
        request = options.request
        return DriverFiles(Lookup(self._host), request.driver_root, request.library_search_paths)

    def _without_cuda(self, options: CdiOptions, mode: str, document: t.Mapping[str, t.Any]) -> list[str]:
        version = driver_of(document)
        mounts = document.get("containerEdits", {}).get("mounts", ())
        name = f"libcuda.so.{version}"
        if mode not in (NVML, MANAGEMENT) or not version or any(mount["hostPath"].endswith(name) for mount in mounts):
            return []
        place = self._files(options).place
        return [f"There is no {name} below {place}, so containers cannot use CUDA. Install the driver's CUDA library."]

    def _documents(
        self, options: CdiOptions, mode: str, backend: str, found: Machine | None
    ) -> dict[str, dict[str, t.Any]]:
        if backend == NATIVE:
            return generate_all(mode, options.request, found, self._host)
        # Who does without nvidia-ctk need not wait for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_reference import (  # noqa: PLC0415
            find_program,
            generate_all_with,
        )

        program = find_program(self._host, options.request.cdi_hook_path)
        if program is None:
            why = "backend is nvidia-ctk" if options.backend == REFERENCE else f"mode {mode} is made by nvidia-ctk"
            if mode in NATIVE_MODES and options.backend == AUTO:
                why = "a refresh service writes this file too, by nvidia-ctk"
            raise HostError(
                f"There is no nvidia-ctk on this host, but {why}. Install the NVIDIA Container Toolkit first (role"
                " gpufleet.nvidia.nvidia_toolkit)."
            )
        return generate_all_with(program, mode, options.request, self._run_pinned, self._host)


def _backend(wanted: str, mode: str, owned_by_unit: bool) -> str:
    if wanted == NATIVE and mode not in NATIVE_MODES:
        raise GpufleetError(f"mode {mode} is made by nvidia-ctk only. Set backend: auto, or nvidia-ctk.")
    if wanted != AUTO:
        return wanted
    return REFERENCE if owned_by_unit or mode not in NATIVE_MODES else NATIVE


def _required(options: CdiOptions, found: Machine | None, host: HostRoot) -> Required | None:
    """What must not be missing; where single devices are asked for, only what each of them needs."""
    if not options.require_devices or found is None or NONE in options.request.device_ids:
        return None
    chosen = chosen_of(found, options.request.device_ids)
    return required_of(chosen, mig_nodes(host, chosen))


def _left_out(found: Machine | None, mode: str) -> list[str]:
    empty = [str(gpu.index) for gpu in found.gpus if gpu.mig and not gpu.migs] if found and mode == NVML else []
    return [
        f"GPU {index} is in MIG mode, but has no MIG devices, so no container gets anything of it. Make some, then run"
        " this again."
        for index in empty
    ]


def _without_coherence(options: CdiOptions, found: Machine | None, mode: str) -> list[str]:
    if COHERENCE not in options.request.feature_flags or found is None or mode != NVML:
        return []
    unknown = [str(gpu.index) for gpu in found.gpus if gpu.coherent is None or found.source != "nvml"]
    said = (
        f"NVML does not report whether GPU {', '.join(unknown)} is coherent, so neither the specification of coherent"
        f" GPUs nor that of the others has it. Let NVML be used, or leave {COHERENCE} out of feature_flags."
    )
    return [said] if unknown else []


def _judged(document: t.Mapping[str, t.Any], kind: str) -> dict[str, t.Any]:
    """The specification as engines read it; raises GpufleetError for what they would not load."""
    judgement = judge(document)
    if judgement.errors:
        raise GpufleetError(
            f"Engines would refuse this specification: {' '.join(map(str, judgement.errors))} Nothing was written; look"
            " at vendor, class, device_name_strategies and device_ids."
        )
    if judgement.document["kind"] != kind:
        raise HostError(f"nvidia-ctk was asked for {kind}, but described {judgement.document['kind']}. Reinstall it.")
    # Where both say the same, the order of its fields stays, too.
    return dict(document) if document == judgement.document else judgement.document
