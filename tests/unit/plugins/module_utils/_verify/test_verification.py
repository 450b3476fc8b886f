# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.verify import (
    LEVELS,
    LINKS,
    BrokenChainError,
    Verification,
    VerifyOptions,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import UNIT, docker_host
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker_containers import (
    DockerWithContainers,
)

NVIDIA = "/usr/bin/nvidia-container-runtime"
DAEMON_JSON = "/etc/docker/daemon.json"


@pytest.fixture
def docker() -> t.Iterator[DockerWithContainers]:
    """A Docker that runs with what its file says."""
    with docker_host() as plain:
        made = DockerWithContainers(Path(plain.root, "host"))
        made.write(NVIDIA, mode=0o755)
        made.write(DAEMON_JSON, json.dumps({"runtimes": {"nvidia": {"path": NVIDIA}}}))
        made.info["Runtimes"]["nvidia"] = {"path": NVIDIA}
        made.runs()
        with made.answers():
            yield made


def verify(docker: DockerWithContainers, check_mode: bool = False, **wanted: t.Any) -> dict[str, t.Any]:
    given = VerifyOptions("docker", **{"image": "gpufleet/busybox:1", **wanted})
    return Verification(given, docker.host, docker.run).execute(check_mode)


def failure(docker: DockerWithContainers, **wanted: t.Any) -> tuple[str, dict[str, t.Any]]:
    with pytest.raises(BrokenChainError) as caught:
        verify(docker, **wanted)
    details = dict(caught.value.details)
    assert str(caught.value).startswith(f"{details['broken']}: ")
    first = next(check["link"] for check in details["checks"] if check["ok"] is False)
    assert first == details["broken"]
    return str(caught.value), details


def looked_at(result: dict[str, t.Any]) -> list[str]:
    return [check["link"] for check in result["checks"]]


