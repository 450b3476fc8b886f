# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import socketserver
import time
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.constants import CONFIG_DIRS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.plan import PlannedFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import (
    Action,
    HostFiles,
    LiveState,
    RuntimeRequest,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio.engine import CRIO
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.journal import AppliedFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.registry import Target
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.processes import start_time as process_start
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import Unit
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_files import FakeFiles
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.serving import serving, short_folder

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureResult

MAIN = "/etc/crio/crio.conf"
FOLDER = "/etc/crio/crio.conf.d"
DROP_IN = f"{FOLDER}/99-nvidia.toml"
PACKAGED = f"{FOLDER}/10-crio.conf"
NVIDIA = "/usr/bin/nvidia-container-runtime"
PID = 4711

# The unit names its options in variables, which come from a file that need not be there.
UNIT = """\
[Service]
Type=notify
EnvironmentFile=-{environment}
Environment=GOTRACEBACK=crash
ExecStart={program} \\
          $CRIO_CONFIG_OPTIONS \\
          $CRIO_RUNTIME_OPTIONS \\
          $CRIO_NETWORK_OPTIONS
ExecReload=/bin/kill -s HUP $MAINPID
"""
CONFIGURATION = """\
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
monitor_path = "/usr/libexec/crio/conmon"
[crio.runtime.runtimes.runc]
runtime_path = "/usr/libexec/crio/runc"
"""


class Tree:
    """A host's directory tree with a running CRI-O, and the module's work on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = HostFS(str(root), live=True)
        self.commands: list[list[str]] = []
        self.spoil: t.Callable[[dict[str, t.Any]], None] = lambda _config: None

    def write(self, inner: str, content: str = "", mode: int = 0o644) -> Path:
        path = self.root / inner.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(mode)
        return path

    def start(self, age: float = 60, comm: str = "crio") -> None:
        """A process in the unit's control group, ``age`` seconds old, beside another. The uptime must be longer."""
        self.write("/sys/fs/cgroup/system.slice/crio.service/cgroup.procs", f"99\n{PID}\n")
        self.write("/proc/99/comm", "conmon\n")
        self.write(f"/proc/{PID}/comm", comm + "\n")
        ticks = (time.clock_gettime(time.CLOCK_BOOTTIME) - age) * os.sysconf("SC_CLK_TCK")
        self.write(f"/proc/{PID}/stat", f"{PID} ({comm}) S " + "0 " * 18 + f"{int(ticks)} 0 0\n")

    def age(self, seconds: float = 5000) -> None:
        """Everything was last changed so long ago."""
        for path in self.root.rglob("*"):
            if not path.is_symlink():
                os.utime(path, (time.time() - seconds,) * 2)

    def live(self) -> LiveState | None:
        return CRIO.live(self.host, CRIO.inspect(self.host))

    # -- a stand-in for the program: merges as the documentation says, by itself ---------------------------------

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        assert argv[:2] == ["chroot", str(self.root)]
        self.commands.append(argv[2:])
        if argv[3:] == ["--version"]:
            return 0, "crio version 1.31.2\nVersion: 1.31.2\n", ""
        assert [argv[3], argv[5], argv[7]] == ["--config", "--config-dir", "config"]
        merged: dict[str, t.Any] = {}
        folder = self.root / argv[6].lstrip("/")
        drop_ins = [os.path.join(place, name) for place, _folders, names in os.walk(folder) for name in names]
        main = [] if argv[4] == "/dev/null" else [str(self.root / argv[4].lstrip("/"))]
        try:
            for path in [*main, *sorted(drop_ins)]:
                with open(path, "rb") as stream:
                    merge(merged, TomlDocument.from_bytes(path, stream.read()).data)
        except ConfigurationError as error:
            return 1, "", str(error)
        runtime = merged.get("crio", {}).get("runtime", {})
        default = runtime.get("default_runtime", "crun")
        if default not in {"crun": None, **runtime.get("runtimes", {})}:
            return 1, "", f'default_runtime set to "{default}", but no runtime entry table found'
        self.spoil(merged)
        return 0, "".join(printed(merged)), 'level=info msg="Starting CRI-O"'

    def present(
        self, check_mode: bool = False, options: dict[str, t.Any] | None = None, **asked: t.Any
    ) -> ConfigureResult:
        return self._execute(RuntimeRequest(**asked), check_mode, options or {})

    def absent(self, **options: t.Any) -> ConfigureResult:
        return self._execute(None, False, options)

    def _execute(self, request: RuntimeRequest | None, check_mode: bool, options: dict[str, t.Any]) -> ConfigureResult:
        return ConfigureEngine(Options("crio", request, **options), self.host, self.run).execute(check_mode)

    def etc(self) -> dict[str, bytes]:
        files = [path for path in (self.root / "etc").rglob("*") if path.is_file()]
        return {str(path.relative_to(self.root)): path.read_bytes() for path in files}


def merge(below: dict[str, t.Any], above: dict[str, t.Any], path: str = "") -> None:
    for name, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(name), dict) and path != ".crio.runtime.runtimes":
            merge(below[name], value, f"{path}.{name}")
        else:
            below[name] = value


