# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import info as gpu_info
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import host_programs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.verify import (
    Verification,
    VerificationError,
    VerifyOptions,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.visible_gpus import COMMAND, NODES_COMMAND
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_cri import FakeCri, cri_host
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import UNIT, docker_host
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker_containers import DockerWithContainers
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import INFORMATION
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.rancher_hosts import node_with

NVIDIA = "/usr/bin/nvidia-container-runtime"
DAEMON_JSON = "/etc/docker/daemon.json"
ENGINE_CHECKS = ["engine file", "live engine"]
GPU_CHECKS = ["driver", "device nodes", *ENGINE_CHECKS]


@pytest.fixture
def docker() -> t.Iterator[DockerWithContainers]:
    """A Docker that runs with its current file."""
    with docker_host() as plain:
        made = DockerWithContainers(Path(plain.root, "host"))
        made.write(NVIDIA, mode=0o755)
        made.write(DAEMON_JSON, json.dumps({"runtimes": {"nvidia": {"path": NVIDIA}}}))
        made.info["Runtimes"]["nvidia"] = {"path": NVIDIA}
        made.runs()
        with made.answers():
            yield made


UUIDS = [f"GPU-{number:08d}-0000-0000-0000-000000000000" for number in (1, 2)]
# The output of a container without nvidia-smi, and of one with it.
NODES = ["device node /dev/nvidia0", "device node /dev/nvidia1"]
LISTED = [f"GPU {number}: NVIDIA L4 (UUID: {uuid})" for number, uuid in enumerate(UUIDS)]
DEVICE = {"name": "all", "containerEdits": {"env": ["A=b"]}}
SPECIFICATION = json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [DEVICE]})


