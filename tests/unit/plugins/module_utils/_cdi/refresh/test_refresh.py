# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
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
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh.units import ENGINES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import inventory
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import load_unit
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import gpus, inventory_of
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.refresh_hosts import (
    DROP_IN,
    ENVIRONMENT,
    GENERATOR,
    LOCAL,
    OUTPUT,
    OWN_ENVIRONMENT,
    OWN_PATH,
    OWN_SERVICE,
    PACKAGED,
    PATH,
    SERVICE,
    VENDOR,
    WANTS,
    RefreshTree,
)

if t.TYPE_CHECKING:
    from pathlib import Path

LATE = "After=multi-user.target"
DISABLED_HOOK = "enable-cuda-compat"
DISABLED = Request(disabled_hooks=(DISABLED_HOOK,))


def environment_of(tree: RefreshTree) -> t.Mapping[str, str]:
    """Return the environment of the toolkit's service."""
    unit = load_unit(tree.host(), SERVICE)
    assert unit is not None
    return unit.environment


@pytest.fixture
def tree(tmp_path: Path) -> RefreshTree:
    return RefreshTree(tmp_path)


# -- the toolkit's units -----------------------------------------------------------------------------------------------


def test_toolkit_units_are_enabled_and_ordered(tree: RefreshTree) -> None:
    tree.toolkit()
    result = tree.refresh()
    assert result["changed"]
    assert (result["owner"], result["service"], result["path_unit"]) == ("toolkit", SERVICE, PATH)
    assert result["links_created"] == [f"{WANTS}/{SERVICE}", f"{WANTS}/{PATH}"]
    assert tree.contents()[f"{WANTS}/{SERVICE}".lstrip("/")][-1] == f"{VENDOR}/{SERVICE}".encode()
    assert all(engine in tree.text(DROP_IN) for engine in ENGINES)
    assert tree.text(ENVIRONMENT) == PACKAGED
    assert result["specification"] == OUTPUT
    assert result["toolkit_enabled"]
    assert result["enabled"]


