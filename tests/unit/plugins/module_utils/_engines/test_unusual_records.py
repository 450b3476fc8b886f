# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records that are valid, but whose keys or values no run of this collection writes."""

from __future__ import annotations

import contextlib
import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import load_records, record_path
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import NVIDIA, EngineTree

if t.TYPE_CHECKING:
    from pathlib import Path

    Keys = t.Dict[t.Tuple[str, ...], t.Any]

pytestmark = pytest.mark.one_python

_HOSTS: dict[str, tuple[str, str, str]] = {
    "docker": ("27.0.0", "/etc/docker/daemon.json", '{"debug": true}\n'),
    "containerd": ("1.7.24", "/etc/containerd/config.toml", 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n'),
    "crio": ("1.31.0", "/etc/crio/crio.conf", "[crio.runtime]\nlog_level = 'info'\n"),
    "podman": ("5.0.0", "/etc/containers/containers.conf", "[engine]\n"),
}
# Parts of the paths that the engines write, from the outermost table on.
_PATHS: tuple[tuple[str, ...], ...] = (
    ("runtimes",),
    ("default-runtime",),
    ("features",),
    ("imports",),
    ("version",),
    ("plugins",),
    ("plugins", "io.containerd.grpc.v1.cri", "containerd", "default_runtime_name"),
    ("plugins", "io.containerd.grpc.v1.cri", "containerd", "runtimes"),
    ("crio",),
    ("crio", "runtime", "default_runtime"),
    ("crio", "runtime", "runtimes"),
    ("crio", "runtime", "runtimes", "nvidia"),
    ("crio", "runtime", "runtimes", "nvidia", "runtime_path"),
    ("crio", "runtime", "runtimes", "other", "runtime_path"),
    ("engine", "cdi_spec_dirs"),
    ("x",) * 100,
)
_DEEP = json.loads("[" * 90 + "]" * 90)
_VALUES: tuple[t.Any, ...] = (None, True, "nvidia", [["a"]], {"nvidia": None}, _DEEP)


@pytest.mark.parametrize("engine", _HOSTS)
@pytest.mark.parametrize("path", _PATHS, ids=".".join)
def test_the_plans_ignore_unknown_entries(tmp_path: Path, engine: str, path: tuple[str, ...]) -> None:
    version, file, content = _HOSTS[engine]
    tree = EngineTree(tmp_path, engine, files={NVIDIA: "", file: content}, live=False)
    options: dict[str, t.Any] = {"engine_version": version}
    tree.present(options=options, enable_cdi=True)
    tasks: list[t.Callable[[], t.Any]] = [
        lambda: tree.present(True, options, enable_cdi=True),
        lambda: tree.present(True, options, runtime_name="gpu"),
        lambda: tree.absent(True, **options),
        lambda: tree.absent(True, keep_unrecorded=True, **options),
    ]
    for record in load_records(tree.host, engine):
        where = record_path(engine, record.path)
        for value in (*_VALUES, _value_in(tree.text(record.path), path)):
            for keys in ({path: value}, {path: value, **(record.keys or {})}):
                tree.write(where, record._replace(keys=keys).to_bytes())
                for task in tasks:
                    with contextlib.suppress(NvidiaError):
                        task()
        tree.write(where, record.to_bytes())
    tree.absent(**options)
    assert tree.text(file) == content


def _value_in(text: str, path: tuple[str, ...]) -> t.Any:
    """Return the value at the path in a JSON file, so that the record fits the file. None for other files."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found
