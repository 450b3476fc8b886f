# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import stat
import sys
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.toml_plan import HEADER
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import NVIDIA
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.rancher_hosts import (
    OPERATOR,
    RancherHost,
    node_with,
)

if t.TYPE_CHECKING:
    from pathlib import Path

BOTH = pytest.mark.parametrize("program", ["k3s", "rke2"])
OWN = HEADER + b"default-runtime: nvidia\n"


# -- present and absent ------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("role", ["server", "agent"])
@pytest.mark.parametrize("settings", [None, b"token: x\n", b"\xff not [ yaml"], ids=["no file", "a token", "strange"])
def test_present_and_absent(tmp_path: Path, program: str, role: str, settings: bytes | None) -> None:
    node = node_with(tmp_path, program, role)
    if settings is not None:
        node.write(f"/etc/rancher/{program}/config.yaml", settings, 0o600)
    before = node.bytes_and_modes()

    predicted = node.present(check_mode=True, set_as_default=True)
    assert node.bytes_and_modes() == before
    done = node.present(set_as_default=True)
    assert predicted.changed is done.changed is True
    assert predicted.files == done.files
    assert node.own_file.read_bytes() == OWN
    assert stat.S_IMODE(node.own_file.stat().st_mode) == 0o644
    assert stat.S_IMODE(node.own_file.parent.stat().st_mode) == 0o755
    assert done.default_runtime == "nvidia"
    assert done.runtimes == {"nvidia": NVIDIA}
    assert done.restart_action is predicted.restart_action is Action.RESTART
    assert done.warnings == []
    assert done.drop_in_path == f"/etc/rancher/{program}/config.yaml.d/99-gpufleet-nvidia.yaml"
    assert done.config_path == f"/var/lib/rancher/{program}/agent/etc/containerd/config.toml"
    assert (done.target, done.engine_version) == (f"containerd/{program}", f"1.30.6+{program}1")

    once = node.bytes_and_modes()
    for again in (node.present(set_as_default=True), node.present(), node.present(runtime_name="nvidia-experimental")):
        assert (again.changed, again.files, again.restart_action) == (False, [], Action.NONE)
        assert again.default_runtime == "nvidia"
    assert node.bytes_and_modes() == once

    gone = node.absent(purge_backups=True)
    assert (gone.changed, gone.restart_action, gone.default_runtime) == (True, Action.RESTART, "runc")
    assert node.bytes_and_modes() == before
    assert not node.absent(purge_backups=True).changed


