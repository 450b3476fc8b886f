# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import host as explain_host
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.container import RUNNING, Container
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.devices import ExplainedGpu
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.host import ExplainedHost, ReportedEngine
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import nvml
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config.runtime_settings import RuntimeSettings
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.checks import GpuChecks
from ansible_collections.gpufleet.nvidia.tests.unit.helpers import gpu_hosts
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_nodes import FakeNodes
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import FakeGpu, FakeMig

if t.TYPE_CHECKING:
    from pathlib import Path

NVIDIA = "/usr/bin/nvidia-container-runtime"
CONFIG = "etc/nvidia-container-runtime/config.toml"
PLAIN = FakeGpu("0000:07:00.0", 1)
WITH_MIG = FakeGpu("0000:47:00.0", 0, mig=1, migs=(FakeMig(0, 3, 0),))


def run(argv: list[str]) -> tuple[int, str, str]:
    outputs = {
        "/usr/bin/nvidia-ctk": "NVIDIA Container Toolkit CLI version 1.18.0\ncommit: 1",
        "/opt/nvidia/nvidia-ctk": "NVIDIA Container Toolkit CLI version 1.17.8",
        "/usr/bin/dockerd": "Docker version 26.1.5, build 411e817",
    }
    return 0, outputs.get(argv[2], ""), ""


class Made:
    """A host with two GPUs, Docker and the toolkit."""

    def __init__(self, root: Path, gpus: tuple[FakeGpu, ...] = (PLAIN,)) -> None:
        self.root = root
        self.host = gpu_hosts.gpu_host(root, gpus)
        for name in ("nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-ctk", "dockerd"):
            self.add(f"usr/bin/{name}", executable=True)

    def add(self, path: str, text: str = "", executable: bool = False) -> None:
        gpu_hosts.write(self.root, {path: text})
        (self.root / path).chmod(0o755 if executable else 0o644)

    def read(self, runtime_dir: str | None = None, **fields: t.Any) -> ExplainedHost:
        given = Container("docker", "3a3a", "web", RUNNING, **{"program": NVIDIA, **fields})
        return explain_host.read_host(given, ReportedEngine("26.1.5", cdi=True), runtime_dir, self.host, run)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_a_host(made: Made) -> None:
    made.add("proc/7/mountinfo", "1 1 0:5 / /dev/nvidia1 rw - devtmpfs udev rw\n")
    found = made.read(pid=7)
    assert found.version == "1.18.0"
    assert (found.config_path, found.config_problem) == ("/etc/nvidia-container-runtime/config.toml", "")
    assert found.settings == RuntimeSettings()
    assert found.programs == {"nvidia-container-runtime-hook"}
    assert found.program_exists
    assert (found.driver_loaded, found.driver, found.cuda) == (True, gpu_hosts.VERSION, None)
    names = ("0", PLAIN.identity(), "0000:07:00.0", "00000000:07:00.0")
    assert found.all_gpus == (ExplainedGpu("GPU 0", names, ("/dev/nvidia1",)),)
    assert found.names_known
    assert (found.engine_cdi, found.engine_version, found.tegra) == (True, "26.1.5", False)
    assert found.engine_specifications.folders == ("/etc/cdi", "/var/run/cdi")
    assert "/dev/nvidia1" in found.mountinfo


def test_directories_of_specifications_that_the_engine_reports(made: Made) -> None:
    given = Container("docker", "3a3a", "web", RUNNING, 7)
    for folders, expected in ((("/opt/cdi",), ("/opt/cdi",)), (None, ("/etc/cdi", "/var/run/cdi"))):
        state = ReportedEngine("28.5.2", cdi=True, folders=folders)
        found = explain_host.read_host(given, state, None, made.host, lambda _argv: (127, "", ""))
        assert found.engine_specifications.folders == expected
        assert found.runtime_specifications.folders == ("/etc/cdi", "/var/run/cdi")


