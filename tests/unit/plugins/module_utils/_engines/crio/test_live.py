# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio.live import check_runtimes

if t.TYPE_CHECKING:
    from pathlib import Path

SOCKET = "/var/run/crio/crio.sock"
# As CRI-O 1.37 words it.
UNKNOWN = "run pod sandbox: rpc error: failed to find runtime handler nvidia from runtime list map[runc:x]"


class Crictl:
    """The program as the host has it; ``refusals`` are what it says to pods of some runtimes."""

    def __init__(self, root: Path) -> None:
        self.host = HostFS(str(root))
        self.root = root
        self.calls: list[list[str]] = []
        self.pods: list[dict[str, t.Any]] = []
        self.refusals: dict[str, str] = {}
        # The pods that have the label, and the commands that fail.
        self.there: list[str] = []
        self.failing: tuple[str, ...] = ()
        (root / "tmp").mkdir()
        program = root / "usr/local/bin/crictl"
        program.parent.mkdir(parents=True)
        program.touch(0o755)

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        assert argv[:5] == ["chroot", str(self.root), "/usr/local/bin/crictl", "--runtime-endpoint", f"unix://{SOCKET}"]
        self.calls.append(argv[5:])
        if argv[5] in self.failing:
            return 1, "", f"{argv[5]}: device busy."
        if argv[5:] == ["pods", "--quiet", "--label", "gpufleet.nvidia.restart=1"]:
            return 0, "".join(f"{pod}\n" for pod in self.there), ""
        if argv[5] == "rmp":
            self.there.remove(argv[6])
        if argv[5] != "runp":
            return 0, "", ""
        self.pods.append(json.loads((self.root / argv[8].lstrip("/")).read_text()))
        assert self.pods[-1]["labels"] == {"gpufleet.nvidia.restart": "1"}
        said = self.refusals.get(argv[7], "")
        if not said:
            self.there.append("abc123")
        return int(bool(said)), "" if said else "abc123\n", said

    def try_them(self, *names: str) -> tuple[list[str], list[str]]:
        return check_runtimes(self.host, self.run, SOCKET, names)


@pytest.fixture
def crictl(tmp_path: Path) -> Crictl:
    return Crictl(tmp_path)


def test_a_pod_through_each_runtime_is_started_and_removed(crictl: Crictl) -> None:
    assert crictl.try_them("nvidia", "nvidia-cdi") == ([], [])
    assert [call[:3] for call in crictl.calls if call[0] == "runp"] == [
        ["runp", "--runtime", "nvidia"],
        ["runp", "--runtime", "nvidia-cdi"],
    ]
    assert crictl.calls[3:5] == [["stopp", "abc123"], ["rmp", "abc123"]]
    assert not crictl.there
    # In the host's network, so that none has to be set up.
    assert crictl.pods[0]["linux"]["security_context"]["namespace_options"] == {"network": 2}
    assert crictl.pods[0]["metadata"] != crictl.pods[1]["metadata"]
    assert not list((crictl.root / "tmp").iterdir())


def test_a_runtime_that_it_does_not_have_is_lacking(crictl: Crictl) -> None:
    crictl.refusals["nvidia"] = UNKNOWN
    lacks, untried = crictl.try_them("nvidia", "nvidia-cdi")
    assert len(lacks) == 1
    assert lacks[0].startswith("no pod can use the runtime nvidia: ")
    assert not untried


def test_other_refusals_may_have_other_causes(crictl: Crictl) -> None:
    crictl.refusals["nvidia"] = "pulling image registry.k8s.io/pause: no route to host"
    lacks, untried = crictl.try_them("nvidia")
    assert not lacks
    assert "no route to host" in untried[0]


def test_pods_that_an_interrupted_run_has_left_are_removed(crictl: Crictl) -> None:
    crictl.there = ["left1", "left2"]
    assert crictl.try_them("nvidia") == ([], [])
    assert crictl.calls[1:5] == [["stopp", "left1"], ["rmp", "left1"], ["stopp", "left2"], ["rmp", "left2"]]
    assert not crictl.there


def test_a_refusal_of_one_runtime_does_not_stop_the_tests_of_the_others(crictl: Crictl) -> None:
    crictl.refusals = {"nvidia": "no route to host", "nvidia-cdi": UNKNOWN}
    lacks, (warning,) = crictl.try_them("nvidia", "nvidia-cdi")
    assert lacks[0].startswith("no pod can use the runtime nvidia-cdi: ")
    assert warning.startswith("The test pod with the runtime nvidia did not start. ")


@pytest.mark.parametrize(
    ("failing", "untested"),
    [(("rmp",), "nvidia-cdi, nvidia-legacy"), (("pods",), "nvidia, nvidia-cdi, nvidia-legacy")],
)
def test_a_pod_that_may_still_be_there_is_a_warning_and_stops_the_tests(
    crictl: Crictl, failing: tuple[str, ...], untested: str
) -> None:
    crictl.failing = failing
    lacks, (warning, rest) = crictl.try_them("nvidia", "nvidia-cdi", "nvidia-legacy")
    assert not lacks
    assert f"{failing[0]}: device busy" in warning
    assert failing == ("pods",) or "run `crictl rmp --force abc123` on the host" in warning
    assert rest.endswith(f": {untested}.")


def test_after_the_last_runtime_nothing_is_untested(crictl: Crictl) -> None:
    crictl.failing = ("rmp",)
    lacks, (warning,) = crictl.try_them("nvidia")
    assert not lacks
    assert "rmp: device busy" in warning


def test_a_pod_that_is_removed_without_being_stopped_is_no_warning(crictl: Crictl) -> None:
    crictl.failing = ("stopp",)
    assert crictl.try_them("nvidia", "nvidia-cdi") == ([], [])
    crictl.failing = ("stopp", "rmp")
    lacks, warnings = crictl.try_them("nvidia")
    assert not lacks
    assert ["stopp: device busy" in warnings[0], "rmp: device busy" in warnings[1]] == [True, True]


def test_without_it_nothing_is_tried(crictl: Crictl) -> None:
    (crictl.root / "usr/local/bin/crictl").unlink()
    assert crictl.try_them("nvidia") == ([], [])
    assert not crictl.calls


def test_no_room_for_the_description_of_a_pod(crictl: Crictl) -> None:
    (crictl.root / "tmp").rmdir()
    lacks, untried = crictl.try_them("nvidia")
    assert not lacks
    assert "cannot be created" in untried[0]
