# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import shutil
import socketserver
import time
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.constants import CONFIG_DIRS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.plan import PlannedFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.applied import AppliedFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action, HostFiles, LiveState
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio.engine import CRIO
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.registry import Target
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.processes import start_ticks
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import Unit
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import NVIDIA, EngineTree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_crio import DROP_IN, FOLDER, MAIN, PACKAGED
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_files import FakeFiles
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.process_starts import write_start
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.serving import serving, short_folder

if t.TYPE_CHECKING:
    from pathlib import Path


PID = 4711

# The unit takes its options from variables of an optional file.
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
ONLY_CRUN = "[crio.runtime.runtimes.crun]\nruntime_path = '/usr/bin/crun'\n[crio.runtime]\ntimezone = 'UTC'\n"
ONLY_IMAGE = "[crio.image]\npause_image = 'x'\n"


class Tree(EngineTree):
    """The directory tree of a host with CRI-O. ``change_printed`` changes what the validator prints."""

    # What CRI-O 1.36.3 prints for its built-in runtime, as a comment if no other is defined.
    BUILTIN: t.ClassVar[dict[str, t.Any]] = {"runtime_path": "", "runtime_type": "oci", "runtime_root": "/run/crun"}

    change_printed: t.Callable[[dict[str, t.Any]], None]

    def start(self, age: float = 60, comm: str = "crio") -> None:
        """Add the process, ``age`` seconds old, to the unit's control group. The uptime must be longer."""
        self.write("/sys/fs/cgroup/system.slice/crio.service/cgroup.procs", f"99\n{PID}\n")
        self.write("/proc/99/comm", "conmon\n")
        self.write(f"/proc/{PID}/comm", comm + "\n")
        ticks = (time.clock_gettime(time.CLOCK_BOOTTIME) - age) * os.sysconf("SC_CLK_TCK")
        self.write(f"/proc/{PID}/stat", f"{PID} ({comm}) S " + "0 " * 18 + f"{int(ticks)} 0 0\n")

    def age(self, seconds: float = 5000) -> None:
        """Set the time of the last change of all files to ``seconds`` ago."""
        for path in self.root.rglob("*"):
            if not path.is_symlink():
                os.utime(path, (time.time() - seconds,) * 2)

    def live_state(self) -> LiveState | None:
        return CRIO.live(self.host, CRIO.inspect(self.host))

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        """Merge the files as the documentation of `crio config` describes."""
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
        tables = runtime.get("runtimes", {})
        if tables:
            runtime["runtimes"] = {"crun": self.BUILTIN, **tables}
        if hasattr(self, "change_printed"):
            self.change_printed(merged)
        return 0, "".join(printed(merged)), 'level=info msg="Starting CRI-O"'

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
    behind = [name for name in ("timezone", "disable_hostport_mapping") if name in data]
    for name, value in data.items():
        if not isinstance(value, dict) and name not in behind:
            yield f"{json.dumps(name)} = {json.dumps(value)}\n"
    for name, value in data.items():
        if isinstance(value, dict):
            # CRI-O prints the names of runtimes without quotation marks.
            key = name if path == "crio.runtime.runtimes." else json.dumps(name)
            yield f"[{path}{key}]\n"
            yield from printed(value, f"{path}{name}.")
    # CRI-O prints these settings of [crio.runtime] behind its tables.
    yield from (f"{name} = {json.dumps(data[name])}\n" for name in behind)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path, "crio")


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


# -- installation ----------------------------------------------------------------------------------------------------


def test_registry() -> None:
    assert Target("crio").load() is CRIO
    assert (CRIO.drop_in_path or "").rsplit("/", 1)[0] in CONFIG_DIRS