def test_nothing_of_nvidia(tmp_path: Path) -> None:
    found = explain_host.read_host(
        Container("docker", "3a3a", "web", RUNNING, 7, program="runc"),
        ReportedEngine(),
        None,
        HostFS(str(tmp_path), live=True),
        lambda _argv: (127, "", ""),
    )
    assert (found.version, found.driver_loaded, found.driver, found.gpus) == (None, False, None, ())
    assert (found.programs, found.program_exists, found.mountinfo) == (frozenset(), False, "")


@pytest.mark.parametrize(
    ("path", "text", "tegra", "comparable"),
    [
        ("proc/device-tree/compatible", "nvidia,tegra234\0", True, False),
        # On Orin, the driver of the screen is loaded too.
        ("proc/device-tree/compatible sys/module/nvidia/version", "nvidia,tegra234\0", True, False),
        ("dev/dxg", "", False, False),
        ("dev/null", "", False, True),
    ],
)
def test_kinds_of_hosts(tmp_path: Path, path: str, text: str, tegra: bool, comparable: bool) -> None:
    gpu_hosts.write(tmp_path, dict.fromkeys(path.split(), text))
    given = Container("docker", "3a3a", "web", RUNNING, program="runc")
    host = HostFS(str(tmp_path), live=True)
    found = explain_host.read_host(given, ReportedEngine(), None, host, lambda _argv: (127, "", ""))
    assert (found.tegra, found.comparable) == (tegra, comparable)


@pytest.mark.parametrize(
    "text",
    [
        '[nvidia-container-runtime]\nmode = "legacy"\nmodes.cdi.spec-dirs = ["/srv/cdi/", "cdi"]',
        "[nvidia-container-runtime]\nmode = 1\nmodes.cdi.spec-dirs = []",
        "nvidia-container-runtime = 1",
        "mode = =",
    ],
)
def test_the_checks_read_the_same_settings(made: Made, text: str) -> None:
    made.add(CONFIG, text)
    found, checks = made.read(), GpuChecks(made.host, "nvidia", NVIDIA, None)
    assert found.settings == checks.settings()
    assert found.runtime_specifications.folders == checks.settings().cdi_folders


def test_config_toml(made: Made) -> None:
    made.add(CONFIG, 'accept-nvidia-visible-devices-envvar-when-unprivileged = false\nswarm-resource = "X"\n')
    assert made.read().settings == RuntimeSettings(accept_variable=False, swarm_resource="X")
    made.add(CONFIG, "disable-require = 1\n")
    assert made.read().settings.invalid == "disable-require is 1, but must be true or false"
    made.add(CONFIG, "a = 1\nb = =\n")
    assert made.read().config_problem.startswith("/etc/nvidia-container-runtime/config.toml, line 2 is not valid: ")
    (made.root / CONFIG).unlink()
    (made.root / CONFIG).mkdir()
    assert "is not a regular file" in made.read().config_problem


def test_a_toolkit_in_a_directory(made: Made) -> None:
    made.add("opt/nvidia/nvidia-ctk", executable=True)
    made.add("opt/nvidia/.config/nvidia-container-runtime/config.toml", 'swarm-resource = "Y"\n')
    by_program = made.read(program="/opt/nvidia/nvidia-container-runtime")
    by_option = made.read("/opt/nvidia", program="runc")
    for found in (by_program, by_option):
        assert found.version == "1.17.8"
        assert found.settings.swarm_resource == "Y"
    assert not by_program.program_exists


def test_no_program_of_another_user_is_run(made: Made) -> None:
    made.add("opt/nvidia/nvidia-ctk", executable=True)
    made.add("opt/nvidia/.config/nvidia-container-runtime/config.toml", 'swarm-resource = "Y"\n')
    (made.root / "opt").chmod(0o777)
    found = made.read(program="/opt/nvidia/nvidia-container-runtime")
    assert (found.version, found.settings.swarm_resource) == ("1.18.0", "")
    for program in ("/opt/\0/nvidia-container-runtime", f"/{'x' * 5000}/nvidia-container-runtime"):
        assert made.read(program=program).version == "1.18.0"


