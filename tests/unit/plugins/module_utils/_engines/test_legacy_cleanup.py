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
    CRIO_CTK,
    CRIO_DROP_IN,
    CRIO_MAIN,
    CRIO_READ,
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

# A copy whose settings the main file has too, with the same values.
COPY = snapshot("registry.k8s.io/pause:3.9")
OTHER_FILE = "/etc/containerd/conf.d/a.toml"
OTHER = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nsandbox_image = "registry.k8s.io/pause:3.8"\n'


@pytest.mark.parametrize(
    ("engine", "files", "expected"),
    [
        ("containerd", {MAIN: main_file(), STRAY: small_drop_in()}, [(STRAY, "drop-in")]),
        # Nothing reads this copy, so its older values have no effect.
        ("containerd", {MAIN: main_file(), STRAY: snapshot()}, [(STRAY, "drop-in")]),
        ("containerd", {MAIN: main_file(), DROP_IN: COPY}, [(DROP_IN, "drop-in")]),
        ("containerd", {MAIN: main_file(), DROP_IN: small_drop_in(OPERATOR)}, [(DROP_IN, "drop-in")]),
        ("containerd", {MAIN: main_file(), DROP_IN: COPY, OTHER_FILE: "version = 2\n"}, [(DROP_IN, "drop-in")]),
        # Another file has the value of the copy.
        ("containerd", {MAIN: main_file(), DROP_IN: snapshot(), OTHER_FILE: OTHER}, [(DROP_IN, "drop-in")]),
        ("crio", {CRIO_STRAY: CRIO_DROP_IN}, [(CRIO_STRAY, "drop-in")]),
        ("crio", {CRIO_READ: CRIO_CTK}, [(CRIO_READ, "drop-in")]),
        ("crio", {HOOK: HOOK_FILE, OWN_HOOK: HOOK_FILE}, [(HOOK, "hook"), (OWN_HOOK, "hook")]),
        ("podman", {HOOK: HOOK_FILE}, [(HOOK, "hook")]),
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
        ("containerd", {MAIN: main_file(), DROP_IN: COPY + "# mine\n"}, "a comment (line 23)"),
        ("containerd", {MAIN: main_file(), DROP_IN: COPY + "[grpc]\nx = 1\n"}, "also sets grpc.x (line 24)"),
        (
            "containerd",
            {MAIN: main_file(), DROP_IN: COPY + runtime("kata", "/usr/bin/kata")},
            "also sets containerd.runtimes.kata.runtime_type (line 25)",
        ),
        # Values that take effect now, and would not without the file.
        ("containerd", {MAIN: main_file(), DROP_IN: snapshot()}, "also sets sandbox_image (line 4)"),
        (
            "containerd",
            {MAIN: main_file(), DROP_IN: COPY, OTHER_FILE: OTHER},
            "also sets sandbox_image (line 4)",
        ),
        (
            "containerd",
            {MAIN: main_file(), DROP_IN: COPY.replace('"nvidia"\n', '"kata"\n', 1)},
            "also sets containerd.default_runtime_name (line 8)",
        ),
        ("containerd", {MAIN: "version = 2\n", STRAY: snapshot(default="runc")}, "containerd.default_runtime_name"),
        (
            "containerd",
            {MAIN: main_file(), STRAY: "version = 2\n" + runtime("runc", "/x")},
            "no NVIDIA runtime",
        ),
        ("containerd", {MAIN: main_file(), STRAY: "= ="}, "cannot be parsed"),
        ("containerd", {MAIN: main_file(imports=f'"{DROP_IN}"'), DROP_IN: COPY}, "imports it by its name"),
        ("crio", {CRIO_STRAY: CRIO_DROP_IN + '[crio.network]\nx = "y"\n'}, "also sets crio.network.x (line 9)"),
        (
            "crio",
            {CRIO_STRAY: CRIO_DROP_IN.replace('default_runtime = "nvidia"', 'default_runtime = "x"')},
            "crio.runtime.default_runtime (line 2)",
        ),
        ("crio", {HOOK: '{"hook": {"path": "/usr/bin/mine"}}'}, "does not run NVIDIA's hook"),
    ],
)
def test_changed_files_are_kept(made: Made, engine: str, files: dict[str, str], message: str) -> None:
    host = made(files, engine)
    cleanup = host.cleanup()
    assert cleanup.leftovers == []
    assert len(cleanup.warnings) == 1
    assert message in cleanup.warnings[0]
    assert host.plan(None).files == host.plan(None, purge=False).files


