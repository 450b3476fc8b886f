# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A module without Ansible's controller, and the argument specification that a module passes on."""

from __future__ import annotations

import copy
import os
import subprocess
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module


class Ended(BaseException):
    """The module has ended, where AnsibleModule ends the process."""


class DummyModule:
    """The parts of AnsibleModule that the modules use."""

    _name = "nvidia_toolkit_install"
    argument_spec: t.ClassVar[dict[str, t.Any]] = {"lock_timeout": {"type": "int"}}

    def __init__(self, check_mode: bool = False, **params: t.Any) -> None:
        self.check_mode = check_mode
        self.params = params
        self.warnings: list[str] = []
        self.selinux = False
        self.missing: list[str] = []
        self.result: dict[str, t.Any] = {}

    def warn(self, warning: str) -> None:
        self.warnings.append(warning)

    def exit_json(self, **result: t.Any) -> None:
        self.result = result
        raise Ended

    def fail_json(self, msg: str, **result: t.Any) -> None:
        self.result = {"failed": True, "msg": msg, **result}
        raise Ended

    def get_bin_path(self, name: str) -> str | None:
        return None if name in self.missing else f"/usr/bin/{name}"

    def run_command(
        self, argv: list[str], environ_update: dict[str, str], handle_exceptions: bool, expand_user_and_vars: bool
    ) -> tuple[int, str, str]:
        # Otherwise AnsibleModule would end the task if a program is missing.
        assert not handle_exceptions
        assert not expand_user_and_vars
        done = subprocess.run(argv, env={**os.environ, **environ_update}, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def selinux_enabled(self) -> bool:
        return self.selinux

    def selinux_default_context(self, path: str) -> list[str | None]:
        return [None, None, None, None] if path == "/tmp" else ["system_u", "object_r", f"{path[5:]}_t", "s0:c1"]


def argument_spec_of(monkeypatch: pytest.MonkeyPatch, module: t.Any) -> dict[str, dict[str, t.Any]]:
    """Return the argument specification that the module gives to new_module()."""
    seen: list[dict[str, dict[str, t.Any]]] = []

    def new_module(argument_spec: dict[str, dict[str, t.Any]], **_rules: t.Any) -> None:
        seen.append(copy.deepcopy(argument_spec))
        raise Ended

    monkeypatch.setattr(_module, "new_module", new_module)
    with pytest.raises(Ended):
        module.main()
    return seen[0]
