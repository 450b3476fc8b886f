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
# The message of CRI-O 1.37.
UNKNOWN = "run pod sandbox: rpc error: failed to find runtime handler nvidia from runtime list map[runc:x]"


class Crictl:
    """The program on the host. ``errors`` maps runtimes to error messages for their pods."""

    def __init__(self, root: Path) -> None:
        self.host = HostFS(str(root))
        self.root = root
        self.calls: list[list[str]] = []
        self.pods: list[dict[str, t.Any]] = []
        self.errors: dict[str, str] = {}
        # The pods that have the label, and the commands that fail.
        self.existing: list[str] = []
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
            return 0, "".join(f"{pod}\n" for pod in self.existing), ""
        if argv[5] == "rmp":
            self.existing.remove(argv[6])
        if argv[5] != "runp":
            return 0, "", ""
        self.pods.append(json.loads((self.root / argv[8].lstrip("/")).read_text()))
        assert self.pods[-1]["labels"] == {"gpufleet.nvidia.restart": "1"}
        message = self.errors.get(argv[7], "")
        if not message:
            self.existing.append("abc123")
        return int(bool(message)), "" if message else "abc123\n", message

    def check(self, *names: str) -> tuple[list[str], list[str]]:
        return check_runtimes(self.host, self.run, SOCKET, names)


@pytest.fixture
def crictl(tmp_path: Path) -> Crictl:
    return Crictl(tmp_path)


def test_starts_and_removes_a_pod_for_each_runtime(crictl: Crictl) -> None:
    assert crictl.check("nvidia", "nvidia-cdi") == ([], [])
    assert [call[:3] for call in crictl.calls if call[0] == "runp"] == [
        ["runp", "--runtime", "nvidia"],
        ["runp", "--runtime", "nvidia-cdi"],
    ]
    assert crictl.calls[3:5] == [["stopp", "abc123"], ["rmp", "abc123"]]
    assert not crictl.existing
    # The pod uses the network of the host.
    assert crictl.pods[0]["linux"]["security_context"]["namespace_options"] == {"network": 2}
    assert crictl.pods[0]["metadata"] != crictl.pods[1]["metadata"]
    assert not list((crictl.root / "tmp").iterdir())


def test_undefined_runtime(crictl: Crictl) -> None:
    crictl.errors["nvidia"] = UNKNOWN
    problems, warnings = crictl.check("nvidia", "nvidia-cdi")
    assert len(problems) == 1
    assert problems[0].startswith("no pod can use the runtime nvidia: ")
    assert not warnings


def test_other_errors_are_warnings(crictl: Crictl) -> None:
    crictl.errors["nvidia"] = "pulling image registry.k8s.io/pause: no route to host"
    problems, warnings = crictl.check("nvidia")
    assert not problems
    assert "no route to host" in warnings[0]


def test_removes_pods_of_an_interrupted_run(crictl: Crictl) -> None:
    crictl.existing = ["left1", "left2"]
    assert crictl.check("nvidia") == ([], [])
    assert crictl.calls[1:5] == [["stopp", "left1"], ["rmp", "left1"], ["stopp", "left2"], ["rmp", "left2"]]
    assert not crictl.existing


def test_continues_after_an_error(crictl: Crictl) -> None:
    crictl.errors = {"nvidia": "no route to host", "nvidia-cdi": UNKNOWN}
    problems, (warning,) = crictl.check("nvidia", "nvidia-cdi")
    assert problems[0].startswith("no pod can use the runtime nvidia-cdi: ")
    assert warning.startswith("The test pod with the runtime nvidia did not start. ")


@pytest.mark.parametrize(
    ("failing", "untested"),
    [(("rmp",), "nvidia-cdi, nvidia-legacy"), (("pods",), "nvidia, nvidia-cdi, nvidia-legacy")],
)
def test_stops_if_a_pod_may_still_exist(crictl: Crictl, failing: tuple[str, ...], untested: str) -> None:
    crictl.failing = failing
    problems, (warning, rest) = crictl.check("nvidia", "nvidia-cdi", "nvidia-legacy")
    assert not problems
    assert f"{failing[0]}: device busy" in warning
    assert failing == ("pods",) or "run `crictl rmp --force abc123` on the host" in warning
    assert rest.endswith(f": {untested}.")


def test_leftover_pod_of_the_last_runtime(crictl: Crictl) -> None:
    crictl.failing = ("rmp",)
    problems, (warning,) = crictl.check("nvidia")
    assert not problems
    assert "rmp: device busy" in warning


def test_pod_that_cannot_be_stopped(crictl: Crictl) -> None:
    crictl.failing = ("stopp",)
    assert crictl.check("nvidia", "nvidia-cdi") == ([], [])
    crictl.failing = ("stopp", "rmp")
    problems, warnings = crictl.check("nvidia")
    assert not problems
    assert ["stopp: device busy" in warnings[0], "rmp: device busy" in warnings[1]] == [True, True]


def test_without_crictl(crictl: Crictl) -> None:
    (crictl.root / "usr/local/bin/crictl").unlink()
    assert crictl.check("nvidia") == ([], [])
    assert not crictl.calls


def test_no_scratch_directory(crictl: Crictl) -> None:
    (crictl.root / "tmp").rmdir()
    problems, warnings = crictl.check("nvidia")
    assert not problems
    assert "cannot be created" in warnings[0]
