# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for the get-pip.py that ansible-test would download for each of its virtual environments.

It takes pip from the interpreter, and from there on from the index that pip is configured for: no network but that.
"""

from __future__ import annotations

import subprocess
import sys

arguments = [argument for argument in sys.argv[1:] if argument not in ("--no-setuptools", "--no-wheel")]
for command in (["ensurepip"], ["pip", "install", *arguments]):
    subprocess.run([sys.executable, "-m", *command], check=True)
