# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import json
import os
import stat
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock as core_lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.apply import ChangeWriter
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.journal import JournalEntry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.docker_trees import DAEMON_JSON, ORIGINAL, Tree, live_tree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.restarts import configure

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_systemd import FakeSystemd


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def live(tmp_path: Path) -> Tree:
    return live_tree(tmp_path)


@pytest.mark.parametrize("content", [None, b"", ORIGINAL], ids=["no file", "empty", "foreign keys"])
def test_present_and_absent(tree: Tree, content: bytes | None) -> None:
    if content is not None:
        tree.write(DAEMON_JSON, content, 0o640)
    before = tree.bytes_and_modes()

    predicted = tree.present(check_mode=True, set_as_default=True)
    assert tree.bytes_and_modes() == before
    done = tree.present(set_as_default=True)
    assert predicted.changed is done.changed is True
    assert [(file.before, file.after) for file in predicted.files] == [(file.before, file.after) for file in done.files]
    assert json.loads(tree.path(DAEMON_JSON).read_bytes())["default-runtime"] == "nvidia"
    assert done.restart_action is predicted.restart_action is Action.RELOAD
    assert done.default_runtime == "nvidia"

    once = tree.snapshot()
    again = tree.present(set_as_default=True)
    assert (again.changed, again.files, again.backup_files) == (False, [], [])
    assert tree.snapshot() == once

    assert tree.absent(check_mode=True).changed
    assert tree.snapshot() == once
    assert tree.absent(purge_backups=True).changed
    assert tree.bytes_and_modes() == before
    assert not tree.absent(purge_backups=True).changed


def test_original_is_recorded_once(tree: Tree) -> None:
    tree.write(DAEMON_JSON, ORIGINAL)
    tree.present()
    tree.present(extra_modes=("cdi",))
    tree.present(extra_modes=("cdi", "legacy"), enable_cdi=True)
    tree.absent()
    assert tree.path(DAEMON_JSON).read_bytes() == ORIGINAL


def test_backups_are_private_and_kept(tree: Tree) -> None:
    tree.write(DAEMON_JSON, ORIGINAL)
    (entry,) = tree.present().backup_files
    assert entry["path"] == DAEMON_JSON
    backup = tree.path(str(entry["backup"]))
    assert backup.read_bytes() == ORIGINAL
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert stat.S_IMODE(backup.parent.stat().st_mode) == 0o700
    tree.absent()
    assert backup.exists()
    # The removal made another backup, and saved the record beside it.
    assert sorted(path.suffix for path in backup.parent.iterdir()) == [".backup", ".backup", ".record"]


def test_no_backup_of_missing_file(tree: Tree) -> None:
    (entry,) = tree.present().backup_files
    written = hashlib.sha256(tree.path(DAEMON_JSON).read_bytes()).hexdigest()
    assert entry == {"path": DAEMON_JSON, "backup": None, "checksum": written}
    (entry,) = tree.absent().backup_files
    assert entry["checksum"] == "absent"


@pytest.mark.parametrize("target", ["/srv/conf/docker.json", "../../srv/conf/docker.json"])
def test_link_is_kept(tree: Tree, target: str) -> None:
    file = tree.write("/srv/conf/docker.json", ORIGINAL)
    tree.path("/etc/docker").mkdir(parents=True)
    tree.path(DAEMON_JSON).symlink_to(target)
    outcome = tree.present()
    assert os.readlink(tree.path(DAEMON_JSON)) == target
    assert b"nvidia" in file.read_bytes()
    assert outcome.config_path == DAEMON_JSON
    assert outcome.files[0].path == "/srv/conf/docker.json"
    tree.absent()
    assert file.read_bytes() == ORIGINAL


def test_paths_without_host_root(tree: Tree) -> None:
    tree.write("/opt/nv/nvidia-container-runtime", mode=0o755)
    outcome = tree.present(runtime_dir="/opt/nv")
    assert str(tree.root) not in tree.path(DAEMON_JSON).read_text()
    assert outcome.warnings == []


