# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The line about a host at the end of a playbook, from the registered results of the roles."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _reports
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._host_line import Situation, host_line

INFO = {"toolkit": {"version": "1.18.2", "gpu": {"present": True, "kind": "driver"}},
        "engines": [{"target": "docker", "installed": True}, {"target": "crio", "installed": False}]}  # fmt: skip
SPECIFICATION = {"devices": ["all", *map(str, range(8))], "device_count": 8, "specification": "/etc/cdi/nvidia.yaml",
                 "mode": "nvml", "reasons": [], "not_described": None,
                 "refreshed_by": "nvidia-cdi-refresh.service"}  # fmt: skip
NO_DRIVER = {"devices": [], "device_count": 0, "specification": None, "mode": None, "reasons": [],
             "not_described": "No GPU can be described.", "refreshed_by": "nvidia-cdi-refresh.service"}  # fmt: skip
DOCKER = {"target": "docker", "changed": True, "runtimes": {"nvidia": "/x", "runc": "/y"}, "default_runtime": "runc",
          "cdi": True, "restart_required": True}  # fmt: skip
ENTRY = {"id": "1", "action": "restart", "verify": "config", "label": "docker.service", "after": "",
         "engine_info": {"target": "docker", "host_root": "/"}}  # fmt: skip


def configured(*engines: dict[str, t.Any], work: t.Sequence[t.Any] = (), **values: t.Any) -> dict[str, t.Any]:
    return {"engines": list(engines), "work": list(work), "runtime_name": "nvidia", **values}


def outcome(identifier: str = "1", **values: t.Any) -> dict[str, t.Any]:
    return {"results": [{"ansible_loop_var": "entry", "entry": {"id": identifier}, **values}]}


SITE = {
    "nvidia_toolkit_info": INFO,
    "nvidia_toolkit_installation": {"changed": True, "version": "1.19.1", "unrecorded": []},
    "nvidia_cdi_specification": SPECIFICATION,
    "nvidia_runtime_result": configured(DOCKER, work=[ENTRY]),
    "nvidia_runtime_restart_results": outcome(changed=True),
    "nvidia_runtime_verify_results": outcome(verified=False, summary="verified", failed_check=None),
}
PARTS = (
    "toolkit 1.19.1", "CDI: 8 devices in /etc/cdi/nvidia.yaml, refreshed by nvidia-cdi-refresh.service",
    "docker: runtime nvidia, not the default, CDI on, restarted, verified (config)",
)  # fmt: skip


def test_all_parts_of_a_host() -> None:
    assert host_line(SITE, Situation()) == "; ".join(PARTS)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"nvidia_toolkit_installation": {"skipped": True}}, "toolkit 1.18.2"),
        ({"nvidia_toolkit_installation": {"version": None}}, "no toolkit"),
        (
            {
                "nvidia_toolkit_installation": {"skipped": True},
                "nvidia_toolkit_info": {"toolkit": {"version": None, "programs": {"nvidia-ctk": {}}}},
            },
            "toolkit, version unknown",
        ),
        (
            {"nvidia_toolkit_installation": {"version": "1.19.1\x1b[2J\n" + "x" * 500}},
            f"toolkit 1.19.1\\x1b[2J {'x' * 86}",
        ),
        ({"nvidia_toolkit_info": {"toolkit": {"gpu": {"present": False}}}}, "no NVIDIA GPU; toolkit 1.19.1"),
    ],
)
def test_toolkit(changed: dict[str, t.Any], expected: str) -> None:
    assert host_line({**SITE, **changed}, Situation()) == "; ".join([expected, *PARTS[1:]])


@pytest.mark.parametrize(
    ("specification", "expected"),
    [
        ({"device_count": 1, "refreshed_by": None}, "CDI: 1 device in /etc/cdi/nvidia.yaml, not refreshed"),
        ({"device_count": "x", "specification": 5}, "CDI: devices in an unknown file"),
        ({"skipped": True}, f"{PARTS[0]}; docker"),
    ],
)
def test_cdi(specification: dict[str, t.Any], expected: str) -> None:
    line = host_line({**SITE, "nvidia_cdi_specification": {**SPECIFICATION, **specification}}, Situation())
    assert expected in line


