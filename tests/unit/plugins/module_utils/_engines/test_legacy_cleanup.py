# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.apply import ChangeWriter
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import BACKUP_DIR, STATE_DIR, load_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.text import parse_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import (
    Action,
    EnginePlan,
    HostFiles,
    RuntimeRequest,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.legacy_cleanup import LegacyCleanup
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.registry import Target
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.leftovers import (
    CRIO_DROP_IN,
    CRIO_MAIN,
    CRIO_STRAY,
    DAEMON_JSON,
    DROP_IN,
    HOOK,
    HOOK_FILE,
    MAIN,
    NVIDIA,
    OPERATOR,
    OWN_HOOK,
    STRAY,
    main_file,
    runtime,
    small_drop_in,
    snapshot,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Context
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import Tree

V2, V1 = "2.1.9", "1.7.24"
REQUEST = RuntimeRequest()


class Host:
    """One engine of a tree, and what this collection does to it."""

    def __init__(self, tree: Tree, engine: str = "containerd", version: str = V2) -> None:
        self.tree = tree
        self.host = tree.host()
        self.engine = Target(engine).load()
        self.version = version

    def read(self, path: str) -> str | None:
        content = self.host.read(path)
        return None if content is None else content.decode()

    def context(self, removal: bool = False) -> Context:
        installation = self.engine.inspect(self.host)
        path = self.host.resolve(installation.config_path)
        recorded = [one for one in load_records(self.host, self.engine.key) if one.path != path]
        paths = tuple(one.path for one in recorded if removal or one.main == path)
        files = HostFiles(self.host, self.engine.key)
        return files.context(path, installation.unit, parse_version(self.version), paths)

    def purge(self, request: RuntimeRequest | None = REQUEST) -> LegacyCleanup:
        return LegacyCleanup(self.host, self.engine, self.context(request is None), request)

    def plan(self, request: RuntimeRequest | None = REQUEST, purge: bool = True) -> EnginePlan:
        def make(context: Context) -> EnginePlan:
            return self.engine.absent(context) if request is None else self.engine.present(request, context)

        return self.purge(request).plan(make) if purge else make(self.context(request is None))

    def run(self, request: RuntimeRequest | None = REQUEST, purge: bool = True) -> EnginePlan:
        """Plan and write, as the module does."""
        plan, writer = self.plan(request, purge), self.writer(request)
        if writer.has_work(plan.files):
            writer.apply(plan.files)
        return plan

    def writer(self, request: RuntimeRequest | None = REQUEST) -> ChangeWriter:
        main = self.context().path
        return ChangeWriter(self.host, self.engine.key, main, BACKUP_DIR, removal=request is None, purge=False)

    def files(self) -> dict[str, bytes]:
        """All that the tree holds, but for records and backups."""
        inner = {}
        for folder, _folders, names in os.walk(self.tree.path):
            for name in names:
                path = os.path.join(folder, name)[len(str(self.tree.path)) :]
                if not path.startswith("/var/lib/gpufleet") and not os.path.islink(str(self.tree.path) + path):
                    inner[path] = self.host.read(path) or b""
        return inner

    def backups(self) -> list[bytes]:
        names = [name for name in self.host.readable_entries(BACKUP_DIR) if name.endswith(".backup")]
        return [self.host.read(f"{BACKUP_DIR}/{name}") or b"" for name in names]


@pytest.fixture
def made(tree: Tree) -> t.Callable[..., Host]:
    """A host with these files, and with the toolkit."""

    def make(files: t.Mapping[str, str], engine: str = "containerd", version: str = V2) -> Host:
        tree.program(NVIDIA)
        for path, text in files.items():
            tree.file(path, text.encode())
        return Host(tree, engine, version)

    return make


Made = t.Callable[..., Host]


# -- what is a leftover ----------------------------------------------------------------------------------------------

GONE = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
CRIO_GONE = f'[crio.runtime.runtimes.old]\nruntime_path = "{GONE}"\n'


@pytest.mark.parametrize(
    ("engine", "files", "expected"),
    [
        ("containerd", {MAIN: main_file(), STRAY: small_drop_in()}, [(STRAY, "drop-in")]),
        ("containerd", {MAIN: main_file(), DROP_IN: snapshot()}, [(DROP_IN, "drop-in")]),
        ("containerd", {MAIN: main_file(), DROP_IN: small_drop_in(OPERATOR)}, [(DROP_IN, "drop-in")]),
        (
            "containerd",
            {MAIN: main_file(), DROP_IN: snapshot(), "/etc/containerd/conf.d/a.toml": "version = 2\n"},
            [(DROP_IN, "drop-in")],
        ),
        (
            "containerd",
            {MAIN: main_file(imports=f'"{DROP_IN}"'), DROP_IN: snapshot()},
            [(DROP_IN, "drop-in"), (MAIN, "import")],
        ),
        ("containerd", {MAIN: main_file() + runtime("nvidia-cdi", f"{GONE}.cdi")}, [(MAIN, "runtime")]),
        (
            "containerd",
            {MAIN: main_file() + runtime("nvidia-experimental", "/usr/bin/nvidia-container-runtime.experimental")},
            [(MAIN, "runtime")],
        ),
        ("crio", {CRIO_STRAY: CRIO_DROP_IN}, [(CRIO_STRAY, "drop-in")]),
        ("crio", {HOOK: HOOK_FILE, OWN_HOOK: HOOK_FILE}, [(HOOK, "hook"), (OWN_HOOK, "hook")]),
        ("podman", {HOOK: HOOK_FILE}, [(HOOK, "hook")]),
        ("crio", {CRIO_MAIN: CRIO_GONE}, [(CRIO_MAIN, "runtime")]),
        ("docker", {DAEMON_JSON: f'{{"runtimes": {{"old": {{"path": "{GONE}"}}}}}}'}, [(DAEMON_JSON, "runtime")]),
        ("docker", {HOOK: HOOK_FILE, CRIO_STRAY: CRIO_DROP_IN, STRAY: small_drop_in()}, []),
    ],
)
def test_leftovers_are_found(made: Made, engine: str, files: dict[str, str], expected: list[tuple[str, str]]) -> None:
    host = made(files, engine)
    assert [(one.path, one.kind) for one in host.purge().leftovers] == expected
    assert host.purge().warnings == ()
    assert all(one.reason.endswith(".") for one in host.purge().leftovers)


@pytest.mark.parametrize(
    ("engine", "files", "words"),
    [
        ("containerd", {MAIN: main_file(), DROP_IN: snapshot() + "# mine\n"}, "contains comments"),
        ("containerd", {MAIN: main_file(), DROP_IN: snapshot() + "[grpc]\nx = 1\n"}, "also contains grpc.x"),
        (
            "containerd",
            {MAIN: main_file(), DROP_IN: snapshot() + runtime("kata", "/usr/bin/kata")},
            "also contains containerd.runtimes.kata.runtime_type",
        ),
        ("containerd", {MAIN: main_file(), DROP_IN: snapshot(default="kata")}, None),
        ("containerd", {MAIN: "version = 2\n", DROP_IN: snapshot(default="runc")}, "containerd.default_runtime_name"),
        (
            "containerd",
            {MAIN: main_file(), STRAY: "version = 2\n" + runtime("runc", "/x")},
            "no NVIDIA runtime",
        ),
        ("containerd", {MAIN: main_file(), STRAY: "= ="}, "cannot be parsed"),
        ("crio", {CRIO_STRAY: CRIO_DROP_IN + '[crio.network]\nx = "y"\n'}, "also contains crio.network.x"),
        (
            "crio",
            {CRIO_STRAY: CRIO_DROP_IN.replace('default_runtime = "nvidia"', 'default_runtime = "x"')},
            "default_runtime",
        ),
        ("crio", {HOOK: '{"hook": {"path": "/usr/bin/mine"}}'}, "does not run NVIDIA's hook"),
    ],
)
def test_what_others_may_have_written_stays(made: Made, engine: str, files: dict[str, str], words: str | None) -> None:
    host = made(files, engine)
    purge = host.purge()
    if words is None:
        # A value that the main file has otherwise is a copy of what stood there once.
        assert [one.path for one in purge.leftovers][:1] == [DROP_IN]
        return
    assert purge.leftovers == ()
    assert len(purge.warnings) == 1
    assert words in purge.warnings[0]
    before = host.files()
    host.purge(None).plan(lambda _context: host.plan(None, purge=False))
    assert host.files() == before


@pytest.mark.parametrize(
    ("engine", "files"),
    [
        # Others' programs, programs that are there, and what this run registers anyway.
        ("containerd", {MAIN: main_file() + runtime("kata", "/gone/kata")}),
        ("containerd", {MAIN: main_file() + runtime("nvidia-cdi", NVIDIA)}),
        ("containerd", {MAIN: main_file() + runtime("nvidia", GONE)}),
        ("docker", {DAEMON_JSON: f'{{"runtimes": {{"nvidia": {{"path": "{GONE}"}}, "x": {{"path": "/gone/x"}}}}}}'}),
        ("crio", {CRIO_MAIN: '[crio.runtime.runtimes.runc]\nruntime_path = "/gone/runc"\n'}),
    ],
)
def test_what_is_no_leftover_is_not_touched(made: Made, engine: str, files: dict[str, str]) -> None:
    purge = made(files, engine).purge()
    assert (purge.leftovers, purge.warnings) == ((), ())


def test_a_link_is_somebodys_own(made: Made, tree: Tree) -> None:
    host = made({MAIN: main_file(), "/srv/x.toml": small_drop_in()})
    tree.link(STRAY, "/srv/x.toml")
    (sentence,) = host.purge().warnings
    assert "is a symbolic link" in sentence
    assert host.purge().leftovers == ()


def test_a_folder_in_the_place_of_a_file_stays(made: Made, tree: Tree) -> None:
    host = made({MAIN: main_file()})
    tree.folder(STRAY)
    assert "not a regular file" in host.purge().warnings[0]


def test_a_hook_that_is_to_be_written_is_none(made: Made) -> None:
    host = made({HOOK: HOOK_FILE}, "crio")
    assert host.purge(REQUEST._replace(config_mode="hook")).leftovers == ()


# -- removed for good ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V2, V1])
@pytest.mark.parametrize("drop_in", [snapshot("registry.k8s.io/pause:3.9"), snapshot(), small_drop_in(OPERATOR)])
def test_a_snapshot_makes_way_for_ours_and_never_comes_back(made: Made, version: str, drop_in: str) -> None:
    host = made({MAIN: main_file(), DROP_IN: drop_in, STRAY: small_drop_in()}, version=version)
    plan = host.run()
    assert len({file.path for file in plan.files}) == len(plan.files)
    assert plan.action is Action.RESTART
    assert plan.state.paths()["nvidia"] == NVIDIA
    assert host.read(STRAY) is None
    assert "sandbox_image" not in (host.read(DROP_IN) or "")
    assert drop_in.encode() in host.backups()
    again = host.run()
    assert [file for file in again.files if file.changed] == []
    assert host.purge().leftovers == ()
    host.run(None)
    assert host.read(DROP_IN) is None
    assert host.read(STRAY) is None
    assert host.read(MAIN) == main_file()
    assert host.host.readable_entries(STATE_DIR) == []


def test_one_plan_with_and_without_ours_is_in_agreement(made: Made) -> None:
    host = made({MAIN: main_file(), DROP_IN: snapshot()})
    plan = host.plan()
    by_path = {file.path: file for file in plan.files}
    assert by_path[DROP_IN].before == snapshot().encode()
    purged = by_path[DROP_IN].purged
    assert purged is not None
    assert purged.original is None


def test_a_purge_of_nothing_is_the_plan_itself(made: Made) -> None:
    host = made({MAIN: main_file()})
    assert host.plan() == host.plan(purge=False)
    host.run()
    assert host.plan().action is Action.NONE


def test_a_removal_takes_leftovers_along(made: Made) -> None:
    named = f'"{DROP_IN}"'
    host = made({MAIN: main_file(imports=named) + runtime("nvidia-cdi", GONE), DROP_IN: snapshot()})
    host.run(None)
    assert host.read(DROP_IN) is None
    assert host.read(MAIN) == main_file(imports=named).replace(f"imports = [{named}]\n", "")


def test_an_administrators_pattern_stays(made: Made) -> None:
    host = made({MAIN: main_file(), DROP_IN: snapshot()})
    host.run(None)
    assert host.read(DROP_IN) is None
    assert host.read(MAIN) == main_file()


@pytest.mark.parametrize("purged_first", [True, False])
def test_what_was_recorded_with_leftovers_comes_back_without(made: Made, purged_first: bool) -> None:
    """The original that an earlier run recorded had the leftover, too."""
    text = main_file(imports='"/etc/x/*.toml"')
    host = made({MAIN: text + runtime("nvidia-experimental", GONE)}, version=V1)
    host.run(purge=purged_first)
    host.run(REQUEST._replace(set_as_default=True))
    assert "experimental" not in (host.read(MAIN) or "")
    assert 'default_runtime_name = "nvidia"' in (host.read(MAIN) or "")
    (record,) = load_records(host.host, "containerd")
    assert record.exact
    host.run(None, purge=False)
    assert host.read(MAIN) == text


def test_our_own_change_between_is_given_back_exactly(made: Made) -> None:
    text = '{\n  "debug": true,\n  "runtimes": {\n    "old": {\n      "path": "' + GONE + '"\n    }\n  }\n}\n'
    host = made({DAEMON_JSON: text}, "docker", "28.5.2")
    host.run(purge=False)
    assert "old" in (host.read(DAEMON_JSON) or "")
    plan = host.run()
    assert plan.action is Action.RELOAD
    assert '"old"' not in (host.read(DAEMON_JSON) or "")
    assert f'"{NVIDIA}"' in (host.read(DAEMON_JSON) or "")
    host.run(None, purge=False)
    assert host.read(DAEMON_JSON) == '{\n  "debug": true\n}\n'


def test_a_default_that_goes_takes_its_name_along(made: Made) -> None:
    text = f'{{"default-runtime": "old", "runtimes": {{"old": {{"path": "{GONE}"}}, "x": {{"path": "/x"}}}}}}'
    host = made({DAEMON_JSON: text}, "docker", "28.5.2")
    plan = host.run(None)
    assert plan.state.default_runtime is None
    assert host.read(DAEMON_JSON) == '{"runtimes": {"x": {"path": "/x"}}}'
    assert plan.action is Action.RESTART


def test_a_default_of_the_units_flags_stays(made: Made, tree: Tree) -> None:
    host = made({DAEMON_JSON: f'{{"runtimes": {{"old": {{"path": "{GONE}"}}}}}}'}, "docker")
    tree.file(
        "/usr/lib/systemd/system/docker.service", b"[Service]\nExecStart=/usr/bin/dockerd --default-runtime old\n"
    )
    purge = host.purge()
    assert purge.leftovers == ()
    assert "Remove the flag from the unit" in purge.warnings[0]


def test_a_default_of_containerd_goes_with_its_runtime(made: Made) -> None:
    text = main_file().replace('"runc"\n', '"old"\n', 1) + runtime("old", GONE)
    host = made({MAIN: text}, version=V1)
    host.run()
    assert "old" not in (host.read(MAIN) or "")
    assert host.plan().state.default_runtime is None


def test_tables_that_are_left_empty_go_too(made: Made) -> None:
    root = 'plugins."io.containerd.grpc.v1.cri"'
    text = f'version = 2\n\n[{root}.containerd]\ndefault_runtime_name = "old"\n' + runtime("old", GONE)
    host = made({MAIN: text})
    host.run(None)
    assert (host.read(MAIN) or "").strip() == "version = 2"


def test_nothing_goes_that_would_leave_no_default(made: Made) -> None:
    text = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\ndefault_runtime_name = 'old'\n"
    text += runtime("kata", "/usr/bin/kata") + runtime("old", GONE)
    host = made({MAIN: text, STRAY: small_drop_in()}, version=V1)
    purge = host.purge(None)
    assert [one.path for one in purge.leftovers] == [STRAY]
    assert "no default runtime would be left" in purge.warnings[0]
    newer = Host(host.tree, version=V2).purge(None)
    assert [one.path for one in newer.leftovers] == [STRAY, MAIN]


def test_nothing_goes_that_another_file_imports_by_its_name(made: Made) -> None:
    other = f'version = 2\nimports = ["{DROP_IN}"]\n'
    host = made({MAIN: main_file(imports='"/etc/x/*.toml"'), "/etc/x/a.toml": other, DROP_IN: snapshot()})
    purge = host.purge()
    assert purge.leftovers == ()
    assert f"imports would name the removed {DROP_IN}" in purge.warnings[0]


def test_a_drop_in_of_crio_that_it_reads_is_not_reported_as_unread(made: Made, tree: Tree) -> None:
    host = made({CRIO_STRAY: CRIO_DROP_IN}, "crio")
    tree.file(
        "/usr/lib/systemd/system/crio.service", b"[Service]\nExecStart=/usr/bin/crio --config-dir /etc/crio/conf.d\n"
    )
    (one,) = host.purge().leftovers
    assert (one.path, one.kind) == (CRIO_STRAY, "drop-in")
    assert "does not read" not in one.reason


def test_a_default_of_crio_that_a_drop_in_names_keeps_its_runtime(made: Made) -> None:
    named = '[crio.runtime]\ndefault_runtime = "old"\n'
    host = made({CRIO_MAIN: CRIO_GONE, "/etc/crio/crio.conf.d/10.conf": named}, "crio", "1.33.0")
    purge = host.purge(None)
    assert purge.leftovers == ()
    assert "the default runtime old is one of them" in purge.warnings[0]


def test_crio_forgets_strays_without_a_restart(made: Made) -> None:
    host = made({CRIO_MAIN: "", CRIO_STRAY: CRIO_DROP_IN, HOOK: HOOK_FILE}, "crio", "1.33.0")
    host.run(purge=False)
    plan = host.run()
    assert [file.path for file in plan.files if file.changed] == [CRIO_STRAY, HOOK]
    assert plan.action is Action.NONE
    assert host.files().keys().isdisjoint({CRIO_STRAY, HOOK})
    assert sorted(host.backups()) == sorted([CRIO_DROP_IN.encode(), HOOK_FILE.encode()])
    host.run(None)
    assert host.files().keys().isdisjoint({CRIO_STRAY, HOOK})


def test_a_comment_in_imports_stays(made: Made) -> None:
    entries = f'\n  # mine\n  "{DROP_IN}",\n'
    host = made({MAIN: main_file(imports=entries), DROP_IN: snapshot()})
    host.run(None)
    text = host.read(MAIN) or ""
    assert "# mine" in text
    assert "conf.d" not in text


def test_an_import_that_cannot_be_taken_out_stays(made: Made) -> None:
    """Nothing is lost, and nothing goes that would then be missing."""
    entries = f'"{DROP_IN}", # why\n'
    host = made({MAIN: main_file(imports=entries), DROP_IN: snapshot()})
    purge = host.purge(None)
    after = purge.plan(host.engine.absent)
    host.writer(None).apply(after.files)
    left = host.read(MAIN) or ""
    assert "# why" in left
    assert (DROP_IN in left) is (host.read(DROP_IN) is not None)


def test_our_own_import_is_not_a_leftover(made: Made) -> None:
    host = made({MAIN: main_file(imports='"/etc/x/*.toml"')})
    host.run(purge=False)
    host.tree.file(DROP_IN, snapshot().encode())
    assert [(one.path, one.kind) for one in host.purge().leftovers] == [(DROP_IN, "drop-in")]
    host.run()
    assert (host.read(DROP_IN) or "").startswith("# Written by gpufleet.nvidia")


def test_a_run_that_was_cut_off_is_healed(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is there, and the file as it was."""
    host = made({MAIN: main_file(), DROP_IN: snapshot()}, version=V2)

    def cut(*_args: t.Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ChangeWriter, "_put", cut)
        with pytest.raises(KeyboardInterrupt):
            host.run()
    assert host.read(DROP_IN) == snapshot()
    assert host.host.readable_entries(STATE_DIR) != []
    host.run()
    assert "sandbox_image" not in (host.read(DROP_IN) or "")
    host.run(None, purge=False)
    assert host.read(DROP_IN) is None


def test_a_write_that_fails_leaves_no_record(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    host = made({MAIN: main_file(), STRAY: small_drop_in()})

    def fail(*_args: t.Any) -> None:
        raise HostError("The disk is full.")

    monkeypatch.setattr(ChangeWriter, "_put", fail)
    with pytest.raises(HostError):
        host.run(None)
    assert host.host.readable_entries(STATE_DIR) == []
    assert host.read(STRAY) == small_drop_in()


def test_files_that_cannot_be_read_are_an_error_before_anything_is_written(made: Made) -> None:
    host = made({MAIN: "= =", STRAY: small_drop_in()})
    with pytest.raises(ConfigurationError):
        host.purge()
    assert host.read(STRAY) == small_drop_in()


def test_a_second_containerd_has_leftovers_of_its_own_only(made: Made, tree: Tree) -> None:
    host = made({MAIN: main_file(), STRAY: small_drop_in()})
    tree.file("/etc/systemd/system/my-containerd.service", b"[Service]\nExecStart=/usr/bin/containerd -c /srv/c.toml\n")
    host.engine = Target("containerd", "system", "my-containerd.service").load()
    assert host.purge().leftovers == ()
    assert "does nothing for" in host.purge().warnings[0]


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (Target("containerd", "k3s"), "k3s"),
        (Target("docker", "snap"), "docker_snap"),
        (Target("containerd", "microk8s"), "microk8s"),
    ],
)
def test_engines_that_are_not_purged_are_told_of(made: Made, target: Target, told: str) -> None:
    host = made({STRAY: small_drop_in()})
    host.engine = target.load()
    (sentence,) = host.purge().warnings
    assert sentence.startswith("purge_legacy supports only the engines of the system and does nothing for ")
    assert told in sentence


# -- hooks that were taken away --------------------------------------------------------------------------------------


def test_a_removal_that_purges_brings_no_hook_back(made: Made) -> None:
    host = made({HOOK: HOOK_FILE}, "podman", "5.8.0")
    host.run(purge=False)
    assert host.read(HOOK) is None
    assert [(one.path, one.kind) for one in host.purge(None).leftovers] == [(HOOK, "hook")]
    host.run(None)
    assert host.read(HOOK) is None
    assert load_records(host.host, "podman") == []
    assert host.purge(None).leftovers == ()
    assert not host.writer(None).has_work(host.plan(None).files)


def test_a_purge_after_a_removed_hook_is_for_good(made: Made) -> None:
    host = made({HOOK: HOOK_FILE}, "podman", "5.8.0")
    host.run(purge=False)
    assert host.writer().has_work(host.plan().files)
    host.run()
    assert load_records(host.host, "podman") == []
    assert not host.writer().has_work(host.plan().files)
    host.run(None, purge=False)
    assert host.read(HOOK) is None
    assert host.host.readable_entries(STATE_DIR) == []
    assert HOOK_FILE.encode() in host.backups()


def test_a_removed_hook_that_somebody_else_wrote_since_stays(made: Made) -> None:
    theirs = '{"hook": {"path": "/usr/bin/mine"}}'
    host = made({HOOK: HOOK_FILE}, "podman", "5.8.0")
    host.run(purge=False)
    host.tree.file(HOOK, theirs.encode())
    host.run(None)
    assert host.read(HOOK) == theirs
    assert load_records(host.host, "podman") == []


def test_a_hook_that_ours_replaced_does_not_come_back(made: Made, tree: Tree) -> None:
    tree.program("/usr/bin/nvidia-container-runtime-hook")
    host = made({HOOK: HOOK_FILE + " "}, "crio", "1.33.0")
    request = REQUEST._replace(config_mode="hook")
    host.run(request, purge=False)
    (record,) = load_records(host.host, "crio")
    assert record.original == (HOOK_FILE + " ").encode()
    host.run(None)
    assert host.read(HOOK) is None
    assert not host.writer(None).has_work(host.plan(None).files)
