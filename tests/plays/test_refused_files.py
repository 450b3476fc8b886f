# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run whole plays for trees with files of engines that can be parsed, but that the planner or the engine refuses.

The modules run. Each of these hosts must fail in its first inspection, before anything in its tree is changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

pytest.importorskip("ansible.plugins.action", reason="playbooks run on the controller only")

COLLECTION = Path(__file__).resolve().parents[2]
CRI = '[plugins."io.containerd.grpc.v1.cri"'
DOCKER, CONTAINERD, IMPORTED = "etc/docker/daemon.json", "etc/containerd/config.toml", "etc/containerd/a.toml"
CRIO, CRIO_DROP_IN = "etc/crio/crio.conf", "etc/crio/crio.conf.d/10-site"
PODMAN, PODMAN_DROP_IN = "etc/containers/containers.conf", "etc/containers/containers.conf.d/10-site.conf"
K3S, K3S_SETTINGS = "var/lib/rancher/k3s/agent/etc/containerd/config.toml", "etc/rancher/k3s/config.yaml.d/a.yaml"
PROGRAMS = {"docker": "dockerd", "containerd": "containerd", "crio": "crio", "podman": "podman", "k3s": "k3s"}
# The CDI directories of Podman depend on its release, which no program of a tree tells.
PODMAN_5 = {"nvidia_runtime_engines": ["podman"], "nvidia_runtime_engine_version": "5.5.0"}


class Case(t.NamedTuple):
    """The files of an engine, the variables of its host, and the beginning of the error; empty if it is accepted.

    A file whose content is None is a link to a file that does not exist.
    """

    engine: str
    files: t.Mapping[str, str | None]
    error: str
    variables: t.Mapping[str, t.Any] = {}


def v2(text: str) -> str:
    return f"version = 2\n{text}\n"


def import_of(text: str | None) -> dict[str, str | None]:
    return {CONTAINERD: v2('imports = ["/etc/containerd/a.toml"]'), **({} if text is None else {IMPORTED: text})}


