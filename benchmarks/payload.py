# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the controller sends to a host for one task, with tomlkit on board (engines in TOML) and without (Docker).

Ansible is told to leave on the host what it has sent.

usage: python3 benchmarks/payload.py ANSIBLE
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = "nvidia_runtime_config"


def sent(ansible: str, folder: Path, engine: str) -> int:
    """Bytes of the module as it arrives."""
    remote = folder / engine
    arguments = f"engine={engine} host_root={folder}"
    environ = {**os.environ, "ANSIBLE_KEEP_REMOTE_FILES": "true", "ANSIBLE_REMOTE_TMP": str(remote)}
    module = f"--module-name=gpufleet.nvidia.{MODULE}"
    command = [ansible, "localhost", "--connection=local", "--check", module, f"--args={arguments}"]
    subprocess.run(command, env=environ, capture_output=True, check=True)
    (arrived,) = remote.rglob(f"AnsiballZ_{MODULE}.py")
    return arrived.stat().st_size


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="gpufleet-payload-") as name:
        bare, shipping = (sent(sys.argv[1], Path(name), engine) for engine in ("docker", "containerd"))
    print(f"{shipping} bytes with tomlkit / {bare} without: {shipping / bare:.2f}  (goal: at most 1.35)")


if __name__ == "__main__":
    main()
