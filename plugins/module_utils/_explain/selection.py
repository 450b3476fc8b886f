# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The devices that a container requests, compared with the GPUs of the host and with the CDI specifications.

It is pure.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import writers as cdi_writers
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    contents as explain_contents,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    devices as explain_devices,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    result as explain_result,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    rules as explain_rules,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import host as hosts

    Step = explain_result.Step


DEVICES = "devices"
_PREFIX = f"{explain_rules.AUTOMATIC_KIND}="
_NUMBERS = "Request GPUs by the numbers or UUIDs that `nvidia-smi -L` prints on the host, or all."
_READ_LOG = "Look for NVRM and Xid in the kernel's log, and reset the GPU or restart the host."
_LIBRARY = "libcuda.so"
_CREATE_MIG = "Create MIG devices, or switch MIG mode off with `nvidia-smi -i N -mig 0`."


class How(t.NamedTuple):
    """How the devices are added: the name of the path for messages, whether by the hook, and the mode."""

    path: str
    by_hook: bool
    mode: str


class Selected:
    """The devices of a request. ``granted`` are the driver capabilities that decide about files."""

    def __init__(
        self,
        host: hosts.ExplainedHost,
        cdi: tuple[str, ...],
        devices: tuple[str, ...],
        granted: t.Collection[str],
        how: How,
    ) -> None:
        self.host, self.cdi, self.devices, self._how = host, cdi, devices, how
        # Just-in-time CDI generates its specification, all other CDI reads files.
        automatic = bool(cdi) and cdi[0].startswith(_PREFIX)
        self.generated = bool(devices) and (automatic or not cdi)
        self.specifications = host.engine_specifications if not devices else host.runtime_specifications
        self._selection = host.select(self._plain_names(), how.by_hook) if self.generated else None
        # WSL and Tegra have other files, which are known only from CDI specifications.
        self.comparable = host.comparable or not self.generated
        self.expected = self._expected(granted)
        self.gpus = self._gpus()

    def _plain_names(self) -> tuple[str, ...]:
        """Return the requested devices without the kind of generated specifications."""
        names = (name[len(_PREFIX) :] if name.startswith(_PREFIX) else name for name in self.cdi or self.devices)
        return tuple("" if name == "none" else name for name in names)

    def _expected(self, granted: t.Collection[str]) -> explain_contents.Expected:
        if not self.generated:
            return self.specifications.expected(self.cdi)
        if not self.comparable:
            return explain_contents.Expected()
        nodes = self._selection.nodes if self._selection is not None else ()
        return explain_contents.of_driver(self.host.driver, nodes, granted)

    def _gpus(self) -> tuple[explain_devices.ExplainedGpu, ...]:
        """Return the requested GPUs. Those of CDI devices are found by their nodes."""
        if self._selection is not None:
            return self._selection.gpus
        wanted = set(self.expected.devices)
        return tuple(gpu for gpu in self.host.all_gpus if gpu.nodes and wanted.issuperset(gpu.nodes))

    @property
    def count(self) -> int | None:
        """The number of GPUs that programs in the container see; None if it is unknown."""
        usable = [gpu for gpu in self.gpus if gpu.usable]
        return len(usable) if usable and self.host.comparable else None

    @property
    def described(self) -> str:
        if not self.comparable:
            return core_text.listed(self.devices)
        if self.generated:
            return f"{len(self.gpus)} of {len(self.host.gpus)} GPUs of this host"
        return core_text.listed(self.cdi)

    def step(self, is_running: bool, contents: explain_contents.Contents) -> Step:
        """Return whether the devices exist and can be used. ``contents`` is what the container has."""
        if explain_rules.mixes_kinds(self.cdi):
            problem = f"It requests {core_text.listed(self.cdi)}, and {self._how.path} does not mix these kinds"
            advice = "Name all devices as CDI devices, such as nvidia.com/gpu=0, or none of them."
            return explain_result.failed(DEVICES, "kinds-mixed", problem, advice)
        found = self._generated() if self.generated else self._defined(is_running, contents)
        if found.ok is not True or not self.host.comparable:
            return found
        return self._unusable() or (None if self.generated else self._incomplete(is_running, contents)) or found

    # -- generated specifications and the hook ---------------------------------------------------------------------

    def _generated(self) -> Step:
        selection, host = self._selection, self.host
        if self._how.mode == explain_rules.CSV and not host.csv_files:
            problem = f"The directory {host.settings.csv_folder} has no list of files (*.csv) for mode csv"
            advice = "Install nvidia-container-csv-* of JetPack, or nvidia-l4t-init, which have these lists."
            return explain_result.failed(DEVICES, "csv-missing", problem, advice)
        if not self.comparable or selection is None:
            message = "The GPUs of WSL and Tegra are not compared."
            return explain_result.unknown(DEVICES, "devices-unknown", message)
        if selection.unknown and not selection.certain:
            message = "The names of the GPUs of this host are not known."
            return explain_result.unknown(DEVICES, "devices-unknown", message, _NUMBERS)
        if selection.unknown:
            rule = f" for {self._how.path}. {selection.rule}" if selection.rule else ""
            problem = f"This host has no GPU named {core_text.listed(selection.unknown)}{rule}"
            return explain_result.failed(DEVICES, "device-missing", problem, _NUMBERS)
        return explain_result.passed(DEVICES, "selected", f"It requests {self.described}.")

    # -- files -----------------------------------------------------------------------------------------------------

    def _defined(self, is_running: bool, contents: explain_contents.Contents) -> Step:
        specifications = self.specifications
        missing = [name for name in self.cdi if name not in specifications.devices]
        if missing:
            absent = self._undefined(missing)
            is_absent = contents.nodes_known and not contents.has_gpu
            if not is_running or is_absent or self._of_kind(missing[0]):
                return absent
            # It could not have started without them.
            message = f"It runs, but what it should have is not known now: {absent.message}"
            return explain_result.unknown(DEVICES, "cdi-device-removed", message, absent.advice)
        files = dict.fromkeys(specifications.devices[name] for name in self.cdi)
        stale = [name for name in self.cdi if name in specifications.stale]
        if stale and not is_running:
            problem = f"{specifications.devices[stale[0]]} does not match the host, so {stale[0]} cannot be added"
            problem = f"{problem}: {specifications.stale[stale[0]].rstrip('.')}"
            return explain_result.failed(DEVICES, "cdi-stale", problem, cdi_writers.advice_for(stale[0]))
        return explain_result.passed(
            DEVICES, "defined", f"{core_text.listed(list(files))} defines the requested devices."
        )

    def _undefined(self, missing: t.Sequence[str]) -> Step:
        specifications = self.specifications
        where = " or ".join(specifications.folders) or "any directory"
        problem = f"No CDI specification in {where} defines {core_text.listed(missing)}"
        reasons = f" {' '.join(specifications.problems[:2])}" if specifications.problems else ""
        known = self._of_kind(missing[0])
        have = f" Defined are: {core_text.listed(known)}." if known else ""
        advice = f"{cdi_writers.advice_for(missing[0])}{have}{reasons}"
        return explain_result.failed(DEVICES, "cdi-device-missing", problem, advice)

    def _incomplete(self, is_running: bool, contents: explain_contents.Contents) -> Step | None:
        """Return the step for a specification of GPUs without a node or library that all of them need."""
        if not self.gpus:
            return None
        # Other devices of the request, such as those of GPUDirect Storage, may be in other files.
        of_gpus = [name for name in self.cdi if self.specifications.has_gpu_node(name)] or list(self.cdi)
        path = self.specifications.devices[of_gpus[0]]
        advice = cdi_writers.advice_to_write_again(of_gpus[0])
        have = {*self.expected.devices, *contents.devices}
        lacking = [node for node in device_nodes.NEEDED_NODES if node not in have and not contents.whole_dev]
        if lacking:
            problem = f"{path} lacks {core_text.listed(lacking)}, without which programs cannot use the GPUs"
            if is_running and not contents.nodes_known:
                message = f"{problem}. Whether another option has added them is not known."
                return explain_result.unknown(DEVICES, "devices-unknown", message, advice)
            return explain_result.failed(DEVICES, "cdi-incomplete", problem, advice)
        closed = None if contents.complete else self._closed()
        if closed is not None:
            return closed
        names = [posixpath.basename(file) for file in (*self.expected.files, *contents.files)]
        if not any(name.startswith(_LIBRARY) for name in names):
            message = f"{path} adds no {_LIBRARY}, which CUDA needs. Whether the container has its own is not known."
            return explain_result.unknown(DEVICES, "library-unknown", message, advice)
        chosen = self.gpus if any(name.endswith("=all") for name in of_gpus) else self.host.gpus
        others = [gpu.name for gpu in self.host.gpus if gpu not in chosen and gpu.nodes]
        if others:
            problem = f"{path} does not describe {core_text.listed(others)} of this host"
            return explain_result.remark(DEVICES, "cdi-partial", [(problem, advice)])
        return None

    def _closed(self) -> Step | None:
        """Return the step for a requested device with nodes that the container may not both read and write."""
        for name in self.cdi:
            nodes = explain_contents.closed_nodes(self.specifications.edits([name]))
            if nodes:
                path = self.specifications.devices[name]
                problem = f"{path} does not permit to read and write {core_text.listed(nodes)}"
                advice = cdi_writers.advice_to_write_again(name)
                return explain_result.failed(DEVICES, "cdi-incomplete", problem, advice)
        return None

    def _of_kind(self, device: str) -> list[str]:
        """Return the defined devices of the kind of ``device``."""
        kind = device.partition("=")[0]
        return [name for name in self.specifications.devices if name.partition("=")[0] == kind]

    # -- the GPUs --------------------------------------------------------------------------------------------------

    def _unusable(self) -> Step | None:
        """Return the step for a request whose GPUs cannot be used; None if they can."""
        host = self.host
        broken = next((gpu for gpu in self.gpus if gpu.problem), None)
        if broken is not None:
            problem = f"{broken.name} cannot be used: {broken.problem.rstrip('.')}"
            advice = broken.advice or _READ_LOG
            return explain_result.failed(DEVICES, "gpu-unusable", problem, advice)
        if not self.generated:
            lost = self._lost_nodes()
            if lost:
                problem = f"This host has no GPU with the device node {core_text.listed(lost)}"
                code = "gpu-unusable" if host.gpus else "no-usable-gpu"
                advice = "Look for NVRM and Xid in the kernel's log, then write the specification again."
                return explain_result.failed(DEVICES, code, problem, advice)
        whole = [gpu for gpu in self.gpus if not gpu.usable and not self._parts_of(gpu)]
        # A specification for management has the nodes of all GPUs, also for the program that creates MIG devices.
        manages = all(name.startswith(f"{explain_rules.MANAGEMENT_KIND}=") for name in self.cdi)
        if whole and not self._is_all() and not (self.cdi and manages):
            return self._in_mig_mode(whole[0])
        if not self.gpus and (self.generated or self._names_gpus()):
            return self._nothing()
        unsure = [gpu.name for gpu in self.gpus if gpu.mig_unknown]
        if unsure:
            message = f"Whether {core_text.listed(unsure)} is in MIG mode is not known without NVML."
            advice = "Install the libnvidia-ml.so.1 of the driver's version."
            return explain_result.unknown(DEVICES, "mig-unknown", message, advice)
        return None

    def _is_all(self) -> bool:
        return self.generated and any(name.lower() == explain_devices.ALL for name in self._plain_names())

    def _parts_of(self, gpu: explain_devices.ExplainedGpu) -> bool:
        """Return whether the request has MIG devices of ``gpu``."""
        return any(one.name.startswith(f"{gpu.name} MIG ") for one in self.gpus)

    def _in_mig_mode(self, gpu: explain_devices.ExplainedGpu) -> Step:
        has = "has no MIG device" if gpu.empty else "can be used only by its MIG devices, which are not requested"
        advice = _CREATE_MIG if gpu.empty else "Request its MIG devices, such as 0:0 or their UUIDs."
        return explain_result.failed(DEVICES, "mig-mode", f"{gpu.name} is in MIG mode and {has}", advice)

    def _nothing(self) -> Step:
        empty = [gpu.name for gpu in self.host.all_gpus if gpu.empty]
        if empty and not self.host.gpus:
            one = len(empty) == 1
            problem = f"{core_text.listed(empty)} {'is' if one else 'are'} in MIG mode and {'has' if one else 'have'}"
            return explain_result.failed(DEVICES, "mig-mode", f"{problem} no MIG device", _CREATE_MIG)
        problem = "This host has no usable GPU" if not self.host.gpus else "The requested devices have no GPU"
        advice = "Look at `lspci`, and for NVRM and Xid in the kernel's log."
        return explain_result.failed(DEVICES, "no-usable-gpu", problem, advice)

    def _names_gpus(self) -> bool:
        """Return whether all CDI devices are GPUs by the class of their kind."""
        return all(name.partition("=")[0].endswith("/gpu") for name in self.cdi)

    def _lost_nodes(self) -> list[str]:
        """Return the nodes of GPUs in a specification that no GPU of the host has."""
        if not all(gpu.nodes for gpu in self.host.all_gpus):
            return []
        known = {node for gpu in self.host.all_gpus for node in gpu.nodes}
        return [node for node in self.expected.devices if device_nodes.GPU_NODE.fullmatch(node) and node not in known]
