# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the archive that Ansible builds for each module: its size, its files, and the processor time of building it.

Each archive is built in a process of its own, as Ansible's workers do. A directory is a collections path, that is, the
one that contains ansible_collections/gpufleet/nvidia. The last lines compare each further directory with the first.

usage, with a Python that has ansible-core: python3 benchmarks/archives.py DIRECTORY... [--rounds N]
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import os
import re
import statistics
import subprocess
import sys
import typing as t
import zipfile
from pathlib import Path

COLLECTION = "ansible_collections/gpufleet/nvidia"
ARCHIVE = re.compile(rb"""['"](UEsDB[A-Za-z0-9+/=]{1000,})['"]""")


class Archive(t.NamedTuple):
    """An archive: its bytes, and the files and lines of the collection in it."""

    size: int
    files: int
    lines: int


def build(module: str, folder: str) -> bytes:
    """Return the module as Ansible sends it to a host."""
    from ansible.executor.module_common import modify_module  # noqa: PLC0415
    from ansible.parsing.dataloader import DataLoader  # noqa: PLC0415
    from ansible.template import Templar  # noqa: PLC0415

    path = str(Path(folder, COLLECTION, "plugins/modules", f"{module}.py"))
    templar = Templar(loader=DataLoader())
    # Arguments do not change the size.
    built = modify_module(
        module_name=f"gpufleet.nvidia.{module}", module_path=path, module_args={}, templar=templar,
        task_vars={"ansible_python_interpreter": "/usr/bin/python3"}, module_compression="ZIP_DEFLATED",
    )  # fmt: skip
    return built.b_module_data if hasattr(built, "b_module_data") else built[0]


def measure(module: str, folder: str) -> tuple[Archive, float]:
    """Build the archive in this process. Returns it, and the seconds of processor time without Ansible's own start."""
    from ansible.plugins.loader import init_plugin_loader  # noqa: PLC0415

    init_plugin_loader([folder])
    # Ansible has imported its own code before a worker builds the first archive.
    import ansible.executor.module_common  # noqa: PLC0415
    import ansible.parsing.dataloader  # noqa: PLC0415
    import ansible.template  # noqa: F401, PLC0415

    before = os.times()
    data = build(module, folder)
    after = os.times()
    match = ARCHIVE.search(data)
    if match is None:
        sys.exit(f"The archive of {module} was not found in what Ansible sends.")
    content = base64.b64decode(match[1])
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        ours = [name for name in archive.namelist() if name.startswith(COLLECTION)]
        lines = sum(archive.read(name).count(b"\n") for name in ours)
    seconds = after.user - before.user + after.system - before.system
    return Archive(len(content), len(ours), lines), seconds


def total(folder: str, rounds: int) -> float:
    """Print a line for each module. Returns the sum of the medians of the processor time."""
    paths = sorted(Path(folder, COLLECTION, "plugins/modules").glob("[!_]*.py"))
    # The others are documentation of action plugins, which send no module.
    modules = [path.stem for path in paths if "def main(" in path.read_text(encoding="utf-8")]
    seconds = []
    print(f"{folder}\n{'module':28} {'kB':>6} {'files':>6} {'lines':>7} {'ms':>6}")
    for module in modules:
        times = []
        for _round in range(rounds):
            program = [sys.executable, __file__, folder, "--module", module]
            output = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout
            archive, time = json.loads(output.splitlines()[-1])
            times.append(time)
        seconds.append(statistics.median(times))
        size, files, lines = archive
        print(f"{module:28} {size / 1000:6.0f} {files:6} {lines:7} {1000 * seconds[-1]:6.0f}")
    print(f"{'all':28} {'':6} {'':6} {'':7} {1000 * sum(seconds):6.0f}\n")
    return sum(seconds)


def main() -> None:
    """Measure each directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", metavar="DIRECTORY", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--module", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.module:
        with contextlib.redirect_stdout(sys.stderr):
            found = measure(options.module, options.folders[0])
        print(json.dumps(found))
        return
    sums = [total(folder, options.rounds) for folder in options.folders]
    for folder, seconds in zip(options.folders[1:], sums[1:]):
        print(f"{folder}: {seconds / sums[0]:.2f} times the processor time of {options.folders[0]}")


if __name__ == "__main__":
    main()
