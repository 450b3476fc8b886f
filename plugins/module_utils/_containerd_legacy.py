# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the default runtime as containerd had it before it had a name, a table of its own.  It is
# deprecated since containerd 1.3 and gone in 2.0 (containerd's RELEASES.md); until then it goes before the name, and is
# the runtime called default (pkg/cri/config of 1.7).

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_files import (
    LEGACY_DEFAULT,
    PROGRAM,
    RUNTIMES,
    program_of,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import is_nvidia_program

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_files import ContainerdFiles
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import TomlDocument
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_plan import KeyPath, TomlEdit

# How containerd calls the runtime of the table.
LEGACY_NAME = "default"
GONE_SINCE, GONE_SINCE_FILE = (2,), 3


def check_legacy(request: RuntimeRequest, files: ContainerdFiles, warnings: list[str]) -> None:
    """Raises GpufleetError where the old way does not exist; where it does, warns of it."""
    if not request.use_legacy_config:
        return
    engine = files.engine_version
    path = files.files[0].path
    if (engine is not None and engine >= GONE_SINCE) or files.version >= GONE_SINCE_FILE:
        name = f"containerd {'.'.join(map(str, engine))}" if engine is not None else "containerd"
        raise GpufleetError(
            f"{path}: use_legacy_config is for containerd 1.x. {name} with a file in version {files.version} ignores"
            " the table default_runtime. Leave use_legacy_config out."
        )
    warnings.append(
        f"{path}: use_legacy_config is deprecated, like the table default_runtime and the option Runtime that it"
        " writes; containerd 2.0 ignores them. Without it the same is written as default_runtime_name and"
        " options.BinaryName."
    )


def kept_legacy(edit: TomlEdit, root: KeyPath) -> str | None:
    """The name of the runtime of which our table is a copy; ``root`` is where the CRI's settings stand."""
    options = (*root, *LEGACY_DEFAULT, *PROGRAM[:-1])
    # The names of options mean the same in any case.
    programs = (path for path in edit.recorded() if path[:-1] == options and path[-1].lower() == PROGRAM[-1].lower())
    path = next(filter(edit.owns, programs), None)
    return None if path is None else _named(edit.document.value(*root, *RUNTIMES), edit.document.value(*path))


def without_legacy(document: TomlDocument, root: KeyPath) -> TomlDocument:
    """Without the table, if it runs one of NVIDIA's programs."""
    path = (*root, *LEGACY_DEFAULT)
    return document.delete(path, prune=True) if is_nvidia_program(program_of(document.value(*path))) else document


def with_legacy(runtimes: dict[str, t.Any], files: ContainerdFiles) -> tuple[dict[str, t.Any], str | None]:
    """The runtimes and the default, with the table if that runs one of NVIDIA's programs."""
    table = files.legacy_default()
    program = program_of(table)
    if table is None or not is_nvidia_program(program):
        return runtimes, files.default_runtime()
    return {**runtimes, LEGACY_NAME: {"path": program, **table}}, _named(runtimes, program) or LEGACY_NAME


def _named(runtimes: t.Any, program: t.Any) -> str | None:
    entries = runtimes.items() if isinstance(runtimes, dict) else ()
    return next((name for name, entry in entries if program_of(entry) == program), None)