def printed(data: dict[str, t.Any], path: str = "") -> t.Iterator[str]:
    for name, value in data.items():
        if not isinstance(value, dict):
            yield f"{json.dumps(name)} = {json.dumps(value)}\n"
    for name, value in data.items():
        if isinstance(value, dict):
            yield f"[{path}{json.dumps(name)}]\n"
            yield from printed(value, f"{path}{json.dumps(name)}.")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def running(tree: Tree) -> Tree:
    return set_up(tree)


def set_up(tree: Tree) -> Tree:
    tree.write(
        "/usr/lib/systemd/system/crio.service", UNIT.format(environment="/etc/sysconfig/crio", program="/usr/bin/crio")
    )
    tree.write("/usr/bin/crio", mode=0o755)
    tree.write(NVIDIA, mode=0o755)
    tree.write("/tmp/keep")
    tree.write(MAIN, "# nothing in force\n")
    tree.write(PACKAGED, CONFIGURATION)
    tree.start()
    tree.age()
    return tree


# -- how it is installed ---------------------------------------------------------------------------------------------


def test_it_is_in_the_table() -> None:
    assert Target("crio").load() is CRIO
    assert (CRIO.drop_in_path or "").rsplit("/", 1)[0] in CONFIG_DIRS


def test_nothing_is_installed(tree: Tree) -> None:
    found = CRIO.inspect(tree.host)
    assert found[:6] == (None, None, "crio.service", "/var/run/crio/crio.sock", MAIN, None)
    assert CRIO.live(tree.host, found) is None


@pytest.mark.parametrize("environment", ["/etc/sysconfig/crio", "/etc/default/crio"])
def test_flags_from_an_environment_file(tree: Tree, environment: str) -> None:
    tree.write("/usr/lib/systemd/system/crio.service", UNIT.format(environment=environment, program="/opt/crio"))
    tree.write("/opt/crio", mode=0o755)
    options = "--config /opt/crio.conf --config-dir=/opt/crio.d"
    tree.write(environment, f"CRIO_CONFIG_OPTIONS='{options}'\nCRIO_RUNTIME_OPTIONS=--listen=/run/x.sock\n")
    tree.start()
    found = CRIO.inspect(tree.host)
    assert found.binary == "/opt/crio"
    assert (found.config_path, found.socket, found.pid) == ("/opt/crio.conf", "/run/x.sock", PID)
    outcome = tree.present(options={"validate": "false"})
    assert (outcome.config_path, outcome.drop_in_path) == ("/opt/crio.conf", "/opt/crio.d/99-nvidia.toml")
    assert [str(path.relative_to(tree.root)) for path in (tree.root / "opt").rglob("*.toml")] == [
        "opt/crio.d/99-nvidia.toml"
    ]


def test_short_flags_of_which_the_last_counts(tree: Tree) -> None:
    program = "/usr/bin/crio -c /a -c/b -d /opt/c"
    tree.write("/etc/systemd/system/crio.service", UNIT.format(environment="/none", program=program))
    assert CRIO.inspect(tree.host).config_path == "/b"


