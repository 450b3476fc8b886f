# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate.modes import generate_all
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import NO_GIDS, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.validate import validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.versions import (
    downgrade_spec,
    engines_not_reading,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.cdi_support import CdiEngine
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import file_lookup
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    Tree,
    TreeLookup,
    gpus,
    inventory_of,
)

if t.TYPE_CHECKING:
    from pathlib import Path


Data = t.Dict[str, t.Any]
BOTH = ("/etc/cdi", "/var/run/cdi")
VIDEO = 44


def engine(name: str, version: str | None, newest: str | None, reads: bool = True) -> CdiEngine:
    return CdiEngine(name, version, f"/usr/bin/{name}", newest, reads, BOTH if reads else ())


OLD_PODMAN = engine("podman", "4.9.3", "0.6.0")
OLDER_PODMAN = engine("podman", "4.3.1", "0.5.0")
OLDEST_CRIO = engine("crio", "1.24.6", "0.3.0")
OLD_CONTAINERD = engine("containerd", "1.7.2", "0.5.0")
NEW_DOCKER = engine("docker", "28.5.2", "1.0.0")
DOCKER_WITHOUT_CDI = engine("docker", "20.10.24", None, reads=False)
UNKNOWN_PODMAN = engine("podman", None, None)


def document(version: str, name: str = "gpu0", kind: str = "nvidia.com/gpu", **edits: t.Any) -> Data:
    node = {"path": "/dev/nvidia0", "gid": VIDEO, **edits.pop("node", {})}
    return {
        "cdiVersion": version,
        "kind": kind,
        "devices": [{"name": name, "containerEdits": {"deviceNodes": [node], **edits}}],
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
    }


def with_groups(version: str = "0.7.0") -> Data:
    downgraded = document(version, "0", additionalGids=[VIDEO])
    downgraded["containerEdits"]["additionalGids"] = [VIDEO]
    return downgraded


def with_annotations() -> Data:
    downgraded = document("0.6.0")
    downgraded["annotations"] = {"of": "all"}
    downgraded["devices"][0]["annotations"] = {"of": "one"}
    return downgraded


# -- downgrade_spec ----------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setattr(file_lookup, "CachedFS", TreeLookup)
    tree = Tree(tmp_path)
    tree.driver()
    return tree


@pytest.mark.parametrize("parts", [0, 2])
@pytest.mark.parametrize(("drm", "mode", "gid"), [(True, 0o666, 0), (True, 0o660, VIDEO), (False, 0o660, VIDEO)])
def test_same_as_feature_flag(tree: Tree, parts: int, drm: bool, mode: int, gid: int) -> None:
    devices = gpus(3, parts)
    tree.control_nodes(mode=mode, gid=gid)
    for gpu in devices:
        tree.gpu(gpu, drm=drm, mode=mode, gid=gid)
    tree.mig_nodes(devices)
    known, host = inventory_of(*devices), tree.host()
    full = generate_all("nvml", Request(), known, host)[""]
    assert full["cdiVersion"] == "0.7.0" or (gid == 0 and parts)
    downgraded = downgrade_spec(full, [NEW_DOCKER, OLD_PODMAN])
    assert downgraded.document == generate_all("nvml", Request(feature_flags=(NO_GIDS,)), known, host)[""]
    assert list(downgraded.document) == list(full)
    assert str(downgraded.document).count(f"'gid': {VIDEO}") == str(full).count(f"'gid': {VIDEO}")
    assert validate(downgraded.document).errors == ()


GROUPS_MESSAGE = "The specification has no additionalGids, because podman 4.9.3 supports CDI up to 0.6.0 only"


