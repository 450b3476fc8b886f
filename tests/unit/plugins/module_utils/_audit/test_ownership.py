# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import random
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import host_configs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.finding import Described
from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.ownership import owners_of
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
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.finding import Finding
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import Tree

FILES = os.path.join(*([os.path.dirname(__file__)] + [os.pardir] * 3), "files")
UNIT = "/usr/lib/systemd/system/docker.service"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd"
HOOK_PROGRAM = "/usr/bin/nvidia-container-runtime-hook"


def example(name: str) -> str:
    with open(os.path.join(FILES, name), encoding="utf-8") as stream:
        return stream.read()


def found(tree: Tree, described: t.Any = None) -> list[Finding]:
    return owners_of(tree.host(), None if described is None else Described(described))


def lay(tree: Tree, files: t.Mapping[str, str | None]) -> None:
    """None is a folder; what begins with @ is a link."""
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
    ({MAIN: main_file(), DROP_IN: snapshot()}, "snapshot-drop-in", "warning", DROP_IN),
    ({MAIN: main_file("x"), STRAY: small_drop_in()}, "drop-in-of-old-toolkit", "warning", STRAY),
    (
        {MAIN: main_file() + runtime("nvidia", NVIDIA), DROP_IN: snapshot()},
        "runtime-defined-twice",
        "warning",
        DROP_IN,
    ),
    ({MAIN: main_file() + runtime("nvidia-experimental", "/x")}, "runtime-experimental", "warning", MAIN),
    ({MAIN: main_file(imports='"/etc/gone.toml"')}, "import-missing", "critical", "/etc/gone.toml"),
    ({MAIN: main_file(imports=f'"{MAIN}"')}, "import-of-itself", "warning", MAIN),
    ({MAIN: main_file(), DROP_IN: small_drop_in().replace("2", "3", 1)}, "format-differs", "warning", DROP_IN),
    ({MAIN: 'disabled_plugins = ["cri"]\n'}, "cri-disabled", "info", MAIN),
    ({f"{K3S}/config.toml.tmpl": "x"}, "template-of-others", "warning", f"{K3S}/config.toml.tmpl"),
    ({f"{K3S}/config-v3.toml.tmpl": "x"}, "template-of-others", "warning", f"{K3S}/config-v3.toml.tmpl"),
    ({f"{K3S}/config.toml": small_drop_in()}, "generated-file-edited", "warning", f"{K3S}/config.toml"),
    (
        {DAEMON_JSON: '{"hosts": []}', UNIT: unit("-H fd://"), "/usr/bin/dockerd": ""},
        "flags-collide",
        "critical",
        DAEMON_JSON,
    ),
    (
        {DAEMON_JSON: '{"default-runtime": "runc"}', UNIT: unit("--default-runtime=nvidia")},
        "flags-collide",
        "critical",
        DAEMON_JSON,
    ),
    (
        {
            UNIT: unit(""),
            "/etc/systemd/system/docker.service.d/docker-override.conf": "[Service]\nRestart=no\n",
        },
        "vendor-override",
        "warning",
        "/etc/systemd/system/docker.service.d/docker-override.conf",
    ),
    ({"/etc/dgx-release": "DGX_NAME=x"}, "vendor-image", "info", "/etc/dgx-release"),
    ({"/usr/bin/nvidia-docker": ""}, "nvidia-docker", "info", "/usr/bin/nvidia-docker"),
    (
        {DAEMON_JSON: '{"runtimes": {"nvidia-experimental": {"path": "x"}}}'},
        "runtime-experimental",
        "warning",
        DAEMON_JSON,
    ),
    ({CRIO_STRAY: CRIO_DROP_IN}, "drop-in-of-old-toolkit", "warning", CRIO_STRAY),
    (
        {"/etc/crio/crio.conf.d/10-x.conf.4711.2026-01-01@10:00:00~": "[crio]\n"},
        "backup-is-configuration",
        "warning",
        "/etc/crio/crio.conf.d/10-x.conf.4711.2026-01-01@10:00:00~",
    ),
    (
        {"/etc/crio/crio.conf.d/10-x.conf.rpmsave": "[crio]\n"},
        "backup-is-configuration",
        "warning",
        "/etc/crio/crio.conf.d/10-x.conf.rpmsave",
    ),
    ({"/etc/crio/crio.conf.d/x": "@/gone"}, "link-leads-nowhere", "critical", "/etc/crio/crio.conf.d/x"),
    (
        {CRIO_MAIN: RUNTIME, "/etc/crio/crio.conf.d/99-nvidia.conf": RUNTIME},
        "runtime-defined-twice",
        "warning",
        "/etc/crio/crio.conf.d/99-nvidia.conf",
    ),
    ({CRIO_MAIN: RUNTIME.replace("nvidia]", "nvidia-experimental]")}, "runtime-experimental", "warning", CRIO_MAIN),
    (
        {"/run/nvidia/toolkit/toolkit.pid": "12\n"},
        "gpu-operator-owns-toolkit",
        "warning",
        "/run/nvidia/toolkit/toolkit.pid",
    ),
    ({"/run/nvidia/validations": None}, "gpu-operator-traces", "info", "/run/nvidia/validations"),
    ({"/usr/local/nvidia/toolkit": None}, "gpu-operator-traces", "info", "/usr/local/nvidia/toolkit"),
    ({HOOK: HOOK_FILE}, "old-hook", "critical", HOOK),
    ({HOOK: HOOK_FILE, HOOK_PROGRAM: ""}, "old-hook", "warning", HOOK),
    ({OWN_HOOK: '{"hook": "/opt/nvidia-container-toolkit"}'}, "old-hook", "critical", OWN_HOOK),
    ({MAIN: f"# Ansible managed: x\n{main_file()}"}, "other-management", "warning", MAIN),
    (
        {"/etc/nvidia-container-runtime/config.toml": "# This file is managed by Puppet.\n"},
        "other-management",
        "warning",
        "/etc/nvidia-container-runtime/config.toml",
    ),
]