def test_same_program_keeps_its_path(tree: Tree) -> None:
    tree.write("/usr/bin/nvidia-container-runtime", mode=0o755)
    tree.path("/bin").symlink_to("usr/bin")
    content = b'{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}'
    tree.write(DAEMON_JSON, content)
    assert (tree.present().changed, tree.present().warnings) == (False, [])
    assert not tree.present(runtime_dir="/bin").changed


def test_missing_program(tree: Tree) -> None:
    assert "not an executable file" in tree.present(set_as_default=True).warnings[0]
    tree.absent()
    with pytest.raises(NvidiaError, match="The default runtime was not set to nvidia"):
        tree.present(set_as_default=True, options={"require_runtime": True})
    assert not tree.path(DAEMON_JSON).exists()
    tree.present(options={"require_runtime": True})
    tree.write("/usr/bin/nvidia-container-runtime", mode=0o755)
    tree.present(set_as_default=True, options={"require_runtime": True})


# -- paths --------------------------------------------------------------------------------------------------------


UNIT = "[Service]\nExecStart=/usr/bin/dockerd --config-file /srv/daemon.json -H unix:///srv/docker.sock\n"


def test_file_of_unit(tree: Tree) -> None:
    tree.write("/etc/systemd/system/docker.service", UNIT)
    outcome = tree.present()
    assert outcome.config_path == "/srv/daemon.json"
    assert outcome.socket == "/srv/docker.sock"
    assert tree.path("/srv/daemon.json").exists()
    assert not tree.path(DAEMON_JSON).exists()


def test_warns_about_other_file_than_that_of_unit(tree: Tree) -> None:
    tree.write("/etc/systemd/system/docker.service", UNIT)
    outcome = tree.present(options={"config_path": DAEMON_JSON})
    assert tree.path(DAEMON_JSON).exists()
    assert "reads /srv/daemon.json, not /etc/docker/daemon.json" in outcome.warnings[0]


def test_absent_covers_all_recorded_files(tree: Tree) -> None:
    tree.write("/srv/one.json", ORIGINAL)
    before = tree.bytes_and_modes()
    tree.present(options={"config_path": "/srv/one.json"})
    tree.present()
    assert len(tree.absent(purge_backups=True).files) == 2
    assert tree.bytes_and_modes() == before
    assert not tree.absent().changed


def _backups(tree: Tree) -> list[str]:
    return sorted(path.name.partition(".json~")[0] for path in tree.root.rglob("*.backup"))


def test_purge_backups_of_named_file(tree: Tree) -> None:
    tree.write(DAEMON_JSON, ORIGINAL)
    tree.write("/srv/other.json", ORIGINAL)
    tree.present()
    tree.present(options={"config_path": "/srv/other.json"})
    assert _backups(tree) == ["etc~docker~daemon", "srv~other"]
    tree.absent(config_path="/srv/other.json", purge_backups=True)
    assert _backups(tree) == ["etc~docker~daemon"]


@pytest.mark.parametrize("existing", [None, "/srv", "/srv/a/backups"])
@pytest.mark.parametrize("first", ["/srv/a/backups", None])
def test_purge_removes_created_backup_directories(installed: Tree, existing: str | None, first: str | None) -> None:
    # Without a file, the first run makes no backup.
    if first is not None:
        installed.write(DAEMON_JSON, ORIGINAL)
    if existing is not None:
        installed.path(existing).mkdir(parents=True)
    before = installed.bytes_and_modes()
    installed.present(options={"backup_dir": first})
    installed.present(options={"backup_dir": "/srv/a/backups"}, extra_modes=("cdi",))
    assert installed.path("/srv/a/backups").is_dir()
    installed.absent(purge_backups=True, backup_dir="/srv/a/backups")
    assert installed.bytes_and_modes() == before


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_last_record_is_removed_with_its_directories(tree: Tree, order: tuple[int, int]) -> None:
    tree.write("/srv/1.json", ORIGINAL)
    tree.write("/srv/2.json", ORIGINAL)
    before = tree.bytes_and_modes()
    for number in (1, 2):
        tree.present(options={"config_path": f"/srv/{number}.json"})
    for number in order:
        tree.absent(config_path=f"/srv/{number}.json", purge_backups=True)
    assert tree.bytes_and_modes() == before


