# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _cdi_refresh_program
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_options import options_from_json
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import (
    GpufleetError,
    HostError,
    MissingPackageError,
)
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.refresh_hosts import (
    DROP_IN,
    ENVIRONMENT,
    LOCAL,
    OPTIONS,
    OUTPUT,
    OWN_PATH,
    OWN_SERVICE,
    PACKAGED,
    PATH,
    PROGRAM,
    SERVICE,
    VENDOR,
    WANTS,
    RefreshTree,
    parse_sources_once,
)

if t.TYPE_CHECKING:
    from pathlib import Path

ENGINES = ("docker.service", "containerd.service", "crio.service")
LATE = "After=multi-user.target"
DISABLED = Request(disabled_hooks=("enable-cuda-compat",))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RefreshTree:
    parse_sources_once(monkeypatch)
    monkeypatch.setattr(_cdi_refresh_program, "yaml_sources", lambda _shipped: {"yaml/__init__.py": b""})
    return RefreshTree(tmp_path)


# -- the toolkit's units -----------------------------------------------------------------------------------------------


def test_toolkit_enabled_and_put_before_the_engines(tree: RefreshTree) -> None:
    tree.toolkit()
    result = tree.refresh()
    assert result["changed"]
    assert (result["owner"], result["service"], result["path_unit"]) == ("toolkit", SERVICE, PATH)
    assert result["links_made"] == [f"{WANTS}/{SERVICE}", f"{WANTS}/{PATH}"]
    assert tree.contents()[f"{WANTS}/{SERVICE}".lstrip("/")][1] == f"{VENDOR}/{SERVICE}".encode()
    assert all(engine in tree.text(DROP_IN) for engine in ENGINES)
    assert tree.text(ENVIRONMENT) == PACKAGED
    assert result["specification"] == OUTPUT
    assert result["toolkit_enabled"]
    assert result["enabled"]


def test_a_second_run_changes_nothing(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.refresh(request=DISABLED)
    before = tree.contents()
    result = tree.refresh(request=DISABLED)
    assert not result["changed"]
    assert result["files"] == []
    assert result["enabled"]
    assert tree.contents() == before


def test_check_mode_tells_and_does_nothing(tree: RefreshTree) -> None:
    tree.toolkit()
    before = tree.contents()
    told = tree.refresh(check_mode=True, request=DISABLED)
    assert tree.contents() == before
    done = tree.refresh(request=DISABLED)
    for name in ("changed", "changed_files", "links_made", "enabled", "variables", "specification"):
        assert told[name] == done[name]


@pytest.mark.parametrize("order", ["", LATE], ids=["1.19.1", "1.19.0"])
@pytest.mark.parametrize("owner", ["toolkit", "collection"])
def test_all_of_it_is_taken_back(tree: RefreshTree, order: str, owner: str) -> None:
    tree.toolkit(order)
    before = tree.contents()
    tree.refresh(owner=owner, request=DISABLED, cdi={"path": "/etc/cdi/nvidia.yaml"})
    assert tree.contents() != before
    result = tree.refresh(state="absent", cdi={"purge_backups": True})
    assert result["changed"]
    assert tree.contents() == before
    assert not tree.refresh(state="absent")["changed"]


def test_links_of_others_stay(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.link(f"{WANTS}/{SERVICE}", f"{VENDOR}/{SERVICE}")
    result = tree.refresh()
    assert result["links_made"] == [f"{WANTS}/{PATH}"]
    tree.refresh(state="absent")
    assert tree.has(f"{WANTS}/{SERVICE}")
    assert not tree.has(f"{WANTS}/{PATH}")


def test_options_become_variables(tree: RefreshTree) -> None:
    tree.toolkit()
    result = tree.refresh(request=DISABLED, cdi={"path": "/etc/cdi/nvidia.yaml"})
    assert result["variables"] == {
        "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH": "/etc/cdi/nvidia.yaml",
        "NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS": "enable-cuda-compat",
    }
    assert result["specification"] == "/etc/cdi/nvidia.yaml"
    lines = "".join(f"{name}={value}\n" for name, value in result["variables"].items())
    assert tree.text(ENVIRONMENT) == PACKAGED + lines
    # What is asked for no more goes.
    result = tree.refresh(request=DISABLED)
    assert result["specification"] == OUTPUT
    assert "\nNVIDIA_CTK_CDI_OUTPUT_FILE_PATH" not in tree.text(ENVIRONMENT)


@pytest.mark.parametrize(
    ("engine", "flagged"), [("podman:4.9.3", True), ("podman:5.4", False), ("docker:20.10", False)]
)
def test_an_engine_that_is_too_old_for_groups(tree: RefreshTree, engine: str, flagged: bool) -> None:
    tree.toolkit()
    result = tree.refresh(cdi={"for_engines": (engine,)})
    flags = result["variables"].get("NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS")
    assert flags == ("no-additional-gids-for-device-nodes" if flagged else None)


def test_a_unit_that_comes_after_the_engines_gets_an_early_one(tree: RefreshTree) -> None:
    tree.toolkit(LATE)
    result = tree.refresh()
    assert not tree.has(DROP_IN)
    text = tree.text(f"{LOCAL}/{OWN_SERVICE}")
    assert "ExecStart=/usr/bin/nvidia-ctk cdi generate\n" in text
    assert f"EnvironmentFile=-{ENVIRONMENT}\n" in text
    assert "multi-user.target" not in text.partition("[Service]")[0]
    assert f"{WANTS}/{OWN_SERVICE}" in result["links_made"]
    assert result["service"] == SERVICE
    # The next toolkit is in time by itself.
    tree.toolkit("Before=docker.service containerd.service crio.service")
    result = tree.refresh()
    assert result["links_removed"] == [f"{WANTS}/{OWN_SERVICE}"]
    assert not tree.has(f"{LOCAL}/{OWN_SERVICE}")
    assert not tree.has(DROP_IN)


def test_engines_need_not_wait(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.refresh()
    assert tree.has(DROP_IN)
    tree.refresh(before_engines=False)
    assert not tree.has(DROP_IN)
    assert not tree.has(f"{DROP_IN.rpartition('/')[0]}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cdi": {"backend": "native"}}, "backend is native"),
        ({"cdi": {"path": "/etc/cdi/nvidia.yml"}}, "engines read only .json and .yaml"),
        ({"cdi": {"path": "nvidia.yaml"}}, "is not an absolute path"),
        ({"request": Request(disabled_hooks=("nothing",))}, "disabled_hooks: 'nothing' is not known"),
    ],
)
def test_refusals(tree: RefreshTree, options: dict[str, t.Any], words: str) -> None:
    tree.toolkit()
    before = tree.contents()
    with pytest.raises(GpufleetError, match=words):
        tree.refresh(owner="toolkit", **options)
    assert tree.contents() == before