@pytest.mark.parametrize(("files", "name", "severity", "subject"), CASES)
def test_each_owner_is_found(tree: Tree, files: dict[str, str | None], name: str, severity: str, subject: str) -> None:
    lay(tree, files)
    hits = [one for one in found(tree) if one.id == name]
    assert [(one.severity, one.subject) for one in hits] == [(severity, subject)]
    assert hits[0].text.endswith(".")
    assert hits[0].advice.endswith(".")


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({}, ""),
        # A kind node has that specification, too.
        ({MAIN: KUBESPRAY.replace("oom_score = 0", "")}, "kubespray-owns-file"),
        ({MAIN: KUBESPRAY.replace("cri-base.json", "other.json")}, "kubespray-owns-file"),
        ({MAIN: KUBESPRAY.replace("max_container_log_line_size", "x")}, "kubespray-owns-file"),
        ({MAIN: main_file(), DROP_IN: small_drop_in()}, "snapshot-drop-in"),
        ({MAIN: main_file(imports=""), DROP_IN: snapshot()}, "snapshot-drop-in"),
        ({MAIN: main_file(), DROP_IN: "version = 2\n" + runtime("kata", "/usr/bin/kata")}, "runtime-defined-twice"),
        (
            {MAIN: main_file() + runtime("kata", "/x"), DROP_IN: small_drop_in() + runtime("kata", "/y")},
            "runtime-defined-twice",
        ),
        ({MAIN: main_file(imports='"/etc/gone.d/*.toml"')}, "import-missing"),
        (
            {f"{K3S}/config.toml": f"# File generated by k3s. DO NOT EDIT.\n{small_drop_in()}"},
            "generated-file-edited",
        ),
        (
            {f"{K3S}/config.toml": small_drop_in().replace("runtimes.nvidia", 'runtimes."nvidia"')},
            "generated-file-edited",
        ),
        ({f"{K3S}/config.toml": small_drop_in(), f"{K3S}/config.toml.tmpl": "x"}, "generated-file-edited"),
        ({DAEMON_JSON: '{"runtimes": {}}', UNIT: unit("--add-runtime nvidia=x")}, "flags-collide"),
        ({DAEMON_JSON: '{"debug": true}', UNIT: unit("-H fd://")}, "flags-collide"),
        ({"/etc/crio/crio.conf.d/10-x.conf": "[crio]\n"}, "backup-is-configuration"),
        (
            {"/usr/local/nvidia/toolkit.versions/1": None, "/usr/local/nvidia/toolkit": "@toolkit.versions/1"},
            "gpu-operator-traces",
        ),
        ({HOOK: '{"hook": {"path": "/usr/bin/other"}}'}, "old-hook"),
        ({MAIN: f"{main_file()}\n# Ansible managed\n"}, "other-management"),
        (
            {MAIN: f"# Written by gpufleet.nvidia.nvidia_runtime_config, which takes it away.\n{main_file()}"},
            "other-management",
        ),
    ],
)
def test_nobody_is_suspected_without_a_reason(tree: Tree, files: dict[str, str | None], name: str) -> None:
    lay(tree, files)
    names = [one.id for one in found(tree)]
    assert names == [] if not name else name not in names


def test_what_drifted_is_named_and_no_value(tree: Tree) -> None:
    lay(tree, {MAIN: main_file("registry/user:secret@pause"), DROP_IN: snapshot()})
    (one,) = [one for one in found(tree) if one.id == "snapshot-drop-in"]
    assert "Changes of sandbox_image, containerd.default_runtime_name in" not in one.text
    assert "Changes of sandbox_image in /etc/containerd/config.toml have no effect." in one.text
    assert "secret" not in one.text


