# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The task of nvidia_toolkit_install: install or remove the toolkit, as packages or in a directory."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import toolkit_options

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module

SPEC = toolkit_options.SPEC


def install(module: _module.Module) -> dict[str, t.Any]:
    """Install or remove the toolkit. Return the result as documented.

    Raises NvidiaError for options that do not belong to the source.
    """
    # Each source needs half of the code.
    if module.params["source"] == "directory":
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import toolkit_directory  # noqa: PLC0415

        return toolkit_directory.install(module)
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import toolkit_packages  # noqa: PLC0415

    return toolkit_packages.install(module)
