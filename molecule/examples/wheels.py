"""On the controller: fetches the wheels of a requirement file for the Python of a booted host, once."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement


def fetch(requirements: Path, python: str) -> Path:
    """Return a directory with the wheels. ``python`` is the version of the host's interpreter, such as 3.13.5."""
    text = requirements.read_text()
    name = hashlib.sha256(f"{python} {text}".encode()).hexdigest()[:12]
    folder = Path(os.environ["GPUFLEET_CACHE"]) / f"wheels-{name}"
    if folder.exists():
        return folder
    version = {"python_full_version": python, "python_version": ".".join(python.split(".")[:2])}
    lines = [Requirement(line) for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    wanted = [f"{line.name}{line.specifier}" for line in lines if not line.marker or line.marker.evaluate(version)]
    part = folder.with_name(f"part-{folder.name}")
    shutil.rmtree(part, ignore_errors=True)
    platforms = [f"--platform=manylinux{tag}_{platform.machine()}" for tag in ("2014", "_2_28")]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *platforms,
         f"--python-version={version['python_version']}", f"--dest={part}", *wanted],
        check=True,
    )  # fmt: skip
    part.rename(folder)
    return folder
