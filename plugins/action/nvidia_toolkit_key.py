# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._shipping import ShippingAction


class ActionModule(ShippingAction):
    """Runs the module without any package, and drops what a hostile host adds to its answer."""