def test_another_process_of_the_group_is_not_the_engine(running: Tree) -> None:
    running.start(comm="conmon")
    assert CRIO.inspect(running.host).pid is None


# -- what runs -------------------------------------------------------------------------------------------------------


def test_it_never_says_which_runtimes_it_has(running: Tree) -> None:
    assert running.live() == LiveState("", {}, "", runtimes_unknown=True, outdated=False)


@pytest.mark.parametrize(
    "path", [MAIN, PACKAGED, FOLDER, f"{FOLDER}/sub", f"{FOLDER}/sub/deep.bak", f"{FOLDER}/sub/deep"]
)
def test_a_change_after_the_start_is_seen(running: Tree, path: str) -> None:
    running.write(f"{FOLDER}/sub/deep.bak")
    running.write(f"{FOLDER}/sub/deep/er")
    running.age()
    assert running.live() == LiveState("", {}, "", runtimes_unknown=True, outdated=False)
    os.utime(running.root / path[1:])
    assert running.live() == LiveState("", {}, "", runtimes_unknown=True, outdated=True)
    running.start(age=-1)
    assert running.live() == LiveState("", {}, "", runtimes_unknown=True, outdated=False)


def noted(running: Tree, **started: float) -> AppliedFiles:
    """The note that a restart leaves: the process and its files."""
    installation = CRIO.inspect(running.host)
    note = AppliedFiles.of(running.host, "crio")
    running.write(note.path)
    birth = process_start(running.host, installation.pid or 0)
    assert birth is not None
    note.write(started.get("started", birth), CRIO.config_files(running.host, installation))
    return note


@pytest.mark.parametrize("path", [MAIN, PACKAGED, FOLDER])
def test_a_file_that_was_only_touched_is_the_one_that_was_applied(running: Tree, path: str) -> None:
    running.age()
    noted(running)
    os.utime(running.root / path[1:])
    assert running.live() == LiveState("", {}, "", runtimes_unknown=True, outdated=False)
    running.write(PACKAGED, "[crio.runtime]\n")
    assert running.live() == LiveState("", {}, "", runtimes_unknown=True, outdated=True)


@pytest.mark.parametrize("change", ["another process", "a new file", "a file less", "damaged"])
def test_what_another_process_or_other_files_were_noted_for_does_not_count(running: Tree, change: str) -> None:
    running.age()
    note = noted(running, **({"started": time.time() - 3000} if change == "another process" else {}))
    os.utime(running.root / MAIN[1:])
    if change == "a new file":
        running.write(f"{FOLDER}/20-new.conf")
    if change == "a file less":
        (running.root / PACKAGED[1:]).unlink()
    if change == "damaged":
        running.write(note.path, "[1]")
    assert running.live() == LiveState("", {}, "", runtimes_unknown=True, outdated=True)


class Reporting(socketserver.StreamRequestHandler):
    """What answers to `crio status config`."""

    answer = b""

    def handle(self) -> None:
        assert self.rfile.readline().startswith(b"GET /config HTTP/1")
        self.wfile.write(self.answer)


# CRI-O fills in what the files leave out.
REPORTED = f"""\
HTTP/1.0 200 OK\r\nContent-Type: application/toml\r\n\r\n[crio]
log_dir = "/var/log/crio/pods"
{CONFIGURATION.replace('"/usr/libexec/crio/runc"', '"/usr/libexec/crio/runc"' + chr(10) + 'runtime_root = "/run/runc"')}
"""


