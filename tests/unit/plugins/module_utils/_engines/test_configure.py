# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock as core_lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.apply import ChangeWriter
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action, RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.journal import Journal
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.restarts import configure

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureResult
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_systemd import FakeSystemd

ORIGINAL = b'{\n  "debug": true\n}'
DAEMON_JSON = "/etc/docker/daemon.json"


class Tree:
    """A host's directory tree, and the module's work on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: list[list[str]] = []
        self.answers: dict[str, tuple[int, str, str]] = {}
        self.live = False

    def path(self, inner: str) -> Path:
        return self.root / inner.lstrip("/")

    def write(self, inner: str, content: bytes | str = b"", mode: int = 0o644) -> Path:
        path = self.path(inner)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)
        return path

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        self.commands.append(argv)
        return next((answer for word, answer in self.answers.items() if word in argv), (0, "", ""))

    def present(
        self, check_mode: bool = False, options: dict[str, t.Any] | None = None, **asked: t.Any
    ) -> ConfigureResult:
        return self._execute(RuntimeRequest(**asked), check_mode, options or {})

    def absent(self, check_mode: bool = False, **options: t.Any) -> ConfigureResult:
        return self._execute(None, check_mode, options)

    def _execute(self, request: RuntimeRequest | None, check_mode: bool, options: dict[str, t.Any]) -> ConfigureResult:
        host = HostFS.of(str(self.root), self.live)
        return ConfigureEngine(Options("docker", request, **options), host, self.run).execute(check_mode)

    def snapshot(self) -> dict[str, t.Any]:
        """Every path of the tree with what makes it what it is; inode and mtime tell a rewrite from a leave-alone."""
        found: dict[str, t.Any] = {}
        for path in sorted(self.root.rglob("*")):
            status = path.lstat()
            content: t.Any = os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
            times = (status.st_ino, status.st_mtime_ns) if path.is_file() else ()
            found[str(path.relative_to(self.root))] = (stat.filemode(status.st_mode), content, times)
        return found

    def bytes_and_modes(self) -> dict[str, t.Any]:
        return {path: entry[:2] for path, entry in self.snapshot().items()}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize("content", [None, b"", ORIGINAL], ids=["no file", "empty", "foreign keys"])
def test_there_and_back(tree: Tree, content: bytes | None) -> None:
    if content is not None:
        tree.write(DAEMON_JSON, content, 0o640)
    before = tree.bytes_and_modes()

    foretold = tree.present(check_mode=True, set_as_default=True)
    assert tree.bytes_and_modes() == before
    done = tree.present(set_as_default=True)
    assert foretold.changed is done.changed is True
    assert [(file.before, file.after) for file in foretold.files] == [(file.before, file.after) for file in done.files]
    assert json.loads(tree.path(DAEMON_JSON).read_bytes())["default-runtime"] == "nvidia"
    assert done.restart_action is foretold.restart_action is Action.RELOAD
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


def test_the_first_state_is_recorded_once(tree: Tree) -> None:
    tree.write(DAEMON_JSON, ORIGINAL)
    tree.present()
    tree.present(extra_modes=("cdi",))
    tree.present(extra_modes=("cdi", "legacy"), enable_cdi=True)
    tree.absent()
    assert tree.path(DAEMON_JSON).read_bytes() == ORIGINAL


def test_backups_are_private_and_stay(tree: Tree) -> None:
    tree.write(DAEMON_JSON, ORIGINAL)
    (entry,) = tree.present().backup_files
    assert entry["path"] == DAEMON_JSON
    backup = tree.path(str(entry["backup"]))
    assert backup.read_bytes() == ORIGINAL
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert stat.S_IMODE(backup.parent.stat().st_mode) == 0o700
    tree.absent()
    assert backup.exists()
    # Beside that of the removal stands what was recorded when it was made.
    assert sorted(path.suffix for path in backup.parent.iterdir()) == [".backup", ".backup", ".record"]


def test_no_backup_of_a_file_that_was_not_there(tree: Tree) -> None:
    (entry,) = tree.present().backup_files
    written = hashlib.sha256(tree.path(DAEMON_JSON).read_bytes()).hexdigest()
    assert entry == {"path": DAEMON_JSON, "backup": None, "checksum": written}
    (entry,) = tree.absent().backup_files
    assert entry["checksum"] == "absent"


@pytest.mark.parametrize("target", ["/srv/conf/docker.json", "../../srv/conf/docker.json"])
def test_a_link_stays_a_link_inside_the_tree(tree: Tree, target: str) -> None:
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


def test_paths_in_the_file_never_carry_the_tree(tree: Tree) -> None:
    tree.write("/opt/nv/nvidia-container-runtime", mode=0o755)
    outcome = tree.present(runtime_dir="/opt/nv")
    assert str(tree.root) not in tree.path(DAEMON_JSON).read_text()
    assert outcome.warnings == []


def test_another_spelling_of_the_same_program_is_left(tree: Tree) -> None:
    tree.write("/usr/bin/nvidia-container-runtime", mode=0o755)
    tree.path("/bin").symlink_to("usr/bin")
    content = b'{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}'
    tree.write(DAEMON_JSON, content)
    assert not tree.present().changed
    assert not tree.present(runtime_dir="/bin").changed


def test_a_missing_program_is_a_warning_and_refused_on_demand(tree: Tree) -> None:
    assert "not an executable file" in tree.present(set_as_default=True).warnings[0]
    tree.absent()
    with pytest.raises(NvidiaError, match="The default runtime was not set to nvidia"):
        tree.present(set_as_default=True, options={"require_runtime": True})
    assert not tree.path(DAEMON_JSON).exists()
    tree.present(options={"require_runtime": True})
    tree.write("/usr/bin/nvidia-container-runtime", mode=0o755)
    tree.present(set_as_default=True, options={"require_runtime": True})


# -- which file -----------------------------------------------------------------------------------------------------


UNIT = "[Service]\nExecStart=/usr/bin/dockerd --config-file /srv/daemon.json -H unix:///srv/docker.sock\n"


def test_the_file_that_the_unit_names_is_the_one(tree: Tree) -> None:
    tree.write("/etc/systemd/system/docker.service", UNIT)
    outcome = tree.present()
    assert outcome.config_path == "/srv/daemon.json"
    assert outcome.socket == "/srv/docker.sock"
    assert tree.path("/srv/daemon.json").exists()
    assert not tree.path(DAEMON_JSON).exists()


def test_another_file_than_the_unit_s_is_a_warning(tree: Tree) -> None:
    tree.write("/etc/systemd/system/docker.service", UNIT)
    outcome = tree.present(options={"config_path": DAEMON_JSON})
    assert tree.path(DAEMON_JSON).exists()
    assert "reads /srv/daemon.json, not /etc/docker/daemon.json" in outcome.warnings[0]


def test_absent_finds_every_file_that_was_recorded(tree: Tree) -> None:
    tree.write("/srv/one.json", ORIGINAL)
    tree.present(options={"config_path": "/srv/one.json"})
    tree.present()
    assert len(tree.absent().files) == 2
    assert tree.path("/srv/one.json").read_bytes() == ORIGINAL
    assert not tree.path(DAEMON_JSON).exists()
    assert not tree.absent().changed


def _backups(tree: Tree) -> list[str]:
    return sorted(path.name.partition(".json~")[0] for path in tree.root.rglob("*.backup"))


def test_purge_takes_the_backups_of_the_named_file_only(tree: Tree) -> None:
    tree.write(DAEMON_JSON, ORIGINAL)
    tree.write("/srv/other.json", ORIGINAL)
    tree.present()
    tree.present(options={"config_path": "/srv/other.json"})
    assert _backups(tree) == ["etc~docker~daemon", "srv~other"]
    tree.absent(config_path="/srv/other.json", purge_backups=True)
    assert _backups(tree) == ["etc~docker~daemon"]


def test_purge_takes_the_backups_of_all_recorded_files(tree: Tree) -> None:
    tree.write(DAEMON_JSON, ORIGINAL)
    tree.write("/srv/other.json", ORIGINAL)
    before = tree.bytes_and_modes()
    tree.present()
    tree.present(options={"config_path": "/srv/other.json"})
    tree.absent(purge_backups=True)
    assert _backups(tree) == []
    assert tree.bytes_and_modes() == before


@pytest.mark.parametrize("existing", [None, "/srv", "/srv/a/backups"])
def test_purge_takes_the_directories_that_were_made_for_backups(installed: Tree, existing: str | None) -> None:
    installed.write(DAEMON_JSON, ORIGINAL)
    if existing is not None:
        installed.path(existing).mkdir(parents=True)
    before = installed.bytes_and_modes()
    options: dict[str, t.Any] = {"backup_dir": "/srv/a/backups"}
    installed.present(options=options)
    installed.present(options=options, extra_modes=("cdi",))
    assert len(list(installed.path("/srv/a/backups").iterdir())) == 3
    installed.absent(purge_backups=True, **options)
    assert installed.bytes_and_modes() == before


def test_directories_that_were_made_for_backups_by_a_later_run_go_too(installed: Tree) -> None:
    before = installed.bytes_and_modes()
    installed.present()
    installed.present(options={"backup_dir": "/srv/a/backups"}, extra_modes=("cdi",))
    assert installed.path("/srv/a/backups").is_dir()
    installed.absent(purge_backups=True, backup_dir="/srv/a/backups")
    assert installed.bytes_and_modes() == before


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_the_last_record_to_go_takes_the_directories_along(tree: Tree, order: tuple[int, int]) -> None:
    tree.write("/srv/1.json", ORIGINAL)
    tree.write("/srv/2.json", ORIGINAL)
    before = tree.bytes_and_modes()
    for number in (1, 2):
        tree.present(options={"config_path": f"/srv/{number}.json"})
    for number in order:
        tree.absent(config_path=f"/srv/{number}.json", purge_backups=True)
    assert tree.bytes_and_modes() == before


def test_the_record_is_for_its_owner_only(tree: Tree) -> None:
    """It holds the file as it was, with all secrets in it."""
    tree.write(DAEMON_JSON, ORIGINAL)
    tree.present()
    (record,) = tree.path("/var/lib/gpufleet-nvidia/state").iterdir()
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("spelled", ["/opt//nv/", "/opt/./nv", "/opt/x/../nv"])
def test_paths_are_written_in_their_plain_form(tree: Tree, spelled: str) -> None:
    assert tree.present(runtime_dir=spelled).runtimes == {"nvidia": "/opt/nv/nvidia-container-runtime"}
    assert not tree.present(runtime_dir="/opt/nv").changed


def test_a_stale_file_is_no_reason_to_disturb_the_daemon(tree: Tree) -> None:
    tree.write("/srv/one.json", '{"runtimes": {}}')
    tree.present(options={"config_path": "/srv/one.json"}, enable_cdi=True)
    outcome = tree.absent()
    assert outcome.changed
    assert outcome.restart_action is Action.NONE


def test_a_file_that_the_unit_does_not_name_is_no_reason_either(tree: Tree) -> None:
    tree.write("/etc/systemd/system/docker.service", UNIT)
    outcome = tree.present(options={"config_path": DAEMON_JSON}, enable_cdi=True)
    assert outcome.restart_action is Action.NONE
    assert outcome.pending_action is None


@pytest.mark.parametrize(
    ("asked", "options", "words"),
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
def test_refuses_before_anything_is_written(
    tree: Tree, asked: dict[str, t.Any], options: dict[str, t.Any], words: str
) -> None:
    before = tree.snapshot()
    with pytest.raises(NvidiaError, match=words):
        tree.present(options=options, **asked)
    assert tree.snapshot() == before


def test_refuses_a_path_that_carries_the_tree(tree: Tree) -> None:
    with pytest.raises(NvidiaError, match="begins with host_root"):
        tree.present(options={"config_path": f"{tree.root}/etc/docker/daemon.json"})


# -- the engine's own judgement -------------------------------------------------------------------------------------


@pytest.fixture
def live(tree: Tree) -> Tree:
    """A tree that stands for a running host; programs are answered for."""
    tree.live = True
    tree.write("/usr/bin/dockerd", mode=0o755)
    tree.path("/tmp").mkdir()
    tree.answers["--version"] = (0, "Docker version 26.1.5+dfsg1, build 411e817\n", "")
    return tree


def test_the_validator_sees_the_new_text_and_the_unit_s_flags(live: Tree) -> None:
    live.write("/lib/systemd/system/docker.service", UNIT.replace("-H unix:///srv/docker.sock", "-H fd://"))
    seen: list[bytes] = []
    answer = live.run

    def run(argv: list[str]) -> tuple[int, str, str]:
        if "--validate" in argv:
            seen.append(live.path(argv[argv.index("--config-file") + 1]).read_bytes())
        return answer(argv)

    live.run = run  # type: ignore[method-assign]
    outcome = live.present(options={"config_path": DAEMON_JSON})
    assert outcome.engine_version == "26.1.5+dfsg1"
    argv = live.commands[-1]
    assert argv[:3] == ["chroot", str(live.root), "/usr/bin/dockerd"]
    assert argv[-2:] == ["-H", "fd://"]
    assert seen == [live.path(DAEMON_JSON).read_bytes()]
    assert not list(live.path("/tmp").iterdir())


def test_what_the_validator_refuses_is_not_written(live: Tree) -> None:
    live.answers["--validate"] = (1, "", "unable to configure: hosts: https://me:secret@h\n")
    for check_mode in (True, False):
        with pytest.raises(NvidiaError, match="docker refuses the new content") as caught:
            live.present(check_mode=check_mode)
        assert "secret" not in str(caught.value)
    assert not live.path(DAEMON_JSON).exists()
    assert live.present(options={"validate": "false"}).changed


def test_what_the_validator_says_has_no_secrets_in_it(live: Tree) -> None:
    live.write(DAEMON_JSON, '{"log-opts": {"splunk-token": "hunter2"}}')
    live.write("/lib/systemd/system/docker.service", "[Service]\nExecStart=dockerd --registry-token hunter3\n")
    live.answers["--validate"] = (1, "", "log-opts: (from flag: map[a:hunter4], from file: x) hunter2 hunter3\n")
    with pytest.raises(NvidiaError, match="docker refuses the new content") as caught:
        live.present()
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("name", ["mkdtemp", "makedirs"])
def test_no_room_for_the_validator_s_copy(live: Tree, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def full(*_args: t.Any, **_more: t.Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile if name == "mkdtemp" else os, name, full)
    with pytest.raises(HostError, match=r"in /tmp cannot be .*: No space left on device\. Free space"):
        live.present()
    assert not live.path(DAEMON_JSON).exists()
    assert not list(live.path("/tmp").iterdir())


def test_an_engine_without_validator_is_believed(live: Tree) -> None:
    live.answers["--validate"] = (125, "", "Status: unknown flag: --validate\nSee 'dockerd --help'.")
    with pytest.raises(NvidiaError, match="this version of docker has no validator"):
        live.present(options={"validate": "true"})
    assert live.present().changed


def test_what_is_given_back_is_not_judged(live: Tree) -> None:
    live.write(DAEMON_JSON, ORIGINAL)
    live.present()
    live.answers["--validate"] = (1, "", "no")
    live.absent()
    assert live.path(DAEMON_JSON).read_bytes() == ORIGINAL


def test_nothing_of_an_offline_tree_is_run(tree: Tree) -> None:
    tree.write("/usr/bin/dockerd", "#!/bin/sh\n", 0o755)
    assert tree.present().engine_version is None
    assert tree.commands == []
    assert tree.present(options={"engine_version": "26.1.5"}, enable_cdi=False).engine_version == "26.1.5"


# -- crashes --------------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(tree: Tree) -> Tree:
    """As every real host, with a /var/lib that outlives us."""
    tree.path("/var/lib").mkdir(parents=True)
    return tree


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


def _kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Die just before the given write to the disk, counted over replacements and removals."""
    count = 0

    def counting(function: t.Callable[..., None]) -> t.Callable[..., None]:
        def wrapped(*args: t.Any, **more: t.Any) -> None:
            nonlocal count
            # The same functions write the backups, which come first.
            count += "/backups/" not in str(args[1])
            if count == step and "/backups/" not in str(args[1]):
                raise Killed
            function(*args, **more)

        return wrapped

    for name in ("replace_file", "remove_file"):
        monkeypatch.setattr(atomic_write, name, counting(getattr(atomic_write, name)))


