# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.containers import (
    ALL_GPUS,
    LABEL,
    OUTPUT_LIMIT,
    ContainerResult,
    ContainerSpec,
    NotRunError,
    PodmanContainers,
)

BINARY = "/usr/bin/podman"
ORDER = ContainerSpec("gpufleet/busybox:1", ("echo", "hello"), "nvidia", {"A": "b"}, 5.0)

Answer = t.Tuple[int, str, str]


class FakePodman:
    """What podman 4.3 to 5.8 answer, in their words; ``answers`` are others, by the beginning of the command."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.answers: dict[str, Answer] = {}
        self.kept: dict[str, str] = {}
        self.states = ["running 0", "exited 0"]
        self.said: tuple[str, str] = ("hello\n", "")

    def run(self, argv: list[str]) -> Answer:
        assert argv[:3] == ["chroot", "/host", BINARY]
        words = argv[3:]
        self.commands.append(words)
        line = " ".join(words)
        given = next((answer for start, answer in self.answers.items() if line.startswith(start)), None)
        if words[0] == "run":
            (name,) = (word.partition("=")[2] for word in words if word.startswith("--name="))
            self.kept[name] = "made"
        if given is not None:
            return given
        return getattr(self, f"_{words[0]}", self._other)(words)

    def _other(self, _words: list[str]) -> Answer:
        return 0, "", ""

    def _container(self, words: list[str]) -> Answer:
        if words[-1] not in self.kept:
            return 125, "", f'Error: inspecting object: no such container "{words[-1]}"\n'
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return 0, f"{state}\n", ""

    def _logs(self, words: list[str]) -> Answer:
        return (0, *self.said) if words[-1] in self.kept else (125, "", "Error: no container\n")

    def _ps(self, _words: list[str]) -> Answer:
        return 0, "".join(f"{name}\n" for name in self.kept), ""

    def _rm(self, words: list[str]) -> Answer:
        for name in words[words.index("--") + 1 :]:
            self.kept.pop(name)
        return 0, "", ""


@pytest.fixture
def podman() -> FakePodman:
    return FakePodman()


def containers(podman: FakePodman, *devices: str) -> PodmanContainers:
    return PodmanContainers(HostFS("/host", live=True), podman.run, BINARY, devices)


def failure(podman: FakePodman, order: ContainerSpec = ORDER, *devices: str) -> NotRunError:
    with pytest.raises(NotRunError) as caught:
        containers(podman, *devices).run(order)
    assert podman.kept == {}
    return caught.value


def test_a_container_that_ends_well(podman: FakePodman) -> None:
    runner = containers(podman, ALL_GPUS)
    assert runner.run(ORDER) == ContainerResult(0, "hello")
    assert runner.left_behind == ""
    assert podman.kept == {}
    (started,) = [words for words in podman.commands if words[0] == "run"]
    assert started[-2:] == ["--", "gpufleet/busybox:1"]
    options = dict(word.partition("=")[::2] for word in started[1:-2])
    assert options.pop("--name").startswith("gpufleet-verify-")
    assert json.loads(options.pop("--entrypoint")) == ["echo", "hello"]
    assert options == {
        "--detach": "",
        "--pull": "never",
        "--network": "none",
        "--label": f"{LABEL}=1",
        "--stop-timeout": "0",
        "--log-driver": "k8s-file",
        "--log-opt": "max-size=1mb",
        "--env": "A=b",
        "--device": "nvidia.com/gpu=all",
    }


def test_no_devices_unless_asked_for(podman: FakePodman) -> None:
    containers(podman).run(ORDER)
    assert not [word for words in podman.commands for word in words if word.startswith(("--device", "--runtime"))]


@pytest.mark.parametrize(("state", "status"), [("exited 3", 3), ("stopped 137", 137)])
def test_a_container_that_fails(podman: FakePodman, state: str, status: int) -> None:
    podman.states = ["created 0", "initialized 0", state]
    podman.said = ("one\n", "two\n")
    assert containers(podman).run(ORDER) == ContainerResult(status, "one\ntwo")
    assert podman.kept == {}


def test_long_output_is_cut(podman: FakePodman) -> None:
    podman.said = ("x" * 9000, "end")
    output = containers(podman).run(ORDER).output
    assert output.endswith("xend")
    assert len(output) == OUTPUT_LIMIT + len("[...] ")


def test_an_image_that_is_not_there_is_not_pulled(podman: FakePodman) -> None:
    podman.answers["image exists -- --strange"] = (1, "", "")
    missing = failure(podman, ORDER._replace(image="--strange"))
    assert missing.problem == "The image --strange is not on this host, and nothing is pulled here"
    assert "podman load" in missing.advice
    assert not missing.tried
    assert len(podman.commands) == 1


def test_an_image_that_podman_does_not_understand(podman: FakePodman) -> None:
    podman.answers["image exists"] = (125, "", 'time="x" level=warning msg="y"\nError: invalid reference format\n')
    refused = failure(podman)
    assert refused.problem == (
        "podman does not say whether it has the image gpufleet/busybox:1: invalid reference format"
    )
    assert not refused.tried


@pytest.mark.parametrize(
    ("status", "errors", "problem", "advice"),
    [
        (126, "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all\n",
         "podman cannot start it: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
         "nvidia_cdi_spec"),
        (125, "Error: stat /usr/bin/nvidia-container-toolkit: no such file\nsee podman run --help\n",
         "podman cannot start it: stat /usr/bin/nvidia-container-toolkit: no such file", "--log-level=debug"),
        (1, "sh: odd\n\n", "podman cannot start it: sh: odd", "--log-level=debug"),
        (124, "", "podman cannot start it: it does not say why", "--log-level=debug"),
    ],
)  # fmt: skip
def test_words_of_podman(podman: FakePodman, status: int, errors: str, problem: str, advice: str) -> None:
    podman.answers["run"] = (status, "", errors)
    refused = failure(podman)
    assert refused.problem == problem
    assert advice in refused.advice
    assert refused.tried
    assert refused.output == "hello"


def test_a_program_that_the_image_lacks(podman: FakePodman) -> None:
    podman.answers["run"] = (127, "", 'Error: runc: exec: "nvidia-smi": executable file not found in $PATH\n')
    assert containers(podman).run(ORDER) == ContainerResult(
        127, 'runc: exec: "nvidia-smi": executable file not found in $PATH'
    )
    assert podman.kept == {}


def test_a_container_without_end(podman: FakePodman) -> None:
    podman.states = ["running 0"]
    slow = failure(podman, ORDER._replace(timeout=0.1))
    assert (slow.problem, slow.output) == ("It did not end within 0.1 seconds", "hello")


def test_somebody_removes_it(podman: FakePodman) -> None:
    podman.answers["container inspect"] = (125, "", "Error: no such container gpufleet-verify\n")
    assert "Somebody removed it" in failure(podman).problem


@pytest.mark.parametrize("answer", [(125, "exited 0\n", "Error: locked\n"), (0, "running\n", ""), (0, "", "")])
def test_a_podman_that_does_not_tell(podman: FakePodman, answer: Answer) -> None:
    podman.answers["container inspect"] = answer
    assert failure(podman).problem.startswith("podman does not tell how it is")


def test_leftovers_go_first(podman: FakePodman) -> None:
    podman.kept = {"old": "x"}
    containers(podman).run(ORDER)
    removed = [words for words in podman.commands if words[0] == "rm"]
    assert removed[0][-2:] == ["--", "old"]
    assert podman.commands.index(removed[0]) < next(n for n, words in enumerate(podman.commands) if words[0] == "run")
    assert all("--filter=label=" + LABEL in words for words in podman.commands if words[0] == "ps")


@pytest.mark.parametrize("command", ["ps", "rm"])
def test_what_stays_is_told(podman: FakePodman, command: str) -> None:
    podman.answers[command] = (125, "something\n", "Error: busy\n")
    runner = containers(podman)
    assert runner.run(ORDER) == ContainerResult(0, "hello")
    assert runner.left_behind == "The container may still be there: busy"


def test_it_is_removed_whatever_happens(podman: FakePodman) -> None:
    def cut_off(argv: list[str]) -> Answer:
        if "logs" in argv:
            raise SystemExit(143)
        return podman.run(argv)

    runner = PodmanContainers(HostFS("/host", live=True), cut_off, BINARY)
    with pytest.raises(SystemExit):
        runner.run(ORDER)
    assert podman.kept == {}


@pytest.mark.parametrize("state", ["exited \u00b2", "exited ", "", "exited -1", "exited 0 0"])
def test_a_state_that_is_none(state: str) -> None:
    containers = PodmanContainers(HostFS(), lambda _argv: (0, state, ""), "podman")
    with pytest.raises(NotRunError, match="podman does not tell how it is"):
        containers._status("name")