def test_record_is_private(tree: Tree) -> None:
    """It contains the previous file with its secrets."""
    tree.write(DAEMON_JSON, ORIGINAL)
    tree.present()
    (record,) = tree.path("/var/lib/gpufleet-nvidia/state").iterdir()
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("spelled", ["/opt//nv/", "/opt/./nv", "/opt/x/../nv"])
def test_paths_are_normalized(tree: Tree, spelled: str) -> None:
    assert tree.present(runtime_dir=spelled).runtimes == {"nvidia": "/opt/nv/nvidia-container-runtime"}
    assert not tree.present(runtime_dir="/opt/nv").changed


def test_no_action_for_recorded_file_that_is_unused(tree: Tree) -> None:
    tree.write("/srv/one.json", '{"runtimes": {}}')
    tree.present(options={"config_path": "/srv/one.json"}, enable_cdi=True)
    outcome = tree.absent()
    assert outcome.changed
    assert outcome.restart_action is Action.NONE


def test_no_action_for_file_that_unit_does_not_name(tree: Tree) -> None:
    tree.write("/etc/systemd/system/docker.service", UNIT)
    outcome = tree.present(options={"config_path": DAEMON_JSON}, enable_cdi=True)
    assert outcome.restart_action is Action.NONE
    assert outcome.pending_action is None


@pytest.mark.parametrize(
    ("asked", "options", "message"),
    [
        ({"runtime_dir": "usr/bin"}, {}, "runtime_dir 'usr/bin' is not an absolute path"),
        ({"runtime_name": "runc"}, {}, "is the name of a low-level runtime"),
        ({"runtime_name": "a b"}, {}, "unsupported characters"),
        ({}, {"config_path": "daemon.json"}, "config_path 'daemon.json' is not an absolute path"),
        ({}, {"backup_dir": "/etc/crio/crio.conf.d/old"}, "reads every file as configuration"),
        ({}, {"backup_dir": "backups"}, "backup_dir 'backups' is not an absolute path"),
        ({}, {"validate": "true"}, "validate is true, but docker cannot be run on this host"),
        ({}, {"engine_version": "latest"}, "engine_version 'latest' is not a version. Write it in digits and dots"),
    ],
)
def test_errors_before_any_write(tree: Tree, asked: dict[str, t.Any], options: dict[str, t.Any], message: str) -> None:
    before = tree.snapshot()
    with pytest.raises(NvidiaError, match=message):
        tree.present(options=options, **asked)
    assert tree.snapshot() == before


def test_refuses_path_with_host_root(tree: Tree) -> None:
    with pytest.raises(NvidiaError, match="begins with host_root"):
        tree.present(options={"config_path": f"{tree.root}/etc/docker/daemon.json"})


def test_no_program_of_offline_tree_is_run(tree: Tree) -> None:
    tree.write("/usr/bin/dockerd", "#!/bin/sh\n", 0o755)
    assert tree.present().engine_version is None
    assert tree.commands == []
    assert tree.present(options={"engine_version": "26.1.5"}, enable_cdi=False).engine_version == "26.1.5"


# -- crashes --------------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(tree: Tree) -> Tree:
    """A tree with /var/lib, as on every host."""
    tree.path("/var/lib").mkdir(parents=True)
    return tree


