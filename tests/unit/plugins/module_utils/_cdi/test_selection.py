# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.discover import DeviceNodes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.modes import selected_devices
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import Hooks, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    Tree,
    TreeLookup,
    gpus,
    machine,
)

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.inventory import Gpu

# The first as a whole, the second in parts.
MIXED = (gpus(2)[0], gpus(2, 2)[1])
WHOLE, PARTS = ["0", "GPU-00000000-0000"], ["1:0", "MIG-00010000-0000", "1:1", "MIG-00010001-0000"]


def names(
    path: Path, devices: tuple[Gpu, ...], ids: tuple[str, ...] = (), strategies: tuple[str, ...] = ("index", "uuid")
) -> list[str]:
    tree = Tree(path)
    for gpu in devices:
        tree.gpu(gpu)
    tree.mig_nodes(devices)
    nodes = DeviceNodes(TreeLookup(tree.host()), "/", Hooks(Request()), with_gids=True)
    found = selected_devices(machine(*devices), ids, strategies, nodes)
    for device in found:
        assert not device.edits.is_empty()
    return [device.name for device in found]


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ((), WHOLE + PARTS),
        (("all",), WHOLE + PARTS),
        (("1:1", "all"), WHOLE + PARTS),
        (("0",), WHOLE),
        (("0", "GPU-00000000-0000", "0"), WHOLE),
        (("1:1",), PARTS[2:]),
        (("MIG-00010000-0000", "0"), PARTS[:2] + WHOLE),
        # Asked for by its own name a GPU comes as a whole, whatever its mode.
        (("1",), ["1", "GPU-00000001-0000"]),
    ],
)
def test_by_identifier(tmp_path: Path, ids: tuple[str, ...], found: list[str]) -> None:
    assert names(tmp_path, MIXED, ids) == found


@pytest.mark.parametrize("wanted", ["2", "0:0", "1:2", "GPU-", "", "gpu0", "0:", "-1", "01x", "99999"])
def test_unknown_identifiers(tmp_path: Path, wanted: str) -> None:
    with pytest.raises(NvidiaError) as caught:
        names(tmp_path, MIXED, (wanted,))
    assert str(caught.value) == (
        f"device_ids: unknown device {wanted!r}. Use an index, a UUID, all or none."
        " Devices of this host: 0, 1, 1:0, 1:1."
    )


@pytest.mark.parametrize(
    ("strategies", "found"),
    [
        (("index",), ["0", "1:0", "1:1"]),
        (("type-index",), ["gpu0", "mig1:0", "mig1:1"]),
        (("uuid",), [WHOLE[1], PARTS[1], PARTS[3]]),
        (("type-index", "index", "type-index"), ["gpu0", "0", "mig1:0", "1:0", "mig1:1", "1:1"]),
    ],
)
def test_names(tmp_path: Path, strategies: tuple[str, ...], found: list[str]) -> None:
    assert names(tmp_path, MIXED, strategies=strategies) == found


def test_indexes_keep_their_gaps(tmp_path: Path) -> None:
    assert names(tmp_path, (gpus(3)[0], gpus(3)[2]), strategies=("index",)) == ["0", "2"]


def test_nothing_to_name(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="no GPU and no MIG device"):
        names(tmp_path, (gpus(1, 1)[0]._replace(migs=()),))


def test_a_uuid_that_is_not_known_yet(tmp_path: Path) -> None:
    gpu = gpus(1)[0]._replace(uuid="")
    with pytest.raises(HostError, match=r"UUID of GPU 0 \(0000:10:00\.0\).*nvidia-smi -L"):
        names(tmp_path, (gpu,))


def test_no_uuid_is_no_identifier(tmp_path: Path) -> None:
    gpu = gpus(1)[0]._replace(uuid="")
    with pytest.raises(NvidiaError, match="unknown device ''"):
        names(tmp_path, (gpu,), ("",), ("index",))


def test_a_uuid_that_is_not_asked_for(tmp_path: Path) -> None:
    gpu = gpus(1)[0]._replace(uuid="")
    assert names(tmp_path, (gpu,), strategies=("index",)) == ["0"]


def test_a_gpu_without_nodes(tmp_path: Path) -> None:
    # A hook alone makes no GPU.
    hooks = Hooks(Request(enabled_hooks=("chmod",)))
    nodes = DeviceNodes(TreeLookup(Tree(tmp_path).host()), "/", hooks, with_gids=True)
    with pytest.raises(HostError, match=r"^GPU 0 \(0000:10:00\.0\) has no device node: /dev/nvidia0 is missing"):
        selected_devices(machine(*gpus(1)), (), ("index",), nodes)