@pytest.mark.parametrize(
    ("live", "booted", "expected"), [(True, False, [SERVICE]), (True, True, []), (False, False, [])]
)
def test_a_host_without_systemd_gets_a_warning(
    tree: RefreshTree, live: bool, booted: bool, expected: list[str]
) -> None:
    tree.toolkit()
    if booted:
        Systemd(tree)
    tree.live = live
    warned = [
        SERVICE
        for text in tree.refresh(check_mode=True)["warnings"]
        if SERVICE in text and "systemd does not run" in text
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
    for name in ("changed", "changed_files", "links_created", "enabled", "variables", "specification"):
        assert report[name] == done[name]


@pytest.mark.parametrize("order", ["", LATE], ids=["1.19.1", "1.19.0"])
@pytest.mark.parametrize("owner", ["toolkit", "collection"])
def test_absent_restores_everything(tree: RefreshTree, order: str, owner: str) -> None:
    tree.toolkit(order)
    before = tree.contents()
    tree.refresh(owner=owner, request=DISABLED, cdi={"path": "/etc/cdi/nvidia.yaml"})
    assert tree.contents() != before
    result = tree.refresh(state="absent", cdi={"purge_backups": True})
    assert result["changed"]
    assert tree.contents() == before
    assert not tree.refresh(state="absent")["changed"]


def test_foreign_links_stay(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.link(f"{WANTS}/{SERVICE}", f"{VENDOR}/{SERVICE}")
    result = tree.refresh()
    assert result["links_created"] == [f"{WANTS}/{PATH}"]
    tree.refresh(state="absent")
    assert tree.has(f"{WANTS}/{SERVICE}")
    assert not tree.has(f"{WANTS}/{PATH}")


def test_links_to_the_previous_directory_of_the_units_enable_them(tree: RefreshTree) -> None:
    tree.toolkit(folder=LOCAL)
    tree.refresh()
    # The newer package has its units elsewhere. systemctl enable does not change the links either.
    for name in (SERVICE, PATH):
        (tree.path / f"{LOCAL}/{name}".lstrip("/")).rename(tree.path / name)
    tree.toolkit()
    result = tree.refresh()
    assert (result["changed"], result["enabled"], result["links_created"]) == (False, True, [])


def test_options_are_environment_variables(tree: RefreshTree) -> None:
    tree.toolkit()
    result = tree.refresh(request=DISABLED, cdi={"path": "/etc/cdi/nvidia.yaml"})
    assert result["variables"] == {
        "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH": "/etc/cdi/nvidia.yaml",
        "NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS": "enable-cuda-compat",
        "NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS": "disable-ipc-discoverer",
    }
    assert result["specification"] == "/etc/cdi/nvidia.yaml"
    lines = [f"{name}={value}" for name, value in result["variables"].items()]
    assert tree.text(OWN_ENVIRONMENT).splitlines()[1:] == lines
    assert f"EnvironmentFile=-{OWN_ENVIRONMENT}\n" in tree.text(DROP_IN)
    assert tree.text(ENVIRONMENT) == PACKAGED
    # A removed option removes its variable.
    result = tree.refresh(request=DISABLED)
    assert result["specification"] == OUTPUT
    assert "OUTPUT_FILE_PATH" not in tree.text(OWN_ENVIRONMENT)
    assert tree.refresh()["variables"] == {"NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS": "disable-ipc-discoverer"}
    assert "DISABLED_HOOKS" not in tree.text(OWN_ENVIRONMENT)


@pytest.mark.parametrize("content", ["A=1 \\", "A=1 \\\n", "A='open\n", "\xff", ""])
def test_own_environment_file_has_precedence(tree: RefreshTree, content: str) -> None:
    """The last line of the other file may be continued or have an open quote."""
    tree.toolkit()
    (tree.path / ENVIRONMENT.lstrip("/")).write_bytes(content.encode("latin-1"))
    before = tree.read(ENVIRONMENT)
    tree.refresh(request=DISABLED)
    assert tree.read(ENVIRONMENT) == before
    assert environment_of(tree)["NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS"] == DISABLED_HOOK


def test_overridden_variable_is_a_warning(tree: RefreshTree) -> None:
    tree.toolkit()
    name = "NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS"
    tree.write(ENVIRONMENT, f"{name}=all\nNVIDIA_CTK_CDI_GENERATE_MODE=nvml\n")
    for _attempt in range(2):
        (warning,) = tree.refresh(request=DISABLED)["warnings"]
        assert warning.startswith(f"{ENVIRONMENT} or a drop-in of {SERVICE} sets {name}")
    assert environment_of(tree)[name] == DISABLED_HOOK
    # The same value gives no warning.
    tree.write(ENVIRONMENT, f"{name}={DISABLED_HOOK}\n")
    assert tree.refresh(request=DISABLED)["warnings"] == []


def test_output_of_the_administrator(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.write(ENVIRONMENT, "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/cdi/foreign.yaml\n")
    assert tree.refresh(request=DISABLED)["specification"] == "/etc/cdi/foreign.yaml"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"all_device": False}, "all_device: false needs nvidia-ctk 1.19"),
        ({"device_ids": ("0",)}, "device_ids needs"),
        ({"csv_compat_container_root": "/compat"}, "csv_compat_container_root needs"),
    ],
)
@pytest.mark.parametrize("owner", ["toolkit", "collection"])
def test_unsupported_options_are_refused(
    tree: RefreshTree, owner: str, options: dict[str, t.Any], message: str
) -> None:
    tree.toolkit()
    tree.live, tree.version = True, "1.18.2"
    before = tree.contents()
    with pytest.raises(NvidiaError, match=message):
        tree.refresh(owner=owner, request=Request(**options))
    assert tree.contents() == before
    tree.version = "1.19.0"
    assert tree.refresh(owner=owner, request=Request(**options))["changed"]


