# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tasks in which faults occur, each on a tree of tests/compare_versions/trees.py."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.tests.compare_versions import trees

if t.TYPE_CHECKING:
    from pathlib import Path

Arguments = t.Dict[str, t.Any]
_ABSENT: Arguments = {"state": "absent"}
_KATA = '{\n    "default-runtime": "kata",\n    "runtimes": {"kata": {"path": "/opt/kata/bin/kata"}}\n}\n'
_DEFAULT: Arguments = {"set_as_default": True}


class Scenario(t.NamedTuple):
    """A task on a tree. ``first``: the tasks before it. The fault occurs in ``task``."""

    name: str
    tree: trees.Case
    files: t.Mapping[str, str]
    first: tuple[Arguments, ...]
    task: Arguments

    @property
    def removes(self) -> bool:
        """Return whether the fault occurs in a removal."""
        return self.task.get("state") == "absent"

    @property
    def needs_root(self) -> bool:
        """Return whether the tree has device nodes, which only root can create."""
        return self.tree.module == "nvidia_cdi_spec"

    @property
    def configured(self) -> Arguments:
        """Return the task that configures the tree."""
        return self.first[-1] if self.removes else self.task

    @property
    def removal(self) -> Arguments:
        """Return the task that removes everything, backups included."""
        purge = {} if self.tree.module == "nvidia_toolkit_install" else {"purge_backups": True}
        return {**_ABSENT, **purge}

    def build(self, root: Path) -> None:
        """Make the tree."""
        root.mkdir(parents=True)
        self.tree.build(root)
        trees.lay(root, self.files)
        for name in ("var/lib", "run", "tmp"):
            (root / name).mkdir(parents=True, exist_ok=True)


class _Row(t.NamedTuple):
    """A configured file or directory: its tree, the tasks before the one that is interrupted, and that task."""

    name: str
    tree: str
    task: Arguments
    first: tuple[Arguments, ...] = ()
    files: t.Mapping[str, str] = {}


_ROWS = (
    _Row("docker", "docker: no file", _DEFAULT, files={"/etc/docker/daemon.json": _KATA}),
    _Row("docker without a file", "docker: no file", _DEFAULT),
    _Row("docker, other options", "docker: kubeadm guide", _DEFAULT, ({},)),
    _Row("containerd in place", "containerd: kubeadm, 1.7.24", _DEFAULT),
    _Row("containerd drop-in", "containerd: kubeadm, 2.3.4", _DEFAULT),
    _Row("crio", "crio: distribution", _DEFAULT),
    _Row("crio in place", "crio: distribution, in place", {"config_mode": "in_place", **_DEFAULT}),
    _Row("podman hook", "podman: packaged hook, 4.9.3", {"enable_cdi": True}),
    _Row("config.toml", "config.toml: packages", {"settings": {"nvidia-container-runtime.mode": "cdi"}}),
    _Row("config.toml without a file", "config.toml: no file", {"profile": "kubernetes_hardened"}),
    _Row("cdi", "CDI: flat", {}),
    _Row("cdi in place of others", "CDI: exclusive", {"exclusive": True, "path": "/etc/cdi/by-hand.yaml"}),
    _Row(
        "units in place of the toolkit's",
        "refresh: edited environment",
        {"path": "/etc/cdi/nvidia.json", "hooks": "none"},
    ),
    _Row("units", "refresh: nvidia-ctk without units", {}),
    _Row("directory", "directory: nothing", {"src": "/srv/1.19.1"}),
    _Row("directory at a path in use", "directory: another toolkit at dest", {"src": "/srv/1.19.1"}),
    _Row("directory, switch", "directory: Docker and containerd", {"src": "/srv/1.20.0"}, ({"src": "/srv/1.19.1"},)),
)


def scenarios() -> list[Scenario]:
    """Return for each row the task and its removal."""
    known = {case.name: case for case in trees.cases()}
    found = []
    for row in _ROWS:
        tree = known[row.tree]
        found.append(Scenario(row.name, tree, row.files, row.first, row.task))
        found.append(Scenario(f"{row.name}, removal", tree, row.files, (*row.first, row.task), _ABSENT))
    return found
