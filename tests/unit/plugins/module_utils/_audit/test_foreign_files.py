# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import random
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import foreign_files
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

DOCUMENTATION = (Path(__file__).parents[5] / "docs/audit.md").read_text(encoding="utf-8")
FILES = Path(__file__).parents[3] / "files"
UNIT = "/usr/lib/systemd/system/docker.service"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd"
OVERRIDE = "/etc/systemd/system/docker.service.d/docker-override.conf"
CRIO_DIR = "/etc/crio/crio.conf.d"
PID_FILE = "/run/nvidia/toolkit/toolkit.pid"
CONFIG_TOML = "/etc/nvidia-container-runtime/config.toml"
HOOK_PROGRAM = "/usr/bin/nvidia-container-runtime-hook"


def example(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def found(tree: Tree, parts: t.Any = None) -> list[Finding]:
    return foreign_files_of(tree.host(), HostFacts(parts))


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

# The files of a host, and the finding's id, severity and subject.
CASES: list[tuple[dict[str, str | None], str, str, str]] = [
    ({MAIN: KUBESPRAY}, "kubespray-owns-file", "warning", MAIN),
    ({MAIN: main_file(), DROP_IN: snapshot()}, "drop-in-copies-settings", "warning", DROP_IN),
    ({MAIN: main_file("x"), STRAY: small_drop_in()}, "drop-in-of-old-toolkit", "warning", STRAY),
    ({MAIN: main_file() + runtime("nvidia", NVIDIA), DROP_IN: snapshot()}, "runtime-defined-twice", "warning", DROP_IN),
    ({MAIN: main_file() + runtime("nvidia-experimental", "/x")}, "runtime-experimental", "warning", MAIN),
    ({MAIN: main_file(imports='"/etc/gone.toml"')}, "import-missing", "critical", "/etc/gone.toml"),
    ({MAIN: main_file(imports=f'"{MAIN}"')}, "import-of-itself", "warning", MAIN),
    ({MAIN: main_file(), DROP_IN: small_drop_in().replace("2", "3", 1)}, "config-version-mismatch", "warning", DROP_IN),
    ({MAIN: 'disabled_plugins = ["cri"]\n'}, "cri-disabled", "info", MAIN),
    ({f"{K3S}/config.toml.tmpl": "x"}, "custom-template", "warning", f"{K3S}/config.toml.tmpl"),
    ({f"{K3S}/config-v3.toml.tmpl": "x"}, "custom-template", "warning", f"{K3S}/config-v3.toml.tmpl"),
    ({f"{K3S}/config.toml": small_drop_in()}, "generated-file-edited", "warning", f"{K3S}/config.toml"),
    ({DAEMON_JSON: '{"hosts": []}', UNIT: unit("-H fd://"), "/usr/bin/dockerd": ""},
     "flag-conflict", "critical", DAEMON_JSON),
    ({DAEMON_JSON: '{"default-runtime": "runc"}', UNIT: unit("--default-runtime=nvidia")},
     "flag-conflict", "critical", DAEMON_JSON),
    ({UNIT: unit(""), OVERRIDE: "[Service]\nRestart=no\n"}, "vendor-override", "warning", OVERRIDE),
    ({"/etc/dgx-release": "DGX_NAME=x"}, "vendor-image", "info", "/etc/dgx-release"),
    ({"/usr/bin/nvidia-docker": ""}, "nvidia-docker", "info", "/usr/bin/nvidia-docker"),
    ({DAEMON_JSON: '{"runtimes": {"nvidia-experimental": {"path": "x"}}}'},
     "runtime-experimental", "warning", DAEMON_JSON),
    ({CRIO_STRAY: CRIO_DROP_IN}, "drop-in-of-old-toolkit", "warning", CRIO_STRAY),
    ({f"{CRIO_DIR}/10-x.conf.4711.2026-01-01@10:00:00~": "[crio]\n"},
     "backup-in-config-directory", "warning", f"{CRIO_DIR}/10-x.conf.4711.2026-01-01@10:00:00~"),
    ({f"{CRIO_DIR}/10-x.conf.rpmsave": "[crio]\n"},
     "backup-in-config-directory", "warning", f"{CRIO_DIR}/10-x.conf.rpmsave"),
    ({f"{CRIO_DIR}/x": "@/gone"}, "dangling-symlink", "critical", f"{CRIO_DIR}/x"),
    ({CRIO_MAIN: RUNTIME, f"{CRIO_DIR}/99-nvidia.conf": RUNTIME},
     "runtime-defined-twice", "warning", f"{CRIO_DIR}/99-nvidia.conf"),
    ({CRIO_MAIN: RUNTIME.replace("nvidia]", "nvidia-experimental]")}, "runtime-experimental", "warning", CRIO_MAIN),
    ({PID_FILE: "12\n"}, "gpu-operator-owns-toolkit", "warning", PID_FILE),
    ({"/run/nvidia/validations": None}, "gpu-operator-leftovers", "info", "/run/nvidia/validations"),
    ({"/usr/local/nvidia/toolkit": None}, "gpu-operator-leftovers", "info", "/usr/local/nvidia/toolkit"),
    ({HOOK: HOOK_FILE}, "legacy-oci-hook", "critical", HOOK),
    ({HOOK: HOOK_FILE, HOOK_PROGRAM: ""}, "legacy-oci-hook", "warning", HOOK),
    ({OWN_HOOK: '{"hook": "/opt/nvidia-container-toolkit"}'}, "legacy-oci-hook", "critical", OWN_HOOK),
    ({MAIN: f"# Ansible managed: x\n{main_file()}"}, "other-config-management", "warning", MAIN),
    ({CONFIG_TOML: "# This file is managed by Puppet.\n"}, "other-config-management", "warning", CONFIG_TOML),
]  # fmt: skip


@pytest.mark.parametrize(("files", "name", "severity", "subject"), CASES)
def test_each_rule(tree: Tree, files: dict[str, str | None], name: str, severity: str, subject: str) -> None:
    create(tree, files)
    hits = [one for one in found(tree) if one.id == name]
    assert [(one.severity, one.subject) for one in hits] == [(severity, subject)]
    assert hits[0].text.endswith(".")
    assert hits[0].advice.endswith(".")
    assert f"`{name}`" in DOCUMENTATION


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({}, ""),
        # A kind node also has that specification.
        ({MAIN: KUBESPRAY.replace("oom_score = 0", "")}, "kubespray-owns-file"),
        ({MAIN: KUBESPRAY.replace("cri-base.json", "other.json")}, "kubespray-owns-file"),
        ({MAIN: KUBESPRAY.replace("max_container_log_line_size", "x")}, "kubespray-owns-file"),
        ({MAIN: main_file(), DROP_IN: small_drop_in()}, "drop-in-copies-settings"),
        ({MAIN: main_file(imports=""), DROP_IN: snapshot()}, "drop-in-copies-settings"),
        ({MAIN: main_file(), DROP_IN: "version = 2\n" + runtime("kata", "/usr/bin/kata")}, "runtime-defined-twice"),
        ({MAIN: main_file() + runtime("kata", "/x"), DROP_IN: small_drop_in() + runtime("kata", "/y")},
         "runtime-defined-twice"),
        ({MAIN: main_file(imports='"/etc/gone.d/*.toml"')}, "import-missing"),
        ({f"{K3S}/config.toml": f"# File generated by k3s. DO NOT EDIT.\n{small_drop_in()}"}, "generated-file-edited"),
        ({f"{K3S}/config.toml": small_drop_in().replace("runtimes.nvidia", 'runtimes."nvidia"')},
         "generated-file-edited"),
        ({f"{K3S}/config.toml": small_drop_in(), f"{K3S}/config.toml.tmpl": "x"}, "generated-file-edited"),
        ({f"{K3S}/config.toml.tmpl": '{{ template "base" . }}\n[debug]\n'}, "custom-template"),
        ({f"{K3S}/config-v3.toml.tmpl": "# Debugging\n{{- template `base` . -}}\n"}, "custom-template"),
        ({DAEMON_JSON: '{"runtimes": {}}', UNIT: unit("--add-runtime nvidia=x")}, "flag-conflict"),
        ({DAEMON_JSON: '{"debug": true}', UNIT: unit("-H fd://")}, "flag-conflict"),
        ({f"{CRIO_DIR}/10-x.conf": "[crio]\n"}, "backup-in-config-directory"),
        ({"/usr/local/nvidia/toolkit.versions/1": None, "/usr/local/nvidia/toolkit": "@toolkit.versions/1"},
         "gpu-operator-leftovers"),
        ({HOOK: '{"hook": {"path": "/usr/bin/other"}}'}, "legacy-oci-hook"),
        ({MAIN: f"{main_file()}\n# Ansible managed\n"}, "other-config-management"),
        ({MAIN: f"# Written by gpufleet.nvidia.nvidia_runtime_config, which takes it away.\n{main_file()}"},
         "other-config-management"),
    ],
)  # fmt: skip
def test_no_false_finding(tree: Tree, files: dict[str, str | None], name: str) -> None:
    create(tree, files)
    names = [one.id for one in found(tree)]
    assert names == [] if not name else name not in names


