# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which engines are restarted, reloaded and verified after a configuration, and what the user is warned about."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _restart_plan
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._engine_selection import Selection
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._restart_plan import Options, Plan, Planner
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.reported_engines import engine

ALICE = "docker/rootless/alice"
BACKUP = {"path": "/etc/docker/daemon.json", "backup": None, "checksum": "0"}
STILL_RUNS = "docker still runs with its previous configuration"
INTERRUPTED = "A restart of docker was interrupted, and this play does not repeat it."


def result(target: str = "docker", **values: t.Any) -> dict[str, t.Any]:
    """Return the result of nvidia_runtime_config for an unchanged engine."""
    return {
        "target": target, "changed": False, "restart_required": False, "restart_action": "none",
        "pending_action": "none", "runtimes": {"nvidia": "/usr/bin/nvidia-container-runtime"}, "service": "x.service",
        "default_runtime": "runc", "backup_files": [], "cdi": True, **values,
    }  # fmt: skip


CHANGED: dict[str, t.Any] = {
    "changed": True,
    "restart_required": True,
    "restart_action": "restart",
    "pending_action": "restart",
}


def plan(
    *results: dict[str, t.Any], engines: t.Sequence[dict[str, t.Any]] = (engine(),), earlier: t.Any = (),
    **options: t.Any,
) -> Plan:  # fmt: skip
    targets = tuple(str(found["target"]) for found in engines)
    kubelet = tuple(str(found["target"]) for found in engines if found["used_by_kubelet"])
    selection = Selection(tuple(engines), tuple(options.pop("targets", targets)), kubelet, ())
    return Planner(selection, Options(**{"values": {}, **options}), earlier).plan(results)


def actions(found: Plan) -> list[str]:
    return [entry["action"] for entry in found.entries]


def entry(action: str, target: str = "docker", host_root: str = "/", **values: t.Any) -> dict[str, t.Any]:
    return {"id": "1", "action": action, "rollback": [BACKUP],
            "engine_info": {"host_root": host_root, "target": target}, **values}  # fmt: skip


def test_an_unchanged_host_has_no_work() -> None:
    assert plan(result()) == Plan((), changed=False, warnings=(), errors=())


@pytest.mark.parametrize(
    ("pending", "changed", "earlier", "expected"),
    [
        # The engine reported what it needs.
        ("none", "restart", "restart", "none"),
        ("reload", "restart", None, "reload"),
        ("restart", "none", None, "restart"),
        # The engine reported nothing, so the strongest action of the play is used.
        (None, "reload", None, "reload"),
        (None, "reload", "restart", "restart"),
        (None, "restart", "reload", "restart"),
        (None, "none", "reload", "reload"),
        (None, "none", None, "none"),
        # A host can forge a result.
        ("destroy", "none", None, "restart"),
    ],
)
def test_action(pending: str | None, changed: str, earlier: str | None, expected: str) -> None:
    known = [] if earlier is None else [entry(earlier)]
    found = plan(result(changed=True, pending_action=pending, restart_action=changed), earlier=known)
    assert actions(found) == [expected]


@pytest.mark.parametrize(
    ("mode", "info", "expected"),
    [
        ("auto", {}, ["restart"]), ("systemd", {}, ["restart"]), ("signal", {}, ["reload"]), ("none", {}, []),
        # Without systemd.
        ("auto", {"service": None}, ["restart"]),
        # The interrupted restart has stopped it.
        ("auto", {"running": False}, ["restart"]),
    ],
)  # fmt: skip
def test_an_interrupted_restart_is_repeated(mode: str, info: dict[str, t.Any], expected: list[str]) -> None:
    if info.get("service", "") is None:
        expected = ["reload"]
    found = plan(result(), engines=[engine(unfinished_restart=True, **info)], restart_mode=mode)
    assert actions(found) == expected
    assert found.changed is bool(expected)
    assert [text for text in found.warnings if text.startswith(INTERRUPTED)] == (
        [] if expected else list(found.warnings)
    )
    assert bool(found.warnings) is not bool(expected)


