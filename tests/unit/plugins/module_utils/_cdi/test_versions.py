# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.modes import generate_all
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import NO_GIDS, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.validate import validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.versions import downgrade_spec, engines_not_reading
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.cdi_support import CdiEngine
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import file_lookup
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    Tree,
    TreeLookup,
    gpus,
    machine,
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
OLDEST_PODMAN = engine("podman", "4.1.1", "0.3.0")
OLD_CONTAINERD = engine("containerd", "1.7.2", "0.5.0")
NEW_DOCKER = engine("docker", "28.5.2", "1.0.0")
BLIND_DOCKER = engine("docker", "20.10.24", None, reads=False)
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
    made = document(version, "0", additionalGids=[VIDEO])
    made["containerEdits"]["additionalGids"] = [VIDEO]
    return made


def with_annotations() -> Data:
    made = document("0.6.0")
    made["annotations"] = {"of": "all"}
    made["devices"][0]["annotations"] = {"of": "one"}
    return made


# -- groups ------------------------------------------------------------------------------------------------------------


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
    known, host = machine(*devices), tree.host()
    full = generate_all("nvml", Request(), known, host)[""]
    assert full["cdiVersion"] == "0.7.0" or (gid == 0 and parts)
    made = downgrade_spec(full, [NEW_DOCKER, OLD_PODMAN])
    assert made.document == generate_all("nvml", Request(feature_flags=(NO_GIDS,)), known, host)[""]
    assert list(made.document) == list(full)
    assert str(made.document).count(f"'gid': {VIDEO}") == str(full).count(f"'gid': {VIDEO}")
    assert validate(made.document).errors == ()


def test_groups_are_removed() -> None:
    full = with_groups()
    before = copy.deepcopy(full)
    made = downgrade_spec(full, [NEW_DOCKER, OLD_PODMAN, BLIND_DOCKER])
    assert made.document == document("0.5.0", "0")
    assert full == before
    (sentence,) = made.messages
    assert sentence.startswith(
        "The specification has no additionalGids, because podman 4.9.3 supports CDI up to 0.6.0 only."
    )
    assert "groups of device nodes" in sentence


def test_all_old_engines_are_named() -> None:
    (sentence,) = downgrade_spec(with_groups(), [OLD_PODMAN, NEW_DOCKER, OLD_CONTAINERD]).messages
    assert "podman 4.9.3 supports CDI up to 0.6.0 only and containerd 1.7.2 supports CDI up to 0.5.0 only" in sentence
    assert "docker" not in sentence


@pytest.mark.parametrize(
    "engines",
    [
        [],
        [NEW_DOCKER],
        [engine("podman", "5.1.0", "0.7.0")],
        [BLIND_DOCKER],
        [UNKNOWN_PODMAN],
        [BLIND_DOCKER, UNKNOWN_PODMAN, NEW_DOCKER],
    ],
)
def test_engines_without_limit(engines: list[CdiEngine]) -> None:
    full = with_groups()
    made = downgrade_spec(full, engines)
    assert made.document == with_groups()
    assert made.messages == ()


def test_stated_version_is_lowered() -> None:
    made = downgrade_spec(document("1.1.0"), [OLD_PODMAN])
    assert made == (document("0.3.0"), ())


def test_understated_version() -> None:
    assert downgrade_spec(with_groups("0.3.0"), [OLD_PODMAN]).document == document("0.5.0", "0")


# -- annotations -------------------------------------------------------------------------------------------------------


def test_annotations_are_removed() -> None:
    made = downgrade_spec(with_annotations(), [OLDER_PODMAN])
    assert made.document == document("0.3.0")
    (sentence,) = made.messages
    assert sentence.startswith(
        "The specification has no annotations, because podman 4.3.1 supports CDI up to 0.5.0 only."
    )


def test_annotations_stay() -> None:
    full = {**with_annotations(), "cdiVersion": "0.7.0", "containerEdits": {"additionalGids": [VIDEO]}}
    made = downgrade_spec(full, [OLD_PODMAN]).document
    assert (made["annotations"], made["devices"][0]["annotations"]) == ({"of": "all"}, {"of": "one"})
    assert made["cdiVersion"] == "0.6.0"
    assert made["containerEdits"] == {}


def test_groups_and_annotations_are_removed() -> None:
    full = {**with_groups(), "annotations": {"of": "all"}}
    made = downgrade_spec(full, [OLD_PODMAN, OLD_CONTAINERD])
    assert made.document == document("0.5.0", "0")
    groups, annotations = made.messages
    assert "podman 4.9.3" in groups
    assert "podman" not in annotations
    assert "containerd 1.7.2" in annotations


# -- what nobody can leave out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("full", "weak", "what", "way_out"),
    [
        (
            document("0.5.0", "0"),
            OLDEST_PODMAN,
            "a device name that begins with a digit",
            "device_name_strategies: [type-index]",
        ),
        (document("0.6.0", kind="nvidia.com/gpu.all"), OLDER_PODMAN, "a dot in the class", "a class without a dot"),
        (document("0.5.0", node={"hostPath": "/x/nvidia0"}), OLDEST_PODMAN, "a different path of a device", "dev_root"),
        (document("0.7.0", intelRdt={"closID": "one"}), OLD_PODMAN, "a class of Intel RDT", "Leave out intelRdt."),
    ],
)
def test_required_fields_are_refused(full: Data, weak: CdiEngine, what: str, way_out: str) -> None:
    with pytest.raises(NvidiaError) as caught:
        downgrade_spec(full, [NEW_DOCKER, weak])
    message = str(caught.value)
    assert message.startswith(
        f"podman {weak.version} supports CDI up to {weak.newest} only, but the specification needs "
    )
    assert f"needs {full['cdiVersion']}" in message
    assert what in message
    assert way_out in message
    assert "newer version of podman" in message
    assert "for_engines" in message


def test_error_names_only_remaining_fields() -> None:
    with pytest.raises(
        NvidiaError, match=r"needs 0\.5\.0, because it has a device name .* \(devices\[0\]\.name\)"
    ) as caught:
        downgrade_spec(with_groups(), [OLDEST_PODMAN])
    assert "groups" not in str(caught.value)


def test_error_names_only_oldest_engines() -> None:
    with pytest.raises(NvidiaError) as caught:
        downgrade_spec(document("0.6.0", kind="nvidia.com/gpu.all"), [OLDER_PODMAN, OLD_CONTAINERD, OLD_PODMAN])
    message = str(caught.value)
    assert "podman 4.3.1" in message
    assert "containerd 1.7.2" in message
    assert "4.9.3" not in message


# -- folders -----------------------------------------------------------------------------------------------------------


def test_engines_not_reading() -> None:
    podman = engine("podman", "5.5.2", "0.8.0")._replace(folders=("/etc/cdi",))
    engines = [podman, NEW_DOCKER, BLIND_DOCKER, UNKNOWN_PODMAN]
    assert engines_not_reading(engines, "/etc/cdi") == []
    (sentence,) = engines_not_reading(engines, "/var/run/cdi")
    assert sentence.startswith("podman 5.5.2 reads specifications in /etc/cdi only")


def test_engines_not_reading_other_folder() -> None:
    assert len(engines_not_reading([NEW_DOCKER, BLIND_DOCKER, OLD_PODMAN], "/srv/cdi")) == 2
