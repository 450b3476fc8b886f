# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configure engines with several files, and remove runtimes that this collection did not record."""

from __future__ import annotations

import os
import shutil
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.applied import AppliedFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action, LiveState
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import (
    ConfigureEngine,
    Options,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.engine import CONTAINERD
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.plan import ContainerdPlanner
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.engine import Docker
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.journal import JournalEntry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.program_version import ask_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import EngineTree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import Host
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.process_starts import write_start

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureResult

MAIN = "etc/containerd/config.toml"
DROP_IN = "etc/containerd/conf.d/99-nvidia.toml"
CONFIG = """\
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "/a.json"
"""
BACKUPS = "var/lib/gpufleet-nvidia/backups"


class ContainerdTree:
    def __init__(self, root: Path, mode: int = 0o644) -> None:
        self.root = root
        self.live = False
        (root / "etc/containerd").mkdir(parents=True)
        (root / MAIN).write_text(CONFIG)
        (root / MAIN).chmod(mode)

    def run(self, request: RuntimeRequest | None, check_mode: bool = False, **options: t.Any) -> ConfigureResult:
        given: dict[str, t.Any] = {"engine_version": "2.1.9", "validate": "false", **options}
        host = HostFS.of(str(self.root), self.live)
        configuration = ConfigureEngine(Options("containerd", request, **given), host, lambda _argv: (0, "", ""))
        return configuration.execute(check_mode)

    def present(self, check_mode: bool = False, **asked: t.Any) -> ConfigureResult:
        return self.run(RuntimeRequest(**asked), check_mode)

    def files(self) -> dict[str, tuple[int, bytes]]:
        paths = [path for path in self.root.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.root)): (path.stat().st_mode & 0o777, path.read_bytes()) for path in paths}


@pytest.mark.parametrize(("mode", "expected"), [(0o644, 0o644), (0o600, 0o600), (0o640, 0o640), (0o666, 0o666)])
def test_drop_in_is_as_private_as_main_file(tmp_path: Path, mode: int, expected: int) -> None:
    tree = ContainerdTree(tmp_path, mode)
    before = tree.files()
    tree.present()
    assert tree.files()[DROP_IN][0] == expected
    (tmp_path / MAIN).chmod(0o600)
    (tmp_path / MAIN).write_text(tree.files()[MAIN][1].decode().replace("/a.json", "/b.json"))
    tree.present()
    assert tree.files()[DROP_IN][0] == 0o600
    (tmp_path / MAIN).chmod(mode)
    (tmp_path / MAIN).write_text(tree.files()[MAIN][1].decode().replace("/b.json", "/a.json"))
    tree.run(None, purge_backups=True)
    assert tree.files() == before


def test_purge_backups_of_previous_mode(tmp_path: Path) -> None:
    tree = ContainerdTree(tmp_path)
    before = tree.files()
    tree.present()
    tree.present(extra_modes=("cdi",))
    tree.present(config_mode="in_place")
    assert [name for name in tree.files() if name.startswith(BACKUPS) and "99-nvidia" in name]
    assert DROP_IN not in tree.files()
    tree.run(None, purge_backups=True)
    assert tree.files() == before