def test_changed_settings_are_named_without_values(tree: Tree) -> None:
    create(tree, {MAIN: main_file("registry/user:secret@pause"), DROP_IN: snapshot()})
    (one,) = [one for one in found(tree) if one.id == "drop-in-copies-settings"]
    assert "Changes of sandbox_image, containerd.default_runtime_name in" not in one.text
    assert "Changes of sandbox_image in the main file have no effect." in one.text
    assert "secret" not in one.text


def test_a_missing_import_is_critical_for_every_version(tree: Tree) -> None:
    create(tree, {MAIN: main_file(imports='"/etc/gone.toml"')})
    for version in ("1.7.24", "2.1.9", "2.3.4"):
        parts = {"engines": [{"engine": "containerd", "flavor": "system", "version": version}]}
        assert [one.severity for one in found(tree, parts) if one.id == "import-missing"] == ["critical"]


def test_different_versions_are_accepted_if_each_file_is_migrated(tree: Tree) -> None:
    create(tree, {MAIN: main_file(), DROP_IN: small_drop_in().replace("2", "3", 1)})
    for version, reported in (("2.2.7", True), ("2.3.4", False)):
        parts = {"engines": [{"engine": "containerd", "flavor": "system", "version": version}]}
        assert ("config-version-mismatch" in {one.id for one in found(tree, parts)}) is reported