def test_inspect_without_crio(tree: Tree) -> None:
    found = CRIO.inspect(tree.host)
    assert (found.binary, found.unit, found.pid) == (None, None, None)
    assert (found.service, found.socket, found.config_path) == ("crio.service", "/var/run/crio/crio.sock", MAIN)
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
    result = tree.present(options={"validate": "false"})
    assert (result.config_path, result.drop_in_path) == ("/opt/crio.conf", "/opt/crio.d/99-nvidia.toml")
    assert [str(path.relative_to(tree.root)) for path in (tree.root / "opt").rglob("*.toml")] == [
        "opt/crio.d/99-nvidia.toml"
    ]


def test_last_flag_has_effect(tree: Tree) -> None:
    program = "/usr/bin/crio -c /a -c/b -d /opt/c"
    tree.write("/etc/systemd/system/crio.service", UNIT.format(environment="/none", program=program))
    assert CRIO.inspect(tree.host).config_path == "/b"


def test_ignores_other_processes_of_the_unit(running: Tree) -> None:
    running.start(comm="conmon")
    assert CRIO.inspect(running.host).pid is None


# -- live state ------------------------------------------------------------------------------------------------------


def is_outdated(tree: Tree) -> bool:
    live = tree.live_state()
    assert live == LiveState("", {}, "", runtimes_unknown=True, outdated=live is not None and live.outdated)
    return live.outdated


@pytest.mark.parametrize(
    ("path", "removed", "outdated"),
    [
        *((path, False, True) for path in (MAIN, PACKAGED, FOLDER)),
        *((f"{FOLDER}/{name}", False, True) for name in ("sub", "sub/deep.bak", "sub/deep")),
        *((path, True, True) for path in (MAIN, PACKAGED, FOLDER, f"{FOLDER}/sub")),
        # CRI-O does not read these.
        ("/etc/crio", False, False),
        ("/etc/crio.conf.d", True, False),
    ],
)
def test_change_after_the_start(running: Tree, path: str, removed: bool, outdated: bool) -> None:
    for name in (f"{FOLDER}/sub/deep.bak", f"{FOLDER}/sub/deep/er", "/etc/crio.conf.d/10"):
        running.write(name)
    running.age()
    assert not is_outdated(running)
    changed = running.root / path[1:]
    if not removed:
        os.utime(changed)
    elif changed.is_file():
        changed.unlink()
    else:
        shutil.rmtree(changed)
    assert is_outdated(running) is outdated
    running.start(age=-1)
    assert not is_outdated(running)


def test_change_in_another_directory(running: Tree) -> None:
    running.write("/etc/sysconfig/crio", "CRIO_CONFIG_OPTIONS=-d /opt/crio.d\n")
    running.write("/opt/crio.d/10")
    running.age()
    os.utime(running.root / FOLDER[1:])
    assert not is_outdated(running)
    os.utime(running.root / "opt/crio.d")
    assert is_outdated(running)


def record_applied(running: Tree, earlier: bool = False) -> AppliedFiles:
    """Record the process and its files, as a restart does. ``earlier``: CRI-O was started again since."""
    installation = CRIO.inspect(running.host)
    applied = AppliedFiles.of(running.host, "crio")
    write_start(running.root, PID, ticks(running) - 1000 * earlier)
    applied.write(PID, CRIO.applied_files(running.host, installation))
    write_start(running.root, PID, ticks(running) + 1000 * earlier)
    return applied


def ticks(running: Tree) -> int:
    found = start_ticks(running.host, PID)
    assert found is not None
    return found


@pytest.mark.parametrize("path", [MAIN, PACKAGED, FOLDER])
def test_touched_file_equals_the_applied_one(running: Tree, path: str) -> None:
    record_applied(running)
    os.utime(running.root / path[1:], (2**31, 2**31))
    assert not is_outdated(running)
    running.write(PACKAGED, "[crio.runtime]\n")
    os.utime(running.root / PACKAGED[1:], (1, 1))
    assert is_outdated(running)


@pytest.mark.parametrize("change", ["another process", "a new file", "a missing file", "damaged"])
def test_record_of_another_process_or_other_files(running: Tree, change: str) -> None:
    applied = record_applied(running)
    os.utime(running.root / MAIN[1:])
    if change == "another process":
        write_start(running.root, PID, ticks(running) - 1)
    if change == "a new file":
        running.write(f"{FOLDER}/20-new.conf")
    if change == "a missing file":
        (running.root / PACKAGED[1:]).unlink()
    if change == "damaged":
        running.write(applied.path, "[1]")
    assert is_outdated(running)