def test_a_masked_unit_is_a_clear_answer(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.link(f"{LOCAL}/{SERVICE}", "/dev/null")
    with pytest.raises(HostError, match=f"systemctl unmask {SERVICE}"):
        tree.refresh(owner="toolkit")
    assert tree.refresh()["owner"] == "collection"


def test_units_that_are_not_there_are_a_clear_answer(tree: RefreshTree) -> None:
    with pytest.raises(HostError, match=r"has it since 1\.18"):
        tree.refresh(owner="toolkit")
    assert tree.refresh()["owner"] == "collection"


def test_a_damaged_note_is_a_clear_answer(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.refresh()
    tree.write("/var/lib/gpufleet-nvidia/state/cdi.refresh.links", "{")
    with pytest.raises(HostError, match="is damaged"):
        tree.refresh(state="absent")


@pytest.mark.parametrize("name", [OWN_SERVICE, OWN_PATH])
def test_a_masked_unit_of_ours_is_left_masked(tree: RefreshTree, name: str) -> None:
    tree.link(f"{LOCAL}/{name}", "/dev/null")
    before = tree.contents()
    for check_mode in (True, False):
        with pytest.raises(HostError, match=f"{name} is masked by .*systemctl unmask {name}"):
            tree.refresh(check_mode, owner="collection")
    assert tree.contents() == before


@pytest.mark.parametrize(("target", "words"), [("/dev/null", "is masked"), ("/srv/x", "is a link, to /srv/x")])
@pytest.mark.parametrize("path", [DROP_IN, OPTIONS, PROGRAM])
def test_a_link_in_place_of_a_file_of_ours_is_not_followed(
    tree: RefreshTree, path: str, target: str, words: str
) -> None:
    tree.toolkit()
    tree.write("/srv/x", "theirs\n")
    tree.link(path, target)
    before = tree.contents()
    with pytest.raises(HostError, match=f"{path} {words}"):
        tree.refresh(owner="toolkit" if path == DROP_IN else "collection")
    assert tree.contents() == before


def test_a_link_that_came_later_keeps_what_it_leads_to(tree: RefreshTree) -> None:
    tree.write("/srv/x", "theirs\n")
    tree.refresh()
    (tree.path / OPTIONS.lstrip("/")).unlink()
    tree.link(OPTIONS, "/srv/x")
    before = tree.contents()
    with pytest.raises(HostError, match="is a link, to /srv/x"):
        tree.refresh(state="absent")
    assert tree.contents() == before


@pytest.mark.parametrize("there", [False, True])
def test_an_environment_file_that_leads_to_no_file(tree: RefreshTree, there: bool) -> None:
    tree.toolkit()
    (tree.path / ENVIRONMENT.lstrip("/")).unlink()
    tree.link(ENVIRONMENT, "/dev/null")
    if there:
        (tree.path / "dev").mkdir()
        os.mkfifo(tree.path / "dev/null")
    before = tree.contents()
    with pytest.raises(HostError, match=f"{ENVIRONMENT} is a link to /dev/null, .* Remove the link"):
        tree.refresh(request=DISABLED)
    assert tree.contents() == before
    assert tree.refresh(owner="collection")["owner"] == "collection"


def test_an_environment_file_elsewhere_stays_there(tree: RefreshTree) -> None:
    tree.toolkit()
    (tree.path / ENVIRONMENT.lstrip("/")).unlink()
    tree.write("/srv/env", PACKAGED)
    tree.link(ENVIRONMENT, "/srv/env")
    before = tree.contents()
    tree.refresh(request=DISABLED)
    assert "DISABLED_HOOKS=enable-cuda-compat" in tree.text("/srv/env")
    tree.refresh(state="absent", cdi={"purge_backups": True})
    assert tree.contents() == before


@pytest.mark.parametrize(
    "runs",
    [
        [{"owner": "collection"}, {"owner": "collection", "program_dir": "/opt/a/b"}],
        [{}, {"owner": "collection", "request": DISABLED}],
        [{"owner": "collection", "request": DISABLED}, {}],
    ],
)
def test_folders_that_were_made_go_again(tree: RefreshTree, runs: list[dict[str, t.Any]]) -> None:
    tree.toolkit()
    before = tree.contents()
    for run in runs:
        tree.refresh(**run)
    tree.refresh(state="absent", cdi={"purge_backups": True})
    assert tree.contents() == before


def test_what_units_say(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.refresh()
    drop_in = tree.text(DROP_IN)
    assert "After=nvidia-persistenced.service nvidia-fabricmanager.service\n" in drop_in
    assert "RemainAfterExit=no\n" in drop_in
    tree.refresh(owner="collection")
    own = tree.text(f"{LOCAL}/{OWN_SERVICE}")
    # A path unit fails for good with a service that was started too often.
    assert "StartLimitIntervalSec=0\n" in own.partition("[Service]")[0]
    tree.toolkit(LATE)
    tree.refresh(owner="toolkit")
    early = tree.text(f"{LOCAL}/{OWN_SERVICE}")
    for text in (drop_in, own, early):
        # It starts kubelet and waits for that, which waits for us.
        assert "nvidia-mig-manager" not in text
        assert "TimeoutStartSec=120\nTimeoutStopSec=5\n" in text


# -- units of our own --------------------------------------------------------------------------------------------------


def test_own_units(tree: RefreshTree) -> None:
    result = tree.refresh(request=DISABLED)
    assert result["changed"]
    assert (result["owner"], result["service"], result["path_unit"]) == ("collection", OWN_SERVICE, OWN_PATH)
    assert result["links_made"] == [f"{WANTS}/{OWN_SERVICE}", f"{WANTS}/{OWN_PATH}"]
    unit = tree.text(f"{LOCAL}/{OWN_SERVICE}")
    assert f"ExecStart=/usr/bin/python3 -I {PROGRAM} {OPTIONS}\n" in unit
    assert all(engine in unit for engine in ENGINES)
    assert "RemainAfterExit" not in unit
    assert tree.mode(PROGRAM) == 0o755
    assert tree.content(PROGRAM).startswith(b"#!/usr/bin/python3 -I\nPK")
    assert tree.mode(OPTIONS) == 0o644
    assert options_from_json(OPTIONS, tree.content(OPTIONS)).request == DISABLED
    assert result["specification"] == "/etc/cdi/nvidia.yaml"
    assert not tree.refresh(request=DISABLED)["changed"]


def test_own_units_elsewhere_and_late(tree: RefreshTree) -> None:
    tree.refresh()
    result = tree.refresh(program_dir="/opt/gpufleet", before_engines=False)
    assert not tree.has(PROGRAM)
    assert tree.has("/opt/gpufleet/cdi-refresh")
    assert "Before=" not in tree.text(f"{LOCAL}/{OWN_SERVICE}")
    assert PROGRAM in result["changed_files"]


@pytest.mark.parametrize("folder", ["/opt/a b", "/opt/50%", "relative"])
def test_folders_that_a_unit_cannot_name(tree: RefreshTree, folder: str) -> None:
    with pytest.raises(GpufleetError, match="program_dir"):
        tree.refresh(program_dir=folder)


def test_own_units_instead_of_the_toolkits(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.refresh(request=DISABLED)
    result = tree.refresh(owner="collection", request=DISABLED)
    assert result["links_removed"] == [f"{WANTS}/{SERVICE}", f"{WANTS}/{PATH}"]
    assert tree.text(ENVIRONMENT) == PACKAGED
    assert not tree.has(DROP_IN)
    back = tree.refresh(owner="toolkit", request=DISABLED)
    assert back["links_removed"] == [f"{WANTS}/{OWN_SERVICE}", f"{WANTS}/{OWN_PATH}"]
    assert not tree.has(PROGRAM)
    assert not tree.has(OPTIONS)


def test_a_purge_takes_all_copies_along(tree: RefreshTree) -> None:
    tree.toolkit()
    (tree.path / "var/lib").mkdir(parents=True)
    before = tree.contents()
    tree.refresh(request=DISABLED)
    tree.refresh(owner="collection")
    tree.refresh(owner="collection", request=DISABLED)
    tree.refresh(state="absent")
    assert tree.has("/var/lib/gpufleet-nvidia/backups")
    purged: dict[str, t.Any] = {"state": "absent", "cdi": {"purge_backups": True}}
    assert tree.refresh(check_mode=True, **purged)["changed"]
    assert tree.refresh(**purged)["changed"]
    assert tree.contents() == before
    assert not tree.refresh(**purged)["changed"]


def test_two_that_write_are_warned_of(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.link(f"{WANTS}/{SERVICE}", f"{VENDOR}/{SERVICE}")
    (warning,) = tree.refresh(owner="collection")["warnings"]
    assert "whoever comes last wins" in warning
    (warning,) = tree.refresh(owner="collection", cdi={"path": "/etc/cdi/nvidia.yaml"})["warnings"]
    assert f"systemctl disable {SERVICE}" in warning


def test_a_unit_of_ours_that_was_edited_is_written_again(tree: RefreshTree) -> None:
    tree.refresh()
    before = tree.contents()
    tree.write(f"{LOCAL}/{OWN_SERVICE}", "[Unit]\n")
    result = tree.refresh()
    assert result["changed_files"] == [f"{LOCAL}/{OWN_SERVICE}"]
    assert tree.text(f"{LOCAL}/{OWN_SERVICE}").encode() == before[f"{LOCAL}/{OWN_SERVICE}".lstrip("/")][1]


def test_a_file_of_that_name_from_before_us_comes_back(tree: RefreshTree) -> None:
    tree.write(OPTIONS, "mine\n")
    tree.refresh()
    assert tree.text(OPTIONS) != "mine\n"
    tree.refresh(state="absent")
    assert tree.text(OPTIONS) == "mine\n"


def test_nobody_has_pyyaml(tree: RefreshTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cdi_refresh_program, "yaml_sources", lambda _shipped: None)
    with pytest.raises(MissingPackageError, match="PyYAML"):
        tree.refresh()
    assert not tree.has(OPTIONS)


def test_no_python_that_is_new_enough(tree: RefreshTree) -> None:
    (tree.path / "usr/bin/python3").unlink()
    (tree.path / "usr/bin/python3.11").rename(tree.path / "usr/bin/python3.6")
    tree.link("/usr/bin/python3", "python3.6")
    with pytest.raises(HostError, match=r"no Python 3\.8 or newer"):
        tree.refresh()
    tree.write("/usr/bin/python3.9", "", 0o755)
    assert "ExecStart=/usr/bin/python3.9 -I " in (tree.refresh() and tree.text(f"{LOCAL}/{OWN_SERVICE}"))


# -- a running host ----------------------------------------------------------------------------------------------------


class Systemd:
    """What systemctl and journalctl say of the units in a tree, which it "runs"."""

    def __init__(self, tree: RefreshTree) -> None:
        self.tree = tree
        self.active = {SERVICE: "inactive", PATH: "inactive", OWN_SERVICE: "inactive", OWN_PATH: "inactive"}
        self.stale: set[str] = set()
        self.unloaded: set[str] = set()
        self.fails = False
        self.writes: str | None = None
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
        elif verb == "restart" and self.fails:
            self.active[unit] = "failed"
            return 1, "", "Job failed"
        elif verb == "restart":
            self.active[unit] = "inactive"
            if self.writes is not None:
                self.tree.write(OUTPUT, self.writes)
        elif verb in ("start", "stop"):
            self.active[unit] = "active" if verb == "start" else "inactive"
        return 0, "", ""

    def done(self) -> list[str]:
        """What was changed, and forget it."""
        told = [" ".join(argv[1:]) for argv in self.tree.ran if argv[0] == "systemctl" and argv[1] != "show"]
        self.tree.ran.clear()
        return told


GOOD = (
    '{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0", "containerEdits": {"env": ["A=1"]}}]}'
)
TOOLKIT: dict[str, t.Any] = {"owner": "toolkit", "cdi": {"require_devices": False}}


def running(tree: RefreshTree) -> Systemd:
    tree.toolkit()
    systemd = Systemd(tree)
    systemd.writes = GOOD
    return systemd


def test_the_service_is_started_and_its_file_looked_at(tree: RefreshTree) -> None:
    systemd = running(tree)
    systemd.stale = {SERVICE}
    result = tree.refresh(**TOOLKIT)
    assert result["started"]
    assert result["present"]
    restarted = [f"reset-failed -- {SERVICE}", f"restart -- {SERVICE}"]
    assert systemd.done() == ["daemon-reload", f"start -- {PATH}", *restarted]
    assert not tree.refresh(**TOOLKIT)["changed"]
    assert systemd.done() == []


def test_units_are_not_read_again_without_need(tree: RefreshTree) -> None:
    systemd = running(tree)
    tree.refresh(**TOOLKIT)
    assert "daemon-reload" not in systemd.done()


def test_units_are_not_read_again_where_that_takes_gpus(tree: RefreshTree, monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils import _toolkit_containers  # noqa: PLC0415

    monkeypatch.setattr(_toolkit_containers, "running", lambda _host: ["docker/abc"])
    systemd = running(tree)
    systemd.stale = {SERVICE}
    (warning,) = tree.refresh(**TOOLKIT)["warnings"]
    assert "docker/abc would lose their GPUs" in warning
    assert "daemon-reload" not in systemd.done()
    # That counts as not done.
    assert len(tree.refresh(**TOOLKIT)["warnings"]) == 1
    tree.refresh(state="absent")
    assert "daemon-reload" not in systemd.done()


@pytest.mark.parametrize("unknown", [SERVICE, PATH])
def test_a_unit_that_systemd_does_not_know_waits_for_it(
    tree: RefreshTree, monkeypatch: pytest.MonkeyPatch, unknown: str
) -> None:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils import _toolkit_containers  # noqa: PLC0415

    hurt = ["docker/abc"]
    monkeypatch.setattr(_toolkit_containers, "running", lambda _host: hurt)
    systemd = running(tree)
    systemd.unloaded = {unknown}
    for _attempt in range(2):
        result = tree.refresh(**TOOLKIT)
        (warning,) = result["warnings"]
        assert f"does not know {unknown} yet" in warning
        assert "from the next boot on" in warning
        assert result["reasons"]
        assert not result["started"]
        assert systemd.done() == []
    hurt.clear()
    assert tree.refresh(**TOOLKIT)["started"]
    assert systemd.done()[0] == "daemon-reload"


@pytest.mark.parametrize("reason", ["failed", "missing"])
def test_a_host_is_healed(tree: RefreshTree, reason: str) -> None:
    systemd = running(tree)
    tree.refresh(**TOOLKIT)
    systemd.done()
    if reason == "failed":
        systemd.active[SERVICE] = "failed"
    else:
        (tree.path / OUTPUT.lstrip("/")).unlink()
    told = tree.refresh(check_mode=True, **TOOLKIT)
    assert told["changed"]
    assert not told["started"]
    assert systemd.done() == []
    healed = tree.refresh(**TOOLKIT)
    assert healed["changed"]
    assert healed["started"]
    assert healed["reasons"] == told["reasons"]
    assert not tree.refresh(**TOOLKIT)["changed"]


def test_no_driver_no_start(tree: RefreshTree) -> None:
    systemd = running(tree)
    (tree.path / "sys/module/nvidia/version").unlink()
    systemd.writes = None
    tree.refresh(**TOOLKIT)
    systemd.done()
    assert not tree.refresh(**TOOLKIT)["changed"]
    assert systemd.done() == []


def test_a_failure_is_told_in_the_services_words(tree: RefreshTree) -> None:
    systemd = running(tree)
    systemd.fails = True
    with pytest.raises(HostError, match=r"failed: the driver is not there\. Its files are in place") as failed:
        tree.refresh(**TOOLKIT)
    assert failed.value.details == {"changed": True}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": []}', "is of no use"),
        ("{", "is of no use"),
        (GOOD.replace('"env": ["A=1"]', '"deviceNodes": [{"path": "/dev/nvidia0"}]'), "/dev/nvidia0"),
        (None, "is not there, though the driver is loaded"),
    ],
)
def test_a_specification_of_no_use_is_an_error(tree: RefreshTree, content: str | None, words: str) -> None:
    running(tree).writes = content
    for _attempt in range(2):
        with pytest.raises(HostError, match=words):
            tree.refresh(**TOOLKIT)


def test_one_that_was_of_use_once_does_not_excuse_one_that_is_not(tree: RefreshTree) -> None:
    systemd = running(tree)
    tree.refresh(**TOOLKIT)
    systemd.active[SERVICE], systemd.writes = "failed", "{"
    for _attempt in range(2):
        with pytest.raises(HostError, match="is of no use"):
            tree.refresh(**TOOLKIT)
    systemd.writes = GOOD
    assert tree.refresh(**TOOLKIT)["changed"]
    assert not tree.refresh(**TOOLKIT)["changed"]


def test_what_was_not_started_then_is_started_later(tree: RefreshTree) -> None:
    systemd = running(tree)
    tree.refresh(**TOOLKIT)
    tree.refresh(start=False, request=DISABLED, **TOOLKIT)
    # Once is enough.
    assert tree.refresh(start=False, request=DISABLED, **TOOLKIT)["warnings"] == []
    systemd.done()
    result = tree.refresh(request=DISABLED, **TOOLKIT)
    assert result["reasons"] == ["What the service does has changed."]
    assert systemd.done() == [f"reset-failed -- {SERVICE}", f"restart -- {SERVICE}"]
    assert tree.refresh(request=DISABLED, **TOOLKIT)["reasons"] == []


def test_a_run_that_was_killed_before_the_start_is_made_up_for(
    tree: RefreshTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils import _cdi_refresh_service  # noqa: PLC0415

    systemd = running(tree)
    tree.refresh(**TOOLKIT)
    with monkeypatch.context() as killed:
        killed.setattr(_cdi_refresh_service.RefreshService, "settle", lambda *_arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tree.refresh(request=DISABLED, **TOOLKIT)
    systemd.stale = {SERVICE}
    systemd.done()
    assert tree.refresh(request=DISABLED, **TOOLKIT)["started"]
    assert systemd.done()[0] == "daemon-reload"


def test_the_note_of_the_last_run_goes_with_the_rest(tree: RefreshTree) -> None:
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
    assert left <= {"var", "var/lib"}


def test_start_false_only_tells(tree: RefreshTree) -> None:
    systemd = running(tree)
    result = tree.refresh(start=False, **TOOLKIT)
    assert not result["started"]
    assert f"systemctl restart {SERVICE}" in result["warnings"][0]
    assert systemd.done() == [f"start -- {PATH}"]


def test_the_path_unit_stops_when_it_goes(tree: RefreshTree) -> None:
    systemd = running(tree)
    tree.refresh(**TOOLKIT)
    systemd.done()
    tree.refresh(state="absent")
    assert systemd.done() == [f"stop -- {PATH}", "daemon-reload"]
    tree.refresh(owner="collection")
    assert systemd.active[OWN_PATH] == "active"