@pytest.mark.parametrize(
    ("kind", "unit", "expected"),
    [
        ("pci", "x.service", " (no driver is loaded), x.service writes it when the host starts with its driver"),
        (None, None, " (no driver is loaded), and no unit writes it"),
        # Check mode, before the toolkit is installed.
        ("driver", "x.service", ", refreshed by x.service"),
        ("driver", None, ", and no unit writes it"),
    ],
)
def test_a_host_without_a_specification(kind: str | None, unit: str | None, expected: str) -> None:
    known = {"nvidia_toolkit_info": {"toolkit": {"version": "1", "gpu": {"kind": kind, "present": True}}},
             "nvidia_cdi_specification": {**NO_DRIVER, "refreshed_by": unit}}  # fmt: skip
    assert host_line(known, Situation()) == f"toolkit 1; CDI: specification not written{expected}"


@pytest.mark.parametrize(
    ("engine", "entry", "more", "expected"),
    [
        ({"default_runtime": "nvidia"}, {}, {}, "runtime nvidia, the default, CDI on, restarted"),
        ({"cdi": None}, {"action": "reload"}, {}, "runtime nvidia, not the default, reloaded, verified (config)"),
        ({"runtimes": {}}, {"verify": "off"}, {}, "no runtime of NVIDIA, CDI on, restarted"),
        ({"runtimes": {"runc": ""}}, {"verify": "off"}, {}, "no runtime of NVIDIA, CDI on, restarted"),
        ({"runtimes": {"runc": "", "gpu": "/usr/bin/nvidia-container-runtime"}}, {"verify": "off"}, {},
         "runtimes gpu, CDI on, restarted"),
        ({"cdi": False}, {"action": "none", "verify": "off"}, {}, "CDI off, needs a restart"),
        ({"restart_required": False}, {"action": "none", "verify": "off"}, {}, "CDI on, not restarted"),
        ({}, {}, {"nvidia_runtime_restart_results": {}}, "not restarted yet, verified (config)"),
        ({}, {}, {"nvidia_runtime_restart_results": outcome(error="x")}, "restart failed"),
        ({}, {}, {"nvidia_runtime_restart_results": outcome(error="x", state="rolled_back", rolled_back=True)},
         "docker: restart failed, previous configuration restored"),
        # It was refused, and the new files stay.
        ({}, {}, {"nvidia_runtime_restart_results": outcome(error="x", state="rolled_back", rolled_back=False)},
         "runtime nvidia, not the default, CDI on, restart failed, verified"),
        ({}, {}, {"nvidia_runtime_verify_results": outcome(error="x")}, "verification failed (config)"),
        # Both results have no error, and nothing was done.
        ({}, {}, {"nvidia_runtime_restart_results": outcome(changed=False)}, "CDI on, not restarted, verified"),
        ({}, {"action": "reload"}, {"nvidia_runtime_restart_results": outcome(skipped=True)}, "not reloaded, verified"),
        ({}, {}, {"nvidia_runtime_restart_results": outcome(changed=True, state="unknown")},
         "CDI on, restarted, health unknown, verified"),
        ({}, {"verify": "engine"},
         {"nvidia_runtime_verify_results": outcome(verified=False, summary="not verified: no image")},
         "restarted, not verified: no image"),
        ({}, {"verify": "engine"}, {"nvidia_runtime_verify_results": outcome(verified=True, summary="verified")},
         "restarted, verified (engine)"),
        *[
            ({}, {"verify": level}, {"nvidia_runtime_verify_results": outcome(**values)}, "restarted, not verified")
            for level, values in (
                ("engine", {"verified": False, "summary": "verified", "failed_check": None}),
                ("config", {"verified": False, "summary": "verified"}),
                ("gpu", {"summary": "0 of 2 GPUs"}),
                ("config", {"skipped": True}),
                ("config", {}),
            )
        ],
        # The result of an earlier run of the role.
        ({}, {}, {"nvidia_runtime_verify_results": outcome("0")}, "not verified"),
    ],
)  # fmt: skip
def test_an_engine(engine: dict[str, t.Any], entry: dict[str, t.Any], more: dict[str, t.Any], expected: str) -> None:
    result = configured({**DOCKER, **engine}, work=[{**ENTRY, **entry}])
    assert expected in host_line({**SITE, "nvidia_runtime_result": result, **more}, Situation())


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (configured(), "no container engine selected"),
        (configured({"target": "docker", "error": "x"}), "docker: failed"),
        (configured(failed=True), "nvidia-cdi-refresh.service"),
        # The role did not run.
        ({"skipped": True}, "nvidia-cdi-refresh.service"),
    ],
)
def test_engines(result: dict[str, t.Any], expected: str) -> None:
    assert host_line({**SITE, "nvidia_runtime_result": result}, Situation()).endswith(expected)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"nvidia_toolkit_info": {"engines": []}}, "no container engine"),
        ({"nvidia_runtime_engines": [], "nvidia_toolkit_info": {}}, "no container engine selected"),
        # The selection leaves none of those on the host.
        ({"nvidia_runtime_inspection": INFO}, "no container engine selected"),
    ],
)
def test_no_engines(more: dict[str, t.Any], expected: str) -> None:
    known = {"nvidia_runtime_result": configured(), **more}
    assert host_line(known, Situation()).rpartition("; ")[2] == expected


