# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Trees that released versions of the collection configured: this version changes them and restores the original files.

tests/unit/helpers/released_trees.py runs the releases 1.0.0 and 1.1.0 and writes the trees. Packages and repositories
are not among them, because the modules do not support package managers in trees.
"""

from __future__ import annotations

import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.tests.unit.helpers import released_trees

if t.TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the files of the trees belong to root")

_STATES = released_trees.load()
_PARAMETERS = pytest.mark.parametrize("state", _STATES, ids=[state.name for state in _STATES])
Run = t.Callable[..., t.Dict[str, t.Any]]


def _removed(run_module: Run, root: Path, state: released_trees.State) -> released_trees.Tree:
    """Run the removal, and return the tree. Check that no record remains."""
    result = run_module(state.module, host_root=str(root), state="absent", **state.common)
    assert not result.get("failed"), result["msg"]
    tree = released_trees.read_tree(root)
    assert not [path for path in tree if path.startswith("var/lib/gpufleet-nvidia/state/")]
    return released_trees.without_own(tree)


@_PARAMETERS
def test_removal_restores_the_original_files(state: released_trees.State, run_module: Run, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    released_trees.write_tree(root, state.after)
    assert _removed(run_module, root, state) == state.removed


@_PARAMETERS
def test_tasks_continue_where_the_release_ended(state: released_trees.State, run_module: Run, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    released_trees.write_tree(root, state.after)
    arguments = {"host_root": str(root), **state.common, **state.present}
    first = run_module(state.module, **arguments)
    assert not first.get("failed"), first["msg"]
    second = run_module(state.module, **arguments)
    assert not second["changed"]
    assert _removed(run_module, root, state) == state.removed


def test_all_releases_wrote_these_trees() -> None:
    assert {release for state in _STATES for release in state.releases} == set(released_trees.RELEASES)
