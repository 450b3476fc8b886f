# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the little programs that stand before the toolkit's own where these are in a directory
# of their own.  Each leads to the files of its own version, so that a container start never sees two of them.

from __future__ import annotations

import re
import shlex
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import MAIN_PROGRAM, MODE_PROGRAMS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import OWN_CONFIG_FILE

RUNTIMES = (MAIN_PROGRAM, *MODE_PROGRAMS.values())
HOOK = "nvidia-container-runtime-hook"
CLI = "nvidia-container-cli"
CTK = "nvidia-ctk"
# CDI specifications name it, and run it without an environment; it needs none.
UNWRAPPED = ("nvidia-cdi-hook",)
REAL_SUFFIX = ".real"

# From this version on a variable names config.toml; before, one named the folder above, and the hook had an option.
_NAMES_ITS_FILE = (1, 18)
_HEAD = """\
#!/bin/sh
# Written by Ansible, gpufleet.nvidia.nvidia_toolkit_install. What is changed here by hand does not last.
"""
# As the wrappers of NVIDIA's installer: without the driver a node still starts its ordinary containers.  No program is
# run to find that out, and more than one runtime is tried.  sysfs knows the same modules, by one look instead of many.
_WITHOUT_DRIVER = """\
loaded=
if [ -d /sys/module/nvidia ]; then
    loaded=yes
else
    while read -r module rest; do
        if [ "$module" = nvidia ]; then
            loaded=yes
            break
        fi
    done 2>/dev/null </proc/modules
fi
if [ -z "$loaded" ]; then
    echo {program}': the kernel module nvidia is not loaded, a low-level runtime takes over' >&2
    for runtime in {runtimes}; do
        case $runtime in
            /*) [ -f "$runtime" ] && [ -x "$runtime" ] || continue ;;
            *) command -v "$runtime" >/dev/null || continue ;;
        esac
        exec "$runtime" "$@"
    done
    echo {program}': no low-level runtime was found, looked for '{looked_for} >&2
    exit 127
fi
"""
# An empty entry would be the working directory, which is the container's.
_VARIABLE = """\
{name}={folder}"${{{name}:+:${name}}}"
export {name}
"""


class Surroundings(t.NamedTuple):
    """What wrappers lead to: the directory of their version, the path by which everybody else knows the current one,
    and the low-level runtimes that take over without a driver, the first that is there.

    ``version`` is None where it is not known.
    """

    folder: str
    dest: str
    runtimes: t.Sequence[str]
    version: str | None = None


def wrapper(program: str, around: Surroundings) -> str:
    """The shell script that stands for ``program``."""
    lines = [_HEAD]
    if program in RUNTIMES:
        runtimes = " ".join(map(shlex.quote, around.runtimes))
        looked_for = shlex.quote(", ".join(around.runtimes))
        lines.append(_WITHOUT_DRIVER.format(program=program, runtimes=runtimes, looked_for=looked_for))
    # What nvidia-ctk finds there it writes into CDI specifications, which outlive a version.
    lines.append(_variable("PATH", around.dest if program == CTK else around.folder))
    if program == CLI:
        lines.append(_variable("LD_LIBRARY_PATH", around.folder))
    older = around.version is not None and _numbers(around.version) < _NAMES_ITS_FILE
    config = shlex.quote(f"{around.folder}/{OWN_CONFIG_FILE}")
    if program in (*RUNTIMES, HOOK):
        lines.append(f"NVIDIA_CTK_CONFIG_FILE_PATH={config}\nexport NVIDIA_CTK_CONFIG_FILE_PATH\n")
        if older:
            lines.append(f"XDG_CONFIG_HOME={shlex.quote(f'{around.folder}/.config')}\nexport XDG_CONFIG_HOME\n")
    options = f" -config {config}" if older and program == HOOK else ""
    lines.append(f'exec {shlex.quote(f"{around.folder}/{program}{REAL_SUFFIX}")}{options} "$@"\n')
    return "".join(lines)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall("[0-9]+", version)[:2])


def _variable(name: str, folder: str) -> str:
    return _VARIABLE.format(name=name, folder=shlex.quote(folder))