def test_specifications(made: Made) -> None:
    def specification(*names: str) -> str:
        devices = [{"name": name, "containerEdits": {"env": ["A=b"]}} for name in names]
        return json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices})

    made.add("etc/cdi/a.json", specification("0"))
    made.add("etc/cdi/b.json", "{")
    made.add("run/own/c.json", specification("1"))
    made.add(CONFIG, '[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["/run/own"]\n')
    found = made.read()
    assert found.engine_specifications.devices == {"nvidia.com/gpu=0": "/etc/cdi/a.json"}
    assert found.engine_specifications.edits(["nvidia.com/gpu=0"]) == [{}, {"env": ["A=b"]}]
    assert found.engine_specifications.problems[0].startswith("Engines skip /etc/cdi/b.json.")
    assert found.runtime_specifications.folders == ("/run/own",)
    assert found.runtime_specifications.devices == {"nvidia.com/gpu=1": "/run/own/c.json"}
    (made.root / "etc/cdi/big.json").write_bytes(b" " * (4 << 20))
    assert "larger than 4 MiB" in made.read().engine_specifications.problems[0]


def test_an_engine_that_reads_no_specifications(made: Made) -> None:
    (made.root / "usr/bin/dockerd").unlink()
    made.add("usr/bin/dockerd", executable=True)

    def old(argv: list[str]) -> tuple[int, str, str]:
        return (0, "Docker version 20.10.24", "") if argv[2].endswith("dockerd") else run(argv)

    given = Container("docker", "3a3a", "web", RUNNING, program=NVIDIA)
    found = explain_host.read_host(given, ReportedEngine("20.10.24", None), None, made.host, old)
    assert found.engine_cdi is False
    assert found.engine_specifications.folders == ()


def test_the_running_engine_is_not_the_program_in_path(made: Made) -> None:
    """K3s includes its own containerd."""
    made.add("usr/bin/containerd", executable=True)

    def old(argv: list[str]) -> tuple[int, str, str]:
        return (0, "containerd github.com/containerd/containerd 1.6.20", "") if "containerd" in argv[2] else run(argv)

    given = Container("containerd", "3a3a", "web", RUNNING, program=NVIDIA)
    for version, cdi in (("v2.1.5-k3s1", True), ("v1.7.27", None)):
        engine = ReportedEngine(version, cdi, cdi_advice="Upgrade K3s.")
        found = explain_host.read_host(given, engine, None, made.host, old)
        assert (found.engine_cdi, found.cdi_advice) == (cdi, "Upgrade K3s.")
        assert found.engine_specifications.folders == ("/etc/cdi", "/var/run/cdi")
    found = explain_host.read_host(given, ReportedEngine("", cdi=None), None, made.host, old)
    assert found.engine_cdi is False


def test_mig(tmp_path: Path) -> None:
    found = Made(tmp_path, (PLAIN, WITH_MIG)).read()
    names = [(gpu.name, gpu.usable) for gpu in found.all_gpus]
    assert names == [("GPU 0", True), ("GPU 1", False), ("GPU 1 MIG 0", True)]
    assert found.all_gpus[2].nodes[0] == "/dev/nvidia0"
    assert len(found.all_gpus[2].nodes) == 3
    # /proc has neither the numbers nor the UUIDs of MIG devices.
    assert not found.names_known
    assert [gpu.name for gpu in found.gpus] == ["GPU 0", "GPU 1 MIG 0"]