def seen(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def add_gpu(docker: DockerWithContainers, cdi: bool = False) -> None:
    """Add two GPUs, and the toolkit."""
    for number, uuid in enumerate(UUIDS):
        bus = f"0000:0{number + 1}:00.0"
        information = INFORMATION.format(name="NVIDIA L4", uuid=uuid, bus=bus, minor=number, excluded="No")
        docker.write(f"/proc/driver/nvidia/gpus/{bus}/information", information)
    for path in ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1"):
        docker.write(path)
    docker.gpu_output = seen([*NODES, *LISTED])
    if cdi:
        docker.write("/etc/cdi/nvidia.json", SPECIFICATION)
    docker.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")
    for name in ("nvidia-container-runtime-hook", "nvidia-container-cli", "nvidia-ctk"):
        docker.write(f"/usr/bin/{name}", mode=0o755)


def verify(docker: DockerWithContainers, check_mode: bool = False, **options: t.Any) -> dict[str, t.Any]:
    given = VerifyOptions("docker", **{"image": "gpufleet/busybox:1", **options})
    return Verification(given, docker.host, docker.run).execute(check_mode)


def failure(docker: DockerWithContainers, **options: t.Any) -> tuple[str, dict[str, t.Any]]:
    with pytest.raises(VerificationError) as caught:
        verify(docker, **options)
    details = dict(caught.value.details)
    assert str(caught.value).startswith(f"{details['failed_check']}: ")
    assert details["failed_check"] == next(check["name"] for check in details["checks"] if check["ok"] is False)
    return str(caught.value), details


def names(result: dict[str, t.Any]) -> list[str]:
    return [check["name"] for check in result["checks"]]


# -- the engine ------------------------------------------------------------------------------------------------------


def test_level_config(docker: DockerWithContainers) -> None:
    assert verify(docker, image=None) == {
        "changed": False,
        "checks": [
            {"name": "engine file", "ok": True, "detail": f"{DAEMON_JSON} registers nvidia as {NVIDIA}."},
            {"name": "live engine", "ok": True, "detail": "The running docker 26.1.5 has nvidia."},
        ],
        "failed_check": None,
        "gpus": [],
        "injection": None,
        "output": "",
        "summary": "verified",
        "verified": False,
        "warnings": [],
    }
    assert docker.kept == {}
    assert not docker.path(lock.LOCK).exists()


def test_runtime_that_is_not_registered(docker: DockerWithContainers) -> None:
    message, details = failure(docker, runtime_name="nope")
    assert f"{DAEMON_JSON} does not register the runtime nope. Registered runtimes: nvidia. Register it" in message
    assert [check["ok"] for check in details["checks"]] == [False, False]


@pytest.mark.parametrize(
    ("entry", "ok"),
    [
        ({"path": "/opt/none"}, False),
        ({"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": NVIDIA}}, True),
        ({"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "/opt/none"}}, False),
        ({"runtimeType": "io.containerd.kata.v2"}, True),
    ],
)
def test_program_of_the_runtime(docker: DockerWithContainers, entry: dict[str, t.Any], ok: bool) -> None:
    docker.write(DAEMON_JSON, json.dumps({"runtimes": {"nvidia": entry}}))
    docker.info["Runtimes"]["nvidia"] = entry
    if ok:
        assert verify(docker)["checks"][0]["ok"]
    else:
        message = failure(docker)[0]
        assert message.startswith(f"engine file: {DAEMON_JSON} registers nvidia as /opt/none, which is not an")


def test_runtime_of_a_flag(docker: DockerWithContainers) -> None:
    docker.write(DAEMON_JSON, "{}")
    docker.write(UNIT, f"[Service]\nExecStart=/usr/bin/dockerd -H fd:// --add-runtime nvidia={NVIDIA}\n")
    assert verify(docker)["checks"][0]["detail"].endswith(f"registers nvidia as {NVIDIA}.")
    docker.path(NVIDIA).unlink()
    assert failure(docker)[1]["failed_check"] == "engine file"


def test_invalid_file(docker: DockerWithContainers) -> None:
    docker.write(DAEMON_JSON, "{")
    message, details = failure(docker)
    assert f"{DAEMON_JSON}, line 1, column 2" in message
    assert details["checks"][1]["ok"]


def test_engine_that_does_not_run_or_answer(docker: DockerWithContainers) -> None:
    message = failure(docker, socket="/run/other.sock")[0]
    assert "docker runs, but does not answer on /run/other.sock. Read `journalctl" in message
    docker.runs(name="other")
    message, details = failure(docker, level="engine")
    assert message.startswith("live engine: docker does not run as docker.service. Start it with `systemctl start")
    assert names(details) == ENGINE_CHECKS


def test_engine_that_has_not_applied_its_file(docker: DockerWithContainers) -> None:
    docker.info["Runtimes"]["nvidia"] = {"path": "/opt/nvidia-container-runtime"}
    assert f"The settings of the running docker differ from {DAEMON_JSON}." in failure(docker)[0]
    del docker.info["Runtimes"]["nvidia"]
    message, details = failure(docker, level="engine")
    assert "docker does not have the runtime nvidia. Its runtimes: io.containerd.runc.v2, runc." in message
    assert "nvidia_runtime_restart" in message
    assert names(details) == ENGINE_CHECKS
    assert docker.made == []


def test_other_file_and_unit(docker: DockerWithContainers) -> None:
    docker.write("/srv/daemon.json", json.dumps({"runtimes": {"nvidia": {"path": "/opt/none"}}}))
    assert failure(docker, config_path="/srv/daemon.json")[0].startswith("engine file: /srv/daemon.json registers")
    assert "does not run as other.service" in failure(docker, service="other.service")[0]


# -- the container ---------------------------------------------------------------------------------------------------


def test_level_engine(docker: DockerWithContainers) -> None:
    result = verify(docker, level="engine")
    check = result["checks"][2]
    assert (check["name"], check["ok"]) == ("container", True)
    assert "`true`" in check["detail"]
    assert " gpufleet/busybox:1 with the runtime nvidia " in check["detail"]
    assert " status 0." in check["detail"]
    assert (result["changed"], result["failed_check"], result["output"]) == (False, None, "hello")
    (made,) = docker.made
    assert made["Entrypoint"] == ["true"]
    # It replaces the value of the image.
    assert made["Env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert docker.kept == {}


def test_holds_the_lock_while_a_container_runs(docker: DockerWithContainers, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []
    answer = docker._about

    def about(request: str) -> tuple[int, bytes]:
        try:
            with lock.host_lock(docker.host, 0):
                held.append(False)
        except HostError:
            held.append(True)
        return answer(request)

    monkeypatch.setattr(docker, "_about", about)
    verify(docker, level="engine", command=("sh", "-c", "true"))
    assert set(held) == {True}
    assert docker.made[0]["Entrypoint"] == ["sh", "-c", "true"]


def test_container_that_fails(docker: DockerWithContainers) -> None:
    docker.status = 1
    docker.output = [(2, b"one\ntwo\nthree\nfour\nfive\nsix https://u:secret@h/\n")]
    message, details = failure(docker, level="engine")
    assert details["failed_check"] == "container"
    assert "exited with status 1. Output: two / three / four / five / six https://********@h/." in message
    assert "journalctl --unit docker.service" in message
    assert names(details) == [*ENGINE_CHECKS, "container"]
    assert "secret" not in message + json.dumps(details)


@pytest.mark.parametrize(
    ("refused", "status", "reason"),
    [
        (
            {"POST /containers/gpufleet": (400, 'exec: "true": executable file not found in $PATH')},
            127,
            "Set command or",
        ),
        ({}, 127, "The image does not contain the program"),
        ({"GET /images/": (404, "")}, 0, "is not on this host"),
        ({}, 137, "It was killed"),
    ],
)
def test_failures_with_a_known_cause(
    docker: DockerWithContainers, refused: dict[str, tuple[int, str]], status: int, reason: str
) -> None:
    docker.refused, docker.status = refused, status
    assert reason in failure(docker, level="engine")[0]


def test_container_that_cannot_be_removed(docker: DockerWithContainers) -> None:
    docker.refused = {"DELETE": (500, "busy")}
    (warning,) = verify(docker, level="engine")["warnings"]
    assert warning.endswith("cannot be removed: busy.")
    docker.status = 1
    assert "cannot be removed: busy." in failure(docker, level="engine")[0]


@pytest.mark.parametrize("level", ["engine", "gpu"])
def test_check_mode_starts_no_container(docker: DockerWithContainers, level: str) -> None:
    add_gpu(docker)
    result = verify(docker, check_mode=True, level=level)
    assert (result["verified"], result["summary"]) == (False, "not verified: check mode")
    assert (result["checks"][-1]["ok"], result["failed_check"]) == (None, None)
    (warning,) = result["warnings"]
    assert warning.startswith("container: ")
    assert "check mode" in warning
    assert docker.made == []


# -- GPUs ------------------------------------------------------------------------------------------------------------


def test_level_gpu(docker: DockerWithContainers) -> None:
    add_gpu(docker)
    result = verify(docker, level="gpu")
    assert names(result) == [*GPU_CHECKS, "container"]
    assert all(check["ok"] for check in result["checks"])
    assert " `--runtime nvidia` sees 2 of 2 GPUs " in result["checks"][-1]["detail"]
    assert result["gpus"][1] == {"name": "GPU 1", "uuid": UUIDS[1], "nodes": ["/dev/nvidia1"], "seen": True}
    assert (result["verified"], result["injection"]) == (True, "--runtime nvidia")
    assert result["summary"] == "2 of 2 GPUs (--runtime nvidia)"
    (made,) = docker.made
    assert made["Entrypoint"] == list(COMMAND)
    assert made["Env"] == ["NVIDIA_VISIBLE_DEVICES=all"]
    docker.status = 9
    message = failure(docker, level="gpu")[0]
    assert (
        "container: `nvidia-smi -L` in a container of gpufleet/busybox:1 with the runtime nvidia exited with" in message
    )


def test_gpus_that_the_container_does_not_see(docker: DockerWithContainers) -> None:
    add_gpu(docker)
    # The device node without the UUID is not enough if nvidia-smi runs.
    docker.gpu_output = seen([*NODES, LISTED[0]])
    message, details = failure(docker, level="gpu")
    assert f"sees 1 of 2 GPUs of this host. It does not see GPU 1 ({UUIDS[1]}, /dev/nvidia1)." in message
    assert [gpu["seen"] for gpu in details["gpus"]] == [True, False]
    assert (details["summary"], details["verified"]) == ("1 of 2 GPUs (--runtime nvidia)", False)
    # Without nvidia-smi the device nodes count.
    docker.gpu_output = seen(NODES)
    assert verify(docker, level="gpu")["verified"]
    docker.gpu_output = seen(NODES[1:])
    assert [gpu["seen"] for gpu in failure(docker, level="gpu")[1]["gpus"]] == [False, True]


def test_variable_without_effect(docker: DockerWithContainers) -> None:
    add_gpu(docker)
    docker.gpu_output = b""
    setting = "accept-nvidia-visible-devices-envvar-when-unprivileged = {}\n"
    for value, expected in (("true", False), ("false", True)):
        docker.write("/etc/nvidia-container-runtime/config.toml", setting.format(value))
        assert ("makes NVIDIA_VISIBLE_DEVICES ineffective" in failure(docker, level="gpu")[0]) is expected


def test_settings_of_the_runtime(docker: DockerWithContainers) -> None:
    add_gpu(docker)
    config, root = "/etc/nvidia-container-runtime/config.toml", '[nvidia-container-cli]\nroot = "/opt/driver"\n'
    docker.write(config, root)
    docker.path("/opt/driver").mkdir(parents=True)
    docker.path("/dev").rename(docker.path("/opt/driver/dev"))
    assert verify(docker, level="gpu", command=("true",))["checks"][1]["ok"]
    # In mode cdi, the container gets the nodes of the specification.
    docker.path("/loop").symlink_to("loop")
    for folder, problem in (
        ("/srv/cdi", "No CDI specification in /srv/cdi describes"),
        ("/loop/cdi", "symbolic links"),
    ):
        docker.write(config, f'{root}[nvidia-container-runtime]\nmode = "cdi"\nmodes.cdi.spec-dirs = ["{folder}"]\n')
        message, details = failure(docker, level="gpu")
        assert message.startswith("device nodes: Missing device nodes: /dev/nvidiactl")
        assert problem in details["checks"][-1]["detail"]


def test_own_command_is_not_compared(docker: DockerWithContainers) -> None:
    add_gpu(docker)
    docker.gpu_output = b""
    result = verify(docker, level="gpu", command=("nvidia-smi",))
    assert (result["verified"], result["gpus"], result["summary"]) == (True, [], "verified")


def test_host_without_a_usable_gpu(docker: DockerWithContainers, monkeypatch: pytest.MonkeyPatch) -> None:
    add_gpu(docker)
    monkeypatch.setattr(gpu_info, "describe_gpus", lambda _host: {"devices": []})
    assert "This host has no GPU that a container can use. Create MIG" in failure(docker, level="gpu")[0]


# -- without an image --------------------------------------------------------------------------------------------------


def test_programs_of_the_host(docker: DockerWithContainers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_programs, "archive", lambda _host: b"archive")
    add_gpu(docker)
    for level, command in (("engine", ["/bin/sh", "-c", "true"]), ("gpu", list(COMMAND))):
        assert verify(docker, level=level, image=None)["verified"]
        assert docker.made[-1]["Entrypoint"] == command
    assert docker.archives == [b"archive"] * 2
    assert docker.imported == {}


def test_programs_that_cannot_be_used(docker: DockerWithContainers) -> None:
    docker.write("/bin/sh", "#!/bin/true\n", mode=0o755)
    message = failure(docker, level="engine", image=None)[0]
    assert message.startswith("container: /bin/sh of this host is not a 64-bit ELF program. Run the module")
    assert docker.made == []


# -- other injections --------------------------------------------------------------------------------------------------


@pytest.fixture
def unregistered(docker: DockerWithContainers) -> DockerWithContainers:
    """A Docker with GPUs, CDI and the toolkit, but without the runtime."""
    docker.write(DAEMON_JSON, '{"features": {"cdi": true}}')
    del docker.info["Runtimes"]["nvidia"]
    add_gpu(docker, cdi=True)
    docker.info["CDISpecDirs"] = ["/etc/cdi"]
    return docker


def test_cdi_of_docker(unregistered: DockerWithContainers) -> None:
    result = verify(unregistered, level="gpu", method="auto")
    assert names(result) == [*GPU_CHECKS, "CDI", "container"]
    assert result["summary"] == "2 of 2 GPUs (--device nvidia.com/gpu=all)"
    (made,) = unregistered.made
    assert "Runtime" not in made["HostConfig"]
    # The default runtime may be that of NVIDIA, which must not add GPUs.
    assert made["Env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    unregistered.gpu_output = b""
    assert "Create the CDI specification again" in failure(unregistered, level="gpu", method="auto")[0]


def test_cdi_of_docker_with_a_driver_container(unregistered: DockerWithContainers) -> None:
    unregistered.path("/run/nvidia/driver").mkdir(parents=True)
    unregistered.path("/dev").rename(unregistered.path("/run/nvidia/driver/dev"))
    assert verify(unregistered, level="gpu", method="auto", command=("true",))["checks"][1]["ok"] is True


@pytest.mark.parametrize("place", ["all", "device", None])
def test_only_nodes_are_compared_without_hooks(unregistered: DockerWithContainers, place: str | None) -> None:
    """Without hooks no container has a link libnvidia-ml.so.1, so nvidia-smi fails in it."""
    hooks = {"hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk"}]}
    device = {**DEVICE, "containerEdits": {"env": ["A=b"], **(hooks if place == "device" else {})}}
    document = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [device]}
    common = {"containerEdits": hooks} if place == "all" else {}
    unregistered.write("/etc/cdi/nvidia.json", json.dumps({**document, **common}))
    result = verify(unregistered, level="gpu", method="auto")
    command = NODES_COMMAND if place is None else COMMAND
    assert unregistered.made[0]["Entrypoint"] == list(command)
    assert ("no hooks" in result["checks"][-1]["detail"]) is (place is None)
    assert result["summary"] == "2 of 2 GPUs (--device nvidia.com/gpu=all)"


def test_gpus_option_of_docker(unregistered: DockerWithContainers) -> None:
    unregistered.write(DAEMON_JSON, "{}")
    del unregistered.info["CDISpecDirs"]
    result = verify(unregistered, level="gpu", method="auto")
    assert result["summary"] == "2 of 2 GPUs (--gpus all)"
    assert unregistered.made[0]["Env"] == []
    unregistered.path("/usr/bin/nvidia-container-runtime-hook").unlink()
    message = failure(unregistered, level="gpu", method="auto")[0]
    assert "does not register the runtime nvidia. Registered runtimes: none. CDI is off in docker. Register" in message


def test_stale_specification_is_not_used(unregistered: DockerWithContainers) -> None:
    unregistered.path("/etc/cdi/nvidia.json").unlink()
    assert verify(unregistered, level="gpu", method="auto")["injection"] == "--gpus all"
    unregistered.path("/usr/bin/nvidia-container-runtime-hook").unlink()
    assert "No CDI specification in" in failure(unregistered, level="gpu", method="auto")[0]


@pytest.mark.parametrize("reported", [True, False])
def test_specifications_are_in_the_directories_of_the_engine(
    unregistered: DockerWithContainers, reported: bool
) -> None:
    """If the engine does not report them, its file counts."""
    specification = unregistered.path("/etc/cdi/nvidia.json").read_text()
    unregistered.path("/etc/cdi/nvidia.json").unlink()
    unregistered.write("/opt/cdi/nvidia.json", specification)
    unregistered.write(DAEMON_JSON, '{"features": {"cdi": true}, "cdi-spec-dirs": ["/opt/cdi"]}')
    if reported:
        unregistered.info["CDISpecDirs"] = ["/opt/cdi"]
    else:
        del unregistered.info["CDISpecDirs"]
    assert verify(unregistered, level="gpu", method="cdi")["summary"] == "2 of 2 GPUs (--device nvidia.com/gpu=all)"
    unregistered.write("/etc/cdi/nvidia.json", specification)
    unregistered.path("/opt/cdi/nvidia.json").unlink()
    assert "No CDI specification in /opt/cdi describes" in failure(unregistered, level="gpu", method="cdi")[0]


@pytest.mark.parametrize("level", ["config", "engine", "gpu"])
def test_cdi_needs_no_runtime(unregistered: DockerWithContainers, level: str) -> None:
    result = verify(unregistered, level=level, method="cdi")
    assert "CDI is on in docker." in [check["detail"] for check in result["checks"]]
    assert ["Runtime" in made["HostConfig"] for made in unregistered.made] == ([] if level == "config" else [False])
    assert bool(result["gpus"]) == (level == "gpu")


@pytest.mark.parametrize("level", ["config", "gpu"])
def test_cdi_must_be_on(unregistered: DockerWithContainers, level: str) -> None:
    unregistered.write(DAEMON_JSON, '{"features": {"cdi": false}}')
    del unregistered.info["CDISpecDirs"]
    message, details = failure(unregistered, level=level, method="cdi")
    assert details["failed_check"] == "engine file"
    assert "CDI is off in docker. " in message
    assert "enable_cdi" in message
    unregistered.write(DAEMON_JSON, '{"features": {"cdi": true}, "cdi-spec-dirs": []}')
    message, _details = failure(unregistered, level=level, method="cdi")
    assert "Remove the empty list cdi-spec-dirs" in message
    assert "enable_cdi" not in message


def test_cdi_of_a_distribution_that_decides_about_it(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    offline = HostFS(str(tmp_path), live=False)
    with pytest.raises(VerificationError, match=r"unknown whether .* Upgrade K3s, or remove this line") as caught:
        Verification(VerifyOptions("containerd", "k3s", method="cdi"), offline, node.run).execute(check_mode=False)
    assert "Set enable_cdi" not in str(caught.value)


def test_only_auto_uses_other_injections(unregistered: DockerWithContainers) -> None:
    for options in ({"level": "gpu"}, {"level": "engine", "method": "auto"}):
        assert failure(unregistered, **options)[1]["failed_check"] == "engine file"
    assert unregistered.made == []


def test_reports_the_first_failed_check(docker: DockerWithContainers) -> None:
    message, details = failure(docker, level="gpu", runtime_name="nvidia-cdi")
    assert names(details) == [*GPU_CHECKS, "CDI"]
    assert message.startswith("driver: ")
    add_gpu(docker)
    docker.path("/dev/nvidia-uvm").unlink()
    assert failure(docker, level="gpu")[0].startswith("device nodes: Missing device nodes: /dev/nvidia-uvm. Run")
    assert docker.made == []


# -- hosts -----------------------------------------------------------------------------------------------------------


def test_offline_tree(docker: DockerWithContainers) -> None:
    offline = HostFS(docker.host.root, live=False)
    result = Verification(VerifyOptions("docker"), offline, docker.run).execute(check_mode=False)
    assert [check["ok"] for check in result["checks"]] == [True, None]
    (warning,) = result["warnings"]
    assert warning.startswith("live engine: ")
    assert "offline tree" in warning
    assert docker.commands == []
    for level in ("engine", "gpu"):
        with pytest.raises(NvidiaError, match="Use level: config, or set host_root_live: true"):
            Verification(VerifyOptions("docker", level=level, image="x"), offline, docker.run)


@pytest.mark.parametrize("name", ["config_path", "socket"])
def test_refuses_paths_outside_the_host(docker: DockerWithContainers, name: str) -> None:
    for path in ("relative", docker.host.root + "/x"):
        with pytest.raises(NvidiaError, match=name):
            Verification(VerifyOptions("docker", **{name: path}), docker.host, docker.run)  # type: ignore[arg-type]


# -- Podman ----------------------------------------------------------------------------------------------------------


def podman_runner(commands: list[list[str]], output: str) -> t.Callable[[list[str]], tuple[int, str, str]]:
    def run(argv: list[str]) -> tuple[int, str, str]:
        commands.append(argv)
        return 0, output if "logs" in argv else "exited 0" if "inspect" in argv else "", ""

    return run


@pytest.mark.parametrize(("level", "devices"), [("engine", []), ("gpu", ["--device=nvidia.com/gpu=all"])])
def test_podman(docker: DockerWithContainers, level: str, devices: list[str]) -> None:
    commands: list[list[str]] = []
    run = podman_runner(commands, "\n".join(NODES))
    add_gpu(docker, cdi=True)
    options = VerifyOptions("podman", level=level, image="busybox:1", runtime_name="nvidia")
    with pytest.raises(VerificationError, match="container: podman is not installed on this host"):
        Verification(options, docker.host, run).execute(check_mode=False)
    docker.write("/usr/bin/podman", mode=0o755)
    result = Verification(options, docker.host, run).execute(check_mode=False)
    # A check that is not needed is no reason for a warning on every run.
    assert result["warnings"] == []
    (started,) = [argv for argv in commands if "run" in argv]
    assert [word for word in started if word.startswith("--device")] == devices
    assert result["summary"] == ("2 of 2 GPUs (--device nvidia.com/gpu=all)" if devices else "verified")


def test_directories_of_podman(docker: DockerWithContainers) -> None:
    add_gpu(docker, cdi=True)
    docker.write("/usr/bin/podman", mode=0o755)
    docker.write("/opt/cdi/nvidia.json", docker.path("/etc/cdi/nvidia.json").read_text())
    docker.path("/etc/cdi/nvidia.json").unlink()
    docker.write("/etc/containers/containers.conf", "[engine]\ncdi_spec_dirs = ['/opt/cdi']\n")
    options = VerifyOptions("podman", level="gpu", image="busybox:1")
    versions = {"podman version 5.8.0\n": "", "podman version 5.4.2\n": "CDI: No CDI specification in /etc/cdi or"}
    for version, message in versions.items():
        answers = podman_runner([], "\n".join(NODES))

        def run(argv: list[str], version: str = version, answers: t.Any = answers) -> tuple[int, str, str]:
            return (0, version, "") if "--version" in argv else answers(argv)

        verification = Verification(options, docker.host, run)
        if message:
            with pytest.raises(VerificationError, match=message):
                verification.execute(check_mode=False)
        else:
            assert verification.execute(check_mode=False)["summary"].startswith("2 of 2 GPUs")


# -- containerd and CRI-O --------------------------------------------------------------------------------------------

CONTAINERD_TOML = "/etc/containerd/config.toml"
CONTAINERD_FILE = f"""version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "{NVIDIA}"
SystemdCgroup = true
"""
NVIDIA_RUNTIME = {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": NVIDIA, "SystemdCgroup": True}}


@pytest.fixture
def cri() -> t.Iterator[FakeCri]:
    """A containerd that runs with its current file."""
    with cri_host() as made:
        write_files(made, {
            "usr/bin/containerd": "",
            NVIDIA: "",
            CONTAINERD_TOML: CONTAINERD_FILE,
            "usr/lib/systemd/system/containerd.service": "[Service]\nExecStart=/usr/bin/containerd -a /run/cri.sock\n",
            "sys/fs/cgroup/system.slice/containerd.service/cgroup.procs": "77\n",
            "proc/77/comm": "containerd\n",
        })  # fmt: skip
        made.config["containerd"] = {"defaultRuntimeName": "runc", "runtimes": {"nvidia": NVIDIA_RUNTIME}}
        with made.answers():
            yield made


def write_files(cri: FakeCri, files: dict[str, str]) -> None:
    for path, content in files.items():
        file = cri.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        file.chmod(0o755)


def verify_pods(cri: FakeCri, run: t.Any = None, engine: str = "containerd") -> dict[str, t.Any]:
    options = VerifyOptions(engine, level="engine", image="busybox:1")
    return Verification(options, cri.host, run or (lambda _argv: (0, "", ""))).execute(check_mode=False)


def pod_failure(cri: FakeCri, run: t.Any = None, engine: str = "containerd") -> str:
    with pytest.raises(VerificationError) as caught:
        verify_pods(cri, run, engine)
    return str(caught.value)


def test_containerd(cri: FakeCri) -> None:
    result = verify_pods(cri)
    assert [check["ok"] for check in result["checks"]] == [True, True, True]
    assert result["output"] == "hello"
    assert cri.pods == {}


def test_containerd_2_reports_its_pause_image_in_its_dump(cri: FakeCri) -> None:
    del cri.config["sandboxImage"]
    commands: list[list[str]] = []

    def run(argv: list[str]) -> tuple[int, str, str]:
        commands.append(argv)
        return 0, "[plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = 'pause:3'\n", "warning"

    assert "The pause image pause:3 is not on this host" in pod_failure(cri, run)
    assert commands == [["chroot", str(cri.root), "/usr/bin/containerd", "--config", CONTAINERD_TOML, "config", "dump"]]
    cri.images["pause:3"] = "sha256:cc"
    assert verify_pods(cri, run)["failed_check"] is None
    # An unknown pause image is not checked.
    assert verify_pods(cri, lambda _argv: (1, "", "x"))["failed_check"] is None
    assert verify_pods(cri, lambda _argv: (0, "= =", ""))["failed_check"] is None


def add_crio(cri: FakeCri) -> None:
    """Add a CRI-O that runs with its current files and answers on the socket."""
    write_files(cri, {
        "usr/bin/crio": "",
        "etc/crio/crio.conf": f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{NVIDIA}"\n',
        "usr/lib/systemd/system/crio.service": "[Service]\nExecStart=/usr/bin/crio --listen /run/cri.sock\n",
        "sys/fs/cgroup/system.slice/crio.service/cgroup.procs": "78\n",
        "proc/78/comm": "crio\n",
    })  # fmt: skip
    cri.config = {"sandboxImage": "pause:1"}


def test_crio(cri: FakeCri) -> None:
    """CRI-O reports the image of pods, but not its runtimes."""
    add_crio(cri)
    result = verify_pods(cri, engine="crio")
    assert [check["ok"] for check in result["checks"]] == [True, True, True]
    assert "does not report its runtimes" in result["checks"][1]["detail"]
    cri.errors["RunPodSandbox"] = "failed to find runtime handler nvidia from runtime list map[crun:0xc0]"
    message = pod_failure(cri, engine="crio")
    assert message.startswith("container: crio cannot start the pod: failed to find runtime handler nvidia")
    # This error is in the table of known ones.
    assert "Register" in message
    assert "journalctl" not in message


# -- GPUs of pods ------------------------------------------------------------------------------------------------------

PROGRAMS = ("nvidia-container-runtime-hook", "nvidia-container-cli", "nvidia-ctk")


def verify_gpus_of_pods(cri: FakeCri, image: str | None = "busybox:1", method: str = "auto") -> dict[str, t.Any]:
    options = VerifyOptions("containerd", level="gpu", method=method, image=image)
    return Verification(options, cri.host, lambda _argv: (0, "", "")).execute(check_mode=False)


@pytest.fixture
def gpu_cri(cri: FakeCri) -> FakeCri:
    """A containerd on a host with one GPU and the toolkit."""
    information = INFORMATION.format(name="NVIDIA L4", uuid=UUIDS[0], bus="0000:01:00.0", minor=0, excluded="No")
    nodes = ("dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia0")
    write_files(cri, {
        "proc/driver/nvidia/gpus/0000:01:00.0/information": information,
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n",
        **dict.fromkeys([*nodes, *(f"usr/bin/{name}" for name in PROGRAMS)], ""),
    })  # fmt: skip
    cri.gpu_log = f"2026-01-01T00:00:00.0Z stdout F {NODES[0]}\n2026-01-01T00:00:00.0Z stdout F {LISTED[0]}\n"
    return cri


def test_gpus_of_containerd(gpu_cri: FakeCri) -> None:
    result = verify_gpus_of_pods(gpu_cri)
    assert result["summary"] == "1 of 1 GPUs (runtime handler nvidia)"
    gpu_cri.gpu_log = ""
    with pytest.raises(VerificationError, match="sees 0 of 1 GPUs"):
        verify_gpus_of_pods(gpu_cri)


@pytest.mark.parametrize("enabled", [True, False])
def test_cdi_of_containerd(gpu_cri: FakeCri, enabled: bool) -> None:
    write_files(gpu_cri, {CONTAINERD_TOML: (
        'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n'
        f"enable_cdi = {str(enabled).lower()}\n"
        '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
    ), "etc/cdi/nvidia.json": SPECIFICATION})  # fmt: skip
    gpu_cri.config["containerd"] = {
        "defaultRuntimeName": "runc",
        "runtimes": {"runc": {"runtimeType": "io.containerd.runc.v2"}},
    }
    gpu_cri.config["enableCDI"] = enabled
    if enabled:
        assert verify_gpus_of_pods(gpu_cri)["summary"] == "1 of 1 GPUs (CDI device nvidia.com/gpu=all)"
    else:
        with pytest.raises(VerificationError, match="CDI is off in containerd"):
            verify_gpus_of_pods(gpu_cri)


def test_without_an_image_is_not_verified(gpu_cri: FakeCri) -> None:
    result = verify_gpus_of_pods(gpu_cri, image=None)
    assert (result["verified"], result["summary"]) == (False, "not verified: no image")
    assert result["checks"][-1]["ok"] is None
    assert gpu_cri.made == []


def test_containerd_without_cri_is_not_verified(gpu_cri: FakeCri) -> None:
    write_files(gpu_cri, {CONTAINERD_TOML: 'disabled_plugins = ["cri"]\n'})
    result = verify_gpus_of_pods(gpu_cri)
    assert (result["verified"], result["summary"]) == (False, "not verified: its CRI is disabled")
    with pytest.raises(VerificationError, match=r"engine file: .* disables the CRI of containerd"):
        verify_gpus_of_pods(gpu_cri, method="runtime")