@pytest.mark.parametrize(
    ("info", "values", "mode", "expected", "warns"),
    [
        # A play that ended before its handlers is completed.
        ({}, {"restart_required": True, "pending_action": "reload"}, "auto", ["reload"], False),
        ({}, {"restart_required": True, "pending_action": "restart"}, "none", [], True),
        # Stopped on purpose.
        ({"running": False}, CHANGED, "auto", [], True),
        # Without systemd, only a signal is possible.
        ({"service": None}, {"restart_required": True, "pending_action": "reload"}, "auto", ["reload"], False),
        ({"service": None}, {"restart_required": True, "pending_action": "reload"}, "systemd", [], True),
        ({"service": None}, CHANGED, "auto", [], True),
    ],
)
def test_restarts(
    info: dict[str, t.Any], values: dict[str, t.Any], mode: str, expected: list[str], warns: bool
) -> None:
    found = plan(result(**values), engines=[engine(**info)], restart_mode=mode)
    assert (actions(found), found.changed) == (expected, bool(expected))
    assert [text.startswith(STILL_RUNS) for text in found.warnings] == ([True] if warns else [])


@pytest.mark.parametrize(
    ("mode", "changed", "expected"),
    [("auto", False, ["restart"]), ("systemd", True, ["restart"]), ("signal", True, ["reload"]), ("signal", False, [])],
)
def test_a_signal_cannot_make_docker_find_the_toolkit(mode: str, changed: bool, expected: list[str]) -> None:
    values: dict[str, t.Any] = {
        "changed": changed,
        "restart_required": True,
        "pending_action": "restart",
        "missed_toolkit": True,
    }
    found = plan(result(**values), engines=[engine()], restart_mode=mode)
    assert (actions(found), found.changed) == (expected, bool(expected))
    # A restart for another reason is not possible either, and its task says so.
    assert actions(plan(result(**{**values, "missed_toolkit": False}), engines=[engine()], restart_mode=mode)) == [
        "restart"
    ]


@pytest.mark.parametrize("options", [{"offline": True, "host_root": "/srv"}])
def test_a_tree_has_no_interrupted_restart(options: dict[str, t.Any]) -> None:
    assert actions(plan(result(), engines=[engine(unfinished_restart=True, running=False)], **options)) == []


@pytest.mark.parametrize(
    ("target", "runtimes", "options", "expected"),
    [
        ("docker", ["nvidia"], {"verify": "config"}, "config"),
        ("docker", ["nvidia"], {"verify": "gpu"}, "gpu"),
        ("docker", ["other"], {"verify": "gpu"}, None),
        ("docker", ["other"], {"verify": "gpu", "runtime_name": "other"}, "gpu"),
        ("podman", [], {"verify": "engine"}, "engine"),
        ("docker", ["nvidia"], {}, None),
        ("docker", ["nvidia"], {"verify": "gpu", "check_mode": True}, None),
        ("docker", ["nvidia"], {"verify": "gpu", "state": "absent"}, None),
    ],
)
def test_verification(target: str, runtimes: list[str], options: dict[str, t.Any], expected: str | None) -> None:
    found = plan(result(target, runtimes=dict.fromkeys(runtimes, "/x")), engines=[engine(target)], **options)
    assert [each["verify"] for each in found.entries] == ([] if expected is None else [expected])
    assert actions(found) == ([] if expected is None else ["none"])


@pytest.mark.parametrize(("cdi", "expected"), [(True, [("gpu", "cdi")]), (None, [])])
def test_verification_without_a_registered_runtime(cdi: bool | None, expected: list[tuple[str, str]]) -> None:
    """An engine without CDI is a containerd whose CRI is disabled."""
    found = plan(
        result("containerd", runtimes={}, cdi=cdi), engines=[engine("containerd")], verify="gpu", registers=False
    )
    assert [(each["verify"], each["verify_method"]) for each in found.entries] == expected
    assert all(each["expect"]["runtimes"] == [] for each in found.entries)


