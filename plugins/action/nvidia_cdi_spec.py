# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of the module: it sends the packages that the table in ``plugin_utils/_shipping`` names."""

from __future__ import annotations

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._shipping import ShippingAction as ActionModule

__all__ = ["ActionModule"]