def test_restart_for_settings_that_daemon_does_not_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = ContainerdTree(tmp_path)
    tree.present()
    runtimes = {
        name: {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": program}}
        for name, program in (("runc", ""), ("nvidia", "/usr/bin/nvidia-container-runtime"))
    }
    reported = {"containerd": {"defaultRuntimeName": "runc", "runtimes": runtimes}, "enableCDI": True}
    monkeypatch.setattr(processes, "find_process", lambda *_arguments: 7)
    monkeypatch.setattr(cri, "runtime_config", lambda _path: reported)
    monkeypatch.setattr(cri, "version", lambda _path: "2.1.9")
    monkeypatch.setattr(processes, "changed_since_start", lambda *_arguments: False)
    tree.live = True
    unchanged = tree.present()
    assert (unchanged.changed, unchanged.pending_action) == (False, Action.NONE)
    (tmp_path / MAIN).write_text(tree.files()[MAIN][1].decode().replace("/a.json", "/b.json"))
    for check_mode in (True, False):
        refreshed = tree.present(check_mode)
        assert refreshed.changed
        assert refreshed.restart_action is refreshed.pending_action is Action.RESTART


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("containerd github.com/containerd/containerd v1.7.24 88bf19b2105c8b17560993bee28a01ddc2f97182", "1.7.24"),
        ("containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4e490e9fbdc236c0e811ccaba3376", "2.1.4"),
        ("containerd github.com/containerd/containerd v1.7.2 0cae528dd6cb557f7201036e9f43420650207b58", "1.7.2"),
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3", "1.6.20~ds1"),
        ("containerd github.com/containerd/containerd/v2 2.1.9+unknown ", "2.1.9+unknown"),
        ("containerd containerd.io 1.6.33 d2d58213f83a351ca8f528a95fbd145f5654e957", "1.6.33"),
        ("Docker version 20.10.24+dfsg1, build 5d6db84", "20.10.24+dfsg1"),
        ("crio version 1.31.0\nVersion:        1.31.0", "1.31.0"),
        ("no version", None),
    ],
)
def test_ask_version(tmp_path: Path, output: str, version: str | None) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    program = tmp_path / "usr/bin/containerd"
    program.write_text("")
    program.chmod(0o755)
    host = HostFS(str(tmp_path))
    installation = CONTAINERD.inspect(host)
    assert ask_version(CONTAINERD, installation, host, lambda _argv: (0, output, "")) == version


# -- foreign files --------------------------------------------------------------------------------------------------

CRI = '[plugins."io.containerd.grpc.v1.cri"]\n'
RUNTIMES = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes'


@pytest.mark.parametrize(
    "wrong",
    [
        f"[{RUNTIMES}]\nrunc = 'x'\n",
        f"[{RUNTIMES}.runc]\noptions = 'x'\n",
        f"[{RUNTIMES}.runc.options]\nBinaryName = 3\n",
    ],
)
def test_copied_settings_are_checked(wrong: str) -> None:
    host = Host("version = 2\n" + wrong)
    with pytest.raises(NvidiaError, match=r"^/etc/containerd/config\.toml, line "):
        host.present(set_as_default=True)


def test_removal_keeps_drop_in_of_other_configuration() -> None:
    host = Host({"/" + MAIN: "version = 3\n"}, (2, 1, 9))
    host.present()
    other = "/etc/other/config.toml"
    host.files.put(other, "version = 3\n")
    context = host.files.context(other, (2, 1, 9))._replace(recorded=())
    assert not any(file.changed for file in ContainerdPlanner(context).absent().files)
    # The same without a record.
    host.files.records.clear()
    assert not any(file.changed for file in ContainerdPlanner(context).absent().files)


UNIT = "[Service]\nExecStart=/usr/bin/containerd --config /etc/gpu/config.toml\n"


@pytest.mark.parametrize("recorded", [True, False])
def test_removal_for_a_unit_keeps_drop_in_of_the_system(tmp_path: Path, recorded: bool) -> None:
    files = {"/" + MAIN: "version = 3\n", "/etc/systemd/system/gpu.service": UNIT, "/usr/bin/containerd": ""}
    tree = EngineTree(tmp_path, files=files, live=False)
    tree.options["engine_version"] = "2.1.4"
    tree.present(set_as_default=True)
    tree.write("/etc/gpu/config.toml", tree.text(MAIN) + 'root = "/gpu"\n')
    before = tree.files()
    options: dict[str, t.Any] = {"service": "gpu.service"}
    assert tree.present(options=options, runtime_name="gpu").changed is True
    assert tree.absent(**options).changed is True
    assert tree.files() == before
    if not recorded:
        shutil.rmtree(tmp_path / "var/lib/gpufleet-nvidia")
    outcome = tree.absent(**options)
    assert (outcome.changed, outcome.warnings[:-1]) == (False, [])
    assert tree.files() == before


