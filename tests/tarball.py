# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the collection's tarball, install it into an empty directory, and check what a user of Galaxy gets.

tarball.py GALAXY_IMPORTER_PYTHON: the interpreter of the environment that has galaxy-importer. The commands of
ansible-core come from PATH.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
# What a tarball has at its top.
_PUBLISHED = {
    "CHANGELOG.rst", "CODE_OF_CONDUCT.md", "FILES.json", "LICENSE", "MANIFEST.json", "README.md", "changelogs", "docs",
    "meta", "playbooks", "plugins", "roles",
}  # fmt: skip
_DOCUMENTED = {"module": "plugins/modules/*.py", "role": "roles/*"}


def _run(directory: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environ.update(
        ANSIBLE_COLLECTIONS_PATH=str(directory), ANSIBLE_HOME=str(directory / "home"), ANSIBLE_NOCOLOR="1",
        GALAXY_IMPORTER_CONFIG=str(directory / "importer.cfg"),
    )  # fmt: skip
    done = subprocess.run(
        command, cwd=directory, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def _problems(directory: Path, importer: str) -> list[str]:
    """Return what is wrong with the tarball, a sentence each."""
    # From the clone itself, with all that lies there: build_ignore in galaxy.yml has to leave it out.
    _run(directory, "ansible-galaxy", "collection", "build", _ROOT, "--output-path", directory)
    (tarball,) = directory.glob("*.tar.gz")
    with tarfile.open(tarball) as archive:
        members = {member.split("/")[0] for member in archive.getnames()}
    unexpected = sorted(members - _PUBLISHED)
    problems = [f"The tarball contains {name}. Add it to build_ignore in galaxy.yml." for name in unexpected]
    problems += [f"The tarball lacks {name}." for name in sorted(_PUBLISHED - members)]
    _run(directory, "ansible-galaxy", "collection", "install", tarball, "--offline", "-p", directory)
    installed = directory / "ansible_collections" / "gpufleet" / "nvidia"
    for kind, pattern in _DOCUMENTED.items():
        names = [f"gpufleet.nvidia.{path.stem}" for path in sorted(installed.glob(pattern))]
        if not names:
            problems.append(f"The tarball contains no {kind}.")
            continue
        # This ends with an error if the text of one of them cannot be formatted.
        _run(directory, "ansible-doc", "--type", kind, *names)
        # The texts name other modules and roles, and so do warnings about missing ones. Only the keys of the JSON tell
        # what was found.
        found = json.loads(_run(directory, "ansible-doc", "--json", "--type", kind, *names).stdout)
        problems += [f"ansible-doc does not show the {kind} {name}." for name in names if name not in found]
    # The linters that galaxy-importer would start have sessions of their own.
    (directory / "importer.cfg").write_text(
        "[galaxy-importer]\ncheck_required_tags = True\nrun_ansible_lint = False\n", encoding="utf-8"
    )
    done = _run(directory, importer, "-m", "galaxy_importer.main", tarball)
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    return problems + [line for line in lines if line.startswith(("ERROR", "WARNING"))]


def main() -> None:
    """Check the tarball of the clone."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-tarball-") as name:
        problems = _problems(Path(name), sys.argv[1])
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
