# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import random
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import foreign_files, rules_engines
from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.audit import foreign_files_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.report import HostFacts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, MissingPackageError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import FILE_BYTES, HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import STATE_DIR, OriginalFile, record_path
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.config import ContainerdFiles
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
    OWN_HOOK,
    STRAY,
    main_file,
    runtime,
    small_drop_in,
    snapshot,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.report import Finding
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import Tree


FILES = Path(__file__).parents[3] / "files"
UNIT = "/usr/lib/systemd/system/docker.service"
CRIO_DIR = "/etc/crio/crio.conf.d"
PID_FILE = "/run/nvidia/toolkit/toolkit.pid"
HOOK_PROGRAM = "/usr/bin/nvidia-container-runtime-hook"
PODMAN: dict[str, str | None] = {"/usr/bin/podman": ""}
# CRI-O reads hooks in /etc only with such a setting.
HOOKS_DIR = '[crio.runtime]\nhooks_dir = ["/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"]\n'


def example(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def create(tree: Tree, files: t.Mapping[str, str | None]) -> None:
    """Create ``files``. None is a directory; a text that begins with @ is a link."""
    for path, text in files.items():
        if text is None:
            tree.folder(path)
        elif text.startswith("@"):
            tree.link(path, text[1:])
        else:
            tree.file(path, text.encode("utf-8", "surrogateescape"), 0o755 if path.startswith("/usr/bin") else 0o644)


def unit(flags: str) -> str:
    return f"[Service]\nExecStart=/usr/bin/dockerd {flags}\n"


RUNTIME = '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'
KUBESPRAY = example("containerd-kubespray.toml")
# Flags of dockerd, and daemon.json with the same setting, whose name differs.
CONFLICTS = [
    ("--authorization-plugin=opa", '{"authorization-plugins": []}'),
    ("--default-address-pool=base=10.1.0.0/16,size=24", '{"default-address-pools": []}'),
    ("--default-network-opt=bridge=x=1", '{"default-network-opts": {}}'),
    ("-b=br0", '{"bridge": "br0"}'),
    ("--host-gateway-ip=192.0.2.1", '{"host-gateway-ip": "192.0.2.1"}'),
    ("--host-gateway-ip=192.0.2.1", '{"host-gateway-ips": []}'),
    ("--no-proxy=x", '{"proxies": {"no-proxy": "x"}}'),
]
# The files of a host, and the finding's id, severity and subject.
CASES: list[tuple[dict[str, str | None], str, str, str]] = [
    ({MAIN: KUBESPRAY}, "kubespray-owns-file", "warning", MAIN),
    ({MAIN: main_file(), DROP_IN: snapshot()}, "legacy-file", "warning", DROP_IN),
    ({MAIN: main_file("x"), STRAY: small_drop_in()}, "legacy-file", "warning", STRAY),
    ({MAIN: main_file() + runtime("nvidia", NVIDIA), DROP_IN: snapshot()}, "setting-defined-twice", "warning", DROP_IN),
    ({MAIN: 'disabled_plugins = ["cri"]\n'}, "cri-disabled", "info", MAIN),
    ({DAEMON_JSON: '{"hosts": []}', UNIT: unit("-H fd://"), "/usr/bin/dockerd": ""},
     "setting-defined-twice", "critical", DAEMON_JSON),
    ({DAEMON_JSON: '{"default-runtime": "runc"}', UNIT: unit("--default-runtime=nvidia")},
     "setting-defined-twice", "critical", DAEMON_JSON),
    ({CRIO_STRAY: CRIO_DROP_IN}, "legacy-file", "warning", CRIO_STRAY),
    ({CRIO_MAIN: RUNTIME, f"{CRIO_DIR}/99-nvidia.conf": RUNTIME},
     "setting-defined-twice", "warning", f"{CRIO_DIR}/99-nvidia.conf"),
    ({PID_FILE: "12\n"}, "gpu-operator-toolkit", "warning", PID_FILE),
    ({"/usr/local/nvidia/toolkit": None}, "gpu-operator-toolkit", "info", "/usr/local/nvidia/toolkit"),
    ({HOOK: HOOK_FILE, **PODMAN}, "legacy-file", "critical", HOOK),
    ({HOOK: HOOK_FILE, HOOK_PROGRAM: "", **PODMAN}, "legacy-file", "warning", HOOK),
    ({HOOK: HOOK_FILE, CRIO_MAIN: ""}, "legacy-file", "critical", HOOK),
    ({OWN_HOOK: '{"hook": "/opt/nvidia-container-toolkit"}', **PODMAN}, "legacy-file", "critical", OWN_HOOK),
    ({OWN_HOOK: HOOK_FILE, CRIO_MAIN: HOOKS_DIR}, "legacy-file", "critical", OWN_HOOK),
    # The first one is replaced by the second, whose program exists.
    ({HOOK: HOOK_FILE.replace("/usr/bin/", "/opt/"), OWN_HOOK: HOOK_FILE, HOOK_PROGRAM: "", **PODMAN},
     "legacy-file", "warning", OWN_HOOK),
]  # fmt: skip
CASES += [
    ({DAEMON_JSON: settings, UNIT: unit(flag)}, "setting-defined-twice", "critical", DAEMON_JSON)
    for flag, settings in CONFLICTS
]


def found(tree: Tree, parts: t.Any = None) -> list[Finding]:
    return [one for one in foreign_files_of(tree.host(), HostFacts(parts)) if one.row()]


@pytest.mark.parametrize(("files", "name", "severity", "subject"), CASES)
def test_each_rule(tree: Tree, files: dict[str, str | None], name: str, severity: str, subject: str) -> None:
    create(tree, files)
    hits = [one for one in found(tree) if one.id == name]
    assert [(one.severity, one.subject) for one in hits] == [(severity, subject)]


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({}, ""),
        # A kind node also has that specification.
        ({MAIN: KUBESPRAY.replace("oom_score = 0", "")}, "kubespray-owns-file"),
        ({MAIN: KUBESPRAY.replace("cri-base.json", "other.json")}, "kubespray-owns-file"),
        ({MAIN: KUBESPRAY.replace("max_container_log_line_size", "x")}, "kubespray-owns-file"),
        ({MAIN: main_file(), DROP_IN: small_drop_in()}, "legacy-file"),
        ({MAIN: main_file(imports=""), DROP_IN: snapshot()}, "legacy-file"),
        # The file of a person, with a setting that the main file lacks.
        ({MAIN: main_file(), DROP_IN: small_drop_in() + runtime("kata", "/x")}, "legacy-file"),
        ({MAIN: main_file(), DROP_IN: "version = 2\n" + runtime("kata", "/usr/bin/kata")}, "setting-defined-twice"),
        ({MAIN: main_file() + runtime("kata", "/x"), DROP_IN: small_drop_in() + runtime("kata", "/y")},
         "setting-defined-twice"),
        ({DAEMON_JSON: '{"runtimes": {}}', UNIT: unit("--add-runtime nvidia=x")}, "setting-defined-twice"),
        ({DAEMON_JSON: '{"debug": true}', UNIT: unit("-H fd://")}, "setting-defined-twice"),
        ({DAEMON_JSON: '{"proxies": {"http-proxy": "x"}}', UNIT: unit("--no-proxy=x")}, "setting-defined-twice"),
        # The operator's validator uses it, and other pods of the operator wait for its files.
        ({"/run/nvidia/validations": None}, "gpu-operator-toolkit"),
        ({"/usr/local/nvidia/toolkit.versions/1": None, "/usr/local/nvidia/toolkit": "@toolkit.versions/1"},
         "gpu-operator-toolkit"),
        ({HOOK: '{"hook": {"path": "/usr/bin/other"}}', **PODMAN}, "legacy-file"),
        ({HOOK: HOOK_FILE, OWN_HOOK: '{"hook": {"path": "/usr/bin/other"}}', **PODMAN}, "legacy-file"),
        ({HOOK: HOOK_FILE}, "legacy-file"),
        ({OWN_HOOK: HOOK_FILE, CRIO_MAIN: ""}, "legacy-file"),
    ],
)  # fmt: skip
def test_no_false_finding(tree: Tree, files: dict[str, str | None], name: str) -> None:
    create(tree, files)
    names = [one.id for one in found(tree)]
    assert names == [] if not name else name not in names


