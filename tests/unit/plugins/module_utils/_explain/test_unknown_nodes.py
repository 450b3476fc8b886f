# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running containers whose bundle is in a directory that is not known, so that their device nodes are not known."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import explain
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.access import NodeAccess
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.container import Container, User, from_cri
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.contents import Specifications
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.cri import ContainerStatus
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.container_reports import verdict
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.explained_containers import (
    DRIVER,
    HOST,
    LIBRARIES,
    NVIDIA,
    OLD,
    SPECIFICATION,
    SPECIFICATIONS,
    VISIBLE,
    mounts,
    with_cdi,
    with_nvidia,
)

FILES = (f"{LIBRARIES}/libcuda.so.{DRIVER}", f"{LIBRARIES}/libnvidia-ml.so.{DRIVER}")
WITH_FILES = HOST._replace(mountinfo=mounts(*FILES))
IN_USER_NAMESPACE = HOST._replace(mountinfo=mounts("/dev/null", *FILES))


def incomplete() -> Specifications:
    document = {**SPECIFICATION, "containerEdits": {"mounts": SPECIFICATION["containerEdits"]["mounts"]}}
    return SPECIFICATIONS._replace(documents={"/etc/cdi/nvidia.yaml": document})


@pytest.mark.parametrize(
    ("given", "changes", "unknown", "known"),
    [
        (with_cdi("0"), {}, "contents-unknown", "devices-missing"),
        (with_nvidia(), {}, "contents-unknown", "devices-missing"),
        (with_nvidia(), {"version": OLD.version}, "contents-unknown", "devices-missing"),
        # Faults that a container meets only when it starts, and for which nothing may be missing.
        (with_nvidia(), {"program_exists": False}, "contents-unknown", "program-missing"),
        (with_cdi("0"), {"engine_cdi": False}, "contents-unknown", "cdi-disabled"),
        (with_nvidia(), {"library": "550.9"}, "contents-unknown", "driver-library-differs"),
        # It could not have started without them.
        (with_cdi("0"), {"engine_specifications": Specifications()}, "cdi-device-removed", "cdi-device-missing"),
        (with_cdi("0"), {"engine_specifications": incomplete()}, "devices-unknown", "cdi-incomplete"),
        # A node that the low-level runtime makes can belong to the user.
        (with_cdi("0", user=User(1000)), {"nodes": {"/dev/nvidia0": NodeAccess(0o660, 0, 44)}}, "contents-unknown",
         "devices-missing"),
    ],
)  # fmt: skip
def test_nodes_that_may_exist(given: Container, changes: dict[str, t.Any], unknown: str, known: str) -> None:
    found = explain.explain(given, WITH_FILES._replace(**changes))
    assert verdict(found) == (None, unknown), found["message"]
    assert found["missing_devices"] == []
    assert found["advice"]
    # The OCI config and mounted nodes show that they do not.
    assert verdict(explain.explain(given._replace(config={}), WITH_FILES._replace(**changes))) == (False, known)
    assert verdict(explain.explain(given, IN_USER_NAMESPACE._replace(**changes))) == (False, known)


def test_the_message_names_the_nodes() -> None:
    found = explain.explain(with_cdi("0"), WITH_FILES)
    assert "/dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia0" in found["message"]
    nodes = [{"path": path} for path in ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")]
    assert verdict(explain.explain(with_cdi("0", config={"linux": {"devices": nodes}}), WITH_FILES)) == (True, "ok")


def test_files_are_known_without_the_config() -> None:
    """They are always mounted."""
    assert verdict(explain.explain(with_cdi("0"), HOST._replace(mountinfo=mounts()))) == (False, "files-missing")
    stale = HOST._replace(mountinfo=mounts(FILES[0].replace(DRIVER, "535.1.2")))
    assert verdict(explain.explain(with_cdi("0"), stale)) == (False, "libraries-stale")


def test_the_mode_of_a_mounted_node() -> None:
    host = HOST._replace(
        mountinfo=mounts("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", *FILES),
        nodes={"/dev/nvidia0": NodeAccess(0o660, 0, 44)},
    )
    assert verdict(explain.explain(with_cdi("0", user=User(1000)), host)) == (False, "nodes-denied")


@pytest.mark.parametrize(
    ("names", "program", "expected"),
    [
        ((), NVIDIA, (None, "contents-unknown")),
        # The engine adds these itself, before it reports the config.
        (("nvidia.com/gpu=0",), "", (False, "devices-missing")),
    ],
)
def test_the_config_of_a_cri_is_from_before_the_runtime(
    names: tuple[str, ...], program: str, expected: tuple[bool | None, str]
) -> None:
    info = {
        "pid": 488,
        "runtimeOptions": {"BinaryName": program},
        "config": {"CDI_devices": [{"name": name} for name in names]},
        "runtimeSpec": {"process": {"env": [f"{VISIBLE}=all"]}},
    }
    given = from_cri("containerd", "ab", "ns/pod/c", ContainerStatus(1, info), cdi=True)
    assert verdict(explain.explain(given, WITH_FILES)) == expected
    # The bundle has the changes of the runtime.
    assert verdict(explain.explain(given._replace(config_is_final=True), WITH_FILES)) == (False, "devices-missing")
    # An engine that does not report a config.
    del info["runtimeSpec"]
    given = from_cri("containerd", "ab", "ns/pod/c", ContainerStatus(1, info), cdi=True)
    given = given._replace(environment={VISIBLE: "all"}, received=None)
    assert verdict(explain.explain(given, WITH_FILES)) == (None, "contents-unknown")


@pytest.mark.parametrize("point", ["/dev/dri/renderD128", "/dev/nvidia-caps-imex-channels"])
def test_mounts_of_other_devices(point: str) -> None:
    found = explain.explain(with_nvidia(), HOST._replace(mountinfo=mounts(point, *FILES)))
    assert verdict(found) == (None, "contents-unknown")