def test_other_data_directory_of_rke2(tree: Tree) -> None:
    create(tree, {"/data/agent/etc/containerd/config.toml.tmpl": "x"})
    parts = {
        "engines": [{"flavor": "rke2", "config_path": "/data/agent/etc/containerd/config.toml"}, {"flavor": "k3s"}]
    }
    assert [one.id for one in found(tree, parts)] == ["custom-template"]


def test_recorded_files_give_no_findings(tree: Tree) -> None:
    create(
        tree,
        {MAIN: main_file(), DROP_IN: snapshot(), HOOK: HOOK_FILE, STRAY: small_drop_in(), CRIO_STRAY: CRIO_DROP_IN},
    )
    assert {"drop-in-copies-settings", "legacy-oci-hook", "drop-in-of-old-toolkit"} <= {one.id for one in found(tree)}
    for path in (DROP_IN, HOOK, STRAY, CRIO_STRAY):
        record = OriginalFile("containerd", path, None, 0, 0, 0o644)
        tree.file(record_path("containerd", path), record.to_bytes())
    assert {one.id for one in found(tree)} == set()


def test_stopped_gpu_operator(tree: Tree) -> None:
    create(tree, {PID_FILE: "4711", "/run/nvidia/validations": None, "/proc/1": None})
    live = HostFS(str(tree.path), live=True)
    assert [one.id for one in foreign_files_of(live, HostFacts({}))] == ["gpu-operator-leftovers"]
    create(tree, {"/proc/4711": None})
    assert [one.id for one in foreign_files_of(live, HostFacts({}))] == ["gpu-operator-owns-toolkit"]


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
    paths = [MAIN, DROP_IN, STRAY, CRIO_MAIN, CRIO_STRAY, DAEMON_JSON, HOOK, OWN_HOOK, UNIT, f"{K3S}/config.toml"]
    paths += [PID_FILE, f"{CRIO_DIR}/a", f"{STATE_DIR}/containerd-x.json"]
    texts = [*DAMAGED, "@/gone", "@.", None, main_file(), snapshot(), CRIO_DROP_IN, KUBESPRAY]
    create(tree, {path: random_.choice(texts) for path in random_.sample(paths, 9)})
    for one in found(tree):
        assert all(isinstance(word, str) for word in one)


def test_unreadable_files_are_skipped(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tree, {MAIN: KUBESPRAY, HOOK: HOOK_FILE})
    read = HostFS.read

    def refuse(host: HostFS, path: str, most: int = FILE_BYTES) -> bytes | None:
        if path == MAIN:
            raise HostError(f"{path} cannot be read: Permission denied. Run the task as root (become: true).")
        return read(host, path, most)

    monkeypatch.setattr(HostFS, "read", refuse)
    assert [one.id for one in found(tree)] == ["legacy-oci-hook"]


def test_large_files_are_skipped(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tree, {HOOK: HOOK_FILE})
    monkeypatch.setattr(foreign_files, "_MAX_BYTES", 10)
    assert found(tree) == []