SECOND = "/etc/engine/second.conf"
CRI_DEFAULT = '[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "nvidia"\n'


def test_removal_removes_the_import_of_another_main_file(tmp_path: Path) -> None:
    tree = EngineTree(tmp_path, files={SECOND: 'version = 2\nimports = ["/etc/site.d/*.toml"]\n'}, live=False)
    tree.options["engine_version"] = "2.1.4"
    before = tree.text(SECOND)
    tree.present(options={"config_path": SECOND}, drop_in_path="/etc/engine/second.d/99-nvidia.toml")
    tree.write(SECOND, tree.text(SECOND) + "[debug]\n")
    assert not tree.absent().warnings
    assert tree.text(SECOND) == before + "[debug]\n"
    assert not tree.path("/etc/engine/second.d").exists()


@pytest.mark.parametrize(
    ("engine", "version", "text", "default"),
    [
        ("containerd", "1.7.24", "version = 2\n", CRI_DEFAULT),
        ("crio", "1.33.0", '[crio]\nx = "y"\n', '[crio.runtime]\ndefault_runtime = "nvidia"\n'),
    ],
)
def test_removal_repairs_the_default_of_another_main_file(
    tmp_path: Path, engine: str, version: str, text: str, default: str
) -> None:
    tree = EngineTree(tmp_path, engine, files={SECOND: text}, live=False)
    tree.options["engine_version"] = version
    tree.present(options={"config_path": SECOND}, config_mode="in_place")
    tree.write(SECOND, default + tree.text(SECOND) if engine == "crio" else tree.text(SECOND) + default)
    outcome = tree.absent()
    assert tree.text(SECOND).strip() == text.strip()
    assert "no longer defined" in outcome.warnings[0]
    assert not tree.absent().changed


@pytest.mark.parametrize("first", [SECOND, "/" + MAIN])
def test_removal_with_a_drop_in_of_two_main_files(tmp_path: Path, first: str) -> None:
    files = {"/" + MAIN: "version = 3\n", SECOND: "version = 3\n"}
    tree = EngineTree(tmp_path, files=files, live=False)
    tree.options["engine_version"] = "2.1.4"
    before = tree.files()
    for path in (first, *(set(files) - {first})):
        tree.present(options={"config_path": path}, drop_in_path="/" + DROP_IN)
        assert DROP_IN.rpartition("/")[0] in tree.text(path)
    assert not tree.absent().warnings
    assert tree.files() == before


# -- unrecorded runtimes ---------------------------------------------------------------------------------------------

NVIDIA = "/usr/bin/nvidia-container-runtime"
DOCKER_FILE, CONTAINERD_FILE, CRIO_FILE = (
    "/etc/docker/daemon.json",
    "/etc/containerd/config.toml",
    "/etc/crio/crio.conf",
)
CRI_TABLE = 'plugins."io.containerd.grpc.v1.cri".containerd'
# The version of the engine, and a file that was written by hand.
FOREIGN_FILES = {
    "docker": (
        "26.1.5",
        DOCKER_FILE,
        f'{{"runtimes": {{"nvidia": {{"path": "{NVIDIA}"}}}}, "default-runtime": "nvidia"}}',
    ),
    "containerd": (
        "1.7.24",
        CONTAINERD_FILE,
        f'version=2\n[{CRI_TABLE}]\ndefault_runtime_name="nvidia"\n[{CRI_TABLE}.runtimes.nvidia.options]\nBinaryName="{NVIDIA}"\n',
    ),
    "crio": (
        "1.31.0",
        CRIO_FILE,
        f'[crio.runtime]\ndefault_runtime = "nvidia"\n[crio.runtime.runtimes.nvidia]\nruntime_path = "{NVIDIA}"\n',
    ),
}