def test_a_missing_import_is_critical_for_every_version(tree: Tree) -> None:
    lay(tree, {MAIN: main_file(imports='"/etc/gone.toml"')})
    for version in ("1.7.24", "2.1.9", "2.3.4"):
        described = {"engines": [{"engine": "containerd", "flavor": "system", "version": version}]}
        assert [one.severity for one in found(tree, described) if one.id == "import-missing"] == ["critical"]


def test_formats_that_differ_are_no_problem_where_each_file_is_migrated(tree: Tree) -> None:
    lay(tree, {MAIN: main_file().replace("2", "3", 1), DROP_IN: small_drop_in()})
    for version, reported in (("2.2.7", True), ("2.3.4", False)):
        described = {"engines": [{"engine": "containerd", "flavor": "system", "version": version}]}
        assert ("format-differs" in {one.id for one in found(tree, described)}) is reported


def test_a_data_directory_elsewhere_is_looked_at(tree: Tree) -> None:
    lay(tree, {"/data/agent/etc/containerd/config.toml.tmpl": "x"})
    described = {
        "engines": [{"flavor": "rke2", "config_path": "/data/agent/etc/containerd/config.toml"}, {"flavor": "k3s"}]
    }
    assert [one.id for one in found(tree, described)] == ["template-of-others"]


def test_what_is_recorded_is_ours(tree: Tree) -> None:
    lay(
        tree,
        {MAIN: main_file(), DROP_IN: snapshot(), HOOK: HOOK_FILE, STRAY: small_drop_in(), CRIO_STRAY: CRIO_DROP_IN},
    )
    assert {"snapshot-drop-in", "old-hook", "drop-in-of-old-toolkit"} <= {one.id for one in found(tree)}
    for path in (DROP_IN, HOOK, STRAY, CRIO_STRAY):
        record = OriginalFile("containerd", path, None, 0, 0, 0o644)
        tree.file(record_path("containerd", path), record.to_bytes())
    assert {one.id for one in found(tree)} == set()


def test_an_operator_that_is_gone_leaves_traces_only(tree: Tree) -> None:
    lay(tree, {"/run/nvidia/toolkit/toolkit.pid": "4711", "/run/nvidia/validations": None, "/proc/1": None})
    live = HostFS(str(tree.path), live=True)
    assert [one.id for one in owners_of(live)] == ["gpu-operator-traces"]
    lay(tree, {"/proc/4711": None})
    assert [one.id for one in owners_of(live)] == ["gpu-operator-owns-toolkit"]


def test_who_cannot_read_toml_is_told(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_args: t.Any) -> None:
        raise MissingPackageError("tomlkit")

    lay(tree, {MAIN: main_file()})
    monkeypatch.setattr(ContainerdFiles, "of", lacking)
    with pytest.raises(MissingPackageError):
        found(tree)


HOSTILE = (
    "",
    "\x00",
    "{",
    "[",
    "= 1",
    "\udcff\udcfe",
    "version = 'x'",
    "imports = 3",
    'imports = ["\\u0000", "/a*"]',
    "{}",
    "[]",
    "null",
    '{"hook": 3}',
)


@pytest.mark.parametrize("seed", range(40))
def test_no_host_is_an_error(tree: Tree, seed: int) -> None:
    random_ = random.Random(seed)  # noqa: S311
    paths = [MAIN, DROP_IN, STRAY, CRIO_MAIN, CRIO_STRAY, DAEMON_JSON, HOOK, OWN_HOOK, UNIT, f"{K3S}/config.toml"]
    paths += ["/run/nvidia/toolkit/toolkit.pid", "/etc/crio/crio.conf.d/a", f"{STATE_DIR}/containerd-x.json"]
    texts = [*HOSTILE, "@/gone", "@.", None, main_file(), snapshot(), CRIO_DROP_IN, KUBESPRAY]
    lay(tree, {path: random_.choice(texts) for path in random_.sample(paths, 9)})
    for one in found(tree):
        assert all(isinstance(word, str) for word in one)


def test_what_cannot_be_read_is_passed_over(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tree, {MAIN: KUBESPRAY, HOOK: HOOK_FILE})
    read = HostFS.read

    def refuse(host: HostFS, path: str, most: int = FILE_BYTES) -> bytes | None:
        if path == MAIN:
            raise HostError(f"{path} cannot be read: Permission denied. Run the task as root (become: true).")
        return read(host, path, most)

    monkeypatch.setattr(HostFS, "read", refuse)
    assert [one.id for one in found(tree)] == ["old-hook"]


def test_what_is_too_long_for_a_configuration_is_not_looked_through(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tree, {HOOK: HOOK_FILE})
    monkeypatch.setattr(host_configs, "_MOST", 10)
    assert found(tree) == []