def test_check_mode_predicts() -> None:
    installed = {"changed": True, "version": "1.19.1", "predicted": {"version": "1.19.1"}}
    known = {**SITE, "nvidia_toolkit_installation": installed,
             "nvidia_cdi_specification": {**SPECIFICATION, "reasons": ["It does not exist."]},
             "nvidia_runtime_result": configured(DOCKER, work=[{**ENTRY, "verify": "off"}])}  # fmt: skip
    assert host_line(known, Situation(check_mode=True)) == (
        "toolkit 1.19.1 would be installed; CDI: 8 devices would be written to /etc/cdi/nvidia.yaml, refreshed by"
        " nvidia-cdi-refresh.service; docker: would have runtime nvidia, not the default, CDI on, would be restarted"
    )


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [
        ({"version": "1.19.1"}, "toolkit 1.19.1 would be installed"),
        ({"version": None}, "toolkit would be installed"),
        # Only config.toml, a hold, or the files of the repository would change.
        (None, "toolkit 1.18.2"),
    ],
)
def test_check_mode_predicts_the_toolkit(predicted: dict[str, t.Any] | None, expected: str) -> None:
    known = {"nvidia_toolkit_info": INFO,
             "nvidia_toolkit_installation": {"changed": True, "version": None, "predicted": predicted}}  # fmt: skip
    assert host_line(known, Situation(check_mode=True)) == expected


def test_a_task_that_fails_leaves_later_parts() -> None:
    line = host_line({"nvidia_toolkit_info": INFO}, Situation(interrupted=True))
    assert line == "toolkit 1.18.2; CDI not reached; docker not reached"
    assert host_line({}, Situation(interrupted=True)) == "nothing was done on this host"


@pytest.mark.parametrize(
    ("installation", "check_mode", "expected"),
    [
        ({"changed": True, "version": None}, False, "toolkit removed"),
        ({"changed": True, "version": None}, True, "toolkit would be removed"),
        ({"changed": False, "version": None}, False, "no toolkit"),
        # Its packages were installed by other means.
        ({"changed": True, "version": "1.18.2"}, False, "toolkit 1.18.2"),
        ({"changed": True, "version": "1.18.2"}, True, "toolkit 1.18.2"),
    ],
)
def test_removal(installation: dict[str, t.Any], check_mode: bool, expected: str) -> None:
    known = {"nvidia_toolkit_info": INFO, "nvidia_toolkit_removal": installation,
             "nvidia_toolkit_installation": {"changed": False, "skipped": True}}  # fmt: skip
    assert host_line(known, Situation(check_mode=check_mode)) == expected