class ForeignTree:
    """One engine's file in a directory tree."""

    def __init__(self, root: Path, engine: str) -> None:
        self.root = root
        self.engine = engine
        self.version, self.path, self.content = FOREIGN_FILES[engine]
        self.write(self.content)

    def write(self, content: str) -> None:
        file = self.root / self.path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")

    def run(self, request: RuntimeRequest | None = None, check_mode: bool = False, **options: t.Any) -> ConfigureResult:
        given: dict[str, t.Any] = {"engine_version": self.version, "validate": "false", **options}
        host = HostFS(str(self.root))
        return ConfigureEngine(Options(self.engine, request, **given), host, _no_command).execute(check_mode)

    def files(self) -> dict[str, bytes]:
        return {f"/{path.relative_to(self.root)}": path.read_bytes() for path in self.root.rglob("*") if path.is_file()}


def _no_command(_argv: t.Sequence[str]) -> tuple[int, str, str]:
    return 1, "", ""


@pytest.fixture(params=sorted(FOREIGN_FILES))
def tree(tmp_path: Path, request: pytest.FixtureRequest) -> ForeignTree:
    return ForeignTree(tmp_path, request.param)


@pytest.mark.parametrize("check_mode", [True, False])
def test_keep_foreign_file(tree: ForeignTree, check_mode: bool) -> None:
    result = tree.run(None, check_mode, keep_unrecorded=True)
    assert (result.changed, result.unrecorded) == (False, [tree.path])
    assert "nvidia" in result.runtimes
    assert tree.files() == {tree.path: tree.content.encode()}


def test_removed_by_default(tree: ForeignTree) -> None:
    result = tree.run()
    assert (result.changed, result.unrecorded) == (True, [])
    assert "nvidia" not in result.runtimes


def test_recorded_runtimes_are_removed(tree: ForeignTree) -> None:
    present = RuntimeRequest(extra_modes=("cdi",))
    tree.run(present)
    result = tree.run(None, keep_unrecorded=True, purge_backups=True)
    # The first change recorded the runtime that had been there before.
    assert (result.changed, result.unrecorded) == (True, [])
    assert tree.files() == {tree.path: tree.content.encode()}


def test_nothing_to_keep(tree: ForeignTree) -> None:
    tree.write("{}" if tree.engine == "docker" else "")
    assert tree.run(None, keep_unrecorded=True).unrecorded == []
    (tree.root / tree.path[1:]).unlink()
    assert tree.run(None, keep_unrecorded=True).unrecorded == []


def test_keep_drop_in_of_nvidia_ctk_until_purge(tmp_path: Path) -> None:
    tree = ForeignTree(tmp_path, "crio")
    drop_in, text = "/etc/crio/crio.conf.d/99-nvidia.toml", tree.content
    (tmp_path / drop_in[1:]).parent.mkdir()
    (tmp_path / drop_in[1:]).write_text(text, encoding="utf-8")
    tree.write("")
    assert tree.run(None, keep_unrecorded=True).unrecorded == [drop_in]
    assert tree.files()[drop_in] == text.encode()
    assert [leftover.path for leftover in tree.run(None, keep_unrecorded=True, purge_legacy=True).leftovers] == [
        drop_in
    ]
    assert drop_in not in tree.files()


def test_keep_invalid_file(tmp_path: Path) -> None:
    tree = ForeignTree(tmp_path, "docker")
    tree.write('{"runtimes": []}')
    result = tree.run(None, keep_unrecorded=True)
    # The content of an invalid file is unknown.
    assert (result.changed, result.unrecorded) == (False, [])


def test_keep_file_whose_removal_would_be_refused(tmp_path: Path) -> None:
    tree = ForeignTree(tmp_path, "crio")
    later = tmp_path / "etc/crio/crio.conf.d/99-other.conf"
    later.parent.mkdir()
    later.write_text('[crio.runtime]\ndefault_runtime = "nvidia"\n', encoding="utf-8")
    assert tree.run(None, keep_unrecorded=True).unrecorded == [tree.path]