class Reporting(socketserver.StreamRequestHandler):
    """The server that answers `crio status config`."""

    answer = b""

    def handle(self) -> None:
        assert self.rfile.readline().startswith(b"GET /config HTTP/1")
        self.wfile.write(self.answer)


# CRI-O adds default values that the files omit.
REPORTED = f"""\
HTTP/1.0 200 OK\r\nContent-Type: application/toml\r\n\r\n[crio]
log_dir = "/var/log/crio/pods"
{CONFIGURATION.replace('"/usr/libexec/crio/runc"', '"/usr/libexec/crio/runc"' + chr(10) + 'runtime_root = "/run/runc"')}
"""


@pytest.mark.parametrize(
    ("answer", "outdated"),
    [
        (REPORTED, False),
        # Without a usable report, the record says that CRI-O was started with the files.
        ("", False),
        ("HTTP/1.0 404 Not Found\r\n\r\n", False),
        (REPORTED.replace("200 OK", "500 Error"), False),
        (REPORTED.replace("[crio]", "[crio"), False),
        ("HTTP/1.0 200 OK\r\n\r\n[crio.runtime]\nruntimes = 1\n", True),
        (REPORTED.replace('default_runtime = "crun"', 'default_runtime = "runc"'), True),
        (REPORTED.replace("/crio/conmon", "/conmon"), True),
        (f'{REPORTED}[crio.runtime.runtimes.nvidia]\nruntime_path = "{NVIDIA}"\n', True),
        (REPORTED.partition("[crio.runtime.runtimes.runc]")[0], True),
    ],
)
def test_later_process_reports_the_applied_files(answer: str, outdated: bool) -> None:
    """After a reboot, or a restart by another tool, a touched file alone does not require a restart."""
    with short_folder() as root:
        tree = set_up(Tree(root, "crio"))
        record_applied(tree, earlier=True)
        os.utime(root / PACKAGED[1:], (2**31, 2**31))
        assert not is_outdated(tree)
        path = root / "var/run/crio/crio.sock"
        path.parent.mkdir(parents=True)
        handler = type("Handler", (Reporting,), {"answer": answer.encode()})
        with serving(socketserver.UnixStreamServer(str(path), handler), path):
            assert is_outdated(tree) is outdated
            # The report does not show that other files are used: after a reload, no pod could use them.
            tree.write(PACKAGED, CONFIGURATION + "\n")
            assert is_outdated(tree)


@pytest.mark.parametrize(
    ("answer", "problems", "warnings"),
    [
        (REPORTED, ["CRI-O reports no runtime nvidia."], []),
        (f'{REPORTED}[crio.runtime.runtimes.nvidia]\nruntime_path = "{NVIDIA}"\n', [], []),
        ("HTTP/1.0 200 OK\r\n\r\n[crio.runtime]\nruntimes = 1\n", ["CRI-O reports no runtime runc.", "CRI-O"], []),
        ("", [], ["CRI-O does not report its runtimes on /var/run/crio/crio.sock"]),
    ],
)
def test_the_runtimes_of_a_running_crio(answer: str, problems: list[str], warnings: list[str]) -> None:
    with short_folder() as root:
        tree = set_up(Tree(root, "crio"))
        path = root / "var/run/crio/crio.sock"
        path.parent.mkdir(parents=True)
        handler = type("Handler", (Reporting,), {"answer": answer.encode()})
        with serving(socketserver.UnixStreamServer(str(path), handler), path):
            found = CRIO.check_runtimes(tree.host, CRIO.inspect(tree.host), ["runc", "nvidia"])
    for texts, expected in zip(found, (problems, warnings)):
        assert len(texts) == len(expected)
        assert all(text.startswith(start) for text, start in zip(texts, expected))