@pytest.mark.parametrize("content", [None, ORIGINAL], ids=["no file", "foreign keys"])
@pytest.mark.parametrize("step", range(1, 4))
def test_a_killed_present_heals_and_can_be_taken_back(
    installed: Tree, monkeypatch: pytest.MonkeyPatch, content: bytes | None, step: int
) -> None:
    if content is not None:
        installed.write(DAEMON_JSON, content)
    before = installed.bytes_and_modes()
    _killed(installed.present, monkeypatch, step)
    assert not list(installed.root.rglob("*.tmp"))
    installed.present()
    assert b"nvidia" in installed.path(DAEMON_JSON).read_bytes()
    installed.absent(purge_backups=True)
    assert installed.bytes_and_modes() == before


@pytest.mark.parametrize("content", [None, ORIGINAL], ids=["no file", "foreign keys"])
@pytest.mark.parametrize("step", range(1, 4))
def test_a_killed_update_still_knows_the_original(
    installed: Tree, monkeypatch: pytest.MonkeyPatch, content: bytes | None, step: int
) -> None:
    if content is not None:
        installed.write(DAEMON_JSON, content)
    before = installed.bytes_and_modes()
    installed.present()
    _killed(lambda: installed.present(set_as_default=True), monkeypatch, step)
    installed.absent(purge_backups=True)
    assert installed.bytes_and_modes() == before


