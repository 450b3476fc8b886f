# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs site.yml with the task files of docs/examples/kubernetes, and a program in place of kubectl.

The program keeps the state of each node in a directory, and records drains and uncordons there. The modules of hosts
are replaced by a script that returns a result from a file and records that it ran.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

pytest.importorskip("ansible.plugins.action", reason="playbooks run on the controller only")

COLLECTION = Path(__file__).resolve().parents[2]
INTERPRETER = """\
#!/bin/sh
module=${{1##*/AnsiballZ_}}
echo "${{module%.py}}" >> "{folder}/calls"
cat "{folder}/${{module%.py}}.json"
"""
# A node is cordoned if it has the file "cordoned". The file "drain-fails" makes a drain fail after it has cordoned.
KUBECTL = """\
#!/bin/sh
test -z "$AS_ROOT" || { echo "unexpected: as root" >&2; exit 2; }
case "$*" in
"get node "*" --output=jsonpath={.spec.unschedulable}")
    cd "$NODES/$3" && test ! -e cordoned || printf true ;;
"get node "*" --output=jsonpath={.metadata.annotations.gpufleet\\\\.nvidia/cordoned}")
    cd "$NODES/$3" && test ! -e annotated || printf true ;;
"annotate --overwrite node "*" gpufleet.nvidia/cordoned=true") touch "$NODES/$4/annotated" ;;
"annotate node "*" gpufleet.nvidia/cordoned-") rm "$NODES/$3/annotated" ;;
"drain "*" --ignore-daemonsets --delete-emptydir-data --timeout=300s")
    touch "$NODES/$2/cordoned"
    echo "drain" >> "$NODES/$2/calls"
    test ! -e "$NODES/$2/drain-fails" || { echo "error: global timeout reached: 5m0s" >&2; exit 1; } ;;
"uncordon "*) rm "$NODES/$2/cordoned" && echo "uncordon" >> "$NODES/$2/calls" ;;
"wait --for=condition=Ready --timeout=120s node/"*) ;;
*) echo "unexpected: $*" >&2; exit 2 ;;
esac
"""
# Called as sudo, it runs its last arguments, /bin/sh -c COMMAND.
SUDO = """\
#!/bin/sh
while test "$1" != /bin/sh; do shift; done
AS_ROOT=true exec "$@"
"""
INFO: dict[str, t.Any] = {
    "changed": False,
    "engines": [
        {"engine": "containerd", "flavor": "system", "target": "containerd", "user": None, "installed": True,
         "running": True, "service": "containerd.service", "recorded_files": [], "unfinished_restart": False,
         "inspected": True, "problems": []},
    ],
    "toolkit": {"package_manager": "apt", "gpg": None, "repository_files": [],
                "gpu": {"present": True, "kind": "driver", "message": ""}},
}  # fmt: skip
ENGINE = {"target": "containerd", "changed": True, "service": "containerd.service", "restart_required": True,
          "restart_action": "restart", "pending_action": "restart", "default_runtime": "runc", "backup_files": [],
          "runtimes": {"nvidia": "/usr/bin/nvidia-container-runtime"}, "cdi": True}  # fmt: skip
CONFIGURED = {"changed": True, "engines": [ENGINE]}
RESTARTED = {"changed": True, "state": "applied"}
FAILED = {"failed": True, "msg": "containerd.service is not healthy."}
RESTART = "nvidia_runtime_restart"