@pytest.mark.parametrize(
    ("full", "engines", "expected", "messages"),
    [
        # Engines without CDI and engines of unknown versions are ignored.
        *(
            (with_groups(), engines, with_groups(), [])
            for engines in (
                [],
                [NEW_DOCKER],
                [engine("podman", "5.1.0", "0.7.0")],
                [DOCKER_WITHOUT_CDI, UNKNOWN_PODMAN, NEW_DOCKER],
            )
        ),
        (with_groups(), [NEW_DOCKER, OLD_PODMAN, DOCKER_WITHOUT_CDI], document("0.5.0", "0"), [GROUPS_MESSAGE + "."]),
        (
            with_groups(),
            [OLD_PODMAN, NEW_DOCKER, OLD_CONTAINERD],
            document("0.5.0", "0"),
            [f"{GROUPS_MESSAGE} and containerd 1.7.2 supports CDI up to 0.5.0 only."],
        ),
        # The stated version may be too high or too low.
        (document("0.3.0"), [OLDEST_CRIO], document("0.3.0"), []),
        (document("1.1.0"), [OLD_PODMAN], document("0.3.0"), []),
        (with_groups("0.3.0"), [OLD_PODMAN], document("0.5.0", "0"), [GROUPS_MESSAGE]),
        (
            with_annotations(),
            [OLDER_PODMAN],
            document("0.3.0"),
            ["The specification has no annotations, because podman 4.3.1 supports CDI up to 0.5.0 only."],
        ),
        (
            {**with_groups(), "annotations": {"of": "all"}},
            [OLD_PODMAN, OLD_CONTAINERD],
            document("0.5.0", "0"),
            [GROUPS_MESSAGE, "The specification has no annotations, because containerd 1.7.2 supports"],
        ),
        # Podman 4.9.3 supports annotations.
        (
            {**with_annotations(), "cdiVersion": "0.7.0", "containerEdits": {"additionalGids": [VIDEO]}},
            [OLD_PODMAN],
            {**with_annotations(), "containerEdits": {}},
            [GROUPS_MESSAGE],
        ),
    ],
)
def test_downgrade_spec(full: Data, engines: list[CdiEngine], expected: Data, messages: list[str]) -> None:
    before = copy.deepcopy(full)
    downgraded = downgrade_spec(full, engines)
    assert downgraded.document == expected
    assert len(downgraded.messages) == len(messages)
    assert all(found.startswith(message) for found, message in zip(downgraded.messages, messages))
    assert full == before


@pytest.mark.parametrize(
    ("full", "old_engine", "reason", "advice"),
    [
        (document("0.5.0", "0"), OLDEST_CRIO, "begins with a digit", "device_name_strategies: [type-index]"),
        (
            document("0.6.0", kind="nvidia.com/gpu.all"),
            OLDER_PODMAN,
            "a dot in the class",
            "Set class to a name without a dot",
        ),
        (document("0.5.0", node={"hostPath": "/x/nvidia0"}), OLDEST_CRIO, "a different path of a device", "dev_root"),
        (document("0.7.0", intelRdt={"closID": "one"}), OLD_PODMAN, "a class of Intel RDT", "Leave out intelRdt."),
        # The error does not mention the groups, which can be left out.
        (with_groups(), OLDEST_CRIO, "because it has a device name that begins with a digit (devices[0].name)", ""),
    ],
)
def test_required_fields_are_refused(full: Data, old_engine: CdiEngine, reason: str, advice: str) -> None:
    with pytest.raises(NvidiaError) as caught:
        downgrade_spec(full, [NEW_DOCKER, old_engine])
    message = str(caught.value)
    assert message.startswith(f"{old_engine} supports CDI up to {old_engine.newest} only, but the specification needs ")
    for part in (reason, advice, f"newer version of {old_engine.name}", "for_engines"):
        assert part in message
    assert "groups" not in message


def test_error_names_only_oldest_engines() -> None:
    with pytest.raises(NvidiaError) as caught:
        downgrade_spec(document("0.6.0", kind="nvidia.com/gpu.all"), [OLDER_PODMAN, OLD_CONTAINERD, OLD_PODMAN])
    message = str(caught.value)
    assert "podman 4.3.1" in message
    assert "containerd 1.7.2" in message
    assert "4.9.3" not in message


def test_engines_not_reading() -> None:
    podman = engine("podman", "5.5.2", "0.8.0")._replace(folders=("/etc/cdi",))
    engines = [podman, NEW_DOCKER, DOCKER_WITHOUT_CDI, UNKNOWN_PODMAN]
    assert engines_not_reading(engines, "/etc/cdi") == []
    (message,) = engines_not_reading(engines, "/var/run/cdi")
    assert message.startswith("podman 5.5.2 reads specifications in /etc/cdi only")
    assert len(engines_not_reading(engines, "/srv/cdi")) == 3
