# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes `ansible_collections.gpufleet.nvidia` importable from a plain clone, as tests/unit/conftest.py does."""

from __future__ import annotations

import sys
import types
from pathlib import Path

for _name in ("ansible_collections", "ansible_collections.gpufleet", "ansible_collections.gpufleet.nvidia"):
    if _name not in sys.modules:
        sys.modules[_name] = types.ModuleType(_name)
        sys.modules[_name].__path__ = [str(Path(__file__).resolve().parents[2])] if _name.endswith("nvidia") else []