@pytest.mark.parametrize(
    ("answer", "outdated"),
    [
        (REPORTED, False),
        ("", True),
        ("HTTP/1.0 404 Not Found\r\n\r\n", True),
        (REPORTED.replace("200 OK", "500 Error"), True),
        (REPORTED.replace("[crio]", "[crio"), True),
        ("HTTP/1.0 200 OK\r\n\r\n[crio.runtime]\nruntimes = 1\n", True),
        (REPORTED.replace('default_runtime = "crun"', 'default_runtime = "runc"'), True),
        (REPORTED.replace("/crio/conmon", "/conmon"), True),
        (f'{REPORTED}[crio.runtime.runtimes.nvidia]\nruntime_path = "{NVIDIA}"\n', True),
        (REPORTED.partition("[crio.runtime.runtimes.runc]")[0], True),
    ],
)
def test_a_later_process_reports_whether_it_has_the_noted_files(answer: str, outdated: bool) -> None:
    """After a start of the host, or a restart by others, a file that was only touched is no reason for a restart."""
    with short_folder() as root:
        tree = set_up(Tree(root))
        noted(tree, started=time.time() - 3000)
        os.utime(root / PACKAGED[1:])
        assert tree.live() == LiveState("", {}, "", runtimes_unknown=True, outdated=True)
        place = root / "var/run/crio/crio.sock"
        place.parent.mkdir(parents=True)
        handler = type("Handler", (Reporting,), {"answer": answer.encode()})
        with serving(socketserver.UnixStreamServer(str(place), handler), place):
            assert tree.live() == LiveState("", {}, "", runtimes_unknown=True, outdated=outdated)
            # What is reported counts for no other files: after a reload no pod could use them.
            tree.write(PACKAGED, CONFIGURATION + "\n")
            assert tree.live() == LiveState("", {}, "", runtimes_unknown=True, outdated=True)


@pytest.mark.parametrize("path", [MAIN, PACKAGED, FOLDER])
def test_a_removal_after_the_start_is_seen(running: Tree, path: str) -> None:
    if path == FOLDER:
        (running.root / PACKAGED[1:]).unlink()
        (running.root / FOLDER[1:]).rmdir()
    else:
        (running.root / path[1:]).unlink()
    assert running.live() == LiveState("", {}, "", runtimes_unknown=True, outdated=True)


def test_what_lies_beside_does_not_matter(running: Tree) -> None:
    os.utime(running.root / "etc/crio")
    running.write("/etc/crio.conf.d/10")
    assert running.live() == LiveState("", {}, "", runtimes_unknown=True, outdated=False)


def test_a_directory_that_the_unit_names(running: Tree) -> None:
    running.write("/etc/sysconfig/crio", "CRIO_CONFIG_OPTIONS=-d /opt/crio.d\n")
    running.write("/opt/crio.d/10")
    running.age()
    os.utime(running.root / FOLDER[1:])
    assert running.live() == LiveState("", {}, "", runtimes_unknown=True, outdated=False)
    os.utime(running.root / "opt/crio.d")
    assert running.live() == LiveState("", {}, "", runtimes_unknown=True, outdated=True)


@pytest.mark.parametrize(("late", "action"), [(True, Action.RESTART), (False, Action.NONE)])
def test_a_daemon_that_has_not_seen_the_files_is_restarted(running: Tree, late: bool, action: Action) -> None:
    state = CRIO.configured(HostFiles(running.host, "crio").context(MAIN, None, None))
    assert state.default_runtime == "crun"
    assert state.paths()["runc"] == "/usr/libexec/crio/runc"
    assert CRIO.required_action(LiveState("", {}, "", runtimes_unknown=True, outdated=late), state) is action


# -- its judgement ---------------------------------------------------------------------------------------------------


def planned(path: str, before: str | None, after: str | None) -> PlannedFile:
    return PlannedFile(path, before if before is None else before.encode(), after if after is None else after.encode())


def test_the_trial_has_copies_of_all_files() -> None:
    content = {MAIN: "a = 1\n", PACKAGED: "b = 1\n", f"{FOLDER}/sub/x.bak": "c = 1\n", f"{FOLDER}/gone": "d = 1\n"}
    context = FakeFiles(content, "crio").context(MAIN)
    files = [
        planned(DROP_IN, None, "e = 1\n"),
        planned(MAIN, "a = 1\n", "a = 2\n"),
        planned(f"{FOLDER}/gone", "d = 1\n", None),
    ]
    command = CRIO.validation_command("/usr/bin/crio", "/tmp/x", files, context)
    assert command.files == {
        "crio.conf": b"a = 2\n",
        "crio.conf.d/10-crio.conf": b"b = 1\n",
        "crio.conf.d/99-nvidia.toml": b"e = 1\n",
        "crio.conf.d/sub/x.bak": b"c = 1\n",
    }
    copies = ["--config", "/tmp/x/crio.conf", "--config-dir", "/tmp/x/crio.conf.d", "config"]
    assert command.argv == ["/usr/bin/crio", *copies]
    assert command.compare == ["/usr/bin/crio", "--config", MAIN, "--config-dir", FOLDER, "config"]