class Cluster:
    """Nodes, the hosts of an inventory with the same names, and kubectl."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.nodes = work / "nodes"
        place = work / "ansible_collections/gpufleet/nvidia"
        place.parent.mkdir(parents=True)
        place.symlink_to(COLLECTION)
        shutil.copytree(COLLECTION / "docs/examples/kubernetes", work / "hooks")
        (work / "bin").mkdir()
        for name, script in (("kubectl", KUBECTL), ("sudo", SUDO)):
            (work / "bin" / name).write_text(script, encoding="utf-8")
            (work / "bin" / name).chmod(0o755)

    def add(self, name: str, *files: str, restart: t.Mapping[str, t.Any] | None = None) -> None:
        (self.nodes / name).mkdir(parents=True)
        for file in files:
            (self.nodes / name / file).touch()
        (self.nodes / name / "python").write_text(INTERPRETER.format(folder=self.nodes / name), encoding="utf-8")
        (self.nodes / name / "python").chmod(0o755)
        self.answer(name, "nvidia_container_info", INFO)
        self.answer(name, "nvidia_runtime_config", CONFIGURED)
        self.answer(name, RESTART, restart or RESTARTED)

    def answer(self, name: str, module: str, answer: t.Mapping[str, t.Any]) -> None:
        (self.nodes / name / f"{module}.json").write_text(json.dumps(answer), encoding="utf-8")

    def play(self, *options: str) -> str:
        program = Path(sys.executable).with_name("ansible-playbook")
        hosts = {
            node.name: {"ansible_python_interpreter": str(node / "python"), "ansible_connection": "local"}
            for node in self.nodes.iterdir()
        }
        hooks = {"nvidia_runtime_before_restart": "drain.yml", "nvidia_runtime_after_restart": "uncordon.yml"}
        variables = {name: str(self.work / "hooks" / file) for name, file in hooks.items()}
        # Many inventories set this for all hosts, and then it also applies to tasks that are delegated to localhost.
        root = {"ansible_become": True, "ansible_become_exe": str(self.work / "bin/sudo")}
        inventory = {"all": {"vars": root}, "gpu": {"hosts": hosts, "vars": variables}}
        (self.work / "hosts.json").write_text(json.dumps(inventory), encoding="utf-8")
        for path in self.nodes.rglob("calls"):
            path.unlink()
        environ = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(self.work), "ANSIBLE_HOME": str(self.work / "home"),
                   "ANSIBLE_NOCOLOR": "1", "COLUMNS": "10000", "NODES": str(self.nodes),
                   # Otherwise root never runs sudo.
                   "ANSIBLE_BECOME_ALLOW_SAME_USER": "1",
                   "PATH": f"{self.work / 'bin'}:{os.environ['PATH']}"}  # fmt: skip
        command = [str(program), "-i", "hosts.json", "gpufleet.nvidia.site", "--tags=runtime", *options]
        done = subprocess.run(command, cwd=self.work, env=environ, check=False, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)  # fmt: skip
        assert "unexpected:" not in done.stdout
        return done.stdout

    def state(self, name: str) -> set[str]:
        """Return which of the marks "cordoned" and "annotated" a node has."""
        return {file for file in ("cordoned", "annotated") if (self.nodes / name / file).exists()}

    def calls(self, name: str) -> list[str]:
        """Return the drains, uncordons and restarts of a node, in their order."""
        path = self.nodes / name / "calls"
        lines = path.read_text(encoding="utf-8").split() if path.exists() else []
        return [line for line in lines if line in {"drain", "uncordon", RESTART}]


class Run(t.NamedTuple):
    """What a play printed, and the calls and states of all nodes after it."""

    output: str
    calls: dict[str, list[str]]
    states: dict[str, set[str]]


def run(cluster: Cluster, *options: str) -> Run:
    output = cluster.play(*options)
    names = [node.name for node in cluster.nodes.iterdir()]
    return Run(output, {name: cluster.calls(name) for name in names}, {name: cluster.state(name) for name in names})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run, Run]:
    """Three plays: in check mode, for all nodes, and again for the node whose restart failed."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    cluster.add("free")
    cluster.add("admin", "cordoned")
    cluster.add("full", "drain-fails")
    cluster.add("admin-full", "cordoned", "drain-fails")
    cluster.add("sick", restart=FAILED)
    checked = run(cluster, "--check", "--limit=free,admin")
    first = run(cluster)
    cluster.answer("sick", RESTART, RESTARTED)
    return checked, first, run(cluster, "--limit=sick")


@pytest.mark.parametrize(
    ("name", "calls", "state"),
    [
        ("free", ["drain", RESTART, "uncordon"], set()),
        # An administrator has cordoned the node.
        ("admin", ["drain", RESTART], {"cordoned"}),
        # The drain failed, so nothing was restarted.
        ("full", ["drain", "uncordon"], set()),
        ("admin-full", ["drain"], {"cordoned"}),
        # The restart failed. The annotation stays for the next play.
        ("sick", ["drain", RESTART], {"cordoned", "annotated"}),
    ],
)
def test_a_node_is_drained_and_uncordoned(
    runs: tuple[Run, Run, Run], name: str, calls: list[str], state: set[str]
) -> None:
    assert (runs[1].calls[name], runs[1].states[name]) == (calls, state)


@pytest.mark.parametrize("name", ["full", "admin-full"])
def test_a_failed_drain_is_reported(runs: tuple[Run, Run, Run], name: str) -> None:
    (line,) = [line for line in runs[1].output.splitlines() if line.startswith(f"fatal: [{name}]")]
    assert "The node cannot be drained, so no engine was restarted: error: global timeout reached: 5m0s" in line


def test_a_failed_restart_names_the_tasks_that_did_not_run(runs: tuple[Run, Run, Run]) -> None:
    (line,) = [line for line in runs[1].output.splitlines() if line.startswith("failed: [sick]")]
    assert "uncordon.yml was not run, because not all steps on this host were successful." in line


def test_the_next_play_uncordons_the_node(runs: tuple[Run, Run, Run]) -> None:
    assert (runs[2].calls["sick"], runs[2].states["sick"]) == (["drain", RESTART, "uncordon"], set())


def test_check_mode_changes_no_node(runs: tuple[Run, Run, Run]) -> None:
    assert "failed=1" not in runs[0].output
    assert (runs[0].calls["free"], runs[0].states["free"]) == ([RESTART], set())
    assert (runs[0].calls["admin"], runs[0].states["admin"]) == ([RESTART], {"cordoned"})