def test_no_file_without_a_default(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    before = node.bytes_and_modes()
    for asked in ({}, {"set_as_default": False}, {"extra_modes": ("cdi",)}, {"enable_cdi": True}):
        result = node.present(**asked)
        assert (result.changed, result.files, result.drop_in_path) == (False, [], None)
        assert result.restart_action is Action.NONE
    assert node.bytes_and_modes() == before
    assert not node.absent().changed


def test_removes_own_default(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    before = node.bytes_and_modes()
    node.present(set_as_default=True)
    result = node.present(set_as_default=False)
    assert (result.changed, result.restart_action, result.default_runtime) == (True, Action.RESTART, "runc")
    assert not node.own_file.parent.exists()
    node.absent(purge_backups=True)
    assert node.bytes_and_modes() == before


def test_changes_own_default(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.write(NVIDIA + ".cdi", mode=0o755)
    node.present(set_as_default=True)
    result = node.present(set_as_default=True, runtime_name="nvidia-cdi")
    assert node.own_file.read_bytes() == HEADER + b"default-runtime: nvidia-cdi\n"
    assert result.runtimes == {"nvidia": NVIDIA, "nvidia-cdi": NVIDIA + ".cdi"}
    assert node.present().default_runtime == "nvidia-cdi"


def test_own_file_needs_no_pyyaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.setattr(bundled, "_registered", {})
    node = node_with(tmp_path)
    assert node.present(set_as_default=True).default_runtime == "nvidia"
    assert not node.present().changed
    assert node.absent().default_runtime == "runc"


def test_keeps_existing_directory(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.settings("token: x\n", "a.yaml")
    node.present(set_as_default=True)
    node.absent(purge_backups=True)
    assert [path.name for path in node.own_file.parent.iterdir()] == ["a.yaml"]


def test_own_file_without_a_record(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.write("/etc/rancher/k3s/config.yaml.d/99-gpufleet-nvidia.yaml", OWN)
    assert not node.present(set_as_default=True).changed
    assert not node.present().changed
    assert node.absent().changed
    assert not node.own_file.exists()


def test_absent_after_change_of_unrecorded_own_file(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.write("/etc/rancher/k3s/config.yaml.d/99-gpufleet-nvidia.yaml", OWN)
    node.write(NVIDIA + "-experimental", mode=0o755)
    assert node.present(set_as_default=True, runtime_name="nvidia-experimental").changed
    assert node.absent().changed
    assert not node.own_file.exists()
    assert not node.absent().changed


@pytest.mark.parametrize("program", ["k3s", "rke2"])
def test_path_beside_another_config_file(tmp_path: Path, program: str) -> None:
    node = RancherHost(tmp_path, program)
    node.unit("server", "--config", "/srv/node.yaml", "--data-dir=/srv/data")
    node.generate(folder="/srv/data")
    result = node.present(set_as_default=True)
    assert result.drop_in_path == "/srv/node.yaml.d/99-gpufleet-nvidia.yaml"
    assert result.config_path == "/srv/data/agent/etc/containerd/config.toml"
    assert node.path("/srv/node.yaml.d/99-gpufleet-nvidia.yaml").read_bytes() == OWN
    # K3s reads another file now.
    node.unit("server", "--data-dir=/srv/data")
    node.present(set_as_default=True)
    assert node.own_file.read_bytes() == OWN
    assert not node.path("/srv/node.yaml.d").exists()
    node.unit("server", "--config", "/srv/node.yaml")
    node.absent()
    assert not node.own_file.exists()


@pytest.mark.parametrize("end", ["", "\r\n", "  \n", " # mine\n"])
@pytest.mark.parametrize("value", ["nvidia", '"nvidia"', "'nvidia'"])
@pytest.mark.parametrize("other", ["", "node-label: [a=b]\n"])
def test_absent_removes_the_line_that_an_editor_saved(tmp_path: Path, end: str, value: str, other: str) -> None:
    node = node_with(tmp_path)
    node.present(set_as_default=True)
    header = OWN.partition(b"\n")[0].decode()
    node.own_file.write_bytes(
        f"{header}{end.replace(' # mine', '') or chr(10)}{other}default-runtime: {value}{end}".encode()
    )
    result = node.absent()
    assert result.default_runtime != "nvidia"
    assert (node.own_file.read_text() if node.own_file.exists() else "") == other
    assert not node.absent().changed


def test_no_validator(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    with pytest.raises(NvidiaError, match=r"validate is true, but .* Set validate: auto"):
        node.present(options={"validate": "true"}, set_as_default=True)
    assert not node.own_file.exists()
    assert node.present(options={"validate": "auto"}, set_as_default=True).changed
    # Only the version command and a command that always fails are run.
    assert {tuple(argv[2:]) for argv in node.commands} == {("/usr/local/bin/k3s", "--version"), ("false",)}


@pytest.mark.parametrize(("default", "pending"), [("runc", Action.RESTART), ("nvidia", Action.NONE)])
def test_pending_action(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: str, pending: Action) -> None:
    runtimes = {"nvidia": {"options": {"BinaryName": NVIDIA}}}
    config = {"containerd": {"defaultRuntimeName": default, "runtimes": runtimes}}
    monkeypatch.setattr(cri, "runtime_config", lambda _path: config)
    monkeypatch.setattr(cri, "version", lambda _path: "2.0.5-k3s2")
    node = node_with(tmp_path)
    node.runs("k3s.service", "k3s-server", "containerd")
    result = node.present(set_as_default=True)
    assert (result.pending_action, result.service) == (pending, "k3s.service")
    # The program prints its release. The CRI reports only the version of containerd.
    assert result.engine_version == "1.30.6+k3s1"
    assert node.present(set_as_default=True).pending_action is pending


# -- foreign entries ---------------------------------------------------------------------------------------------------


def test_foreign_settings_in_own_file_stay(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.present(set_as_default=True)
    node.own_file.write_bytes(OWN + b"node-label: [gpu=yes]\n")
    assert not node.present(set_as_default=True).changed
    assert not node.present().changed
    # The message names the later file, and not this one.
    node.settings(CRUN, "zz.yaml")
    with pytest.raises(NvidiaError, match=r"/zz\.yaml: default-runtime is crun here"):
        node.present(set_as_default=True)
    node.absent()
    assert node.own_file.read_bytes() == b"node-label: [gpu=yes]\n"


def test_refuses_foreign_file(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.write("/etc/rancher/k3s/config.yaml.d/99-gpufleet-nvidia.yaml", "default-runtime: crun\n")
    with pytest.raises(NvidiaError, match="contains settings of another tool"):
        node.present(set_as_default=True)
    assert not node.present().changed
    assert not node.absent().changed
    assert node.own_file.read_text() == "default-runtime: crun\n"


def test_changed_default_is_foreign(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.present(set_as_default=True)
    node.own_file.write_bytes(HEADER + b"default-runtime: crun # mine\n")
    assert not node.present().changed
    with pytest.raises(NvidiaError, match="contains settings of another tool"):
        node.present(set_as_default=True)
    node.absent()
    assert node.own_file.read_bytes() == b"default-runtime: crun # mine\n"


def test_removed_own_file(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.present(set_as_default=True)
    node.own_file.unlink()
    assert not node.present().changed
    assert node.present(set_as_default=True).changed
    node.own_file.unlink()
    node.absent(purge_backups=True)
    assert not node.path("/var/lib/gpufleet-nvidia").exists()


# -- refusals ----------------------------------------------------------------------------------------------------------


SETTINGS_DIR = "/etc/rancher/k3s/config.yaml.d"
CRUN = "default-runtime: crun\n"
DEFAULT: dict[str, t.Any] = {"set_as_default": True}
UNSUPPORTED: list[tuple[dict[str, t.Any], str]] = [
    ({"runtime_name": "gpu"}, "does not register a runtime gpu"),
    ({"runtime_name": "nvidia-legacy"}, "does not register a runtime nvidia-legacy"),
    ({"extra_modes": ("legacy",)}, "does not register a runtime nvidia-legacy"),
    ({"runtime_options": {"a": 1}}, "Unsupported options for K3s: runtime_options"),
    ({"runtime_type": "x"}, "Unsupported options for K3s: runtime_type"),
    ({"container_annotations": ("a",)}, "Unsupported options for K3s: container_annotations"),
    ({"drop_in_path": "/x"}, "Unsupported options for K3s: drop_in_path"),
    ({"config_mode": "drop_in"}, "Unsupported options for K3s: config_mode"),
    ({"config_mode": "in_place"}, "K3s does not support config_mode"),
    ({"runtime_dir": "/opt/nv"}, "K3s does not search runtime_dir /opt/nv, only /usr/local/nvidia/toolkit, "),
    ({"options": {"config_path": "/etc/containerd/config.toml"}}, "is not the file that K3s generates"),
]


@pytest.mark.parametrize(
    ("flags", "settings", "asked", "problem"),
    [
        # Later settings and flags override the drop-in.
        ([], {"zz.yaml": CRUN}, DEFAULT, f"{SETTINGS_DIR}/zz.yaml: default-runtime is crun here and overrides"),
        (["--default-runtime=crun"], {"a.yaml": CRUN}, DEFAULT, "the unit k3s.service: default-runtime is crun here"),
        (["--default-runtime", "crun"], {}, DEFAULT, "the unit k3s.service: default-runtime is crun here"),
        ([], {"zz.yaml": "default-runtime:\n"}, DEFAULT, "default-runtime is empty here"),
        (["--config", "https://host/k3s.yaml"], {}, DEFAULT, "https://host/k3s.yaml, which is not a file on this host"),
        # Broken settings.
        ([], {"": "default-runtime: [\n"}, DEFAULT, "/etc/rancher/k3s/config.yaml, line 2"),
        ([], {"": "- default-runtime: x\n"}, DEFAULT, "/etc/rancher/k3s/config.yaml: the file contains no mapping"),
        # Unsupported options, with and without a default.
        *(([], {}, {**default, **asked}, problem) for default in (DEFAULT, {}) for asked, problem in UNSUPPORTED),
        # Another engine.
        (["--docker"], {}, {}, "the unit k3s.service: with the setting docker, K3s uses another engine"),
        ([], {"": "docker: true\n"}, {}, "/etc/rancher/k3s/config.yaml: with the setting docker"),
        ([], {"": "container-runtime-endpoint: unix:///x\n"}, {}, "with the setting container-runtime-endpoint"),
        # Old releases.
        *(
            ([], {}, {"release": release, **DEFAULT}, "requires v1.26.12, v1.27.9, v1.28.5 and v1.29.0 or newer")
            for release in ("1.28.4", "1.25.16")
        ),
        ([], {}, {"release": "1.30.5", "extra_modes": ("cdi",)}, "does not register a runtime nvidia-cdi"),
    ],
)
def test_refusals(tmp_path: Path, flags: list[str], settings: dict[str, str], asked: t.Any, problem: str) -> None:
    asked = dict(asked)
    node = node_with(tmp_path, "k3s", "server", *flags, release=asked.pop("release", "1.30.6"))
    node.write(NVIDIA + ".cdi", mode=0o755)
    for name, text in settings.items():
        node.settings(text, name)
    before = node.bytes_and_modes()
    with pytest.raises(NvidiaError) as caught:
        node.present(**asked)
    assert problem in str(caught.value)
    assert node.bytes_and_modes() == before


@pytest.mark.parametrize(
    ("flags", "settings", "release", "asked"),
    [
        # Without a requested default, other settings of it are accepted.
        ([], {"zz.yaml": CRUN}, "1.30.6", {}),
        (["--config", "https://host/k3s.yaml"], {}, "1.30.6", {}),
        ([], {"": "docker: false\n"}, "1.30.6", DEFAULT),
        ([], {}, "1.28.5", DEFAULT),
        ([], {}, "1.28.4", {}),
        ([], {}, "1.30.6", {"extra_modes": ("cdi",)}),
        ([], {}, "1.30.6", {"options": {"config_path": "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"}}),
    ],
)
def test_accepted(tmp_path: Path, flags: list[str], settings: dict[str, str], release: str, asked: t.Any) -> None:
    node = node_with(tmp_path, "k3s", "server", *flags, release=release)
    for name, text in settings.items():
        node.settings(text, name)
    assert node.present(**asked).changed is (asked == DEFAULT)


def test_offline_tree_of_an_unknown_release(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.live = False
    assert node.present(set_as_default=True).changed


def test_overrides_earlier_default(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.settings("default-runtime: crun\n")
    node.settings("default-runtime: crun\n", "50.yaml")
    result = node.present(set_as_default=True)
    assert result.default_runtime == "nvidia"
    assert node.absent().default_runtime == "crun"


def test_accepts_equal_default_of_flag(tmp_path: Path) -> None:
    node = node_with(tmp_path, "k3s", "server", "--default-runtime=nvidia")
    result = node.present(set_as_default=True)
    # The default runtime does not change.
    assert (result.changed, result.restart_action) == (True, Action.NONE)
    assert node.absent().restart_action is Action.NONE
    (warning,) = node.present(set_as_default=False).warnings
    assert warning.startswith("the unit k3s.service makes nvidia the default runtime")


def test_runtime_dir_in_configured_path(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.write("/opt/nv/nvidia-container-runtime", mode=0o755)
    node.write("/etc/default/k3s", 'PATH="/opt/nv:/usr/bin"\n')
    result = node.present(set_as_default=True, runtime_dir="/opt/nv")
    assert result.runtimes == {"nvidia": "/opt/nv/nvidia-container-runtime"}
    # An older release does not search this directory.
    node.release = "1.30.5"
    with pytest.raises(NvidiaError, match="does not search runtime_dir"):
        node.present(runtime_dir="/opt/nv")


def test_runtime_dir_through_a_link(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.path("/bin").symlink_to("usr/bin")
    node.write("/etc/sysconfig/k3s", "PATH=/bin\n")
    result = node.present(set_as_default=True)
    # The generated file contains another path to the same program.
    assert result.runtimes == {"nvidia": NVIDIA}
    node.path(result.config_path).unlink()
    assert node.present().runtimes == {"nvidia": "/bin/nvidia-container-runtime"}
    assert result.warnings == []


@BOTH
def test_refuses_default_without_program(tmp_path: Path, program: str) -> None:
    node = node_with(tmp_path, program, toolkit=False)
    before = node.bytes_and_modes()
    with pytest.raises(NvidiaError, match="would not start with the default runtime nvidia"):
        node.present(set_as_default=True)
    with pytest.raises(NvidiaError, match=r"because nvidia-container-runtime\.cdi is in none of"):
        node.present(set_as_default=True, runtime_name="nvidia-cdi")
    assert node.bytes_and_modes() == before
    assert "will not register nvidia, because nvidia-container-runtime is in none of" in node.plan().warnings[0]
    assert node.present().runtimes == {}


def test_refuses_own_default_without_program(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.present(set_as_default=True)
    node.path(NVIDIA).unlink()
    with pytest.raises(NvidiaError, match="would not start"):
        node.present()
    node.present(set_as_default=False)
    assert not node.own_file.exists()


# -- warnings ----------------------------------------------------------------------------------------------------------


def test_warns_about_another_program(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.write(OPERATOR, mode=0o755)
    result = node.present(set_as_default=True)
    assert result.runtimes == {"nvidia": OPERATOR}
    (warning,) = node.plan(set_as_default=True).warnings
    assert warning.startswith(f"K3s uses {OPERATOR} for nvidia, because it searches")
    assert result.warnings == [warning]
    assert node.plan(runtime_dir="/usr/local/nvidia/toolkit").warnings == ()


def test_warns_about_missing_program_of_a_mode(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    (warning,) = node.plan(extra_modes=("cdi",)).warnings
    assert warning.startswith("K3s will not register nvidia-cdi, because nvidia-container-runtime.cdi is in none of")


def test_warns_about_default_runtime_in_a_template(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    template = f"{node.data}/agent/etc/containerd/config.toml.tmpl"
    node.write(template, "{{range $k, $v := .ExtraRuntimes}}{{end}}\n")
    node.generate("nvidia", default="nvidia")
    for settings in ("", CRUN):
        node.settings(settings)
        warnings = node.present(set_as_default=False).warnings
        assert warnings[-1] == f"{template} makes nvidia the default runtime. Remove it there."


@pytest.mark.parametrize("name", ["config.toml.tmpl", "config-v3.toml.tmpl"])
def test_foreign_template(tmp_path: Path, name: str) -> None:
    node = node_with(tmp_path, release="1.32.2")
    path = f"{node.data}/agent/etc/containerd/{name}"
    for text, warned in (('{{ template "base" . }}\n', False), ("{{range $k, $v := .ExtraRuntimes}}{{end}}\n", True)):
        node.write(path, text)
        before = node.bytes_and_modes()
        warnings = node.present().warnings
        assert [warning.startswith(f"{path} overrides the default") for warning in warnings] == [True] * warned
        assert node.bytes_and_modes() == before
    with pytest.raises(NvidiaError, match=rf"^{path}: this file overrides"):
        node.present(set_as_default=True)
    assert not node.own_file.exists()


@pytest.mark.parametrize(
    ("asked", "cdi", "warns"),
    [(True, "false", True), (False, "true", True), (True, "true", False), (True, "", True), ("auto", "false", False)],
)
def test_warns_about_enable_cdi(tmp_path: Path, asked: bool | str, cdi: str, warns: bool) -> None:
    node = node_with(tmp_path)
    node.generate("nvidia", cdi=cdi)
    warnings = node.plan(enable_cdi=asked).warnings
    assert [warning.startswith("enable_cdi has no effect") for warning in warnings] == [True] * warns
