# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The argument specifications of the modules, read without Ansible."""

from __future__ import annotations

import copy
import importlib
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module

MODULES = sorted(path.stem for path in (Path(__file__).parents[3] / "plugins/modules").glob("nvidia_*.py"))


class CapturedError(Exception):
    def __init__(self, spec: dict[str, dict[str, t.Any]]) -> None:
        self.spec = spec


def specs(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, dict[str, t.Any]]]:
    """Return the argument specifications of the modules that run on hosts."""

    def capture(spec: dict[str, dict[str, t.Any]], **_rules: t.Any) -> t.NoReturn:
        raise CapturedError(spec)

    monkeypatch.setattr(_module, "new_module", capture)
    found = {}
    for name in MODULES:
        module = importlib.import_module(f"ansible_collections.gpufleet.nvidia.plugins.modules.{name}")
        # The other modules only document an action plugin, which runs on the controller.
        if hasattr(module, "main") and hasattr(module, "_module"):
            with pytest.raises(CapturedError) as caught:
                module.main()
            found[name] = copy.deepcopy(caught.value.spec)
    return found