NOT_A_TABLE = "/etc/containerd/config.toml, line 3, column 1: plugins.io.containerd.grpc.v1.cri"
CASES = {
    "docker-runtimes": Case("docker", {DOCKER: '{"runtimes": []}'}, "/etc/docker/daemon.json, line 1, column 14: "),
    "docker-features": Case("docker", {DOCKER: '{"features": [1]}'}, "/etc/docker/daemon.json, line 1, column 14: "),
    "docker-cdi": Case("docker", {DOCKER: '{"features": {"cdi": "yes"}}'}, "/etc/docker/daemon.json, line 1, column"),
    "docker-default": Case("docker", {DOCKER: '{"default-runtime": 3}'}, "/etc/docker/daemon.json, line 1, column 21"),
    "docker-entry": Case("docker", {DOCKER: '{"runtimes": {"nvidia": "x"}}'}, "/etc/docker/daemon.json, line 1, colum"),
    "docker-path": Case("docker", {DOCKER: '{"runtimes": {"nvidia": {"path": 3}}}'}, "/etc/docker/daemon.json, line 1"),
    # The type of this entry matters only for the runtime of this name.
    "docker-name": Case("docker", {DOCKER: '{"runtimes": {"gpu": "x"}}'}, "/etc/docker/daemon.json, line 1, column 22",
                        {"nvidia_runtime_name": "gpu"}),
    "docker-spelling": Case("docker", {DOCKER: '{"Runtimes": {}}'}, "/etc/docker/daemon.json, line 1, column 14: "),
    "docker-array": Case("docker", {DOCKER: "[]"}, "/etc/docker/daemon.json, line 1, column 1: "),
    "docker-own-path": Case("docker", {"etc/docker/own.json": '{"runtimes": 1}', DOCKER: '{"runtimes": 1}'},
                            "/etc/docker/own.json, line 1, column 14: ",
                            {"nvidia_runtime_engines": ["docker"],
                             "nvidia_runtime_config_path": "/etc/docker/own.json"}),
    "containerd-imports": Case("containerd", {CONTAINERD: v2('imports = "x"')}, "/etc/containerd/config.toml, line 2"),
    "containerd-import": Case("containerd", {CONTAINERD: v2("imports = [1]")}, "/etc/containerd/config.toml, line 2"),
    "containerd-plugins": Case("containerd", {CONTAINERD: v2("plugins = 1")}, "/etc/containerd/config.toml, line 2"),
    "containerd-version": Case("containerd", {CONTAINERD: 'version = "2"'}, "/etc/containerd/config.toml, line 1"),
    "containerd-cri": Case("containerd", {CONTAINERD: v2(f"{CRI}]\ncontainerd = 3")}, NOT_A_TABLE),
    "containerd-options": Case("containerd", {CONTAINERD: v2(f"{CRI}.containerd.runtimes.nvidia]\noptions = 1")},
                               f"{NOT_A_TABLE}.containerd.runtimes.nvidia.options is not a table"),
    "containerd-disabled": Case("containerd", {CONTAINERD: v2('disabled_plugins = "cri"')}, "/etc/containerd/config"),
    "containerd-missing": Case("containerd", import_of(None), "/etc/containerd/config.toml imports files that"),
    "containerd-broken": Case("containerd", import_of("x"), "/etc/containerd/a.toml, line 1, column 2: "),
    "containerd-imported": Case("containerd", import_of(v2("plugins = 1")), "/etc/containerd/a.toml, line 2"),
    "crio-default": Case("crio", {CRIO: "[crio.runtime]\ndefault_runtime = 3\n"}, "/etc/crio/crio.conf, line 2"),
    "crio-runtimes": Case("crio", {CRIO: "[crio.runtime]\nruntimes = []\n"}, "/etc/crio/crio.conf, line 2"),
    "crio-drop-in": Case("crio", {CRIO_DROP_IN: "crio = 1\n"}, "/etc/crio/crio.conf.d/10-site, line 1"),
    "crio-link": Case("crio", {CRIO_DROP_IN: None}, "/etc/crio/crio.conf.d/10-site is a dangling link"),
    "podman-dirs": Case("podman", {PODMAN: '[engine]\ncdi_spec_dirs = "x"\n'}, "/etc/containers/containers.conf, line",
                        PODMAN_5),
    "podman-drop-in": Case("podman", {PODMAN_DROP_IN: "engine = 3\n"}, "/etc/containers/containers.conf.d/10-site.conf",
                           PODMAN_5),
    "k3s-settings": Case("k3s", {K3S: v2(""), K3S_SETTINGS: "[default-runtime: x]\n"},
                         "/etc/rancher/k3s/config.yaml.d/a.yaml: the file contains no mapping"),
    "k3s-generated": Case("k3s", {K3S: v2("plugins = 1")}, f"/{K3S}, line 2"),
    "k3s-template": Case("k3s", {K3S: v2(""), f"{K3S}.tmpl": "[plugins]\n"}, f"/{K3S}.tmpl: this file overrides",
                         {"nvidia_runtime_set_as_default": True, "nvidia_runtime_engines": "containerd/k3s"}),
    # These hosts pass the inspection, although the default runtime of K3s and CRI-O needs the toolkit, which is
    # installed later. They fail in the next task, because their trees have no toolkit.
    "good-docker": Case("docker", {DOCKER: '{"runtimes": {"gpu": "x"}}'}, ""),
    "good-k3s": Case("k3s", {K3S: v2("")}, "", {"nvidia_runtime_set_as_default": True}),
    "good-crio": Case("crio", {CRIO: ""}, "", {"nvidia_runtime_set_as_default": True}),
}  # fmt: skip
BAD = [name for name, case in CASES.items() if case.error]
# The role alone plans in the same way.
OF_ROLE = ["docker-cdi", "containerd-missing", "crio-link", "podman-dirs", "k3s-generated"]


def make_tree(tree: Path, case: Case) -> None:
    """Write the tree of a host, which also has a Docker without problems."""
    for name in ("dockerd", PROGRAMS[case.engine]):
        program = tree / "usr/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n", encoding="utf-8")
        program.chmod(0o755)
    for name, content in case.files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            (tree / name).symlink_to("/none")
        else:
            (tree / name).write_text(content, encoding="utf-8")