def test_a_trial_without_a_main_file_in_another_directory() -> None:
    unit = Unit("crio.service", "/lib/crio.service", arguments=("/crio", "--config-dir", "/opt"))
    context = FakeFiles({"/opt/10": "a = 1\n", PACKAGED: "x"}, "crio").context(MAIN)._replace(unit=unit)
    command = CRIO.validation_command("/crio", "/tmp/x", [planned("/opt/99", None, "b = 1\n")], context)
    assert command.files == {"crio.conf": b"", "crio.conf.d/10": b"a = 1\n", "crio.conf.d/99": b"b = 1\n"}
    assert command.compare == ["/crio", "--config", "/dev/null", "--config-dir", "/opt", "config"]


def test_a_link_that_leads_nowhere_is_named(running: Tree) -> None:
    (running.root / FOLDER[1:] / "50-gone").symlink_to("/none")
    with pytest.raises(NvidiaError, match=f"{FOLDER}/50-gone is a dangling link"):
        running.present()


OURS = planned(
    DROP_IN, None, '[crio.runtime]\ndefault_runtime = "nvidia"\n[crio.runtime.runtimes.nvidia]\nruntime_path = "/x"\n'
)
BEFORE = '[crio.runtime]\ndefault_runtime = "crun"\nx = 1\n[crio.runtime.runtimes.crun]\ny = 1\n'


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ('"crun"\n', '"nvidia"\n', ""),
        ("y = 1\n", 'y = 1\n[crio.runtime.runtimes.nvidia]\nruntime_path = "/x"\nof_the_program = 1\n', ""),
        ("x = 1", "x = 2", "crio.runtime.x"),
        ("x = 1\n", "", "crio.runtime.x"),
        ("x = 1\n", "x = 1\nz = 1\n", "crio.runtime.z"),
        ("y = 1", "y = 2", "crio.runtime.runtimes.crun.y"),
        ("y = 1", "y = 1\n[crio.runtime.runtimes.other]\ny = 1", "crio.runtime.runtimes.other.y"),
        ("x = 1", "x = 2\na = 1\nb = 1\nc = 1", "crio.runtime.a, crio.runtime.b, crio.runtime.c, crio.runtime.x"),
    ],
)
def test_the_verdict(old: str, new: str, lost: str) -> None:
    assert old in BEFORE
    complaint = CRIO.compare_dumps(BEFORE, BEFORE.replace(old, new), [OURS])
    assert complaint == lost


def test_a_default_that_the_plan_does_not_touch_is_not_ours() -> None:
    file = planned(DROP_IN, None, '[crio.runtime.runtimes.nvidia]\nruntime_path = "/x"\n')
    assert "default_runtime" in CRIO.compare_dumps(BEFORE, BEFORE.replace('"crun"', '"runc"'), [file])


def test_what_cannot_be_read_is_not_judged() -> None:
    assert CRIO.compare_dumps("time=now level=info\n", BEFORE, [OURS]) == ""
    assert CRIO.compare_dumps(BEFORE, "= 1", [OURS]) == ""


# -- all of it -------------------------------------------------------------------------------------------------------


