# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run modules of one checkout of the collection, as Ansible runs them on a host. Other files of the tests are not used.

worker.py CHECKOUT reads a line of JSON for each task from its standard input, [module, arguments], and writes a line
with the result. Each task runs in a forked process, so it does not see changes in memory of an earlier task.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
import tempfile
import traceback
import types
import typing as t
from pathlib import Path

COLLECTION = "ansible_collections.gpufleet.nvidia"
PACKAGES = ("plugins/modules", "plugins/module_utils")
# Modules that AnsibleModule and the collection import while a task runs, if they are installed.
_PROFILES = "ansible.module_utils._internal._json._profiles"
LATE_IMPORTS = (
    "ansible.module_utils.basic",
    f"{_PROFILES}._module_legacy_c2m",
    f"{_PROFILES}._module_legacy_m2c",
    "ansible.module_utils.distro",
    "encodings.idna",
    "tomlkit",
    "tomllib",
    "yaml",
)


def install(checkout: Path) -> None:
    """Make the collection importable from the checkout, whatever its directory is called."""
    for name in ("ansible_collections", "ansible_collections.gpufleet", COLLECTION):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(checkout)] if name == COLLECTION else []


def warm_up(checkout: Path) -> None:
    """Import everything that a task could import, so that the forked processes need not import it."""
    for name in LATE_IMPORTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for folder in PACKAGES:
        for path in sorted((checkout / folder).rglob("*.py")):
            parts = path.relative_to(checkout).with_suffix("").parts
            if parts[-1] != "__init__":
                importlib.import_module(".".join((COLLECTION, *parts)))
    gc.collect()
    gc.freeze()


def answer(module: str, arguments: dict[str, t.Any]) -> dict[str, t.Any]:
    """Run a module and return its result, or ``crash`` with its output if it printed no result."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            run_and_exit(module, arguments, output.fileno())
        os.waitpid(child, 0)
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    try:
        found: dict[str, t.Any] = json.loads(text.strip().rpartition("\n")[2])
    except ValueError:
        return {"crash": text}
    return found


def run_and_exit(module: str, arguments: dict[str, t.Any], output: int) -> t.NoReturn:
    """Run a module in this process, with ``output`` in place of the standard output and error, and end the process."""
    from ansible.module_utils import basic  # noqa: PLC0415

    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        # A test runner replaces both objects.
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        # ansible-core reads both in place of the text that Ansible would add to the module.
        basic._ANSIBLE_ARGS = json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode()  # noqa: SLF001
        basic._ANSIBLE_PROFILE = "legacy"  # type: ignore[attr-defined,unused-ignore]  # noqa: SLF001
        importlib.import_module(f"{COLLECTION}.plugins.modules.{module}").main()
    except SystemExit:
        pass
    # The traceback is returned as the result's ``crash``.
    except BaseException:  # noqa: BLE001
        traceback.print_exc(file=sys.stdout)
    finally:
        sys.stdout.flush()
        os._exit(0)


def main() -> None:
    checkout = Path(sys.argv[1]).resolve()
    install(checkout)
    warm_up(checkout)
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
