# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.apply import ChangeWriter
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import STATE_DIR, load_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import (
    Action,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.registry import Target
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.cleanup_hosts import REQUEST, V1, V2, Host
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
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import Tree


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


# -- leftovers ------------------------------------------------------------------------------------------------------

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
def test_leftovers(made: Made, engine: str, files: dict[str, str], expected: list[tuple[str, str]]) -> None:
    host = made(files, engine)
    assert [(one.path, one.kind) for one in host.cleanup().leftovers] == expected
    assert host.cleanup().warnings == []
    assert all(one.reason.endswith(".") for one in host.cleanup().leftovers)


@pytest.mark.parametrize(
    ("engine", "files", "message"),
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
def test_changed_files_are_kept(made: Made, engine: str, files: dict[str, str], message: str | None) -> None:
    host = made(files, engine)
    cleanup = host.cleanup()
    if message is None:
        # A value that differs from the main file is an old copy.
        assert [one.path for one in cleanup.leftovers][:1] == [DROP_IN]
        return
    assert cleanup.leftovers == []
    assert len(cleanup.warnings) == 1
    assert message in cleanup.warnings[0]
    before = host.files()
    host.cleanup(None).plan(lambda _context: host.plan(None, purge=False))
    assert host.files() == before


@pytest.mark.parametrize(
    ("engine", "files"),
    [
        # Programs of others, programs that exist, and requested runtimes.
        ("containerd", {MAIN: main_file() + runtime("kata", "/gone/kata")}),
        ("containerd", {MAIN: main_file() + runtime("nvidia-cdi", NVIDIA)}),
        ("containerd", {MAIN: main_file() + runtime("nvidia", GONE)}),
        ("docker", {DAEMON_JSON: f'{{"runtimes": {{"nvidia": {{"path": "{GONE}"}}, "x": {{"path": "/gone/x"}}}}}}'}),
        ("crio", {CRIO_MAIN: '[crio.runtime.runtimes.runc]\nruntime_path = "/gone/runc"\n'}),
    ],
)
def test_other_entries_are_ignored(made: Made, engine: str, files: dict[str, str]) -> None:
    cleanup = made(files, engine).cleanup()
    assert (cleanup.leftovers, cleanup.warnings) == ([], [])


def test_links_and_directories_are_kept(made: Made, tree: Tree) -> None:
    host = made({MAIN: main_file(), "/srv/x.toml": small_drop_in()})
    tree.link(STRAY, "/srv/x.toml")
    (warning,) = host.cleanup().warnings
    assert "is a symbolic link" in warning
    tree.path.joinpath(STRAY.lstrip("/")).unlink()
    tree.folder(STRAY)
    assert "not a regular file" in host.cleanup().warnings[0]
    assert host.cleanup().leftovers == []


def test_requested_hook_is_no_leftover(made: Made) -> None:
    host = made({HOOK: HOOK_FILE}, "crio")
    assert host.cleanup(REQUEST._replace(config_mode="hook")).leftovers == []


# -- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V2, V1])
@pytest.mark.parametrize("drop_in", [snapshot("registry.k8s.io/pause:3.9"), snapshot(), small_drop_in(OPERATOR)])
def test_snapshot_is_replaced_and_not_restored(made: Made, version: str, drop_in: str) -> None:
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
    assert host.cleanup().leftovers == []
    host.run(None)
    assert host.read(DROP_IN) is None
    assert host.read(STRAY) is None
    assert host.read(MAIN) == main_file()
    assert host.host.readable_entries(STATE_DIR) == []


def test_drop_in_is_planned_once(made: Made) -> None:
    host = made({MAIN: main_file(), DROP_IN: snapshot()})
    plan = host.plan()
    by_path = {file.path: file for file in plan.files}
    assert by_path[DROP_IN].before == snapshot().encode()
    record = by_path[DROP_IN].record
    assert record is not None
    assert (record.original, record.created) == (None, True)


def test_plan_without_leftovers(made: Made) -> None:
    host = made({MAIN: main_file()})
    assert host.plan() == host.plan(purge=False)
    host.run()
    assert host.plan().action is Action.NONE


def test_removal_with_leftovers(made: Made) -> None:
    named = f'"{DROP_IN}"'
    host = made({MAIN: main_file(imports=named) + runtime("nvidia-cdi", GONE), DROP_IN: snapshot()})
    host.run(None)
    assert host.read(DROP_IN) is None
    assert host.read(MAIN) == main_file(imports=named).replace(f"imports = [{named}]\n", "")


@pytest.mark.parametrize("purged_first", [True, False])
def test_restored_original_has_no_leftovers(made: Made, purged_first: bool) -> None:
    """The original that an earlier run recorded has the leftover, too."""
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


def test_own_change_is_restored_exactly(made: Made) -> None:
    text = '{\n  "debug": true,\n  "runtimes": {\n    "old": {\n      "path": "' + GONE + '"\n    }\n  }\n}\n'
    host = made({DAEMON_JSON: text}, "docker", "28.5.2")
    host.run(purge=False)
    assert "old" in (host.read(DAEMON_JSON) or "")
    context = host.cleanup(None).cleaned_context()
    assert context.record is not None
    assert context.record.restorable(context.content)
    plan = host.run()
    assert plan.action is Action.RELOAD
    assert '"old"' not in (host.read(DAEMON_JSON) or "")
    assert f'"{NVIDIA}"' in (host.read(DAEMON_JSON) or "")
    host.run(None, purge=False)
    assert host.read(DAEMON_JSON) == '{\n  "debug": true\n}\n'


def test_leftover_in_own_file(made: Made) -> None:
    host = made({}, "docker", "28.5.2")
    host.run(purge=False)
    text = (host.read(DAEMON_JSON) or "").replace('"runtimes": {', f'"runtimes": {{"old": {{"path": "{GONE}"}},')
    host.tree.file(DAEMON_JSON, text.encode())
    host.run()
    assert '"old"' in text
    assert '"old"' not in (host.read(DAEMON_JSON) or "")
    host.run(None, purge=False)
    assert host.read(DAEMON_JSON) is None


def test_default_of_removed_runtime_in_docker(made: Made) -> None:
    text = f'{{"default-runtime": "old", "runtimes": {{"old": {{"path": "{GONE}"}}, "x": {{"path": "/x"}}}}}}'
    host = made({DAEMON_JSON: text}, "docker", "28.5.2")
    plan = host.run(None)
    assert plan.state.default_runtime is None
    assert host.read(DAEMON_JSON) == '{"runtimes": {"x": {"path": "/x"}}}'
    assert plan.action is Action.RESTART


def test_default_runtime_of_unit_is_kept(made: Made, tree: Tree) -> None:
    host = made({DAEMON_JSON: f'{{"runtimes": {{"old": {{"path": "{GONE}"}}}}}}'}, "docker")
    tree.file(
        "/usr/lib/systemd/system/docker.service", b"[Service]\nExecStart=/usr/bin/dockerd --default-runtime old\n"
    )
    cleanup = host.cleanup()
    assert cleanup.leftovers == []
    assert "Remove the flag from the unit" in cleanup.warnings[0]


def test_default_of_removed_runtime_in_containerd(made: Made) -> None:
    text = main_file().replace('"runc"\n', '"old"\n', 1) + runtime("old", GONE)
    host = made({MAIN: text}, version=V1)
    host.run()
    assert "old" not in (host.read(MAIN) or "")
    assert host.plan().state.default_runtime is None


def test_empty_tables_are_removed(made: Made) -> None:
    root = 'plugins."io.containerd.grpc.v1.cri"'
    text = f'version = 2\n\n[{root}.containerd]\ndefault_runtime_name = "old"\n' + runtime("old", GONE)
    host = made({MAIN: text})
    host.run(None)
    assert (host.read(MAIN) or "").strip() == "version = 2"


def test_keeps_default_runtime_of_containerd(made: Made) -> None:
    text = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\ndefault_runtime_name = 'old'\n"
    text += runtime("kata", "/usr/bin/kata") + runtime("old", GONE)
    host = made({MAIN: text, STRAY: small_drop_in()}, version=V1)
    cleanup = host.cleanup(None)
    assert [one.path for one in cleanup.leftovers] == [STRAY]
    assert "no default runtime would be left" in cleanup.warnings[0]
    newer = Host(host.tree, version=V2).cleanup(None)
    assert [one.path for one in newer.leftovers] == [STRAY, MAIN]


def test_keeps_file_that_other_file_imports(made: Made) -> None:
    other = f'version = 2\nimports = ["{DROP_IN}"]\n'
    host = made({MAIN: main_file(imports='"/etc/x/*.toml"'), "/etc/x/a.toml": other, DROP_IN: snapshot()})
    cleanup = host.cleanup()
    assert cleanup.leftovers == []
    assert f"imports would name the removed {DROP_IN}" in cleanup.warnings[0]


def test_reason_for_drop_in_that_crio_reads(made: Made, tree: Tree) -> None:
    host = made({CRIO_STRAY: CRIO_DROP_IN}, "crio")
    tree.file(
        "/usr/lib/systemd/system/crio.service", b"[Service]\nExecStart=/usr/bin/crio --config-dir /etc/crio/conf.d\n"
    )
    (one,) = host.cleanup().leftovers
    assert (one.path, one.kind) == (CRIO_STRAY, "drop-in")
    assert "does not read" not in one.reason


def test_keeps_default_runtime_of_crio(made: Made) -> None:
    named = '[crio.runtime]\ndefault_runtime = "old"\n'
    host = made({CRIO_MAIN: CRIO_GONE, "/etc/crio/crio.conf.d/10.conf": named}, "crio", "1.33.0")
    cleanup = host.cleanup(None)
    assert cleanup.leftovers == []
    assert "the default runtime old is one of them" in cleanup.warnings[0]


def test_a_default_runtime_that_the_run_registers_is_not_lost(made: Made) -> None:
    named, path = '[crio.runtime]\ndefault_runtime = "nvidia"\n', "/etc/crio/crio.conf.d/99-nvidia.toml"
    table = f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{NVIDIA}"\nruntime_type = "oci"\n'
    files = {CRIO_MAIN: "[crio.runtime]\n", "/etc/crio/crio.conf.d/10.conf": named, path: table}
    cleanup = made(files, "crio", "1.33.0").cleanup()
    assert ([one.path for one in cleanup.leftovers], cleanup.warnings) == ([path], [])


def test_no_restart_for_unread_files_of_crio(made: Made) -> None:
    host = made({CRIO_MAIN: "", CRIO_STRAY: CRIO_DROP_IN, HOOK: HOOK_FILE}, "crio", "1.33.0")
    host.run(purge=False)
    plan = host.run()
    assert [file.path for file in plan.files if file.changed] == [CRIO_STRAY, HOOK]
    assert plan.action is Action.NONE
    assert host.files().keys().isdisjoint({CRIO_STRAY, HOOK})
    assert sorted(host.backups()) == sorted([CRIO_DROP_IN.encode(), HOOK_FILE.encode()])
    host.run(None)
    assert host.files().keys().isdisjoint({CRIO_STRAY, HOOK})


def test_comment_in_imports_is_kept(made: Made) -> None:
    entries = f'\n  # mine\n  "{DROP_IN}",\n'
    host = made({MAIN: main_file(imports=entries), DROP_IN: snapshot()})
    host.run(None)
    text = host.read(MAIN) or ""
    assert "# mine" in text
    assert "conf.d" not in text


def test_import_that_cannot_be_removed(made: Made) -> None:
    """No comment is lost, and no imported file is removed."""
    entries = f'"{DROP_IN}", # why\n'
    host = made({MAIN: main_file(imports=entries), DROP_IN: snapshot()})
    cleanup = host.cleanup(None)
    after = cleanup.plan(host.engine.absent)
    host.writer(None).apply(after.files)
    left = host.read(MAIN) or ""
    assert "# why" in left
    assert (DROP_IN in left) is (host.read(DROP_IN) is not None)


def test_own_import_is_no_leftover(made: Made) -> None:
    host = made({MAIN: main_file(imports='"/etc/x/*.toml"')})
    host.run(purge=False)
    host.tree.file(DROP_IN, snapshot().encode())
    assert [(one.path, one.kind) for one in host.cleanup().leftovers] == [(DROP_IN, "drop-in")]
    host.run()
    assert (host.read(DROP_IN) or "").startswith("# Written by gpufleet.nvidia")


def test_interrupted_run(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record was written, but not the file."""
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


def test_interrupted_first_run_is_restored_exactly(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run, without purge_legacy, wrote the record but not the file."""
    text = main_file(imports='"/etc/x/*.toml"')
    host = made({MAIN: text + runtime("nvidia-experimental", GONE)}, version=V1)

    def cut(*_args: t.Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ChangeWriter, "_put", cut)
        with pytest.raises(KeyboardInterrupt):
            host.run(purge=False)
    host.run()
    (record,) = load_records(host.host, "containerd")
    assert record.exact
    host.run(None, purge=False)
    assert host.read(MAIN) == text


def test_invalid_file_is_an_error(made: Made) -> None:
    host = made({MAIN: "= =", STRAY: small_drop_in()})
    with pytest.raises(ConfigurationError):
        host.cleanup()
    assert host.read(STRAY) == small_drop_in()


def test_second_containerd_is_not_supported(made: Made, tree: Tree) -> None:
    host = made({MAIN: main_file(), STRAY: small_drop_in()})
    tree.file("/etc/systemd/system/my-containerd.service", b"[Service]\nExecStart=/usr/bin/containerd -c /srv/c.toml\n")
    host.engine = Target("containerd", "system", "my-containerd.service").load()
    assert host.cleanup().leftovers == []
    assert "does nothing for" in host.cleanup().warnings[0]


@pytest.mark.parametrize(
    ("target", "key"),
    [
        (Target("containerd", "k3s"), "k3s"),
        (Target("docker", "snap"), "docker_snap"),
        (Target("containerd", "microk8s"), "microk8s"),
    ],
)
def test_other_flavors_are_not_supported(made: Made, target: Target, key: str) -> None:
    host = made({STRAY: small_drop_in()})
    host.engine = target.load()
    (warning,) = host.cleanup().warnings
    assert warning.startswith("purge_legacy supports only the engines of the system and does nothing for ")
    assert key in warning


# -- removed hooks ---------------------------------------------------------------------------------------------------


def test_removal_does_not_restore_hook(made: Made) -> None:
    host = made({HOOK: HOOK_FILE}, "podman", "5.8.0")
    host.run(purge=False)
    assert host.read(HOOK) is None
    assert [(one.path, one.kind) for one in host.cleanup(None).leftovers] == [(HOOK, "hook")]
    host.run(None)
    assert host.read(HOOK) is None
    assert load_records(host.host, "podman") == []
    assert host.cleanup(None).leftovers == []
    assert not host.writer(None).has_work(host.plan(None).files)


def test_cleanup_after_removed_hook(made: Made) -> None:
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


def test_recreated_hook_is_kept(made: Made) -> None:
    foreign = '{"hook": {"path": "/usr/bin/mine"}}'
    host = made({HOOK: HOOK_FILE}, "podman", "5.8.0")
    host.run(purge=False)
    host.tree.file(HOOK, foreign.encode())
    host.run(None)
    assert host.read(HOOK) == foreign
    assert load_records(host.host, "podman") == []


def test_replaced_hook_is_not_restored(made: Made, tree: Tree) -> None:
    tree.program("/usr/bin/nvidia-container-runtime-hook")
    host = made({HOOK: HOOK_FILE + " "}, "crio", "1.33.0")
    request = REQUEST._replace(config_mode="hook")
    host.run(request, purge=False)
    (record,) = load_records(host.host, "crio")
    assert record.original == (HOOK_FILE + " ").encode()
    host.run(None)
    assert host.read(HOOK) is None
    assert not host.writer(None).has_work(host.plan(None).files)