def test_early_unit(tree: RefreshTree) -> None:
    tree.toolkit(LATE)
    result = tree.refresh()
    assert "Before=" not in tree.text(DROP_IN)
    text = tree.text(f"{LOCAL}/{OWN_SERVICE}")
    assert "ExecStart=/usr/bin/nvidia-ctk cdi generate\n" in text
    assert f"EnvironmentFile=-{ENVIRONMENT}\nEnvironmentFile=-{OWN_ENVIRONMENT}\n" in text
    assert "multi-user.target" not in text.partition("[Service]")[0]
    assert f"{WANTS}/{OWN_SERVICE}" in result["links_created"]
    assert result["service"] == SERVICE
    # The unit of a later toolkit is ordered before the engines.
    tree.toolkit(f"Before={' '.join(ENGINES)}")
    result = tree.refresh()
    assert result["links_removed"] == [f"{WANTS}/{OWN_SERVICE}"]
    assert not tree.has(f"{LOCAL}/{OWN_SERVICE}")
    assert "Before=" not in tree.text(DROP_IN)
    # A unit that is ordered before only some engines needs a drop-in.
    tree.toolkit("Before=docker.service containerd.service crio.service")
    tree.refresh()
    assert "k0sworker.service" in tree.text(DROP_IN)


def test_early_unit_has_the_variables_of_drop_ins(tree: RefreshTree) -> None:
    tree.toolkit(LATE)
    tree.write(ENVIRONMENT, "NVIDIA_CTK_DRIVER_ROOT=/other\n")
    variables = "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/cdi/nvidia.yaml 'NVIDIA_CTK_DEV_ROOT=/a $b 100%%'"
    tree.write(f"{LOCAL}/{SERVICE}.d/override.conf", f"[Service]\nEnvironment={variables} OTHER=1\n")
    tree.refresh()
    lines = tree.text(f"{LOCAL}/{OWN_SERVICE}").splitlines()
    # The unit reads the file with the administrator's options itself.
    assert [line for line in lines if line.startswith(("Environment=NVIDIA", 'Environment="'))] == [
        "Environment=NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/cdi/nvidia.yaml",
        'Environment="NVIDIA_CTK_DEV_ROOT=/a $b 100%%"',
    ]
    early, late = (load_unit(tree.host(), name) for name in (OWN_SERVICE, SERVICE))
    assert early is not None
    assert late is not None
    names = [name for name in late.environment if name.startswith("NVIDIA_CTK")]
    assert {name: early.environment[name] for name in names} == {name: late.environment[name] for name in names}