def test_changed_settings_are_named_without_values(tree: Tree) -> None:
    create(tree, {MAIN: main_file("registry/user:secret@pause"), DROP_IN: snapshot()})
    (one,) = [one for one in found(tree) if one.id == "legacy-file"]
    assert "Changes of sandbox_image, containerd.default_runtime_name in" not in one.text
    assert "Changes of sandbox_image in the main file have no effect." in one.text
    assert "secret" not in one.text


def test_advice_for_a_copy_of_settings(tree: Tree) -> None:
    """purge_legacy removes only a file without content of a person, and without which no setting changes."""
    for image, text, advised in (("3.9", "", True), ("3.9", "# mine\n", False), ("3.8", "", False)):
        create(tree, {MAIN: main_file(), DROP_IN: snapshot(f"registry.k8s.io/pause:{image}") + text})
        (one,) = [one for one in found(tree) if one.id == "legacy-file"]
        assert ("nvidia_runtime_purge_legacy" in one.advice) is advised


def test_recorded_files_give_no_findings(tree: Tree) -> None:
    create(
        tree,
        {
            MAIN: main_file(),
            DROP_IN: snapshot(),
            HOOK: HOOK_FILE,
            STRAY: small_drop_in(),
            CRIO_STRAY: CRIO_DROP_IN,
            **PODMAN,
        },
    )
    assert [one.subject for one in found(tree) if one.id == "legacy-file"] == [DROP_IN, STRAY, CRIO_STRAY, HOOK]
    for path in (DROP_IN, HOOK, STRAY, CRIO_STRAY):
        record = OriginalFile("containerd", path, None, 0, 0, 0o644)
        tree.file(record_path("containerd", path), record.to_bytes())
    assert {one.id for one in found(tree)} == set()