def test_no_runtime_is_no_problem_without_registration() -> None:
    info = engine("containerd", used_by_kubelet=True)
    assert plan(result("containerd", runtimes={}), engines=[info], registers=False).warnings == ()


@pytest.mark.parametrize(
    ("target", "values", "mode", "expected"),
    [
        ("containerd/system/gpu.service", {}, "auto", ["restart"]),
        ("containerd/system/gpu.service", {"pending_action": None, "restart_required": False}, "auto", []),
        ("containerd/system/gpu.service", {}, "none", []),
        ("docker/system/gpu.service", {}, "auto", []),
    ],
)
def test_a_unit_that_no_inspection_found(target: str, values: dict[str, t.Any], mode: str, expected: list[str]) -> None:
    """An inspection finds only units with "containerd" in their names."""
    assert (
        actions(plan(result(target, **{**CHANGED, **values}), engines=[], targets=[target], restart_mode=mode))
        == expected
    )


def test_the_entry_has_what_handlers_need() -> None:
    values = {"timeout": 60, "before": "/hook"}
    info = engine("containerd/system/second.service")
    found = plan(
        result(info["target"], **CHANGED, runtimes={"nvidia": "/x", "runc": "/y"}, backup_files=[BACKUP]),
        engines=[info], values=values, host_root="/host", host_root_live=True, restart_mode="systemd",
    )  # fmt: skip
    assert found.entries == (
        {
            "timeout": 60, "before": "/hook", "label": "/host x.service", "user": "", "unit": "second.service",
            "engine_info": {"engine": "containerd", "flavor": "system", "instance": "second.service",
                            "target": info["target"], "service": "x.service", "host_root": "/host"},
            "host_root_live": True, "action": "restart", "mode": "systemd", "verify": "off",
            "verify_image": "", "verify_method": "runtime", "runtime_name": "nvidia",
            "expect": {"runtimes": ["nvidia"], "default_runtime": "runc"}, "rollback": [BACKUP],
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    ("target", "command", "expected"),
    [
        ("docker", [], ""),
        ("docker/rootless/alice", [], ""),
        ("podman", [], ""),
        ("docker", ["nvidia-smi"], "cuda:1"),
        ("containerd", [], "cuda:1"),
        ("crio", [], "cuda:1"),
    ],
)
def test_only_a_cri_or_a_command_needs_the_image(target: str, command: list[str], expected: str) -> None:
    values = {"verify_image": "cuda:1", "verify_command": command}
    found = plan(result(target, runtimes={"nvidia": "/x"}), engines=[engine(target)], values=values, verify="engine")
    assert [entry["verify_image"] for entry in found.entries] == [expected]


@pytest.mark.parametrize(
    ("target", "service", "expected"),
    [("docker", "docker.service", "docker.service"), ("podman", "", "podman"), (ALICE, "docker.service", ALICE)],
)
def test_each_entry_has_a_name(target: str, service: str, expected: str) -> None:
    found = plan(result(target, service=service, runtimes={"nvidia": "/x"}), engines=[engine(target)], verify="engine")
    assert [entry["label"] for entry in found.entries] == [expected]


def test_the_entry_of_a_user_has_the_user() -> None:
    (found,) = plan(result(ALICE, **CHANGED), engines=[engine(ALICE)]).entries
    assert (found["user"], found["unit"], found["engine_info"]["flavor"]) == ("alice", "", "rootless")


@pytest.mark.parametrize(("options", "count"), [({}, 2), ({"state": "absent"}, 2), ({"purge_backups": True}, 2),
                                                ({"purge_backups": True, "state": "absent"}, 1)])  # fmt: skip
def test_files_of_earlier_changes_are_rolled_back_too(options: dict[str, t.Any], count: int) -> None:
    """A purge removes the copies from before this play."""
    (found,) = plan(result(**CHANGED, backup_files=[BACKUP]), earlier=[entry("reload")], **options).entries
    assert len(found["rollback"]) == count
    assert found["expect"] == ({} if "state" in options else {"runtimes": ["nvidia"], "default_runtime": "runc"})


def test_an_earlier_entry_of_another_root_does_not_count() -> None:
    found = plan(result(changed=True, pending_action=None), earlier=[entry("restart", host_root="/other")])
    assert actions(found) == ["none"]


@pytest.mark.parametrize(
    ("entries", "completed", "expected"),
    [
        ([entry("restart", id="1"), entry("none", id="2")], [], ["1", "2"]),
        ([entry("restart", id="1"), entry("none", id="2")], ["1", "2"], []),
        ([entry("reload", id="1"), entry("restart", id="2")], ["1"], ["2"]),
        # The role has verified it, because no handler would have run.
        ([entry("none", id="1")], [], []),
    ],
)
def test_remaining_entries(entries: list[dict[str, t.Any]], completed: list[str], expected: list[str]) -> None:
    assert [each["id"] for each in _restart_plan.remaining(entries, completed)] == expected


def test_errors_name_the_engine() -> None:
    found = plan({"target": "docker", "changed": False, "error": "x"}, result("crio", **CHANGED),
                 engines=[engine(), engine("crio")])  # fmt: skip
    assert found.errors == ("docker: x",)
    assert actions(found) == ["restart"]


@pytest.mark.parametrize(
    ("target", "values", "options", "warns"),
    [
        ("docker", {"cdi": False}, {}, True), ("docker", {"cdi": None}, {}, False), ("docker", {}, {}, False),
        ("docker", {"cdi": False}, {"enable_cdi": "false"}, False),
        ("docker", {"cdi": False}, {"cdi_written": False}, False),
        ("docker", {"cdi": False}, {"state": "absent"}, False),
        ("crio", {"cdi": False}, {}, False), ("containerd/k3s", {"cdi": False}, {}, False),
        ("containerd/k0s", {"cdi": False}, {}, True), ("containerd/system/x.service", {"cdi": False}, {}, True),
    ],
)  # fmt: skip
def test_warns_if_cdi_is_off(target: str, values: dict[str, t.Any], options: dict[str, t.Any], warns: bool) -> None:
    found = plan(result(target, **values), engines=[engine(target)], **{"cdi_written": True, **options})
    assert [text.startswith(f"CDI is off in {target}, so") for text in found.warnings] == ([True] if warns else [])


@pytest.mark.parametrize(
    ("target", "targets", "runtimes", "state", "warning"),
    [
        ("containerd", ["containerd"], ["nvidia"], "present", ""),
        ("containerd", [], ["nvidia"], "present", "do not select, so pods get no NVIDIA runtime. Add containerd to"),
        ("containerd", [], ["nvidia"], "absent", ""),
        ("containerd", ["containerd"], [], "present", "whose CRI is disabled, so no pod can start."),
        # cri-dockerd uses Docker, whose containerd has no CRI.
        ("docker", ["docker"], [], "present", ""),
    ],
)
def test_warns_about_the_engine_of_the_kubelet(
    target: str, targets: list[str], runtimes: list[str], state: str, warning: str
) -> None:
    engines = [engine(target, used_by_kubelet=True)]
    results = [result(target, runtimes=dict.fromkeys(runtimes, "/x"))] if targets else [result("podman")]
    found = plan(*results, engines=engines, targets=targets or ["podman"], state=state)
    assert all(warning in text for text in found.warnings)
    assert len(found.warnings) == bool(warning)


def test_warns_if_there_is_no_engine() -> None:
    assert "No container engine was found on this host" in plan(engines=[]).warnings[0]
    assert "select no engine of this host" in plan(targets=()).warnings[0]
    assert plan(engines=[], state="absent").warnings == ()
