# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: a CDI specification that others made, looked at: engines read it without a word, and skip
# what is wrong without one too.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_host_check import (
    Required,
    check_host,
    required_of,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_parameters import AUTO, CdiOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_rules import judge
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import ConfigurationError, GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_presence import loaded_driver

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

_NVML = "nvml"


class Look(t.NamedTuple):
    """What is wrong with the specification in ``path``, in sentences; ``there`` is whether there is one at all."""

    path: str
    there: bool
    problems: tuple[str, ...] = ()


def look_at(path: str, options: CdiOptions, host: HostRoot) -> Look:
    """The specification in ``path`` as engines would read it on ``host``.

    Raises MissingPackageError where it takes PyYAML to read it, and there is none.
    """
    content = host.read(path)
    if content is None:
        driver = loaded_driver(host)
        missing = f"{path} is not there, though the driver is loaded. Look at the service's log with journalctl."
        return Look(path, there=False, problems=() if driver is None else (missing,))
    # Who only wants to know that it is there need not wait for this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_yaml import parse  # noqa: PLC0415

    try:
        judgement = judge(parse(path, content))
    except ConfigurationError as error:
        return Look(path, there=True, problems=(str(error),))
    if judgement.errors:
        return Look(path, there=True, problems=tuple(map(str, judgement.errors)))
    verdict = check_host(judgement.document, host, _required(options, host))
    return Look(path, there=True, problems=verdict.errors)


def _required(options: CdiOptions, host: HostRoot) -> Required | None:
    """What it must not lack; None where it is not known, or not to be asked."""
    if not options.require_devices or options.mode not in (AUTO, _NVML) or options.request.device_ids:
        return None
    # Other modes need not wait for this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_machine import (  # noqa: PLC0415
        machine,
        mig_nodes,
    )

    request = options.request
    try:
        found = machine(host, request.driver_root, options.use_nvml, request.library_search_paths)
        return required_of(found, mig_nodes(host, found))
    except GpufleetError:
        return None
