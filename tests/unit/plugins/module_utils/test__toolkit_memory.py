# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._module import HOST_ROOT_OPTIONS, finish
from ansible_collections.gpufleet.nvidia.plugins.module_utils import _device_nodes, _toolkit_memory
from ansible_collections.gpufleet.nvidia.plugins.module_utils._device_nodes import Node
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_memory import Memory, remembered_answer
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.test__module import (
    DummyModule,
    Ended,
    _options,
)
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.toolkit_directories import (
    CONFIG,
    DEST,
    NEW,
    OLD,
    VERSIONS,
    Host,
    stamps_of,
)

WORD = "a word"
Change = t.Callable[[Host], t.Any]

DAEMON = {"runtimes": {"mine": {"path": "/usr/bin/runc"}}}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """With Docker, a program that it calls, and an installed toolkit."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    # Of the machine that works on the host's tree.
    monkeypatch.setattr(_toolkit_memory, "_RUN", str(tmp_path / "run"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    host = Host(tmp_path / "host")
    for program in ("usr/bin/dockerd", "usr/bin/runc"):
        put(host, program, "", 0o755)
    put(host, "etc/docker/daemon.json", json.dumps(DAEMON))
    host.install(OLD)
    host.install(NEW)
    return host


def put(host: Host, path: str, text: str, mode: int = 0o644) -> None:
    (host.root / path).parent.mkdir(parents=True, exist_ok=True)
    (host.root / path).write_text(text)
    (host.root / path).chmod(mode)


def work(host: Host, **options: t.Any) -> dict[str, t.Any]:
    """Carry a task out as the module does; its answer."""
    task = host.installation(**options)
    outcome = task.execute(check_mode=False)
    answer = {**task.result(outcome), "diff": [list(outcome.before), list(outcome.after)]}
    task.remember_answer(WORD, answer)
    return dict(json.loads(json.dumps(answer)))


def kept(host: Host) -> Path:
    """The file in which an answer is kept."""
    keeper, path = _toolkit_memory._place(host.host, DEST)
    return Path(keeper.outer(path))


def remembered(host: Host, word: str = WORD, dest: str = DEST) -> dict[str, t.Any] | None:
    return remembered_answer(host.host, dest, word)


# -- an answer is kept ---------------------------------------------------------------------------------------------


def test_an_answer_is_given_again_and_nothing_is_touched(host: Host) -> None:
    assert remembered(host) is None
    answer = work(host)
    assert (answer["changed"], answer["version"], answer["previous_path"] is not None) == (False, NEW, True)
    assert answer["settings"]["nvidia-container-runtime.runtimes"] == ["/usr/bin/runc", "runc", "crun"]
    before = stamps_of(host.root)
    assert remembered(host) == answer
    assert remembered(host, dest=f"{DEST}/") == answer
    assert stamps_of(host.root) == before
    assert work(host) == answer


def test_other_words_and_places_have_no_answer(host: Host) -> None:
    work(host)
    assert remembered(host, "another word") is None
    for dest in ("/opt/other", "relative", "/", str(host.dest)):
        assert remembered(host, dest=dest) is None


def test_it_is_for_the_eyes_of_root_only_and_holds_no_content(host: Host) -> None:
    put(host, "etc/docker/daemon.json", json.dumps({**DAEMON, "labels": ["hunter2"]}))
    work(host, settings={"nvidia-container-cli.environment": ["TOKEN=hunter2"]})
    work(host, settings={"nvidia-container-cli.environment": ["TOKEN=hunter2"]})
    assert remembered(host) is not None
    path = kept(host)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "hunter2" not in path.read_text()


def test_it_goes_with_the_toolkit(host: Host) -> None:
    work(host)
    assert kept(host).exists()
    host.remove()
    assert not kept(host).exists()
    host.remove()


@pytest.mark.parametrize("live", [True, False])
def test_a_host_that_runs_keeps_its_own(live: bool, host: Host) -> None:
    host.live = live
    before = stamps_of(host.root)
    work(host)
    assert remembered(host) is not None
    assert kept(host).is_file()
    assert (host.root in kept(host).parents) is live
    assert (stamps_of(host.root) == before) is not live
    assert stat.S_IMODE(kept(host).parent.stat().st_mode) == 0o700


def test_who_is_not_root_keeps_it_elsewhere(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = host.root.parent / "run-1000"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert folder not in kept(host).parents
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert folder in kept(host).parents


def test_a_machine_that_can_keep_nothing(host: Host) -> None:
    (host.root.parent / "run").write_text("not a folder")
    work(host)
    assert remembered(host) is None


def test_each_toolkit_has_its_own() -> None:
    places = {_toolkit_memory._place(HostRoot(root), dest) for root in ("/", "/srv") for dest in (DEST, "/opt/other")}
    assert len(places) == 4


def test_nothing_is_kept_of_a_run_that_has_changed_something(host: Host) -> None:
    assert work(host, debug=True)["changed"]
    assert remembered(host) is None
    assert not kept(host).exists()


def test_nor_where_an_old_version_is_still_needed(host: Host) -> None:
    host.install("1.18.0")
    oldest = host.names()[0]
    put(host, "etc/cdi/x.yaml", f"path: {VERSIONS}/{oldest}/nvidia-cdi-hook\n")
    for _run in range(2):
        host.install(NEW)
        host.install(OLD)
    answer = work(host, release=OLD)
    assert list(answer["kept_paths"]) == [f"{VERSIONS}/{oldest}"]
    assert remembered(host) is None


def test_nor_where_something_changed_meanwhile(host: Host) -> None:
    task = host.installation()
    outcome = task.execute(check_mode=False)
    put(host, "etc/docker/daemon.json", "{}")
    task.observed.read("/etc/docker/daemon.json")
    task.remember_answer(WORD, task.result(outcome))
    assert not kept(host).exists()


def test_nor_of_a_manifest_that_is_another_by_now(host: Host) -> None:
    task = host.installation()
    outcome = task.execute(check_mode=False)
    path = host.current() / ".manifest.json"
    path.write_text(path.read_text().replace(f'"version": "{NEW}"', '"version": "1.20.1"'))
    task.remember_answer(WORD, task.result(outcome))
    assert not kept(host).exists()


# -- and holds until something is another ----------------------------------------------------------------------------


def in_version(name: str, change: t.Callable[[Path], t.Any]) -> Change:
    return lambda host: change(host.current() / name)


def in_memory(change: t.Callable[[Path], t.Any]) -> Change:
    return lambda host: change(kept(host))


def in_source(name: str, change: t.Callable[[Path], t.Any]) -> Change:
    return lambda host: change(host.root / "srv" / NEW / name)


def write_anew(path: Path) -> None:
    """The same content at another time."""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


def edit(path: Path) -> None:
    """The same size and time of modification, other content."""
    status = path.stat()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"?")
    os.utime(str(path), ns=(status.st_atime_ns, status.st_mtime_ns))


def other_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nvidia-ctk")


def leave_scratch(host: Host) -> None:
    (host.root.parent / "scratch/gpufleet-toolkit-99999998-x").mkdir()


def lead_elsewhere(host: Host) -> None:
    host.dest.unlink()
    host.dest.symlink_to(f"toolkit.versions/{next(name for name in host.names() if name.startswith(OLD))}")


CHANGES: list[Change] = [
    in_version("nvidia-ctk.real", edit),
    in_version("nvidia-ctk.real", write_anew),
    in_version("nvidia-ctk.real", lambda path: os.utime(str(path))),
    in_version("nvidia-ctk", lambda path: path.unlink()),
    in_version("nvidia-ctk", lambda path: path.chmod(0o700)),
    in_version("nvidia-container-toolkit", other_link),
    in_version("stranger", lambda path: path.write_text("")),
    in_version(CONFIG, lambda path: path.write_text("disable-require = true\n")),
    in_version(".config", lambda path: path.chmod(0o777)),
    in_version("", lambda path: path.chmod(0o777)),
    in_version(".manifest.json", lambda path: path.unlink()),
    in_version(".manifest.json", lambda path: path.write_text(path.read_text().replace(f'"{NEW}"', '"1.20.1"', 1))),
    in_version(".manifest.json", lambda path: path.write_text(path.read_text() + " ")),
    in_memory(lambda path: path.unlink()),
    in_memory(lambda path: path.write_text("{}")),
    in_memory(lambda path: path.write_text("[]")),
    in_memory(lambda path: path.write_bytes(b"\xff")),
    in_memory(lambda path: path.write_text(path.read_text().replace('"exists"', '"argv"'))),
    in_memory(lambda path: path.write_text(path.read_text().replace('"files": {', '"files": {"/x": [1], '))),
    in_source("usr/bin/nvidia-ctk", edit),
    in_source("usr/bin/nvidia-ctk", write_anew),
    in_source("usr/bin/nvidia-ctk", lambda path: path.unlink()),
    in_source("usr/bin/nvidia-ctk", lambda path: path.chmod(0o700)),
    in_source("usr/bin/nvidia-cdi-hook", lambda path: path.rename(path.parent.parent / "nvidia-cdi-hook")),
    in_source("", shutil.rmtree),
    lead_elsewhere,
    lambda host: host.dest.unlink(),
    lambda host: (host.versions / ".new").mkdir(),
    lambda host: shutil.copytree(str(host.current()), f"{host.current()}-2", symlinks=True),
    lambda host: put(host, "etc/docker/daemon.json", "{}"),
    lambda host: put(host, "etc/docker/daemon.json", "{"),
    lambda host: (host.root / "usr/bin/runc").unlink(),
    lambda host: put(host, "etc/containerd/config.toml", "version = 2\n"),
    lambda host: put(host, "usr/lib/systemd/system/docker.service", "[Service]\nExecStart=/usr/bin/dockerd\n"),
    lambda host: put(host, "sbin/ldconfig.real", ""),
    lambda host: put(host, "var/lib/gpufleet-nvidia/state/docker-x.json", "{}"),
    leave_scratch,
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_looked_at_is_looked_at_again(change: Change, host: Host) -> None:
    work(host)
    assert remembered(host) is not None
    change(host)
    assert remembered(host) is None


def test_what_was_not_there_is_looked_for_again(host: Host) -> None:
    program = host.root / "srv" / NEW / "usr/bin/nvidia-cdi-hook"
    program.rename(host.root / "srv/nvidia-cdi-hook")
    work(host)
    answer = work(host)
    assert "nvidia-cdi-hook" not in answer["programs"]
    assert remembered(host) == answer
    (host.root / "srv/nvidia-cdi-hook").rename(program)
    assert remembered(host) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda host: put(host, "etc/hostname", "x"),
        lambda host: put(host, f"{VERSIONS[1:]}/stranger", "x"),
        lambda host: put(host, "srv/other/usr/bin/nvidia-ctk", "x"),
        lambda host: (host.root.parent / f"scratch/gpufleet-toolkit-{os.getpid()}-x").mkdir(),
    ],
)
def test_what_is_of_no_concern(change: Change, host: Host) -> None:
    work(host)
    answer = remembered(host)
    change(host)
    assert answer is not None
    assert remembered(host) == answer
    assert work(host) == answer


def test_the_version_before_may_go(host: Host) -> None:
    """Nobody misses it, and it is not made anew."""
    answer = work(host)
    shutil.rmtree(str(host.versions / str(answer["previous_path"]).rpartition("/")[2]))
    assert remembered(host) == work(host)


@pytest.mark.parametrize("kind", ["files", "sent"])
def test_other_sources(kind: str, host: Host) -> None:
    source = host.root / "srv" / NEW
    shutil.copytree(str(source / "usr"), str(host.root / "srv/a.deb.content"), symlinks=True)
    put(host, "srv/a.deb", "a package")
    if kind == "files":
        options: dict[str, t.Any] = {"files": ("/srv/a.deb",)}
    else:
        options = {"sent": _sent(host)}
    work(host, **options)
    assert remembered(host) == work(host, **options)
    put(host, "srv/a.deb", "another")
    assert (remembered(host) is None) is (kind == "files")


def _sent(host: Host) -> t.Any:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_source import (  # noqa: PLC0415
        Sent,
        SourceReader,
    )

    return Sent(SourceReader(host.host, None, thorough=False).root(f"/srv/{NEW}", None).parts)


def test_device_nodes_are_looked_for_each_time(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.live = True
    found: tuple[list[Node], list[str]] = ([], ["nvidia_uvm is not loaded"])
    asked: list[str] = []

    def missing_nodes(_host: t.Any, driver_root: str) -> tuple[list[Node], list[str]]:
        asked.append(driver_root)
        return found

    monkeypatch.setattr(_device_nodes, "missing_nodes", missing_nodes)
    options: dict[str, t.Any] = {"create_device_nodes": True, "driver_root": "/run/nvidia/driver"}
    work(host, **options)
    answer = work(host, **options)
    asked.clear()
    assert remembered(host) == answer
    assert asked == ["/run/nvidia/driver"]
    assert answer["warnings"] == found[1]
    found = ([], [])
    assert remembered(host) is None
    found = ([Node("/dev/nvidiactl", 195, 255)], ["nvidia_uvm is not loaded"])
    assert remembered(host) is None


def test_what_runs_meanwhile_is_of_no_concern(host: Host) -> None:
    """Processes come and go; an answer that depended on them would never hold."""
    host.live = True
    put(host, "usr/lib/systemd/system/docker.service", "[Service]\nExecStart=/usr/bin/dockerd\n")
    group = "sys/fs/cgroup/system.slice/docker.service/cgroup.procs"
    put(host, group, "4711\n")
    put(host, "proc/4711/comm", "dockerd\n")
    answer = work(host)
    put(host, group, "4711\n4712\n")
    assert remembered(host) == answer


def test_a_memory_survives_being_written_down(host: Host) -> None:
    work(host)
    content = kept(host).read_bytes()
    memory = Memory.from_bytes(content)
    assert memory is not None
    assert memory.to_bytes() == content


# -- the two modules --------------------------------------------------------------------------------------------------


def run_module(monkeypatch: pytest.MonkeyPatch, host: Host, check_mode: bool = False, **options: t.Any) -> DummyModule:
    """nvidia_toolkit_install with a word of the controller."""
    pytest.importorskip("ansible.module_utils.basic")
    from ansible_collections.gpufleet.nvidia.plugins.modules import nvidia_toolkit_install  # noqa: PLC0415

    specification = _options(monkeypatch, nvidia_toolkit_install)
    arguments: dict[str, t.Any] = {name: option.get("default") for name, option in specification.items()}
    arguments.update(source="directory", src=f"/srv/{NEW}", dest=DEST, host_root=str(host.root), task_digest=WORD)
    arguments.update(shipped_tomlkit="packed", **options)
    # Nothing needs it here.
    monkeypatch.setattr(nvidia_toolkit_install, "accept_shipments", lambda _module: None)
    module = DummyModule(check_mode, **arguments)
    with pytest.raises(Ended):
        finish(t.cast("t.Any", module), lambda: nvidia_toolkit_install.install(t.cast("t.Any", module)))
    return module


@pytest.mark.parametrize("state_before", ["another version", "the same"])
def test_the_next_run_knows_it_whether_this_one_has_changed_anything(
    monkeypatch: pytest.MonkeyPatch, host: Host, state_before: str
) -> None:
    if state_before == "another version":
        host.install(OLD)
    first = run_module(monkeypatch, host)
    assert first.result["changed"] is (state_before == "another version")
    answer = remembered(host)
    again = run_module(monkeypatch, host)
    invocation = again.result.pop("invocation", None)
    assert invocation is None
    assert answer is not None
    asked = answer.pop("invocation")["module_args"]
    assert answer.pop("warnings") == again.warnings
    assert answer == json.loads(json.dumps(again.result))
    assert (asked["src"], asked["config"]) == (f"/srv/{NEW}", {})
    assert not {"shipped_tomlkit", "shipped_toolkit", "task_digest"} & set(asked)


def test_secrets_are_not_among_what_was_asked(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    config = {"nvidia-container-cli.environment": ["TOKEN=hunter2"]}
    run_module(monkeypatch, host, config=config)
    assert remembered(host) is not None
    assert "hunter2" not in kept(host).read_text()


@pytest.mark.parametrize("options", [{"check_mode": True}, {"task_digest": None}])
def test_nothing_is_kept_that_nobody_asks_for(
    monkeypatch: pytest.MonkeyPatch, host: Host, options: dict[str, t.Any]
) -> None:
    before = stamps_of(host.root)
    assert not run_module(monkeypatch, host, **options).result["changed"]
    assert stamps_of(host.root) == before


def test_a_removal_keeps_nothing(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    assert run_module(monkeypatch, host, src=None, state="absent").result["changed"]
    assert not host.versions.exists()
    assert not run_module(monkeypatch, host, src=None, state="absent").result["changed"]


@pytest.mark.parametrize("known", [True, False])
def test_the_small_module(monkeypatch: pytest.MonkeyPatch, host: Host, known: bool) -> None:
    pytest.importorskip("ansible.module_utils.basic")
    from ansible_collections.gpufleet.nvidia.plugins.modules import nvidia_toolkit_unchanged  # noqa: PLC0415

    answer = work(host)
    word = WORD if known else "another"
    module = DummyModule(dest=DEST, task_digest=word, host_root=str(host.root), host_root_live=False)
    monkeypatch.setattr(nvidia_toolkit_unchanged, "new_module", lambda _specification: module)
    with pytest.raises(Ended):
        nvidia_toolkit_unchanged.main()
    del answer["warnings"]
    assert module.result == ({**answer, "unchanged": True} if known else {"changed": False, "unchanged": False})


def test_its_options_are_what_is_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ansible.module_utils.basic")
    yaml = pytest.importorskip("yaml")
    from ansible_collections.gpufleet.nvidia.plugins.modules import nvidia_toolkit_unchanged  # noqa: PLC0415

    specification = _options(monkeypatch, nvidia_toolkit_unchanged)
    documented = yaml.safe_load(nvidia_toolkit_unchanged.DOCUMENTATION)["options"]
    for option in documented.values():
        del option["description"]
    assert {**documented, **HOST_ROOT_OPTIONS} == specification
