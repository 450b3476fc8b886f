# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The option with which check mode predicts a task that follows the installation of the toolkit."""

    DOCUMENTATION = r"""
options:
  predicted_toolkit:
    description:
      - The toolkit that an earlier task of the same play would install in a real run. It has an effect in check mode
        only, which then predicts what the task does after that installation.
      - The value is RV(gpufleet.nvidia.nvidia_toolkit_install#module:predicted) of that task.
    type: dict
    suboptions:
      version:
        description: The version. When left out, the newest release is assumed.
        type: str
      programs:
        description: The paths of the programs.
        type: list
        elements: path
        required: true
    version_added: 1.2.0
"""