def test_an_installation_after_a_removal() -> None:
    known = {**SITE, "nvidia_toolkit_removal": {"changed": True, "version": None}}
    assert host_line(known, Situation()) == "; ".join(PARTS)


@pytest.mark.parametrize(
    ("changed", "check_mode", "expected"),
    [(True, False, "CDI: removed"), (True, True, "CDI: would be removed"),
     (False, False, "CDI: nothing to remove")],
)  # fmt: skip
def test_removal_of_the_specification(changed: bool, check_mode: bool, expected: str) -> None:
    removed = {**SPECIFICATION, "device_count": 0, "mode": None, "refreshed_by": None, "changed": changed}
    assert host_line({"nvidia_cdi_specification": removed}, Situation(check_mode=check_mode)) == expected


@pytest.mark.parametrize(
    "value", [None, 5, "text", [], [5], {"results": 5}, {"results": [5]}, {"engines": [5, {}], "work": 5}]
)
def test_forged_results(value: object) -> None:
    assert host_line(dict.fromkeys([*SITE, "nvidia_toolkit_removal"], value), Situation()) is not None


# -- errors, and the lines of playbooks --------------------------------------------------------------------------------


def test_errors_of_the_last_run() -> None:
    entry = {**ENTRY, "after": "/after.yml"}
    known = {**SITE, "nvidia_runtime_result": configured(DOCKER, work=[entry], errors=["crio: broken"]),
             "nvidia_runtime_restart_results": outcome(error="not healthy"), "nvidia_runtime_completed": ["1"],
             "nvidia_runtime_verify_results": outcome("0", error="of an earlier run")}  # fmt: skip
    ((_line, error),) = _reports.lines_of(known)
    hook = "/after.yml was not run, because not all steps on this host were successful."
    assert error == f"crio: broken | docker.service: not healthy | {hook}"
    assert _reports.lines_of(SITE) == [("; ".join(PARTS), "")]


@pytest.mark.parametrize(
    ("kind", "present", "expected"),
    [("driver", True, "no container engine"), ("tegra", True, "WSL and Tegra are not supported"),
     (None, False, "no NVIDIA GPU")],
)  # fmt: skip
def test_lines_of_verify(kind: str | None, present: bool, expected: str) -> None:
    info = {"toolkit": {"version": "1.19.1", "gpu": {"kind": kind, "present": present}}}
    known = {"nvidia_playbook": "verify", "nvidia_runtime_inspection": info}
    assert _reports.lines_of(known)[0] == (f"not verified: {expected}", "")
    results = outcome(summary="7 of 8 GPUs", error="It does not see GPU 5.")
    results["results"][0]["entry"]["target"] = "docker"
    lines = _reports.lines_of({**known, "nvidia_runtime_verify_results": results})
    assert lines[0] == ("docker: 7 of 8 GPUs", "It does not see GPU 5.")
    assert [error for _line, error in lines[1:]] == [""]


def test_verify_without_a_selected_engine() -> None:
    info = {"toolkit": {"gpu": {"kind": "driver", "present": True}}, "engines": [{"target": "crio", "installed": True}]}
    known = {"nvidia_playbook": "verify", "nvidia_runtime_inspection": info}
    assert _reports.lines_of(known)[0] == ("not verified: no container engine selected", "")


def test_the_line_of_a_failure() -> None:
    known = {"nvidia_toolkit_info": INFO, "inventory_hostname": "b", "ansible_play_hosts_all": ["a", "b", "c", "d"],
             "ansible_play_hosts": ["a", "b", "c", "d"], "ansible_play_batch": ["b", "c"]}  # fmt: skip
    state = "State of this host: toolkit 1.18.2; CDI not reached; docker not reached."
    assert _reports.line_of_failure(known) == ""
    assert _reports.line_of_failure({**known, "nvidia_playbook": "site"}) == state
    assert _reports.line_of_failure({**known, "nvidia_playbook": "rolling"}) == (
        f"{state} Done: a. Failed: b. Not finished: c. Not started: d. Correct the cause, then continue with"
        " --limit b,c,d"
    )
