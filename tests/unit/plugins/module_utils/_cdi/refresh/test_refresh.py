# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import CdiOptions, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import (
    plan as refresh_plan,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import (
    refresh,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import (
    systemd as refresh_systemd,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.write import SpecWriter
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import inventory
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import gpus, inventory_of
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.refresh_hosts import (
    DROP_IN,
    GENERATOR,
    LOCAL,
    OWN_LINKS,
    OWN_PATH,
    OWN_SERVICE,
    SERVICE,
    SPECIFICATION,
    RefreshTree,
)

if t.TYPE_CHECKING:
    from pathlib import Path

DISABLED_HOOK = "enable-cuda-compat"
DISABLED = Request(disabled_hooks=(DISABLED_HOOK,))


@pytest.fixture
def tree(tmp_path: Path) -> RefreshTree:
    return RefreshTree(tmp_path)


# -- the toolkit's units -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("live", "booted", "expected"), [(True, False, [OWN_SERVICE]), (True, True, []), (False, False, [])]
)
def test_a_host_without_systemd_gets_a_warning(
    tree: RefreshTree, live: bool, booted: bool, expected: list[str]
) -> None:
    tree.toolkit()
    if booted:
        Systemd(tree)
    tree.live = live
    warned = [
        OWN_SERVICE
        for text in tree.refresh(check_mode=True)["warnings"]
        if OWN_SERVICE in text and "systemd does not run" in text
    ]
    assert warned == expected


def test_idempotent(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.refresh(request=DISABLED)
    before = tree.contents()
    result = tree.refresh(request=DISABLED)
    assert not result["changed"]
    assert result["files"] == []
    assert result["enabled"]
    assert tree.contents() == before


def test_check_mode(tree: RefreshTree) -> None:
    tree.toolkit()
    before = tree.contents()
    report = tree.refresh(check_mode=True, request=DISABLED)
    assert tree.contents() == before
    done = tree.refresh(request=DISABLED)
    for name in ("changed", "changed_files", "links_created", "enabled", "specification"):
        assert report[name] == done[name]


def test_absent_restores_everything(tree: RefreshTree) -> None:
    tree.toolkit()
    before = tree.contents()
    tree.refresh(request=DISABLED, cdi={"path": "/etc/cdi/nvidia.yaml"})
    assert tree.contents() != before
    result = tree.refresh(state="absent", cdi={"purge_backups": True})
    assert result["changed"]
    assert tree.contents() == before
    assert not tree.refresh(state="absent")["changed"]


def test_host_without_toolkit(tree: RefreshTree) -> None:
    before = tree.contents()
    for check_mode in (True, False):
        result = tree.refresh(check_mode)
        (warning,) = result["warnings"]
        assert "run nvidia_cdi_spec after each boot" in warning
        assert (result["changed"], result["service"], result["specification"]) == (False, None, None)
    assert tree.contents() == before
    # The units are removed together with the toolkit.
    tree.generator()
    tree.refresh()
    (tree.path / GENERATOR.lstrip("/")).unlink()
    result = tree.refresh()
    assert result["links_removed"] == [*OWN_LINKS]
    assert not tree.has(f"{LOCAL}/{OWN_SERVICE}")


@pytest.mark.parametrize("name", [OWN_SERVICE, OWN_PATH])
def test_masked_own_unit(tree: RefreshTree, name: str) -> None:
    tree.generator()
    tree.link(f"{LOCAL}/{name}", "/dev/null")
    before = tree.contents()
    for check_mode in (True, False):
        with pytest.raises(HostError, match=f"{name} is masked by .*systemctl unmask {name}"):
            tree.refresh(check_mode)
    assert tree.contents() == before


@pytest.mark.parametrize("target", ["/dev/null", "/srv/x"])
def test_link_instead_of_own_file(tree: RefreshTree, target: str) -> None:
    tree.toolkit()
    tree.write("/srv/x", "foreign\n")
    tree.link(DROP_IN, target)
    before = tree.contents()
    with pytest.raises(HostError, match=f"{DROP_IN} is a link to {target}"):
        tree.refresh(request=DISABLED)
    assert tree.contents() == before


def test_own_file_replaced_by_link(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.write("/srv/x", "foreign\n")
    tree.refresh(request=DISABLED)
    (tree.path / DROP_IN.lstrip("/")).unlink()
    tree.link(DROP_IN, "/srv/x")
    before = tree.contents()
    with pytest.raises(HostError, match="is a link to /srv/x"):
        tree.refresh(state="absent")
    assert tree.contents() == before


# -- a running host ----------------------------------------------------------------------------------------------------


class Systemd:
    """Simulates systemctl and journalctl for the units in a tree."""

    def __init__(self, tree: RefreshTree) -> None:
        self.tree = tree
        self.active = {SERVICE: "inactive", OWN_SERVICE: "inactive", OWN_PATH: "inactive"}
        self.stale: set[str] = set()
        self.unloaded: set[str] = set()
        self.fails = False
        self.writes: str | None = None
        self.output = SPECIFICATION
        tree.live = True
        tree.answers = self.answer
        (tree.path / "run/systemd/system").mkdir(parents=True)
        tree.write("/sys/module/nvidia/version", "550.163.01\n")

    def answer(self, argv: list[str]) -> tuple[int, str, str]:
        if argv[0] == "journalctl":
            return 0, "the driver is not there\n", ""
        if argv[0] != "systemctl":
            return 127, "", "no such program"
        verb, unit = argv[1], argv[-1]
        if verb == "show":
            loaded = "not-found" if unit in self.unloaded else "loaded"
            reload = "yes" if unit in self.stale else "no"
            state = f"ActiveState={self.active[unit]}\nLoadState={loaded}\nNeedDaemonReload={reload}\n"
            return 0, f"Id={unit}\nSubState=dead\nMainPID=0\nJob=0\n{state}", ""
        if verb == "daemon-reload":
            self.stale, self.unloaded = set(), set()
        elif verb == "stop" and unit in self.unloaded and self.active[unit] == "inactive":
            return 5, "", f"Failed to stop {unit}: Unit {unit} not loaded."
        elif verb == "restart" and self.fails:
            self.active[unit] = "failed"
            return 1, "", "Job failed"
        elif verb == "restart":
            self.active[unit] = "inactive"
            if self.writes is not None:
                self.tree.write(self.output, self.writes)
        elif verb in ("start", "stop"):
            self.active[unit] = "active" if verb == "start" else "inactive"
        return 0, "", ""

    def done(self) -> list[str]:
        """Return the systemctl commands that changed something since the last call."""
        report = [" ".join(argv[1:]) for argv in self.tree.ran if argv[0] == "systemctl" and argv[1] != "show"]
        self.tree.ran.clear()
        return report


GOOD = (
    '{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0", "containerEdits": {"env": ["A=1"]}}]}'
)
OPTIONS: dict[str, t.Any] = {"cdi": {"require_devices": False}}


def running(tree: RefreshTree) -> Systemd:
    tree.toolkit()
    systemd = Systemd(tree)
    systemd.writes = GOOD
    return systemd


def test_service_is_started(tree: RefreshTree) -> None:
    systemd = running(tree)
    systemd.stale = {OWN_SERVICE}
    result = tree.refresh(**OPTIONS)
    assert result["started"]
    assert result["present"]
    restarted = [f"reset-failed -- {OWN_SERVICE}", f"restart -- {OWN_SERVICE}"]
    assert systemd.done() == ["daemon-reload", f"start -- {OWN_PATH}", *restarted]
    assert not tree.refresh(**OPTIONS)["changed"]
    assert systemd.done() == []


def test_no_daemon_reload_with_legacy_containers(tree: RefreshTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_containers, "legacy_gpu_containers", lambda _host: ["docker/abc"])
    systemd = running(tree)
    systemd.stale = {OWN_SERVICE}
    (warning,) = tree.refresh(**OPTIONS)["warnings"]
    assert "docker/abc got their GPUs from the legacy hook" in warning
    assert "daemon-reload" not in systemd.done()
    # The next run warns again.
    assert len(tree.refresh(**OPTIONS)["warnings"]) == 1
    tree.refresh(state="absent")
    assert "daemon-reload" not in systemd.done()


@pytest.mark.parametrize("unknown", [OWN_SERVICE, OWN_PATH])
def test_unloaded_unit_is_not_started(tree: RefreshTree, monkeypatch: pytest.MonkeyPatch, unknown: str) -> None:
    containers = ["docker/abc"]
    monkeypatch.setattr(gpu_containers, "legacy_gpu_containers", lambda _host: containers)
    systemd = running(tree)
    systemd.unloaded = {unknown}
    for _attempt in range(2):
        predicted = tree.refresh(check_mode=True, **OPTIONS)
        result = tree.refresh(**OPTIONS)
        assert (predicted["changed"], predicted["warnings"]) == (result["changed"], result["warnings"])
        (warning,) = result["warnings"]
        assert f"systemd has not loaded {unknown} yet" in warning
        assert "at the next boot" in warning
        assert result["reasons"]
        assert not result["started"]
        assert systemd.done() == []
    containers.clear()
    assert tree.refresh(**OPTIONS)["started"]
    assert systemd.done()[0] == "daemon-reload"


@pytest.mark.parametrize("reason", ["failed", "missing"])
def test_service_runs_after_failure(tree: RefreshTree, reason: str) -> None:
    systemd = running(tree)
    tree.refresh(**OPTIONS)
    systemd.done()
    if reason == "failed":
        systemd.active[OWN_SERVICE] = "failed"
    else:
        (tree.path / SPECIFICATION.lstrip("/")).unlink()
    report = tree.refresh(check_mode=True, **OPTIONS)
    assert report["changed"]
    assert not report["started"]
    assert systemd.done() == []
    result = tree.refresh(**OPTIONS)
    assert result["changed"]
    assert result["started"]
    assert result["reasons"] == report["reasons"]
    assert not tree.refresh(**OPTIONS)["changed"]


def test_no_start_without_driver(tree: RefreshTree) -> None:
    systemd = running(tree)
    (tree.path / "sys/module/nvidia/version").unlink()
    systemd.writes = None
    tree.refresh(**OPTIONS)
    systemd.done()
    assert not tree.refresh(**OPTIONS)["changed"]
    assert systemd.done() == []


def test_failure_contains_the_log(tree: RefreshTree) -> None:
    systemd = running(tree)
    systemd.fails = True
    with pytest.raises(HostError, match=r"failed: the driver is not there\. The unit stays installed") as failed:
        tree.refresh(**OPTIONS)
    assert failed.value.details == {"changed": True}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": []}', "engines cannot use"),
        ("{", "engines cannot use"),
        (GOOD.replace('"env": ["A=1"]', '"deviceNodes": [{"path": "/dev/nvidia0"}]'), "/dev/nvidia0"),
        (None, "does not exist, although the driver is loaded"),
    ],
)
def test_invalid_output(tree: RefreshTree, content: str | None, message: str) -> None:
    running(tree).writes = content
    for _attempt in range(2):
        with pytest.raises(HostError, match=message):
            tree.refresh(**OPTIONS)


def test_missing_gpu_in_output(tree: RefreshTree, monkeypatch: pytest.MonkeyPatch) -> None:
    running(tree)
    found = inventory_of(*gpus(1))
    monkeypatch.setattr(inventory, "read_inventory", lambda *_args: found)
    with pytest.raises(HostError, match=r"The specification lacks /dev/nvidia0\."):
        tree.refresh()


def test_invalid_output_after_valid_one(tree: RefreshTree) -> None:
    systemd = running(tree)
    tree.refresh(**OPTIONS)
    systemd.active[OWN_SERVICE], systemd.writes = "failed", "{"
    for _attempt in range(2):
        with pytest.raises(HostError, match="engines cannot use"):
            tree.refresh(**OPTIONS)
    systemd.writes = GOOD
    assert tree.refresh(**OPTIONS)["changed"]
    assert not tree.refresh(**OPTIONS)["changed"]


def test_start_after_start_false(tree: RefreshTree) -> None:
    systemd = running(tree)
    tree.refresh(**OPTIONS)
    tree.refresh(start=False, request=DISABLED, **OPTIONS)
    # The warning is given once.
    assert tree.refresh(start=False, request=DISABLED, **OPTIONS)["warnings"] == []
    systemd.done()
    result = tree.refresh(request=DISABLED, **OPTIONS)
    (reason,) = result["reasons"]
    assert "configuration of the service" in reason
    assert systemd.done() == [f"reset-failed -- {OWN_SERVICE}", f"restart -- {OWN_SERVICE}"]
    assert tree.refresh(request=DISABLED, **OPTIONS)["reasons"] == []


def test_start_after_killed_run(tree: RefreshTree, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd = running(tree)
    tree.refresh(**OPTIONS)
    with monkeypatch.context() as killed:
        killed.setattr(refresh_systemd.RefreshService, "run_if_needed", lambda *_arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tree.refresh(request=DISABLED, **OPTIONS)
    systemd.stale = {OWN_SERVICE}
    systemd.done()
    assert tree.refresh(request=DISABLED, **OPTIONS)["started"]
    assert systemd.done()[0] == "daemon-reload"


def test_absent_removes_last_run(tree: RefreshTree) -> None:
    systemd = running(tree)
    before = tree.contents()
    tree.refresh(**OPTIONS)
    tree.refresh(state="absent", cdi={"purge_backups": True})
    assert systemd.done()[-1] == "daemon-reload"
    absent = CdiOptions(state="absent", purge_backups=True)
    SpecWriter(absent, tree.host(), tree.run, tree.run_pinned).execute(check_mode=False)
    left = set(tree.contents()) - set(before)
    assert left <= {"var", "var/lib", lock.LOCK[1:]}


def test_start_false(tree: RefreshTree) -> None:
    systemd = running(tree)
    result = tree.refresh(start=False, **OPTIONS)
    assert not result["started"]
    assert f"systemctl restart {OWN_SERVICE}" in result["warnings"][0]
    assert systemd.done() == [f"start -- {OWN_PATH}"]


def test_absent_stops_path_unit(tree: RefreshTree) -> None:
    systemd = running(tree)
    tree.refresh(**OPTIONS)
    systemd.done()
    tree.refresh(state="absent")
    assert systemd.done() == [f"stop -- {OWN_PATH}", "daemon-reload"]
    systemd.output = "/etc/cdi/nvidia.yaml"
    tree.refresh(cdi={"require_devices": False})
    assert systemd.active[OWN_PATH] == "active"


# -- check mode before the toolkit is installed ------------------------------------------------------------------------

PROGRAMS = ("/usr/bin/nvidia-ctk", "/usr/bin/nvidia-cdi-hook")
RESULTS = ("changed", "service", "path_unit", "enabled", "specification", "changed_files", "links_created")


def in_check_mode(
    tree: RefreshTree, version: str | None, programs: t.Iterable[str] = PROGRAMS, **options: t.Any
) -> t.Any:
    """Return the result of check mode in a play that would install the toolkit in ``version`` from packages."""
    host = tree.host().with_programs(version, programs)
    runners = refresh_plan.Runners(tree.run, tree.run_pinned)
    return refresh.CdiRefresh(refresh_plan.RefreshOptions(**options), host, runners).execute(check_mode=True)


def test_a_toolkit_in_a_directory_has_no_units(tree: RefreshTree) -> None:
    hook = "/opt/toolkit/nvidia-cdi-hook"
    cdi = CdiOptions(request=Request(cdi_hook_path=hook))
    predicted = in_check_mode(tree, "1.20.0", [hook, "/opt/toolkit/nvidia-ctk"], cdi=cdi)
    tree.generator("/opt/toolkit/nvidia-ctk")
    done = tree.refresh(request=cdi.request)
    assert {name: predicted[name] for name in RESULTS} == {name: done[name] for name in RESULTS}
    assert done["service"] == OWN_SERVICE


def test_options_that_the_predicted_version_lacks_are_refused(tree: RefreshTree) -> None:
    tree.live = True
    cdi = CdiOptions(request=Request(all_device=False))
    with pytest.raises(NvidiaError, match="all_device"):
        in_check_mode(tree, "1.17.8", cdi=cdi)
    assert tree.ran == []
