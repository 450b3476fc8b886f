# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of the module: it sends the packages in the tables of ``plugin_utils/_bundled``."""

from __future__ import annotations

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._bundled import BundledAction as ActionModule

__all__ = ["ActionModule"]