@pytest.mark.parametrize("content", [None, ORIGINAL], ids=["no file", "foreign keys"])
@pytest.mark.parametrize("step", range(1, 5))
def test_a_killed_absent_is_finished_by_the_next(
    installed: Tree, monkeypatch: pytest.MonkeyPatch, content: bytes | None, step: int
) -> None:
    if content is not None:
        installed.write(DAEMON_JSON, content)
    before = installed.bytes_and_modes()
    installed.present()
    _killed(installed.absent, monkeypatch, step)
    installed.absent(purge_backups=True)
    assert installed.bytes_and_modes() == before


def _killed(work: t.Callable[[], ConfigureResult], monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    with monkeypatch.context() as patched:
        _kill_at(patched, step)
        with contextlib.suppress(Killed):
            work()


def test_a_failed_write_leaves_no_record(installed: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.write(DAEMON_JSON, ORIGINAL)
    before = installed.bytes_and_modes()

    def put(*_args: t.Any) -> None:
        message = "no room"
        raise HostError(message)

    with monkeypatch.context() as patched:
        patched.setattr(ChangeWriter, "_put", put)
        with pytest.raises(HostError, match="no room"):
            installed.present()
    installed.absent(purge_backups=True)
    assert installed.bytes_and_modes() == before


def test_a_run_that_waited_for_the_lock_plans_again(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write(DAEMON_JSON, ORIGINAL)
    lock = core_lock.host_lock

    def slow(host: HostFS) -> t.Any:
        tree.write(DAEMON_JSON, '{"labels": ["theirs"]}')
        return lock(host)

    monkeypatch.setattr(core_lock, "host_lock", slow)
    outcome = tree.present()
    assert json.loads(tree.path(DAEMON_JSON).read_bytes())["labels"] == ["theirs"]
    assert outcome.files[0].before == b'{"labels": ["theirs"]}'


def _meanwhile(monkeypatch: pytest.MonkeyPatch, work: t.Callable[[], object]) -> None:
    """Another run does its work between our plan and our lock."""
    lock = core_lock.host_lock

    def late(host: HostFS) -> t.Any:
        monkeypatch.setattr(core_lock, "host_lock", lock)
        work()
        return lock(host)

    monkeypatch.setattr(core_lock, "host_lock", late)


def test_what_another_run_did_meanwhile_is_not_ours(live: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    live.write(DAEMON_JSON, ORIGINAL)
    _meanwhile(monkeypatch, live.present)
    outcome = live.present()
    assert (outcome.changed, outcome.files, outcome.backup_files) == (False, [], [])
    assert outcome.restart_action is Action.NONE


def test_the_daemon_is_asked_under_the_lock(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run has the daemon load what the first change wrote; the way back from the next one ends there."""
    configure(systemd)
    first = systemd.text
    _meanwhile(monkeypatch, lambda: systemd.run(["chroot", "", "systemctl", "reload", "docker.service"]))
    configure(systemd, extra_modes=("cdi",))
    (former,) = Journal.pending_changes(systemd.docker.host, "docker").previous_files()
    assert former.content == first.encode()


@pytest.mark.parametrize("check_mode", [True, False])
def test_scratch_folders_of_killed_runs_go_with_a_change(live: Tree, check_mode: bool) -> None:
    # No process has a number that long.
    left = live.write("/tmp/gpufleet-scratch-99999999-x/file").parent
    live.present(check_mode)
    assert left.exists() == check_mode


def test_an_objection_that_another_run_caused_is_raised_again_or_dropped(
    live: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines of TOML compare with what stands there, which another run may change just then."""
    live.write(DAEMON_JSON, ORIGINAL)
    live.answers["--validate"] = (1, "", "that was half written")
    _meanwhile(monkeypatch, lambda: live.answers.pop("--validate"))
    assert live.present().changed


def test_what_is_planned_anew_is_judged_anew(live: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    live.write(DAEMON_JSON, ORIGINAL)
    theirs = '{"hosts": "bad"}'

    def spoil() -> None:
        live.write(DAEMON_JSON, theirs)
        live.answers["--validate"] = (1, "", "bad hosts")

    _meanwhile(monkeypatch, spoil)
    with pytest.raises(NvidiaError, match="docker refuses the new content"):
        live.present()
    assert live.path(DAEMON_JSON).read_text() == theirs
    assert not live.path("/var/lib/gpufleet-nvidia").exists()


def test_what_is_planned_again_alike_is_judged_once(live: Tree) -> None:
    live.present()
    assert sum("--validate" in argv for argv in live.commands) == 1


def test_a_damaged_record_is_named_and_nothing_is_touched(tree: Tree) -> None:
    tree.write(DAEMON_JSON, ORIGINAL)
    tree.present()
    (record,) = tree.path("/var/lib/gpufleet-nvidia/state").iterdir()
    record.write_text("{")
    before = tree.snapshot()
    with pytest.raises(HostError, match="is damaged"):
        tree.absent()
    assert tree.snapshot() == before