@pytest.mark.parametrize(("late", "action"), [(True, Action.RESTART), (False, Action.NONE)])
def test_required_action(running: Tree, late: bool, action: Action) -> None:
    state = CRIO.configured(HostFiles(running.host, "crio").context(MAIN, None, None))
    assert state.default_runtime == "crun"
    assert state.paths()["runc"] == "/usr/libexec/crio/runc"
    assert CRIO.required_action(LiveState("", {}, "", runtimes_unknown=True, outdated=late), state) is action


# -- validation ------------------------------------------------------------------------------------------------------


def planned(path: str, before: str | None, after: str | None) -> PlannedFile:
    return PlannedFile(path, before if before is None else before.encode(), after if after is None else after.encode())


def test_validates_copies_of_all_files() -> None:
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


def test_validates_without_a_main_file_in_another_directory() -> None:
    unit = Unit("crio.service", "/lib/crio.service", arguments=("/crio", "--config-dir", "/opt"))
    context = FakeFiles({"/opt/10": "a = 1\n", PACKAGED: "x"}, "crio").context(MAIN)._replace(unit=unit)
    command = CRIO.validation_command("/crio", "/tmp/x", [planned("/opt/99", None, "b = 1\n")], context)
    assert command.files == {"crio.conf": b"", "crio.conf.d/10": b"a = 1\n", "crio.conf.d/99": b"b = 1\n"}
    assert command.compare == ["/crio", "--config", "/dev/null", "--config-dir", "/opt", "config"]


def test_refuses_a_dangling_link(running: Tree) -> None:
    (running.root / FOLDER[1:] / "50-gone").symlink_to("/none")
    with pytest.raises(NvidiaError, match=f"{FOLDER}/50-gone is a dangling link"):
        running.present()


OWN = planned(
    DROP_IN, None, '[crio.runtime]\ndefault_runtime = "nvidia"\n[crio.runtime.runtimes.nvidia]\nruntime_path = "/x"\n'
)
BEFORE = '[crio.runtime]\ndefault_runtime = "crun"\nx = 1\n[crio.runtime.runtimes.crun]\ny = 1\n'


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ('"crun"\n', '"nvidia"\n', ""),
        ("y = 1\n", 'y = 1\n[crio.runtime.runtimes.nvidia]\nruntime_path = "/x"\nof_the_program = 1\n', ""),
        ("x = 1", "x = 2", "crio.runtime.x"),
        ("x = 1\n", "", "crio.runtime.x"),
        ("x = 1\n", "x = 1\nz = 1\n", "crio.runtime.z"),
        ("y = 1", "y = 2", "crio.runtime.runtimes.crun.y"),
        ("y = 1", "y = 1\n[crio.runtime.runtimes.other]\ny = 1", "crio.runtime.runtimes.other.y"),
        ("[crio.runtime]\n", "= broken\n", ""),
        ("x = 1", "x = 2\na = 1\nb = 1\nc = 1", "crio.runtime.a, crio.runtime.b, crio.runtime.c, crio.runtime.x"),
    ],
)
def test_compare_dumps(old: str, new: str, changed: str) -> None:
    assert old in BEFORE
    complaint = CRIO.compare_dumps(BEFORE, BEFORE.replace(old, new), [OWN])
    assert complaint == changed


def test_compare_dumps_reports_an_unplanned_default() -> None:
    file = planned(DROP_IN, None, '[crio.runtime.runtimes.nvidia]\nruntime_path = "/x"\n')
    assert "default_runtime" in CRIO.compare_dumps(BEFORE, BEFORE.replace('"crun"', '"runc"'), [file])


# -- on a host -------------------------------------------------------------------------------------------------------