def test_there_and_back(running: Tree) -> None:
    before = running.etc()
    foretold = running.present(check_mode=True, set_as_default=True)
    assert running.etc() == before
    outcome = running.present(set_as_default=True, options={"validate": "true"})
    assert foretold.changed is outcome.changed is True
    assert (outcome.drop_in_path, outcome.config_path, outcome.config_version) == (DROP_IN, MAIN, None)
    assert (outcome.engine_version, outcome.default_runtime, outcome.warnings) == ("1.31.2", "nvidia", [])
    assert (outcome.restart_action, outcome.pending_action) == (Action.RESTART, Action.RESTART)
    assert running.etc().keys() - before.keys() == {DROP_IN[1:]}
    assert [command[-1] for command in running.commands] == ["--version", "config", "config"] * 2
    assert os.listdir(running.root / "tmp") == ["keep"]

    again = running.present(set_as_default=True)
    assert (again.changed, again.restart_action) == (False, Action.NONE)
    # Nobody has restarted it.
    assert again.pending_action is Action.RESTART
    running.start(age=-1)
    assert running.present(set_as_default=True).pending_action is Action.NONE

    gone = running.absent(purge_backups=True)
    assert (gone.changed, gone.restart_action) == (True, Action.RESTART)
    assert running.etc() == before


def test_a_directory_of_ours_goes_and_is_missed(tree: Tree) -> None:
    tree.write(MAIN, CONFIGURATION)
    tree.write("/etc/systemd/system/crio.service", UNIT.format(environment="/none", program="/usr/bin/crio"))
    tree.start()
    tree.age()
    tree.present()
    assert (tree.root / DROP_IN[1:]).exists()
    tree.start(age=-1)
    tree.absent()
    assert not (tree.root / FOLDER[1:]).exists()
    tree.start()
    assert tree.absent().pending_action is Action.RESTART


def test_what_would_change_something_else_is_not_written(running: Tree) -> None:
    def spoil(config: dict[str, t.Any]) -> None:
        runtimes = config["crio"]["runtime"]["runtimes"]
        runtimes["crun"]["monitor_path"] = "/other" if "nvidia" in runtimes else "/usr/libexec/crio/conmon"

    running.spoil = spoil
    before = running.etc()
    with pytest.raises(NvidiaError, match=r"would also change crio\.runtime\.runtimes\.crun\.monitor_path"):
        running.present()
    assert running.etc() == before


def test_what_crio_refuses_is_not_written(running: Tree) -> None:
    def refuse(argv: list[str]) -> tuple[int, str, str]:
        return (1, "", "invalid\n") if argv[-1] == "config" else (0, "", "")

    before = running.etc()
    options = Options("crio", RuntimeRequest())
    with pytest.raises(NvidiaError, match=r"was not changed, because crio refuses the new content: invalid"):
        ConfigureEngine(options, running.host, refuse).execute(check_mode=False)
    assert running.etc() == before


def test_the_drop_in_is_no_more_readable_than_the_main_file(running: Tree) -> None:
    (running.root / MAIN[1:]).chmod(0o600)
    running.present()
    assert (running.root / DROP_IN[1:]).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("directory", [FOLDER, "/opt/crio.d"])
def test_nothing_else_ever_lies_where_all_is_configuration(
    running: Tree, monkeypatch: pytest.MonkeyPatch, directory: str
) -> None:
    running.write("/etc/sysconfig/crio", f"CRIO_CONFIG_OPTIONS=--config-dir={directory}\n")
    running.write(f"{directory}/10-crio.conf", CONFIGURATION)
    seen: list[str] = []
    replace = os.replace

    def watching(source: str, target: str) -> None:
        seen.extend(os.listdir(running.root / directory[1:]))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watching)
    running.present()
    running.present(extra_modes=("cdi",))
    running.present(config_mode="in_place")
    running.absent()
    assert set(seen) == {"10-crio.conf", "99-nvidia.toml"}


def test_an_offline_tree(tree: Tree) -> None:
    tree.host = HostFS(str(tree.root), live=False)
    tree.write(PACKAGED, CONFIGURATION)
    outcome = tree.present(set_as_default=True)
    assert (outcome.engine_version, tree.commands) == (None, [])
    assert not outcome.pending_action
    assert len(outcome.warnings) == 1
    assert outcome.default_runtime == "nvidia"
    tree.absent(purge_backups=True)
    assert list(tree.etc()) == [PACKAGED[1:]]
