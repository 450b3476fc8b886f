# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CPU time of making a CDI specification: generation, its rules, the check of the host, and writing it as text.

Each measurement is a process of its own, as each task is one on a host. The time of the imports is printed separately;
the start of Python is not measured. The hosts are trees with device nodes, which only root can make, and with as many
libraries as a desktop has.

usage, as root, with a Python that has pytest: python3 benchmarks/cdi.py [rounds]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 9
OTHER_LIBRARIES = 3000
# GPUs, MIG devices of each, and the goal in milliseconds.
CASES = (("8 GPUs", 8, 0, 150), ("8 GPUs of 7 MIG devices each", 8, 7, 400))

# What is measured. Arguments: the collection, the tree, the GPUs.
PROGRAM = """
import sys, time, types
for name in ("ansible_collections", "ansible_collections.gpufleet", "ansible_collections.gpufleet.nvidia"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [sys.argv[1]]
begun = time.process_time()
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.host_check import check_host
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate.modes import generate_all, required_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.validate import validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.yaml_document import render
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.inventory import Gpu, GpuInventory, MigDevice
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
ready = time.process_time()
machine, host = eval(sys.argv[3]), HostFS.of(sys.argv[2], live=False)
document = generate_all("nvml", Request(), machine, host)[""]
errors = [*validate(document).errors, *check_host(document, host, required_of(machine)).errors]
text = render(document, "yaml")
done = time.process_time()
if errors:
    sys.exit(" ".join(errors))
print(ready - begun, done - ready, len(document["devices"]), len(text))
"""


def make_importable() -> None:
    """Have the collection's own packages at hand, among them those that make trees for its tests."""
    for name in ("ansible_collections", "ansible_collections.gpufleet", "ansible_collections.gpufleet.nvidia"):
        package = types.ModuleType(name)
        package.__path__ = [str(ROOT)]
        sys.modules[name] = package


def prepare(folder: Path, count: int, parts: int) -> str:
    """A host's tree, and its GPUs as PROGRAM takes them."""
    make_importable()
    # These imports need the packages above.
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers import (  # noqa: PLC0415
        driver_layouts,
        driver_trees,
    )

    tree = driver_trees.NodeTree(folder)
    devices = driver_layouts.LAYOUTS["flat"].make(tree, driver_trees.gpus(count, parts))
    tree.program("/usr/bin/nvidia-cdi-hook")
    for number in range(OTHER_LIBRARIES):
        tree.file(f"{driver_trees.MULTIARCH}/libother{number}.so.1")
    return repr(driver_trees.inventory_of(*devices))


def spent(tree: str, machine: str) -> list[float]:
    """CPU seconds of the imports and of the work, then how many devices and bytes came of it."""
    argv = [sys.executable, "-c", PROGRAM, str(ROOT), tree, machine]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    if os.geteuid() != 0:
        sys.exit("Only root can make device nodes.")
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    print(f"{rounds} rounds; median [lowest to highest]")
    for label, count, parts, goal in CASES:
        with tempfile.TemporaryDirectory(prefix="gpufleet-cdi-") as name:
            machine = prepare(Path(name), count, parts)
            imports, work, (devices, *_same), (size, *_sizes) = zip(*(spent(name, machine) for _round in range(rounds)))
        low, middle, high = (1000 * value for value in (min(work), statistics.median(work), max(work)))
        print(
            f"{label:<30} {middle:4.0f} ms of CPU  [{low:.0f} to {high:.0f}]  (goal: at most {goal})"
            f"  beside {1000 * statistics.median(imports):.0f} ms of imports;"
            f" {devices:.0f} devices, {size / 1000:.0f} kB"
        )


if __name__ == "__main__":
    main()
