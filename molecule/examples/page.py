"""The blocks of the documentation that this scenario runs, and the words in them that differ on its hosts.

A changed block fails until its digest is changed here, which asks for a look at the file that runs it.
"""

from __future__ import annotations

import hashlib
import sys
import typing as t
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
import documentation

GETTING_STARTED, README = "docs/getting-started.md", "README.md"
DESK, FLEET, OFFLINE, K3S = (
    "A workstation with Docker",
    "40 mixed hosts",
    "A site without Internet access",
    "K3s",
)
INSTALL, USE = "Install", "Use"
# The first line of each block, and its digest: all blocks of getting-started, and those of the README that are run.
KNOWN: dict[tuple[str, str], dict[str, str]] = {
    (GETTING_STARTED, DESK): {
        "# inventory.yml": "de40dd928ed2",
        "# site.yml": "da958d2c3ec8",
        "$ ansible-playbook -i inventory.yml -b -K site.yml --check --diff": "8cdabfd16cf3",
        # Not run: a real GPU.
        "$ docker run --rm --gpus all ubuntu nvidia-smi -L": "1c81f24542d7",
    },
    (GETTING_STARTED, FLEET): {
        "# inventory/hosts.yml": "79632733b500",
        "# inventory/group_vars/gpu.yml": "c1c0b5eb1a72",
        "# inventory/group_vars/workstations.yml": "cf4f206dcb9a",
        "# inventory/group_vars/batch.yml": "eb24fc48b2cd",
        "# inventory/group_vars/kubernetes.yml": "11b6aff1cea5",
        "$ ansible-playbook -i inventory -b gpufleet.nvidia.audit": "2b821470bc63",
    },
    (GETTING_STARTED, OFFLINE): {
        # Not run: the network. The desk builds the collection, and gets the wheels from the controller.
        "$ ansible-galaxy collection download gpufleet.nvidia -p collections": "aa3cf50ebf54",
        "$ ansible-galaxy collection install --offline collections/gpufleet-nvidia-*.tar.gz": "58660f08b2e4",
        "# inventory/hosts.yml": "a168bbfe28b4",
        "# inventory/group_vars/gpu.yml": "6f4ab574b6f8",
        "$ ansible-playbook -i inventory -b gpufleet.nvidia.site": "eabcffc50c7a",
        # Not run: a GPU, and an image.
        "nvidia_runtime_verify: gpu": "9d60dd757682",
    },
    # Not run: K3s.
    (GETTING_STARTED, K3S): {
        "# inventory/hosts.yml": "16f70a1b3313",
        "# inventory/group_vars/gpu.yml": "8d89d8365162",
        "$ ansible-playbook -i inventory -b gpufleet.nvidia.rolling -e nvidia_serial=1": "8eb7528ed4cc",
        "# grep nvidia /var/lib/rancher/k3s/agent/etc/containerd/config.toml": "a544c7c28f1b",
    },
    (README, INSTALL): {
        "$ ansible-galaxy collection build": "eadd28fb1ead",
    },
    (README, USE): {
        "$ ansible-playbook -i inventory.yml -b gpufleet.nvidia.site --tags runtime     "
        "# engines only; also: toolkit, cdi": "aaa4b74550a6",
    },
}  # fmt: skip


class Replacement(t.NamedTuple):
    """Words of a section that differ here, and why. All other bytes are those of the page."""

    section: str
    old: str
    new: str
    reason: str


REPLACEMENTS = (
    Replacement(FLEET, "ws-[01:20]", "ws-01", "One host of each group is booted."),
    Replacement(FLEET, "batch-[01:12]", "batch-01", "One host of each group is booted."),
    Replacement(FLEET, "node-[01:08]", "node-01", "One host of each group is booted."),
    Replacement(USE, "--limit gpu-07", "--limit localhost", "The desk is the only host of its inventory."),
    Replacement(USE, " -b ", " -b -K ", "The user of the desk has a password."),
)


class Section(t.NamedTuple):
    """The files of a section by their paths, and its commands, which are those of all of its console blocks."""

    files: dict[str, str]
    commands: list[str]


def wrong() -> list[str]:
    """Return what differs between the pages and KNOWN. Empty if nothing does."""
    found = []
    for (page, section), known in KNOWN.items():
        here = [block for block in documentation.blocks(page) if block.section == section]
        digests = {block.text.splitlines()[0]: digest(block.text) for block in here}
        if page == README:
            digests = {line: digests[line] for line in known if line in digests}
        elif len(digests) != len(here):
            found.append(f"{page}, {section}: two blocks have the same first line.")
        found += [
            f"{page}, {section}: the block that begins with {line!r} has the digest {digests.get(line)}, not "
            f"{known.get(line)}. Look at how molecule/examples runs it, and change the digest in page.py there."
            for line in {**known, **digests}
            if known.get(line) != digests.get(line)
        ]
    sections = {section for page, section in KNOWN if page == GETTING_STARTED}
    return found + [
        f"{GETTING_STARTED}, {block.section}: molecule/examples/page.py does not have this section."
        for block in documentation.blocks(GETTING_STARTED)
        if block.section not in sections
    ]


def digest(text: str) -> str:
    """Return the digest of a block in KNOWN."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read(page: str, section: str) -> Section:
    """Return the known blocks of a section with the replacements. Raise an error if a replacement has no effect."""
    known = KNOWN[page, section]
    here = [block for block in documentation.blocks(page) if block.section == section]
    here = [block for block in here if block.text.splitlines()[0] in known]
    files = {block.file: block.text for block in here if block.file}
    lines = [line for block in here if block.language == "console" for line in block.lines]
    commands = [line.partition("  #")[0].strip() for line in lines]
    for replacement in REPLACEMENTS:
        if replacement.section != section:
            continue
        texts = [*files.values(), *commands]
        if not any(replacement.old in text for text in texts):
            raise ValueError(f"{page}, {section} does not have {replacement.old!r} any more.")
        files = {name: text.replace(replacement.old, replacement.new) for name, text in files.items()}
        commands = [command.replace(replacement.old, replacement.new) for command in commands]
    return Section(files, commands)