def digest(tree: Path) -> str:
    """Return a digest of the names and contents of all files in a tree."""
    found = hashlib.sha256()
    for path in sorted(tree.rglob("*")):
        found.update(f"{path}\n".encode() + (path.read_bytes() if path.is_file() else b""))
    return found.hexdigest()


class Played(t.NamedTuple):
    """The output of ansible-playbook, and the trees of the hosts before the run."""

    output: str
    trees: Path
    before: t.Mapping[str, str]

    def failure(self, host: str) -> tuple[str, str]:
        """Return the task in which a host has failed, and the message, without the path of the tree."""
        part, found = self.output.split(f"fatal: [{host}]: FAILED! => ", 1)
        task = re.findall(r"^(?:TASK|RUNNING HANDLER) \[(.*)\]", part, re.MULTILINE)[-1]
        return str(task), str(json.loads(found.partition("\n")[0])["msg"])

    def is_unchanged(self, host: str) -> bool:
        return digest(self.trees / host) == self.before[host]


def play(work: Path, playbook: str, names: t.Sequence[str], plays: list[dict[str, t.Any]] | None = None) -> Played:
    place = work / "ansible_collections/gpufleet/nvidia"
    for name in ("playbooks", "plugins", "roles", "meta"):
        shutil.copytree(COLLECTION / name, place / name)
    hosts = {}
    for name in names:
        make_tree(work / "trees" / name, CASES[name])
        hosts[name] = {
            "ansible_connection": "local", "ansible_python_interpreter": sys.executable,
            "nvidia_host_root": str(work / "trees" / name), "nvidia_toolkit_source": "existing",
            "nvidia_toolkit_when_no_gpu": "configure", **CASES[name].variables,
        }  # fmt: skip
    before = {name: digest(work / "trees" / name) for name in names}
    (work / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}), encoding="utf-8")
    (work / "plays.yml").write_text(json.dumps(plays), encoding="utf-8")
    program = Path(sys.executable).with_name("ansible-playbook")
    environ = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(work), "ANSIBLE_HOME": str(work / "home"),
               "ANSIBLE_NOCOLOR": "1", "COLUMNS": "10000"}  # fmt: skip
    done = subprocess.run(
        [program, "-i", "hosts.json", playbook], cwd=work, env=environ, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return Played(done.stdout, work / "trees", before)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(tmp_path_factory.mktemp("site"), "gpufleet.nvidia.site", list(CASES))


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The role nvidia_runtime without the playbooks."""
    plays: list[dict[str, t.Any]] = [
        {"hosts": "all", "gather_facts": False, "roles": ["gpufleet.nvidia.nvidia_runtime"]}
    ]
    return play(tmp_path_factory.mktemp("role"), "plays.yml", OF_ROLE, plays)


@pytest.mark.parametrize("host", BAD)
def test_site_stops_in_the_first_inspection(site: Played, host: str) -> None:
    task, message = site.failure(host)
    assert task == "gpufleet.nvidia.nvidia_toolkit : Inspect the host"
    assert message.startswith(CASES[host].error), message
    assert message.endswith("State of this host: nothing was done on this host.")
    assert site.is_unchanged(host)


@pytest.mark.parametrize("host", OF_ROLE)
def test_a_role_alone_changes_no_other_engine(role: Played, host: str) -> None:
    task, message = role.failure(host)
    assert task == "gpufleet.nvidia.nvidia_runtime : Inspect the container engines"
    assert message.startswith(CASES[host].error), message
    assert role.is_unchanged(host)


@pytest.mark.parametrize("host", [name for name in CASES if name not in BAD])
def test_other_hosts_pass_the_inspection(site: Played, host: str) -> None:
    # The first task after the inspection. There is no toolkit in the tree.
    assert site.failure(host)[0] == "gpufleet.nvidia.nvidia_toolkit : Install the toolkit"


def test_rolling_stops_before_the_next_batch(tmp_path: Path) -> None:
    names = ["containerd-missing", "good-docker"]
    found = play(tmp_path, "gpufleet.nvidia.rolling", names)
    assert found.failure(names[0])[0] == "gpufleet.nvidia.nvidia_toolkit : Inspect the host"
    assert all(found.is_unchanged(name) for name in names)
    assert "fatal: [good-docker]" not in found.output
