# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs the commands of the documentation, and checks the variables in its YAML blocks.

The files in the YAML blocks of a section are written to a directory, then the commands of its console blocks run there.
The modules of hosts are replaced by a script that returns a result from a file. The scenario "examples" runs the
examples of getting-started on booted hosts.
"""

from __future__ import annotations

import collections
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

pytest.importorskip("ansible.plugins.action", reason="playbooks run on the controller only")
import yaml

from ansible_collections.gpufleet.nvidia.tests.documentation import COLLECTION, Block, blocks

PAGES = (
    *("README.md", "CONTRIBUTING.md"),
    *(str(path.relative_to(COLLECTION)) for name in ("docs/*.md", "roles/*/README.md")
      for path in sorted(COLLECTION.glob(name))),
)  # fmt: skip
RUN = ("ansible-doc", "ansible-playbook")
REASONS = (
    *("GPU", "Kubernetes", "RPM host", "network", "several hosts"),
    # Blocks for developers and about other programs.
    *("changes this host", "has a session of its own", "has a test of its own", "takes minutes"),
    "needs another program",
)
OWN = ("nvidia_toolkit_", "nvidia_runtime_", "nvidia_cdi_")
# Ansible calls it with the path of the module's file.
INTERPRETER = """\
#!/bin/sh
module=${{1##*/AnsiballZ_}}
cat "{folder}/${{module%.py}}.json" 2>/dev/null || echo '{{"changed": false}}'
"""
# Examples also have these roles. Here they have no tasks.
ROLES_OF_OTHERS = ("nvidia.nvidia_driver", "geerlingguy.docker")
KEY = "ddcae044f796ecb0"
TARGETS = ("docker", "docker/rootless/alice", "containerd", "containerd/k3s", "podman")
ANSWERS: dict[str, t.Any] = {
    "nvidia_container_info": {
        "changed": False, "findings": [],
        "engines": [
            {"engine": target.split("/", maxsplit=1)[0], "flavor": (*target.split("/"), "system")[1], "target": target,
             "user": None, "installed": True, "running": True, "service": "a.service", "recorded_files": [],
             "unfinished_restart": False, "inspected": True, "problems": []}
            for target in TARGETS
        ],
        "toolkit": {
            "package_manager": "apt", "gpg": "/usr/bin/gpg", "gpu": {"present": True, "kind": "driver", "message": ""},
            "repository_files": [f"/usr/share/keyrings/gpufleet-nvidia-container-toolkit-{KEY}.asc",
                                 f"/var/cache/gpufleet-nvidia-key-{KEY}.asc"]},
    },
    "nvidia_runtime_config": {
        "changed": False, "engines": [
            {"target": target, "changed": False, "service": "docker.service", "restart_required": False,
             "restart_action": "none", "pending_action": "none",
             "runtimes": {"nvidia": "/usr/bin/nvidia-container-runtime"}, "default_runtime": "runc", "backup_files": [],
             "cdi": True, "unrecorded": []}
            for target in TARGETS]},
}  # fmt: skip


BLOCKS = tuple(block for page in PAGES for block in blocks(page))
SHELL_BLOCKS = [block for block in BLOCKS if block.language in ("console", "sh", "bash", "shell")]
YAML_BLOCKS = [block for block in BLOCKS if block.language == "yaml"]
SECTIONS = sorted({(block.page, block.section) for block in SHELL_BLOCKS if not block.reason})


def where(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.mark.parametrize("block", SHELL_BLOCKS, ids=where)
def test_a_block_is_run_or_has_a_reason(block: Block) -> None:
    others = [command for command in block.commands if command[0] not in RUN]
    assert block.commands, "The block has no command. Begin each with a dollar or a number sign."
    if block.reason:
        assert block.reason in REASONS
        assert others, "All commands of the block can be run. Remove the comment."
    else:
        assert others == [], f"Add <!-- not run: REASON --> above the block, with one of {', '.join(REASONS)}."


def test_the_number_of_blocks_that_are_not_run() -> None:
    # The commands of CONTRIBUTING.md are those of developers.
    counted = collections.Counter(block.reason for block in SHELL_BLOCKS if block.page != "CONTRIBUTING.md")
    assert counted[""] >= 25, counted
    assert sum(counted[reason] for reason in ("GPU", "Kubernetes", "RPM host")) <= 12, counted


def run(work: Path, command: t.Sequence[str], *options: str) -> str:
    """Run a command of Ansible in a directory. The modules of all hosts return the answers."""
    program = Path(sys.executable).with_name(command[0])
    place = work / ".collections/ansible_collections/gpufleet/nvidia"
    if not place.exists():
        place.parent.mkdir(parents=True)
        place.symlink_to(COLLECTION)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environ.update(
        ANSIBLE_COLLECTIONS_PATH=str(work / ".collections"), ANSIBLE_HOME=str(work / ".home"), ANSIBLE_NOCOLOR="1",
        PYTHONDONTWRITEBYTECODE="1", LC_ALL="C.UTF-8",
    )  # fmt: skip
    done = subprocess.run(
        [program, *command[1:], *options], cwd=work, env=environ, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout[-6000:]}"
    return done.stdout


def test_the_commands_that_install_a_clone(tmp_path: Path) -> None:
    (block,) = (block for block in SHELL_BLOCKS if block.text.startswith("$ ansible-galaxy collection build"))
    clone = shutil.copytree(COLLECTION, tmp_path / "clone", ignore=shutil.ignore_patterns(".*", "__pycache__"))
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.defpath}", "LC_ALL": "C.UTF-8",
        "ANSIBLE_HOME": str(tmp_path / "home"), "ANSIBLE_COLLECTIONS_PATH": str(tmp_path),
        "ANSIBLE_GALAXY_SERVER": "http://localhost:1",
    }  # fmt: skip
    for line in block.text.splitlines():
        # The shell replaces the pattern in the name of the tarball.
        subprocess.run(["/bin/sh", "-c", line.removeprefix("$ ")], cwd=clone, env=environ, check=True)
    installed = tmp_path / "ansible_collections/gpufleet/nvidia"
    assert (installed / "playbooks/site.yml").is_file()
    assert not (installed / "tests").exists()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A directory with the files and roles that examples name, and the script in place of modules."""
    roles = (f"roles/{name}/tasks/main.yml" for name in ROLES_OF_OTHERS)
    for name in ("hooks/drain.yml", "hooks/uncordon.yml", *roles):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("[]\n", encoding="utf-8")
    answers = tmp_path / ".answers"
    answers.mkdir()
    for module, answer in ANSWERS.items():
        (answers / f"{module}.json").write_text(json.dumps(answer), encoding="utf-8")
    (answers / "python").write_text(INTERPRETER.format(folder=answers), encoding="utf-8")
    (answers / "python").chmod(0o755)
    variables = {"ansible_connection": "local", "ansible_become": False,
                 "ansible_python_interpreter": str(answers / "python")}  # fmt: skip
    (tmp_path / "vars.json").write_text(json.dumps(variables), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("page", "section"), SECTIONS)
def test_the_commands_of_a_section_run(work: Path, page: str, section: str) -> None:
    here = [block for block in BLOCKS if (block.page, block.section) == (page, section)]
    for block in here:
        if block.file:
            (work / block.file).parent.mkdir(parents=True, exist_ok=True)
            (work / block.file).write_text(block.text, encoding="utf-8")
    for inventory in ("inventory", "inventory.yml"):
        if not (work / inventory).exists():
            (work / inventory).write_text("gpu: {hosts: {gpu-07: }}", encoding="utf-8")
    if not (work / "site.yml").exists():
        shutil.copy(COLLECTION / "playbooks/site.yml", work)
    commands = [command for block in here if block in SHELL_BLOCKS and not block.reason for command in block.commands]
    for command in commands:
        options = []
        if command[0] == "ansible-playbook":
            if [*command, "--check", "--diff"] in commands:
                continue
            options = ["-e", "@vars.json", *([] if "--limit" in command else ["--limit", one_host_of_each_group(work)])]
        assert "no hosts matched" not in run(work, [word for word in command if word != "-K"], *options)


def one_host_of_each_group(work: Path) -> str:
    """Return a --limit with the first host of each group of the inventory.

    The variables of all hosts of a group are the same, and a run with 40 hosts takes minutes.
    """
    paths = [work / "inventory/hosts.yml", work / "inventory.yml"]
    inventory = yaml.safe_load(next(path for path in paths if path.exists()).read_text(encoding="utf-8"))
    ((name, group),) = inventory.items()
    return ",".join(f"{child}[0]" for child in group.get("children", {name: group}))


def variables_in(value: t.Any) -> t.Iterator[tuple[str, t.Any]]:
    """Yield the variables of the roles at any depth of a YAML document."""
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from variables_in(entry)
    if isinstance(value, dict):
        yield from ((name, entry) for name, entry in value.items() if str(name).startswith(OWN))


def test_the_variables_in_yaml_blocks_are_valid(work: Path) -> None:
    # Each block is a host with the variables of the block.
    hosts = {where(block): dict(variables_in(yaml.safe_load(block.text))) for block in YAML_BLOCKS}
    assert len([variables for variables in hosts.values() if variables]) > 15
    # The examples name files beside an inventory that is a file, or above one that is a directory.
    shutil.copytree(work / "hooks", work / "inventory/hooks")
    (work / "inventory/nvidia.asc").write_text("key\n", encoding="utf-8")
    (work / "inventory/hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}), encoding="utf-8")
    # The roles set this variable for the user's tasks, and the user does not.
    own = json.dumps({"nvidia_own_variables": ["nvidia_runtime_restarts"]})
    run(work, ["ansible-playbook", "-i", "inventory/hosts.json", "gpufleet.nvidia.check", "-e", own])


@pytest.fixture
def known_blocks() -> t.Any:
    """The table of blocks of the scenario "examples"."""
    place = COLLECTION / "molecule/examples/page.py"
    found = importlib.util.spec_from_file_location("examples_page", place)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_scenario_examples_knows_every_block_of_getting_started(known_blocks: t.Any) -> None:
    assert known_blocks.wrong() == []


@pytest.mark.parametrize("change", ["a changed file", "a changed command", "a new block", "a removed block"])
def test_a_changed_page_fails_before_the_scenario_is_changed(
    known_blocks: t.Any, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    page = known_blocks.GETTING_STARTED
    found = blocks(page)
    language = "yaml" if change == "a changed file" else "console"
    number = next(number for number, block in enumerate(found) if block.language == language)
    text = found[number].text.replace("localhost:", "ws-01:").replace(" -K", "")
    assert text != found[number].text
    changed = {
        "a new block": [*found, found[number]._replace(text="$ ansible-playbook other.yml\n")],
        "a removed block": [block for block in found if block is not found[number]],
    }.get(change, [*found[:number], found[number]._replace(text=text), *found[number + 1 :]])
    monkeypatch.setattr(known_blocks.documentation, "blocks", lambda name: changed if name == page else blocks(name))
    assert known_blocks.wrong()
