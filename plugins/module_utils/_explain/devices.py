# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The GPUs of a host, and the names by which a container can request them in each mode of the toolkit.

All functions are pure.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

ALL = "all"
_INDEX = re.compile(r"[0-9]{1,19}(?::[0-9]{1,19})?\Z")
_HEX = "[0-9a-fA-F]"
_UUID_DIGITS = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
# IsGpuUUID() and IsMigUUID() in pkg/nvlib/device/identifier.go of go-nvlib.
_UUID = re.compile(rf"(?:GPU|MIG)-{_UUID_DIGITS}\Z|MIG-GPU-{_UUID_DIGITS}/[0-9]+/[0-9]+\Z")
_UUID_PREFIXES = ("gpu-", "mig-")
# matches_pci_format(), select_gpu_device() and select_mig_device() in src/cli/common.c of libnvidia-container 1.17.
_ADDRESS = re.compile(rf"(?:0[xX])?({_HEX}{{1,8}}):({_HEX}{{1,2}}):({_HEX}{{1,2}})")
_LEGACY_INDEX = re.compile(r"\+?([0-9]{1,19})\Z")
_LEGACY_MIG_INDEX = re.compile(r"\+?([0-9]{1,19}):\s*\+?([0-9]{1,19})")


class ExplainedGpu(t.NamedTuple):
    """A GPU or MIG device.

    ``names`` are its number, UUID and PCI addresses, as far as they are known. ``nodes`` are its device nodes.
    ``usable`` is False for a GPU in MIG mode, of which containers use the MIG devices; ``empty`` says that it has none.
    ``mig_unknown`` says that it may be such a GPU. ``arch`` and ``brand`` are None if they are unknown. ``problem`` is
    why no program can use it, empty without one. ``advice`` is what to do about that, if it is known.
    """

    name: str
    names: tuple[str, ...]
    nodes: tuple[str, ...]
    usable: bool = True
    arch: str | None = None
    brand: str | None = None
    problem: str = ""
    advice: str = ""
    empty: bool = False
    mig_unknown: bool = False


class GpuSelection(t.NamedTuple):
    """The GPUs that a request names.

    ``unknown`` are other names. ``certain`` says that no GPU can have them. ``rule`` says which names the mode accepts,
    if one of ``unknown`` is of another form; it is empty otherwise.
    """

    gpus: tuple[ExplainedGpu, ...]
    unknown: tuple[str, ...] = ()
    certain: bool = True
    rule: str = ""

    @property
    def names(self) -> list[str]:
        return [gpu.name for gpu in self.gpus]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node for gpu in self.gpus for node in gpu.nodes))


class _Rules(t.NamedTuple):
    """How a program reads names: ``is_all``, whether a name has a valid form, and its canonical form."""

    is_all: t.Callable[[str], bool]
    is_valid: t.Callable[[str], bool]
    canonical: t.Callable[[str], str]
    rule: str


def select(gpus: t.Sequence[ExplainedGpu], names: t.Iterable[str], known: bool, legacy: bool) -> GpuSelection:
    """Return the GPUs that ``names`` request.

    With ``legacy``, by the rules of nvidia-container-cli (select_devices() in src/cli/common.c of libnvidia-container
    1.17), otherwise by those of generated CDI specifications (getDeviceSpecGeneratorsForIDs() and normalizeDeviceID()
    in pkg/nvcdi/lib-nvml.go of nvidia-container-toolkit 1.18 to 1.20). ``known`` says that all GPUs have all of their
    names.
    """
    rules = _LEGACY if legacy else _GENERATED
    found: dict[str, ExplainedGpu] = {}
    unknown = []
    for name in filter(None, names):
        if rules.is_all(name):
            found.update((gpu.name, gpu) for gpu in gpus if gpu.usable)
            continue
        wanted = rules.canonical(name)
        matching = [gpu for gpu in gpus if rules.is_valid(name) and wanted in map(rules.canonical, gpu.names)]
        found.update((gpu.name, gpu) for gpu in matching)
        unknown += [] if matching else [name]
    invalid = any(not rules.is_valid(name) for name in unknown)
    # NVML compares UUIDs itself. Whether it ignores the case of digits is not known.
    lower = {name.lower() for gpu in gpus for name in gpu.names}
    similar = not legacy and any(rules.is_valid(name) and name.lower() in lower for name in unknown)
    return GpuSelection(tuple(found.values()), tuple(unknown), invalid or (known and not similar), rules.rule * invalid)


def _legacy_form(name: str) -> str:
    if name.lower().startswith(_UUID_PREFIXES):
        return name.lower()
    address = _ADDRESS.match(name)
    if address is not None:
        domain, bus, device = (int(part, 16) for part in address.groups())
        return f"{domain:08x}:{bus:02x}:{device:02x}"
    for pattern in (_LEGACY_INDEX, _LEGACY_MIG_INDEX):
        match = pattern.match(name)
        if match is not None:
            return ":".join(str(int(part)) for part in match.groups())
    return ""


def _generated_form(name: str) -> str:
    return ":".join(str(int(part)) for part in name.split(":")) if _INDEX.match(name) else name


_LEGACY = _Rules(
    lambda name: name.lower() == ALL,
    lambda name: bool(_legacy_form(name)),
    _legacy_form,
    "Numbers, UUIDs, PCI addresses and all are names of GPUs there",
)
_GENERATED = _Rules(
    lambda name: name == ALL,
    lambda name: bool(_INDEX.match(name) or _UUID.match(name)),
    _generated_form,
    "Only numbers, UUIDs that begin with GPU- or MIG-, and all in lower case are names of GPUs there",
)


# -- CUDA --------------------------------------------------------------------------------------------------------------

CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def cuda_problem(value: str | None, count: int | None) -> str:
    """Return what CUDA does not see because of CUDA_VISIBLE_DEVICES; empty if it sees all GPUs of the container.

    CUDA reads the names up to the first that is no number of a GPU and no beginning of a UUID (CUDA C++ Programming
    Guide, "CUDA Environment Variables"). ``count`` is the number of GPUs in the container, None if it is unknown.
    """
    if value is None:
        return ""
    names = value.split(",")
    valid = 0
    while valid < len(names) and _is_cuda_name(names[valid].strip(), count):
        valid += 1
    if valid == len(names):
        return ""
    seen = "no GPU" if not valid else f"only {core_text.listed(names[:valid])}"
    if not value.strip():
        return f"{CUDA_VISIBLE_DEVICES} is empty, so CUDA sees no GPU, although nvidia-smi lists the GPUs"
    bad = names[valid].strip()[:100] or "an empty name"
    return (
        f"{CUDA_VISIBLE_DEVICES} is {value[:200]}, and CUDA stops at {bad}, which is neither the number of a GPU in the"
        f" container nor a UUID: CUDA sees {seen}, although nvidia-smi lists the GPUs"
    )


def _is_cuda_name(name: str, count: int | None) -> bool:
    if re.match(r"[0-9]+\Z", name):
        return count is None or int(name[:9]) < count
    return name.startswith(("GPU-", "MIG-")) and len(name) > len("GPU-")