def test_masked_toolkit_unit(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.link(f"{LOCAL}/{SERVICE}", "/dev/null")
    with pytest.raises(HostError, match=f"systemctl unmask {SERVICE}"):
        tree.refresh(owner="toolkit")
    assert tree.refresh()["owner"] == "collection"


def test_missing_toolkit_units(tree: RefreshTree) -> None:
    with pytest.raises(HostError, match=r"Toolkit 1\.18 or newer"):
        tree.refresh(owner="toolkit")
    tree.generator()
    assert tree.refresh()["owner"] == "collection"


def test_host_without_toolkit(tree: RefreshTree) -> None:
    before = tree.contents()
    with pytest.raises(HostError, match="This host has no nvidia-ctk"):
        tree.refresh(owner="collection")
    for check_mode in (True, False):
        result = tree.refresh(check_mode)
        (warning,) = result["warnings"]
        assert "run nvidia_cdi_spec after each boot" in warning
        assert (result["changed"], result["owner"], result["specification"]) == (False, None, None)
    assert tree.contents() == before
    # The units are removed together with the toolkit.
    tree.generator()
    tree.refresh()
    (tree.path / GENERATOR.lstrip("/")).unlink()
    result = tree.refresh()
    assert result["links_removed"] == [f"{WANTS}/{OWN_SERVICE}", f"{WANTS}/{OWN_PATH}"]
    assert not tree.has(f"{LOCAL}/{OWN_SERVICE}")


def test_removal_after_a_run_that_was_killed_before_its_first_link(tree: RefreshTree) -> None:
    tree.toolkit()
    before = tree.contents()
    links = [[f"{WANTS}/{SERVICE}", f"{VENDOR}/{SERVICE}"]]
    tree.write("/var/lib/gpufleet-nvidia/state/cdi.refresh.links", json.dumps(links))
    tree.folder(WANTS)
    done = tree.refresh(state="absent")
    assert (done["changed"], done["links_removed"]) == (True, [])
    assert not tree.has(WANTS)
    assert not tree.has("/var/lib/gpufleet-nvidia")
    assert {path: entry for path, entry in tree.contents().items() if path in before} == before
    assert not tree.refresh(state="absent")["changed"]


def test_damaged_list_of_links(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.refresh()
    tree.write("/var/lib/gpufleet-nvidia/state/cdi.refresh.links", "{")
    with pytest.raises(HostError, match="is damaged"):
        tree.refresh(state="absent")


@pytest.mark.parametrize("name", [OWN_SERVICE, OWN_PATH])
def test_masked_own_unit(tree: RefreshTree, name: str) -> None:
    tree.generator()
    tree.link(f"{LOCAL}/{name}", "/dev/null")
    before = tree.contents()
    for check_mode in (True, False):
        with pytest.raises(HostError, match=f"{name} is masked by .*systemctl unmask {name}"):
            tree.refresh(check_mode, owner="collection")
    assert tree.contents() == before


@pytest.mark.parametrize("target", ["/dev/null", "/srv/x"])
@pytest.mark.parametrize("path", [DROP_IN, OWN_ENVIRONMENT])
def test_link_instead_of_own_file(tree: RefreshTree, path: str, target: str) -> None:
    tree.toolkit()
    tree.write("/srv/x", "foreign\n")
    tree.link(path, target)
    before = tree.contents()
    with pytest.raises(HostError, match=f"{path} is a link to {target}"):
        tree.refresh(request=DISABLED)
    assert tree.contents() == before


def test_own_file_replaced_by_link(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.write("/srv/x", "foreign\n")
    tree.refresh(request=DISABLED)
    (tree.path / OWN_ENVIRONMENT.lstrip("/")).unlink()
    tree.link(OWN_ENVIRONMENT, "/srv/x")
    before = tree.contents()
    with pytest.raises(HostError, match="is a link to /srv/x"):
        tree.refresh(state="absent")
    assert tree.contents() == before


@pytest.mark.parametrize(
    "runs",
    [
        [{"owner": "collection"}, {"owner": "collection", "before_engines": False}],
        [{}, {"owner": "collection", "request": DISABLED}],
        [{"owner": "collection", "request": DISABLED}, {}],
    ],
)
def test_created_directories_are_removed(tree: RefreshTree, runs: list[dict[str, t.Any]]) -> None:
    tree.toolkit()
    before = tree.contents()
    for run in runs:
        tree.refresh(**run)
    tree.refresh(state="absent", cdi={"purge_backups": True})
    assert tree.contents() == before


def test_unit_contents(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.refresh()
    drop_in = tree.text(DROP_IN)
    assert "After=nvidia-persistenced.service nvidia-fabricmanager.service\n" in drop_in
    assert "RemainAfterExit=no\n" in drop_in
    tree.refresh(owner="collection")
    own = tree.text(f"{LOCAL}/{OWN_SERVICE}")
    # A service that is started too often makes its path unit fail.
    assert "StartLimitIntervalSec=0\n" in own.partition("[Service]")[0]
    tree.toolkit(LATE)
    tree.refresh(owner="toolkit")
    early = tree.text(f"{LOCAL}/{OWN_SERVICE}")
    for text in (drop_in, own, early):
        # This service starts the kubelet and waits for it, and the kubelet waits for the refresh service.
        assert "nvidia-mig-manager" not in text
        assert "TimeoutStartSec=120\nTimeoutStopSec=5\n" in text


# -- a running host ----------------------------------------------------------------------------------------------------


class Systemd:
    """Simulates systemctl and journalctl for the units in a tree."""

    def __init__(self, tree: RefreshTree) -> None:
        self.tree = tree
        self.active = {SERVICE: "inactive", PATH: "inactive", OWN_SERVICE: "inactive", OWN_PATH: "inactive"}
        self.stale: set[str] = set()
        self.unloaded: set[str] = set()
        self.fails = False
        self.writes: str | None = None
        self.output = OUTPUT
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
TOOLKIT: dict[str, t.Any] = {"owner": "toolkit", "cdi": {"require_devices": False}}


def running(tree: RefreshTree) -> Systemd:
    tree.toolkit()
    systemd = Systemd(tree)
    systemd.writes = GOOD
    return systemd


def test_service_is_started(tree: RefreshTree) -> None:
    systemd = running(tree)
    systemd.stale = {SERVICE}
    result = tree.refresh(**TOOLKIT)
    assert result["started"]
    assert result["present"]
    restarted = [f"reset-failed -- {SERVICE}", f"restart -- {SERVICE}"]
    assert systemd.done() == ["daemon-reload", f"start -- {PATH}", *restarted]
    assert not tree.refresh(**TOOLKIT)["changed"]
    assert systemd.done() == []


def test_no_daemon_reload_without_need(tree: RefreshTree) -> None:
    systemd = running(tree)
    tree.refresh(**TOOLKIT)
    assert "daemon-reload" not in systemd.done()


def test_no_daemon_reload_with_legacy_containers(tree: RefreshTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_containers, "legacy_gpu_containers", lambda _host: ["docker/abc"])
    systemd = running(tree)
    systemd.stale = {SERVICE}
    (warning,) = tree.refresh(**TOOLKIT)["warnings"]
    assert "docker/abc got their GPUs from the legacy hook" in warning
    assert "daemon-reload" not in systemd.done()
    # The next run warns again.
    assert len(tree.refresh(**TOOLKIT)["warnings"]) == 1
    tree.refresh(state="absent")
    assert "daemon-reload" not in systemd.done()


@pytest.mark.parametrize("unknown", [SERVICE, PATH])
def test_unloaded_unit_is_not_started(tree: RefreshTree, monkeypatch: pytest.MonkeyPatch, unknown: str) -> None:
    containers = ["docker/abc"]
    monkeypatch.setattr(gpu_containers, "legacy_gpu_containers", lambda _host: containers)
    systemd = running(tree)
    systemd.unloaded = {unknown}
    for _attempt in range(2):
        predicted = tree.refresh(check_mode=True, **TOOLKIT)
        result = tree.refresh(**TOOLKIT)
        assert (predicted["changed"], predicted["warnings"]) == (result["changed"], result["warnings"])
        (warning,) = result["warnings"]
        assert f"systemd has not loaded {unknown} yet" in warning
        assert "at the next boot" in warning
        assert result["reasons"]
        assert not result["started"]
        assert systemd.done() == []
    containers.clear()
    assert tree.refresh(**TOOLKIT)["started"]
    assert systemd.done()[0] == "daemon-reload"


@pytest.mark.parametrize("reason", ["failed", "missing"])
def test_service_runs_after_failure(tree: RefreshTree, reason: str) -> None:
    systemd = running(tree)
    tree.refresh(**TOOLKIT)
    systemd.done()
    if reason == "failed":
        systemd.active[SERVICE] = "failed"
    else:
        (tree.path / OUTPUT.lstrip("/")).unlink()
    report = tree.refresh(check_mode=True, **TOOLKIT)
    assert report["changed"]
    assert not report["started"]
    assert systemd.done() == []
    result = tree.refresh(**TOOLKIT)
    assert result["changed"]
    assert result["started"]
    assert result["reasons"] == report["reasons"]
    assert not tree.refresh(**TOOLKIT)["changed"]


def test_no_start_without_driver(tree: RefreshTree) -> None:
    systemd = running(tree)
    (tree.path / "sys/module/nvidia/version").unlink()
    systemd.writes = None
    tree.refresh(**TOOLKIT)
    systemd.done()
    assert not tree.refresh(**TOOLKIT)["changed"]
    assert systemd.done() == []


def test_failure_contains_the_log(tree: RefreshTree) -> None:
    systemd = running(tree)
    systemd.fails = True
    with pytest.raises(HostError, match=r"failed: the driver is not there\. The unit stays installed") as failed:
        tree.refresh(**TOOLKIT)
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
            tree.refresh(**TOOLKIT)


def test_missing_gpu_in_output(tree: RefreshTree, monkeypatch: pytest.MonkeyPatch) -> None:
    running(tree)
    found = inventory_of(*gpus(1))
    monkeypatch.setattr(inventory, "read_inventory", lambda *_args: found)
    with pytest.raises(HostError, match=r"The specification lacks /dev/nvidia0\."):
        tree.refresh(owner="toolkit")


def test_invalid_output_after_valid_one(tree: RefreshTree) -> None:
    systemd = running(tree)
    tree.refresh(**TOOLKIT)
    systemd.active[SERVICE], systemd.writes = "failed", "{"
    for _attempt in range(2):
        with pytest.raises(HostError, match="engines cannot use"):
            tree.refresh(**TOOLKIT)
    systemd.writes = GOOD
    assert tree.refresh(**TOOLKIT)["changed"]
    assert not tree.refresh(**TOOLKIT)["changed"]


def test_start_after_start_false(tree: RefreshTree) -> None:
    systemd = running(tree)
    tree.refresh(**TOOLKIT)
    tree.refresh(start=False, request=DISABLED, **TOOLKIT)
    # The warning is given once.
    assert tree.refresh(start=False, request=DISABLED, **TOOLKIT)["warnings"] == []
    systemd.done()
    result = tree.refresh(request=DISABLED, **TOOLKIT)
    (reason,) = result["reasons"]
    assert "configuration of the service" in reason
    assert systemd.done() == [f"reset-failed -- {SERVICE}", f"restart -- {SERVICE}"]
    assert tree.refresh(request=DISABLED, **TOOLKIT)["reasons"] == []


def test_start_after_killed_run(tree: RefreshTree, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd = running(tree)
    tree.refresh(**TOOLKIT)
    with monkeypatch.context() as killed:
        killed.setattr(refresh_systemd.RefreshService, "run_if_needed", lambda *_arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tree.refresh(request=DISABLED, **TOOLKIT)
    systemd.stale = {SERVICE}
    systemd.done()
    assert tree.refresh(request=DISABLED, **TOOLKIT)["started"]
    assert systemd.done()[0] == "daemon-reload"


def test_absent_removes_last_run(tree: RefreshTree) -> None:
    systemd = running(tree)
    tree.link(f"{WANTS}/{SERVICE}", f"{VENDOR}/{SERVICE}")
    before = tree.contents()
    tree.refresh(**TOOLKIT)
    tree.refresh(state="absent", cdi={"purge_backups": True})
    assert systemd.done()[-1] == "daemon-reload"
    (tree.path / OUTPUT.lstrip("/")).unlink()
    (tree.path / "var/run/cdi").rmdir()
    (tree.path / "var/run").rmdir()
    left = set(tree.contents()) - set(before)
    assert left <= {"var", "var/lib", lock.LOCK[1:]}


def test_start_false(tree: RefreshTree) -> None:
    systemd = running(tree)
    result = tree.refresh(start=False, **TOOLKIT)
    assert not result["started"]
    assert f"systemctl restart {SERVICE}" in result["warnings"][0]
    assert systemd.done() == [f"start -- {PATH}"]


def test_absent_stops_path_unit(tree: RefreshTree) -> None:
    systemd = running(tree)
    tree.refresh(**TOOLKIT)
    systemd.done()
    tree.refresh(state="absent")
    assert systemd.done() == [f"stop -- {PATH}", "daemon-reload"]
    systemd.output = "/etc/cdi/nvidia.yaml"
    tree.refresh(owner="collection", cdi={"require_devices": False})
    assert systemd.active[OWN_PATH] == "active"


@pytest.mark.parametrize("options", [{"state": "absent"}, {"owner": "collection", "cdi": {"require_devices": False}}])
@pytest.mark.parametrize("active", ["inactive", "active"])
def test_toolkit_was_purged(tree: RefreshTree, options: dict[str, t.Any], active: str) -> None:
    """The scripts of the package stop the path unit, and systemd then forgets it. A unit that still runs is stopped."""
    systemd = running(tree)
    tree.refresh(**TOOLKIT)
    for name in (SERVICE, PATH):
        tree.path.joinpath(f"{VENDOR}/{name}".lstrip("/")).unlink()
    systemd.unloaded, systemd.active[PATH], systemd.output = {SERVICE, PATH}, active, "/etc/cdi/nvidia.yaml"
    systemd.done()
    assert tree.refresh(**options)["links_removed"] == [f"{WANTS}/{SERVICE}", f"{WANTS}/{PATH}"]
    assert (f"stop -- {PATH}" in systemd.done()) is (active == "active")


# -- check mode before the toolkit is installed ------------------------------------------------------------------------

PROGRAMS = ("/usr/bin/nvidia-ctk", "/usr/bin/nvidia-cdi-hook")
RESULTS = ("changed", "owner", "service", "path_unit", "enabled", "specification", "changed_files", "links_created")


def in_check_mode(
    tree: RefreshTree, version: str | None, programs: t.Iterable[str] = PROGRAMS, **options: t.Any
) -> t.Any:
    """Return the result of check mode in a play that would install the toolkit in ``version`` from packages."""
    host = tree.host().with_programs(version, programs, packages=options.pop("packages", True))
    runners = refresh_plan.Runners(tree.run, tree.run_pinned)
    return refresh.CdiRefresh(refresh_plan.RefreshOptions(**options), host, runners).execute(check_mode=True)


@pytest.mark.parametrize(
    ("version", "order"), [("1.18.0", ""), ("1.19.0", LATE), ("1.20.0-rc.2", ""), ("1.20.0", ""), (None, "")]
)
@pytest.mark.parametrize("before", [None, "", LATE], ids=["no toolkit", "toolkit", "late toolkit"])
@pytest.mark.parametrize("owner", ["auto", "toolkit", "collection"])
def test_units_of_a_toolkit_that_would_be_installed(
    tree: RefreshTree, version: str | None, order: str, before: str | None, owner: str
) -> None:
    if before is not None:
        tree.toolkit(before)
        tree.refresh(owner="auto")
    contents = tree.contents()
    predicted = in_check_mode(tree, version, owner=owner)
    assert tree.contents() == contents
    tree.toolkit(order)
    done = tree.refresh(owner=owner)
    assert {name: predicted[name] for name in RESULTS} == {name: done[name] for name in RESULTS}
    assert predicted["warnings"] == done["warnings"]
    assert not tree.refresh(owner=owner)["changed"]


def test_units_that_a_downgrade_would_remove(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.refresh()
    predicted = in_check_mode(tree, "1.17.8")
    for name in (SERVICE, PATH):
        (tree.path / f"{VENDOR}/{name}".lstrip("/")).unlink()
    done = tree.refresh()
    assert {name: predicted[name] for name in RESULTS} == {name: done[name] for name in RESULTS}
    assert (done["owner"], done["changed"]) == ("collection", True)


def test_a_toolkit_in_a_directory_has_no_units(tree: RefreshTree) -> None:
    hook = "/opt/toolkit/nvidia-cdi-hook"
    cdi = CdiOptions(request=Request(cdi_hook_path=hook))
    predicted = in_check_mode(tree, "1.20.0", [hook, "/opt/toolkit/nvidia-ctk"], packages=False, cdi=cdi)
    tree.generator("/opt/toolkit/nvidia-ctk")
    done = tree.refresh(request=cdi.request)
    assert {name: predicted[name] for name in RESULTS} == {name: done[name] for name in RESULTS}
    assert done["owner"] == "collection"


def test_options_that_the_predicted_version_lacks_are_refused(tree: RefreshTree) -> None:
    tree.live = True
    cdi = CdiOptions(request=Request(all_device=False))
    with pytest.raises(NvidiaError, match="all_device"):
        in_check_mode(tree, "1.17.8", owner="collection", cdi=cdi)
    assert tree.ran == []


def test_a_masked_unit_stays_masked(tree: RefreshTree) -> None:
    tree.link(f"{LOCAL}/{SERVICE}", "/dev/null")
    assert in_check_mode(tree, "1.20.0")["owner"] == "collection"