def test_no_pending_action_without_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Docker, "live", lambda *_arguments: LiveState("26.1.5", {}, "runc"))
    tree = ForeignTree(tmp_path, "docker")
    assert tree.run(None, keep_unrecorded=True).pending_action is None
    # An earlier removal ended before its restart.
    JournalEntry.pending_changes(HostFS(str(tmp_path)), "docker").write(())
    assert tree.run(None, keep_unrecorded=True).pending_action is Action.RELOAD


def test_a_removal_from_a_stopped_engine_leaves_no_record(tmp_path: Path) -> None:
    tree = ContainerdTree(tmp_path)
    before = tree.files()
    tree.present()
    write_start(tmp_path, 7, 100)
    AppliedFiles.of(HostFS(str(tmp_path)), "containerd").write(7, [])
    assert tree.run(None, check_mode=True).changed
    assert AppliedFiles.of(HostFS(str(tmp_path)), "containerd").read() is not None
    assert tree.run(None, purge_backups=True).changed
    assert {path for path in tree.files() if not path.startswith("proc/")} == {*before}
    assert not (tmp_path / "var/lib/gpufleet-nvidia").exists()


def fail_to_write(record: AppliedFiles, *_arguments: t.Any) -> None:
    raise HostError(f"{record.path} cannot be written: Read-only file system.")


def test_no_restart_after_a_change_was_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = ContainerdTree(tmp_path)
    tree.present()
    options = {"BinaryName": "/usr/bin/nvidia-container-runtime"}
    runtimes = {
        "runc": {"runtimeType": "io.containerd.runc.v2", "options": {}},
        "nvidia": {"runtimeType": "io.containerd.runc.v2", "options": options},
    }
    reported = {"containerd": {"defaultRuntimeName": "runc", "runtimes": runtimes}, "enableCDI": True}
    monkeypatch.setattr(processes, "find_process", lambda *_arguments: 7)
    monkeypatch.setattr(cri, "runtime_config", lambda _path: reported)
    monkeypatch.setattr(cri, "version", lambda _path: "2.1.9")
    write_start(tmp_path, 7, 100)
    tree.live = True
    record = AppliedFiles.of(HostFS(str(tmp_path)), "containerd")
    # Without a record, a file with a later time may have been changed after the start.
    for path in (MAIN, DROP_IN):
        os.utime(tmp_path / path, (2**31, 2**31))
    assert tree.present().pending_action is Action.RESTART
    for path in (MAIN, DROP_IN):
        os.utime(tmp_path / path, (1, 1))
    assert tree.present(check_mode=True).pending_action is Action.NONE
    assert record.read() is None
    # The state directory may be read-only. Nothing in it had to change.
    with monkeypatch.context() as read_only:
        read_only.setattr(AppliedFiles, "write", fail_to_write)
        assert tree.present().pending_action is Action.NONE
    assert tree.present().pending_action is Action.NONE
    # The inspection has recorded the process, so times do not matter any more.
    assert record.is_of(7)
    for path in (MAIN, DROP_IN):
        os.utime(tmp_path / path, (2**31, 2**31))
    assert tree.present().pending_action is Action.NONE
    assert tree.present(set_as_default=True).pending_action is Action.RESTART
    tree.present(set_as_default=False)
    for path in (MAIN, DROP_IN):
        os.utime(tmp_path / path, (2**31, 2**31))
    taken_back = tree.present(set_as_default=False)
    assert (taken_back.changed, taken_back.pending_action) == (False, Action.NONE)
    # A process that was started later has read the same files, whatever their times are.
    write_start(tmp_path, 7, 200)
    assert tree.present(set_as_default=False).pending_action is Action.NONE
    # Nothing is known about an earlier process.
    write_start(tmp_path, 7, 60)
    assert tree.present(set_as_default=False).pending_action is Action.RESTART