def test_present_and_absent(running: Tree) -> None:
    before = running.etc()
    predicted = running.present(check_mode=True, set_as_default=True)
    assert running.etc() == before
    result = running.present(set_as_default=True, options={"validate": "true"})
    assert predicted.changed is result.changed is True
    assert (result.drop_in_path, result.config_path, result.config_version) == (DROP_IN, MAIN, None)
    assert (result.engine_version, result.default_runtime, result.warnings) == ("1.31.2", "nvidia", [])
    assert (result.restart_action, result.pending_action) == (Action.RESTART, Action.RESTART)
    assert running.etc().keys() - before.keys() == {DROP_IN[1:]}
    assert [command[-1] for command in running.commands] == ["--version", "config", "config"] * 2
    assert os.listdir(running.root / "tmp") == ["keep"]

    again = running.present(set_as_default=True)
    assert (again.changed, again.restart_action) == (False, Action.NONE)
    # CRI-O still runs with the previous files.
    assert again.pending_action is Action.RESTART
    running.start(age=-1)
    assert running.present(set_as_default=True).pending_action is Action.NONE

    gone = running.absent(purge_backups=True)
    assert (gone.changed, gone.restart_action) == (True, Action.RESTART)
    assert running.etc() == before


def test_undefined_spelling_does_not_prevent_a_removal(running: Tree) -> None:
    running.present()
    site = "/etc/crio/crio.conf.d/site.conf"
    running.write(site, "[crio.runtime]\ndefault_runtime = 'crun'\nDefault_Runtime = 'runc'\n")
    assert running.absent().changed
    assert not running.path(DROP_IN).exists()


def test_removed_directory_requires_a_restart(tree: Tree) -> None:
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


def test_refuses_changes_of_foreign_entries(running: Tree) -> None:
    def change(config: dict[str, t.Any]) -> None:
        runtimes = config["crio"]["runtime"]["runtimes"]
        runtimes["crun"]["monitor_path"] = "/other" if "nvidia" in runtimes else "/usr/libexec/crio/conmon"

    running.change_printed = change
    before = running.etc()
    with pytest.raises(NvidiaError, match=r"would also change crio\.runtime\.runtimes\.crun\.monitor_path"):
        running.present()
    assert running.etc() == before


@pytest.mark.parametrize("asked", [{}, {"set_as_default": True}, {"runtime_name": "gpu.v1"}], ids=str)
@pytest.mark.parametrize("text", ["", ONLY_IMAGE, CONFIGURATION, ONLY_CRUN, "[crio.runtime]\ntimezone = 'UTC'\n"])
def test_accepts_what_crio_prints(running: Tree, text: str, asked: dict[str, t.Any]) -> None:
    # CRI-O prints its built-in runtime only beside others, and names with dots without quotation marks.
    running.write(PACKAGED, text)
    before = running.etc()
    assert running.present(**asked).changed
    assert not running.present(**asked).changed
    running.absent()
    assert running.etc() == before


def test_refuses_what_the_validator_rejects(running: Tree) -> None:
    def refuse(argv: list[str]) -> tuple[int, str, str]:
        return (1, "", "invalid\n") if argv[-1] == "config" else (0, "", "")

    before = running.etc()
    options = Options("crio", RuntimeRequest())
    with pytest.raises(NvidiaError, match=r"was not changed, because crio refuses the new content: invalid"):
        ConfigureEngine(options, running.host, refuse).execute(check_mode=False)
    assert running.etc() == before


def test_drop_in_has_the_mode_of_the_main_file(running: Tree) -> None:
    (running.root / MAIN[1:]).chmod(0o600)
    running.present()
    assert (running.root / DROP_IN[1:]).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("directory", [FOLDER, "/opt/crio.d"])
def test_no_temporary_files_in_the_drop_in_directory(
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


def test_offline_tree(tree: Tree) -> None:
    tree.live = False
    tree.write(PACKAGED, CONFIGURATION)
    result = tree.present(set_as_default=True)
    assert (result.engine_version, tree.commands) == (None, [])
    assert not result.pending_action
    assert len(result.warnings) == 1
    assert result.default_runtime == "nvidia"
    tree.absent(purge_backups=True)
    assert list(tree.etc()) == [PACKAGED[1:]]