def give_gpu(docker: DockerWithContainers) -> None:
    for path in ("/proc/driver/nvidia/gpus/0/information", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"):
        docker.write(path)
    docker.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")
    for name in ("nvidia-container-runtime-hook", "nvidia-container-cli", "nvidia-ctk"):
        docker.write(f"/usr/bin/{name}", mode=0o755)


def test_what_there_is() -> None:
    assert LEVELS == ("config", "engine", "gpu")
    assert LINKS == (
        "driver", "device nodes", "toolkit", "config.toml", "engine file", "live engine", "CDI", "container",
    )  # fmt: skip


# -- the engine ----------------------------------------------------------------------------------------------------


def test_config(docker: DockerWithContainers) -> None:
    assert verify(docker, image=None) == {
        "changed": False,
        "checks": [
            {"link": "engine file", "ok": True, "detail": f"{DAEMON_JSON} registers nvidia as {NVIDIA}."},
            {"link": "live engine", "ok": True, "detail": "The running docker 26.1.5 knows nvidia."},
        ],
        "broken": None,
        "output": "",
        "warnings": [],
    }
    assert docker.kept == {}
    assert not docker.path(lock.LOCK_FILE).exists()


def test_a_runtime_that_is_not_registered(docker: DockerWithContainers) -> None:
    message, details = failure(docker, runtime_name="nope")
    assert "register no runtime nope. Registered: nvidia." in message
    assert "nvidia_runtime_config" in message
    assert [check["ok"] for check in details["checks"]] == [False, False]


def test_a_runtime_whose_program_is_missing(docker: DockerWithContainers) -> None:
    docker.path(NVIDIA).chmod(0o644)
    message, _details = failure(docker)
    assert message.startswith(f"engine file: {DAEMON_JSON} registers nvidia as {NVIDIA}, which is no executable file")


def test_a_runtime_of_the_units_flags(docker: DockerWithContainers) -> None:
    docker.write(DAEMON_JSON, "{}")
    docker.write(UNIT, f"[Service]\nExecStart=/usr/bin/dockerd -H fd:// --add-runtime nvidia={NVIDIA}\n")
    assert verify(docker)["checks"][0]["detail"].endswith(f"registers nvidia as {NVIDIA}.")
    docker.path(NVIDIA).unlink()
    assert failure(docker)[1]["broken"] == "engine file"


@pytest.mark.parametrize(
    ("entry", "ok"),
    [
        ({"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": NVIDIA}}, True),
        ({"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "/opt/none"}}, False),
        ({"runtimeType": "io.containerd.kata.v2"}, True),
    ],
)
def test_a_runtime_by_type(docker: DockerWithContainers, entry: dict[str, t.Any], ok: bool) -> None:
    docker.write(DAEMON_JSON, json.dumps({"runtimes": {"nvidia": entry}}))
    docker.info["Runtimes"]["nvidia"] = entry
    if ok:
        assert verify(docker)["checks"][0]["ok"]
    else:
        assert failure(docker)[1]["broken"] == "engine file"


def test_a_file_that_is_broken(docker: DockerWithContainers) -> None:
    docker.write(DAEMON_JSON, "{")
    message, details = failure(docker)
    assert f"{DAEMON_JSON}, line 1, column 2" in message
    assert details["checks"][1]["ok"]


def test_an_engine_that_does_not_run(docker: DockerWithContainers) -> None:
    docker.runs(name="other")
    message, details = failure(docker, level="engine")
    assert message.startswith("live engine: docker does not run as docker.service. Start it with systemctl start")
    assert looked_at(details) == ["engine file", "live engine"]


def test_an_engine_that_does_not_answer(docker: DockerWithContainers) -> None:
    message, _details = failure(docker, socket="/run/other.sock")
    assert "docker runs, but does not answer on /run/other.sock" in message


def test_an_engine_that_has_not_taken_its_file_over(docker: DockerWithContainers) -> None:
    docker.info["Runtimes"]["nvidia"] = {"path": "/opt/nvidia-container-runtime"}
    message, _details = failure(docker)
    assert f"docker runs with something else than {DAEMON_JSON} says by now" in message
    del docker.info["Runtimes"]["nvidia"]
    message, details = failure(docker, level="engine")
    assert "The running docker knows no runtime nvidia. It knows: io.containerd.runc.v2, runc." in message
    assert "nvidia_runtime_restart" in message
    assert looked_at(details) == ["engine file", "live engine"]
    assert docker.made == []


def test_another_file_and_unit(docker: DockerWithContainers) -> None:
    docker.write("/srv/daemon.json", json.dumps({"runtimes": {"nvidia": {"path": "/opt/none"}}}))
    assert failure(docker, config_path="/srv/daemon.json")[0].startswith("engine file: /srv/daemon.json registers")
    assert "does not run as other.service" in failure(docker, service="other.service")[0]


# -- the container -------------------------------------------------------------------------------------------------


def test_engine(docker: DockerWithContainers) -> None:
    result = verify(docker, level="engine")
    assert result["checks"][2] == {
        "link": "container",
        "ok": True,
        "detail": "true in a container of gpufleet/busybox:1, started through nvidia, ended with status 0.",
    }
    assert (result["changed"], result["broken"], result["output"]) == (False, None, "hello")
    (made,) = docker.made
    assert made["Entrypoint"] == ["true"]
    # The image's own wish for GPUs must not count.
    assert made["Env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert docker.kept == {}
    assert not docker.path(lock.LOCK_FILE).exists()


def test_the_lock_is_held_meanwhile(docker: DockerWithContainers) -> None:
    held: list[bool] = []
    about = docker._about

    def noted(what: str) -> tuple[int, bytes]:
        held.append(docker.path(lock.LOCK_FILE).exists())
        return about(what)

    docker._about = noted  # type: ignore[method-assign]
    verify(docker, level="engine", command=("sh", "-c", "true"))
    assert held
    assert all(held)
    assert docker.made[0]["Entrypoint"] == ["sh", "-c", "true"]


def test_a_container_that_fails(docker: DockerWithContainers) -> None:
    docker.status = 1
    docker.said = [(2, b"one\ntwo\nthree\nfour\nfive\nsix https://u:secret@h/\n")]
    message, details = failure(docker, level="engine")
    assert details["broken"] == "container"
    assert "ended with status 1. It said: two / three / four / five / six https://********@h/." in message
    assert "journalctl --unit docker.service" in message
    # The likeliest cause is told, but is no link that was asked for.
    assert "Of what a GPU needs, this is not right either: driver: /proc/driver/nvidia/version is not there" in message
    assert looked_at(details) == ["engine file", "live engine", "container"]
    assert "secret" not in message + json.dumps(details)
    give_gpu(docker)
    assert "not right either" not in failure(docker, level="engine")[0]


@pytest.mark.parametrize(
    ("refused", "status", "words"),
    [
        ({"POST /containers/gpufleet": (500, 'exec: "x": executable file not found in $PATH')}, 0, "no such program"),
        ({}, 127, "no such program"),
        ({"GET /images/": (404, "")}, 0, "is not on this host"),
        ({}, 137, "It was killed"),
    ],
)
def test_failures_that_explain_themselves(
    docker: DockerWithContainers, refused: dict[str, tuple[int, str]], status: int, words: str
) -> None:
    docker.refused, docker.status = refused, status
    message, _details = failure(docker, level="engine")
    assert words in message
    assert "not right either" not in message or status == 137


def test_what_cannot_be_removed_is_told(docker: DockerWithContainers) -> None:
    docker.refused = {"DELETE": (500, "busy")}
    (warning,) = verify(docker, level="engine")["warnings"]
    assert warning.endswith("cannot be removed: busy.")
    docker.status = 1
    assert "cannot be removed: busy." in failure(docker, level="engine")[0]


@pytest.mark.parametrize("level", ["engine", "gpu"])
def test_check_mode_starts_nothing(docker: DockerWithContainers, level: str) -> None:
    give_gpu(docker)
    result = verify(docker, check_mode=True, level=level)
    assert result["checks"][-1]["ok"] is None
    assert result["broken"] is None
    assert result["warnings"] == ["container: No container is started in check mode."]
    assert docker.made == []


# -- the GPU -------------------------------------------------------------------------------------------------------


def test_gpu(docker: DockerWithContainers) -> None:
    give_gpu(docker)
    result = verify(docker, level="gpu")
    assert looked_at(result) == [
        "driver", "device nodes", "toolkit", "config.toml", "engine file", "live engine", "container",
    ]  # fmt: skip
    assert all(check["ok"] for check in result["checks"])
    (made,) = docker.made
    assert made["Entrypoint"] == ["nvidia-smi", "-L"]
    assert made["Env"] == ["NVIDIA_VISIBLE_DEVICES=all"]


def test_gpu_without_nvidia_smi(docker: DockerWithContainers) -> None:
    give_gpu(docker)
    docker.status = 127
    assert "brings nvidia-smi along" in failure(docker, level="gpu")[0]


def test_first_broken_link_in_the_order_of_the_chain(docker: DockerWithContainers) -> None:
    message, details = failure(docker, level="gpu", runtime_name="nvidia-cdi")
    assert details["broken"] == "driver"
    assert looked_at(details) == [
        "driver", "device nodes", "toolkit", "config.toml", "engine file", "live engine", "CDI",
    ]  # fmt: skip
    assert message.startswith("driver: ")
    give_gpu(docker)
    docker.path("/dev/nvidia-uvm").unlink()
    assert failure(docker, level="gpu")[0] == (
        "device nodes: /dev/nvidia-uvm is not there. Run nvidia-modprobe -u -c 0."
    )
    assert docker.made == []


# -- hosts ---------------------------------------------------------------------------------------------------------


def test_an_offline_tree(docker: DockerWithContainers) -> None:
    offline = HostFS(docker.host.root, live=False)
    result = Verification(VerifyOptions("docker"), offline, docker.run).execute(check_mode=False)
    assert [check["ok"] for check in result["checks"]] == [True, None]
    assert result["warnings"] == ["live engine: An offline tree has no running docker: only its files were looked at."]
    assert docker.commands == []
    for level in ("engine", "gpu"):
        with pytest.raises(NvidiaError, match="Use level: config, or set host_root_live: true"):
            Verification(VerifyOptions("docker", level=level, image="x"), offline, docker.run)


@pytest.mark.parametrize("name", ["runtime_dir", "config_path", "socket"])
def test_paths_are_the_hosts(docker: DockerWithContainers, name: str) -> None:
    for path in ("relative", docker.host.root + "/x"):
        with pytest.raises(NvidiaError, match=name):
            Verification(VerifyOptions("docker", **{name: path}), docker.host, docker.run)  # type: ignore[arg-type]