def test_what_requirements_compare(tmp_path: Path) -> None:
    library = gpu_hosts.compiled(tmp_path)
    made = Made(tmp_path / "host", (PLAIN,))
    gpu_hosts.nvml_files(made.root, library, (PLAIN,), "kind 12040 9 0 2")
    found = made.read(environment={"NVIDIA_REQUIRE_CUDA": "cuda>=12"})
    assert (found.cuda, found.all_gpus[0].arch, found.all_gpus[0].brand) == ("12.4", "9.0", "Tesla")
    # Other images do not need them.
    assert (made.read().cuda, made.read().all_gpus[0].arch) == (None, None)
    gpu_hosts.nvml_files(made.root / "x", library, (PLAIN,))
    (made.root / gpu_hosts.LIBRARY_FOLDER / "nvml.conf").write_text("fail nvmlInit_v2 -1 999\n")
    assert made.read(environment={"CUDA_VERSION": "12"}).cuda is None


GPUS = (
    ExplainedGpu("GPU 0", ("0", "GPU-aa", "00000000:07:00.0"), ("/dev/nvidia1",)),
    ExplainedGpu("GPU 1", ("1", "GPU-bb"), ("/dev/nvidia0",), usable=False),
    ExplainedGpu("GPU 1 MIG 0", ("1:0", "MIG-cc"), ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3")),
)


@pytest.mark.parametrize(
    ("names", "selected", "unknown"),
    [
        (("all",), ["GPU 0", "GPU 1 MIG 0"], ()),
        (("ALL",), ["GPU 0", "GPU 1 MIG 0"], ()),
        (("0",), ["GPU 0"], ()),
        (("gpu-AA", "0"), ["GPU 0"], ()),
        (("00000000:07:00.0",), ["GPU 0"], ()),
        (("1:0",), ["GPU 1 MIG 0"], ()),
        (("1",), ["GPU 1"], ()),
        (("MIG-cc", "7"), ["GPU 1 MIG 0"], ("7",)),
        (("",), [], ()),
        ((), [], ()),
    ],
)
def test_selection(names: tuple[str, ...], selected: list[str], unknown: tuple[str, ...]) -> None:
    found = ExplainedHost(all_gpus=GPUS).select(names)
    assert (found.names, found.unknown, found.certain) == (selected, unknown, True)
    assert ExplainedHost(all_gpus=GPUS, names_known=False).select(names).certain is False


def test_nodes_of_a_selection() -> None:
    assert ExplainedHost(all_gpus=GPUS).select(("1", "1:0")).nodes == ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3")


def test_a_driver_container(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    root, library = "/run/nvidia/driver", gpu_hosts.compiled(made.root)
    made.add(CONFIG, f'[nvidia-container-cli]\nroot = "{root}"\n')
    gpu_hosts.nvml_files(made.root / root[1:], library, (PLAIN,), "kind 12040 9 0 2")
    numbers = {"/dev/nvidiactl": (195, 255), "/dev/nvidia1": (195, 1)}
    FakeNodes(monkeypatch, made.root, {f"{root}{path}": number for path, number in numbers.items()})
    monkeypatch.setattr(nvml, "change_dev", lambda *_arguments: "")
    found = made.read(environment={"NVIDIA_REQUIRE_CUDA": "cuda>=12"})
    assert found.cuda == "12.4"
    assert {path: node.number for path, node in found.nodes.items()} == numbers


def test_the_nri_plugin(made: Made) -> None:
    def read(devices: tuple[str, ...] = ("nvidia.com/gpu=0",)) -> ExplainedHost:
        given = Container("containerd", "3a3a", "training-0/main", RUNNING, nri_devices=devices)
        return explain_host.read_host(given, ReportedEngine("2.0.7", cdi=True), None, made.host, run)

    for path, text in (("run/nri/nri.sock", ""), ("proc/41/comm", "nvidia-toolkit\n"), ("proc/41/status", "Uid:\t0\n")):
        assert not read().nri_plugin
        made.add(path, text)
    assert (read().nri_plugin, read().nri_adds) == (True, False)
    assert not read(()).nri_plugin