def test_stopped_gpu_operator(tree: Tree) -> None:
    create(tree, {PID_FILE: "4711", "/usr/local/nvidia/toolkit": None, "/proc/1": None})
    live = HostFS(str(tree.path), live=True)
    assert [one.severity for one in foreign_files_of(live, HostFacts({}))] == ["info"]
    create(tree, {"/proc/4711": None})
    assert [one.severity for one in foreign_files_of(live, HostFacts({}))] == ["warning"]


def test_the_directory_of_the_gpu_operator_in_use(tree: Tree) -> None:
    folder = "/usr/local/nvidia/toolkit"
    create(tree, {folder: None})
    tree.program(f"{folder}/nvidia-container-runtime")
    engine = {"target": "containerd", "installed": True, "runtimes": {"nvidia": f"{folder}/nvidia-container-runtime"}}
    (unused,) = foreign_files_of(tree.host(), HostFacts({}))
    (used,) = foreign_files_of(tree.host(), HostFacts({"engines": [engine]}))
    assert "in use by containerd" in used.text
    assert used.advice != unused.advice
    assert "in use" not in unused.text


def test_missing_toml_parser_is_an_error(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_args: t.Any) -> None:
        raise MissingPackageError("tomlkit")

    create(tree, {MAIN: main_file()})
    monkeypatch.setattr(ContainerdFiles, "of", lacking)
    with pytest.raises(MissingPackageError):
        found(tree)


DAMAGED = (
    "", "\x00", "{", "[", "= 1", "\udcff\udcfe", "version = 'x'", "imports = 3", 'imports = ["\\u0000", "/a*"]', "{}",
    "[]", "null", '{"hook": 3}',
)  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_are_no_error(tree: Tree, seed: int) -> None:
    random_ = random.Random(seed)  # noqa: S311
    paths = [MAIN, DROP_IN, STRAY, CRIO_MAIN, CRIO_STRAY, DAEMON_JSON, HOOK, OWN_HOOK, UNIT]
    paths += [PID_FILE, f"{CRIO_DIR}/a", f"{STATE_DIR}/containerd-x.json"]
    texts = [*DAMAGED, "@/gone", "@.", None, main_file(), snapshot(), CRIO_DROP_IN, KUBESPRAY]
    create(tree, {path: random_.choice(texts) for path in random_.sample(paths, 9)})
    for one in found(tree):
        assert all(isinstance(word, str) for word in one.row().values())


def test_unreadable_files_are_skipped(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tree, {MAIN: KUBESPRAY, HOOK: HOOK_FILE, **PODMAN})
    read = HostFS.read

    def refuse(host: HostFS, path: str, most: int = FILE_BYTES) -> bytes | None:
        if path == MAIN:
            raise HostError(f"{path} cannot be read: Permission denied. Run the task as root (become: true).")
        return read(host, path, most)

    monkeypatch.setattr(HostFS, "read", refuse)
    assert [one.id for one in found(tree)] == ["legacy-file"]


def test_a_hook_names_the_engines_that_run_it(tree: Tree) -> None:
    create(tree, {HOOK: HOOK_FILE, CRIO_MAIN: "", **PODMAN})
    (one,) = found(tree)
    assert "every container of Podman and CRI-O." in one.text


def test_large_files_are_skipped(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tree, {HOOK: HOOK_FILE, **PODMAN})
    monkeypatch.setattr(foreign_files, "_MAX_BYTES", 10)
    assert found(tree) == []


@pytest.mark.parametrize(
    ("target", "path", "files", "place"),
    [
        ("docker", DAEMON_JSON, {DAEMON_JSON: '{\n  "runtimes": {\n    "old": {"path": "/opt/x"}\n  }\n}\n'}, 3),
        ("crio", CRIO_MAIN, {CRIO_MAIN: '[crio]\n[crio.runtime.runtimes.old]\nruntime_path = "/opt/x"\n'}, 2),
        ("containerd", MAIN, {MAIN: "version = 2\n" + runtime("old", "/opt/x")}, 3),
    ],
)
def test_the_place_of_a_runtime_without_its_program(
    tree: Tree, target: str, path: str, files: dict[str, str | None], place: int
) -> None:
    create(tree, files)
    engine = {"target": target, "engine": target, "config_path": path, "runtimes": {"old": "/opt/x"}}
    (one,) = rules_engines.programs(HostFacts({"engines": [engine]}), tree.host())
    assert f"/opt/x of old ({path}, line {place})." in one.text
    # The file of another engine, or of another instance.
    other = {**engine, "config_path": "/srv/other"}
    (one,) = rules_engines.programs(HostFacts({"engines": [other]}), tree.host())
    assert "/opt/x of old." in one.text


def test_a_runtime_in_a_drop_in_is_named_there(tree: Tree) -> None:
    create(tree, {MAIN: main_file(), DROP_IN: small_drop_in("/opt/x")})
    engine = {"target": "containerd", "engine": "containerd", "config_path": MAIN, "runtimes": {"nvidia": "/opt/x"}}
    (one,) = rules_engines.programs(HostFacts({"engines": [engine]}), tree.host())
    assert f"/opt/x of nvidia ({DROP_IN}, line 3)." in one.text