def test_failed_write_leaves_no_record(installed: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.write(DAEMON_JSON, ORIGINAL)
    before = installed.bytes_and_modes()

    def put(*_args: t.Any) -> None:
        message = "disk full"
        raise HostError(message)

    with monkeypatch.context() as patched:
        patched.setattr(ChangeWriter, "_put", put)
        with pytest.raises(HostError, match="disk full"):
            installed.present()
    installed.absent(purge_backups=True)
    assert installed.bytes_and_modes() == before


def test_plans_again_under_lock(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write(DAEMON_JSON, ORIGINAL)
    lock = core_lock.host_lock

    def slow(host: HostFS) -> t.Any:
        tree.write(DAEMON_JSON, '{"labels": ["foreign"]}')
        return lock(host)

    monkeypatch.setattr(core_lock, "host_lock", slow)
    outcome = tree.present()
    assert json.loads(tree.path(DAEMON_JSON).read_bytes())["labels"] == ["foreign"]
    assert outcome.files[0].before == b'{"labels": ["foreign"]}'


def _before_lock(monkeypatch: pytest.MonkeyPatch, work: t.Callable[[], object]) -> None:
    """Do ``work`` between the plan and the lock, as another run may."""
    lock = core_lock.host_lock

    def late(host: HostFS) -> t.Any:
        monkeypatch.setattr(core_lock, "host_lock", lock)
        work()
        return lock(host)

    monkeypatch.setattr(core_lock, "host_lock", late)


def test_no_change_if_another_run_did_it(live: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    live.write(DAEMON_JSON, ORIGINAL)
    _before_lock(monkeypatch, live.present)
    outcome = live.present()
    assert (outcome.changed, outcome.files, outcome.backup_files) == (False, [], [])
    assert outcome.restart_action is Action.NONE


def test_daemon_is_inspected_under_lock(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run reloads the daemon, so a rollback of the next change restores the first one."""
    configure(systemd)
    first = systemd.text
    _before_lock(monkeypatch, lambda: systemd.run(["chroot", "", "systemctl", "reload", "docker.service"]))
    configure(systemd, extra_modes=("cdi",))
    (previous,) = JournalEntry.pending_changes(systemd.docker.host, "docker").previous_files()
    assert previous.content == first.encode()


@pytest.mark.parametrize("check_mode", [True, False])
def test_removes_abandoned_scratch_directories(live: Tree, check_mode: bool) -> None:
    # No process has a number that long.
    left = live.write("/tmp/gpufleet-scratch-99999999-x/file").parent
    live.present(check_mode)
    assert left.exists() == check_mode


def test_damaged_record(tree: Tree) -> None:
    tree.write(DAEMON_JSON, ORIGINAL)
    tree.present()
    (record,) = tree.path("/var/lib/gpufleet-nvidia/state").iterdir()
    record.write_text("{")
    before = tree.snapshot()
    with pytest.raises(HostError, match="is damaged"):
        tree.absent()
    assert tree.snapshot() == before


def test_validation_error_that_another_run_caused(live: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of TOML files uses the current files, which another run may change."""
    live.write(DAEMON_JSON, ORIGINAL)
    live.answers["--validate"] = (1, "", "that was half written")
    _before_lock(monkeypatch, lambda: live.answers.pop("--validate"))
    assert live.present().changed


def test_new_plan_is_validated_again(live: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    live.write(DAEMON_JSON, ORIGINAL)
    foreign = '{"hosts": "bad"}'

    def change() -> None:
        live.write(DAEMON_JSON, foreign)
        live.answers["--validate"] = (1, "", "bad hosts")

    _before_lock(monkeypatch, change)
    with pytest.raises(NvidiaError, match="docker refuses the new content"):
        live.present()
    assert live.path(DAEMON_JSON).read_text() == foreign
    assert not live.path("/var/lib/gpufleet-nvidia").exists()


def test_same_plan_is_validated_once(live: Tree) -> None:
    live.present()
    assert sum("--validate" in argv for argv in live.commands) == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("docker", ("docker", "system", None, None)),
        ("docker/rootless/alice", ("docker", "rootless", "alice", None)),
        ("docker/rootless", ("docker", "rootless", None, None)),
        ("containerd/k3s", ("containerd", "k3s", None, None)),
        ("containerd/system/second.service", ("containerd", "system", None, "second.service")),
    ],
)
def test_options_for_a_target(name: str, expected: tuple[str | None, ...]) -> None:
    options = Options("", RuntimeRequest(use_legacy_config=True), user="eve", service="other").for_target(name)
    assert (options.engine, options.flavor, options.user, options.service) == expected
    assert options.request == RuntimeRequest(use_legacy_config=options.engine == "containerd")
    assert Options("", None).for_target(name).request is None


@pytest.mark.parametrize("name", ["", "/", "docker/k3s", "lxc"])
def test_unknown_targets(name: str) -> None:
    with pytest.raises(NvidiaError, match=r"Unsupported target .*containerd/k3s"):
        Options("", None).for_target(name)
