# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hosts that nvidia-ctk has configured: each sequence of runs with purge_legacy removes its drop-ins."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import STATE_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.config import ContainerdFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.cleanup_hosts import Host
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.leftovers import (
    CRIO_CTK,
    CRIO_READ,
    DROP_IN,
    MAIN,
    NVIDIA,
    main_file,
    runtime,
    small_drop_in,
    snapshot,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import Tree

# Files as nvidia-ctk 1.20.0 writes them, shortened. HOSTS contains for each host the engine, the files, and the files
# that differ after the cleanup (None: the file is removed).
# The image in the main files.
PAUSE = "registry.k8s.io/pause:3.9"
BARE = 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
PACKAGED = "/etc/crio/crio.conf.d/10-crio.conf"
BUNDLED = '[crio.runtime]\ndefault_runtime = "crun"\n[crio.runtime.runtimes.crun]\nmonitor_path = "/usr/bin/conmon"\n'
# A main file that `containerd config migrate` converted to version 4. The drop-in beside it is a copy of version 2.
RUNTIME_4 = 'plugins."io.containerd.cri.v1.runtime"'
MIGRATED = f"""\
version = 4
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "registry.k8s.io/pause:3.9"
[{RUNTIME_4}.containerd]
default_runtime_name = "runc"
""" + runtime("runc", "/usr/bin/runc", RUNTIME_4)
HOSTS: dict[str, tuple[str, dict[str, str], dict[str, str | None]]] = {
    "copy of the section": ("containerd", {MAIN: main_file(), DROP_IN: snapshot(PAUSE)}, {DROP_IN: None}),
    "copy of the section, no default": (
        "containerd",
        {MAIN: main_file(), DROP_IN: snapshot(PAUSE, default="runc")},
        {DROP_IN: None},
    ),
    "copy of a section of version 2": ("containerd", {MAIN: MIGRATED, DROP_IN: snapshot(PAUSE)}, {DROP_IN: None}),
    "nothing to copy": ("containerd", {MAIN: BARE, DROP_IN: small_drop_in()}, {DROP_IN: None}),
    "CRI-O": ("crio", {PACKAGED: BUNDLED, CRIO_READ: CRIO_CTK}, {CRIO_READ: None}),
}
VERSIONS = {
    "containerd": ("1.6.20", "1.7.24", "2.0.11", "2.2.7", "2.3.4", "2.4.0"),
    "crio": ("1.31.2", "1.37.0"),
}
CASES = [
    (name, version)
    for name, (engine, files, _gone) in HOSTS.items()
    for version in VERSIONS[engine]
    # Only 2.3 and newer read a main file of version 4.
    if files.get(MAIN) != MIGRATED or version >= "2.3"
]
PLAIN = RuntimeRequest()
OTHER = RuntimeRequest(set_as_default=True, extra_modes=("cdi",))
# Each step: the request (None: state absent), and the option purge_legacy.
SEQUENCES: dict[str, list[tuple[RuntimeRequest | None, bool]]] = {
    "purge": [(None, True)],
    "present, purge": [(PLAIN, False), (None, True)],
    "present, absent, purge": [(PLAIN, False), (None, False), (None, True)],
    "other, purge": [(OTHER, False), (None, True)],
    "other, absent, purge": [(OTHER, False), (None, False), (None, True)],
    "present with purge, absent": [(PLAIN, True), (None, False)],
    "present, present with purge, absent": [(PLAIN, False), (PLAIN, True), (None, False)],
    "other, present with purge, purge": [(OTHER, False), (OTHER, True), (None, True)],
    "other, plain with purge, absent": [(OTHER, False), (PLAIN, True), (None, False)],
}


@pytest.mark.parametrize("steps", SEQUENCES.values(), ids=SEQUENCES)
@pytest.mark.parametrize(("name", "version"), CASES)
def test_sequences(tree: Tree, name: str, version: str, steps: list[tuple[RuntimeRequest | None, bool]]) -> None:
    engine, files, gone = HOSTS[name]
    tree.program(NVIDIA)
    for path, text in files.items():
        tree.file(path, text.encode())
    host = Host(tree, engine, version)
    for request, purge in steps:
        plan = host.run(request, purge=purge)
        if request is not None:
            assert plan.state.paths()["nvidia"] == NVIDIA
            assert not [file for file in host.run(request, purge=purge).files if file.changed]
    for path, expected in {**files, **gone}.items():
        assert host.read(path) == expected
    assert host.host.readable_entries(STATE_DIR) == []


@pytest.mark.parametrize("version", VERSIONS["containerd"])
def test_no_snapshot_after_removal(tree: Tree, version: str) -> None:
    tree.program(NVIDIA)
    tree.file(MAIN, main_file().encode())
    tree.file(DROP_IN, snapshot().encode())
    host = Host(tree, "containerd", version)
    host.run(None, purge=False)
    tree.file(MAIN, main_file("edited").encode())
    assert ContainerdFiles.of(host.context()).cri()["sandbox_image"] == "edited"


def test_keeps_file_that_imports_name(tree: Tree) -> None:
    tree.program(NVIDIA)
    tree.file(MAIN, main_file(imports=f'"{DROP_IN}"').encode())
    tree.file(DROP_IN, snapshot().encode())
    host = Host(tree)
    host.run(None, purge=False)
    files = ContainerdFiles.of(host.context())
    assert (files.missing, list(files.runtimes())) == ([], ["runc"])