@pytest.mark.parametrize(
    ("engine", "files"),
    [
        ("containerd", {MAIN: main_file() + runtime("nvidia-experimental", f"{NVIDIA}.experimental")}),
        ("crio", {CRIO_MAIN: f'[crio.runtime.runtimes.old]\nruntime_path = "{OPERATOR}"\n'}),
        ("docker", {DAEMON_JSON: f'{{"runtimes": {{"old": {{"path": "{OPERATOR}"}}}}}}'}),
    ],
)
def test_main_files_are_not_edited(made: Made, engine: str, files: dict[str, str]) -> None:
    host = made(files, engine)
    cleanup = host.cleanup()
    assert (cleanup.leftovers, cleanup.warnings) == ([], [])
    assert host.plan() == host.plan(purge=False)


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
@pytest.mark.parametrize("drop_in", [COPY, small_drop_in(OPERATOR)])
def test_snapshot_is_replaced_and_not_restored(made: Made, version: str, drop_in: str) -> None:
    host = made({MAIN: main_file(), DROP_IN: drop_in, STRAY: small_drop_in()}, version=version)
    plan = host.run()
    assert len({file.path for file in plan.files}) == len(plan.files)
    assert plan.action is Action.RESTART
    assert plan.state.paths()["nvidia"] == NVIDIA
    assert host.read(STRAY) is None
    assert "sandbox_image" not in (host.read(DROP_IN) or "")
    assert drop_in.encode() in host.backups()
    assert all(record.exact for record in load_records(host.host, "containerd"))
    again = host.run()
    assert [file for file in again.files if file.changed] == []
    assert host.cleanup().leftovers == []
    host.run(None)
    assert host.read(DROP_IN) is None
    assert host.read(STRAY) is None
    assert host.read(MAIN) == main_file()
    assert host.host.readable_entries(STATE_DIR) == []


def test_drop_in_is_planned_once(made: Made) -> None:
    host = made({MAIN: main_file(), DROP_IN: COPY})
    plan = host.plan()
    by_path = {file.path: file for file in plan.files}
    assert by_path[DROP_IN].before == COPY.encode()
    record = by_path[DROP_IN].record
    assert record is not None
    assert (record.original, record.created) == (None, True)


def test_removed_file_that_containerd_reads_needs_a_restart(made: Made) -> None:
    host = made({MAIN: main_file()}, version=V1)
    host.run()
    for path, action in ((STRAY, Action.NONE), (DROP_IN, Action.RESTART)):
        host.tree.file(path, small_drop_in().encode())
        plan = host.run()
        assert [file.path for file in plan.files if file.changed] == [path]
        assert plan.action is action


def test_plan_without_leftovers(made: Made) -> None:
    host = made({MAIN: main_file()})
    assert host.plan() == host.plan(purge=False)
    host.run()
    assert host.plan().action is Action.NONE


def test_reason_for_drop_in_that_crio_reads(made: Made, tree: Tree) -> None:
    host = made({CRIO_STRAY: CRIO_DROP_IN}, "crio")
    tree.file(
        "/usr/lib/systemd/system/crio.service", b"[Service]\nExecStart=/usr/bin/crio --config-dir /etc/crio/conf.d\n"
    )
    (one,) = host.cleanup().leftovers
    assert (one.path, one.kind) == (CRIO_STRAY, "drop-in")
    assert "does not read" not in one.reason


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


def test_own_import_is_no_leftover(made: Made) -> None:
    host = made({MAIN: main_file(imports='"/etc/x/*.toml"')})
    host.run(purge=False)
    host.tree.file(DROP_IN, COPY.encode())
    assert [(one.path, one.kind) for one in host.cleanup().leftovers] == [(DROP_IN, "drop-in")]
    host.run()
    assert (host.read(DROP_IN) or "").startswith("# Written by gpufleet.nvidia")


def test_interrupted_run(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record was written, but not the file."""
    host = made({MAIN: main_file(), DROP_IN: COPY}, version=V2)

    def cut(*_args: t.Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ChangeWriter, "_put", cut)
        with pytest.raises(KeyboardInterrupt):
            host.run()
    assert host.read(DROP_IN) == COPY
    assert host.host.readable_entries(STATE_DIR) != []
    host.run()
    assert "sandbox_image" not in (host.read(DROP_IN) or "")
    host.run(None, purge=False)
    assert host.read(DROP_IN) is None


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
