# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import load_records, stable_snap_path
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action, HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.microk8s.engine import MICROK8S
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri as rpc_cri
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import NVIDIA, EngineTree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.k0s_hosts import (
    ARGUMENTS,
    TEMPLATE,
    TEMPLATE_TEXT,
    microk8s_tree,
    refresh,
)

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import ConfiguredState

CRI = 'plugins."io.containerd.grpc.v1.cri"'
RUNC_TYPE = "io.containerd.runc.v2"
BUNDLED = "nvidia-container-runtime"


def cri(tree: EngineTree) -> dict[str, t.Any]:
    data = TomlDocument.from_bytes(TEMPLATE, tree.text(TEMPLATE).encode()).data
    found: dict[str, t.Any] = data["plugins"]["io.containerd.grpc.v1.cri"]
    return found


def state_of(tree: EngineTree) -> ConfiguredState:
    return MICROK8S.configured(HostFiles(tree.host, "microk8s").as_configured(MICROK8S.inspect(tree.host), "1.7.20"))


def generate(tree: EngineTree, runtime: str = "runc", kind: str = RUNC_TYPE) -> None:
    """Generate the file from the template, as the start script does."""
    text = tree.text(TEMPLATE)
    for name, value in {"RUNTIME": runtime, "RUNTIME_TYPE": kind, "SNAPSHOTTER": "overlayfs"}.items():
        text = text.replace(f"${{{name}}}", value)
    tree.write(f"{tree.host.resolve(ARGUMENTS)}/containerd.toml", text)


# -- installation ------------------------------------------------------------------------------------------------------


def test_inspect(tmp_path: Path) -> None:
    tree = microk8s_tree(tmp_path)
    tree.live = True
    found = MICROK8S.inspect(tree.host)
    assert (found.binary, found.pid) == ("/snap/microk8s/current/bin/containerd", 9)
    assert found.service == "snap.microk8s.daemon-containerd.service"
    assert (found.socket, found.config_path) == ("/var/snap/microk8s/common/run/containerd.sock", TEMPLATE)
    # The script of `snap run` is known.
    assert found.warnings() == []
    assert MICROK8S.config_files(tree.host, found) == ["/var/snap/microk8s/5000/args/containerd-template.toml"]
    generate(tree)
    assert MICROK8S.config_files(tree.host, found)[1:] == ["/var/snap/microk8s/5000/args/containerd.toml"]


def test_version_command(tmp_path: Path) -> None:
    tree = microk8s_tree(tmp_path)
    tree.live = True
    tree.write("sys/fs/cgroup/system.slice/snap.microk8s.daemon-containerd.service/cgroup.procs", "")
    tree.answers = {"--version": (0, "containerd github.com/containerd/containerd v1.7.20 abc\n", "")}
    assert tree.present(check_mode=True).engine_version == "1.7.20"


# -- the template ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine_version", [None, "1.6.28", "1.7.20", "2.1.3"])
def test_present_and_absent(tmp_path: Path, engine_version: str | None) -> None:
    tree = microk8s_tree(tmp_path)
    before = tree.files()
    options: dict[str, t.Any] = {"engine_version": engine_version}
    predicted = tree.present(check_mode=True, options=options, set_as_default=True, extra_modes=("cdi",))
    assert tree.files() == before
    done = tree.present(options=options, set_as_default=True, extra_modes=("cdi",))
    assert [(file.path, file.after) for file in predicted.files] == [(file.path, file.after) for file in done.files]
    assert [file.path for file in done.files] == ["/var/snap/microk8s/5000/args/containerd-template.toml"]
    assert (done.drop_in_path, done.default_runtime, done.restart_action) == (None, "nvidia", Action.RESTART)
    containerd = cri(tree)["containerd"]
    assert containerd["default_runtime_name"] == "nvidia"
    assert containerd["runtimes"]["nvidia"] == {"runtime_type": "${RUNTIME_TYPE}", "options": {"BinaryName": NVIDIA}}
    assert containerd["snapshotter"] == "${SNAPSHOTTER}"
    # All lines of the template stay.
    lines = iter(tree.text(TEMPLATE).splitlines())
    kept = [line for line in TEMPLATE_TEXT.splitlines() if "${RUNTIME}" not in line]
    assert all(line in lines for line in kept)
    assert not tree.present(options=options, set_as_default=True, extra_modes=("cdi",)).changed
    assert tree.absent(**options).changed
    assert tree.files() == before


def test_restores_placeholder_of_default(tmp_path: Path) -> None:
    tree = microk8s_tree(tmp_path)
    tree.present(set_as_default=True)
    generate(tree)
    tree.write(TEMPLATE, tree.text(TEMPLATE) + "# mine\n")
    done = tree.present(set_as_default=False)
    assert cri(tree)["containerd"]["default_runtime_name"] == "${RUNTIME}"
    # The generated file still contains the own default.
    assert done.default_runtime == "runc"
    tree.absent()
    assert tree.text(TEMPLATE) == TEMPLATE_TEXT + "# mine\n"


def test_absent_without_record(tmp_path: Path) -> None:
    """Another tool has changed the template. Only the runtime of the snap stays."""
    tree = microk8s_tree(tmp_path)
    tables = f"""
[{CRI}.containerd.runtimes.gpu]
runtime_type = "{RUNC_TYPE}"
[{CRI}.containerd.runtimes.gpu.options]
BinaryName = "{NVIDIA}"
[{CRI}.containerd.default_runtime]
runtime_type = "{RUNC_TYPE}"
[{CRI}.containerd.default_runtime.options]
BinaryName = "{NVIDIA}"
"""
    tree.write(TEMPLATE, TEMPLATE_TEXT.replace('"${RUNTIME}"', '"gpu"') + tables)
    assert tree.absent().changed
    containerd = cri(tree)["containerd"]
    assert (containerd["default_runtime_name"], set(containerd["runtimes"])) == ("${RUNTIME}", {"runc", BUNDLED})
    assert "default_runtime" not in containerd
    assert not tree.absent().changed


def test_keeps_placeholder_without_default(tmp_path: Path) -> None:
    tree = microk8s_tree(tmp_path)
    tree.write(NVIDIA)
    done = tree.present()
    assert (done.default_runtime, done.warnings) == ("runc", [])
    assert cri(tree)["containerd"]["default_runtime_name"] == "${RUNTIME}"


@pytest.mark.parametrize(
    ("generated", "lock", "default", "kind"),
    [
        (None, False, "runc", RUNC_TYPE),
        (None, True, BUNDLED, RUNC_TYPE),
        (("runc", "io.containerd.runc.v1"), True, "runc", "io.containerd.runc.v1"),
        ((BUNDLED, RUNC_TYPE), False, BUNDLED, RUNC_TYPE),
        # The generated file was edited.
        (("kata", "${RUNTIME_TYPE}"), False, "runc", RUNC_TYPE),
    ],
)
def test_values_of_placeholders(
    tmp_path: Path, generated: tuple[str, str] | None, lock: bool, default: str, kind: str
) -> None:
    tree = microk8s_tree(tmp_path)
    if generated:
        generate(tree, *generated)
    if lock:
        tree.write("/var/snap/microk8s/5000/var/lock/gpu", "")
    state = state_of(tree)
    assert state.default_runtime == default
    assert state.runtimes["runc"] == {"path": None, "runtime_type": kind}


@pytest.mark.parametrize("text", ["not toml", "plugins = 5\n", f"[{CRI}]\ncontainerd = 5\n"])
def test_ignores_broken_generated_file(tmp_path: Path, text: str) -> None:
    tree = microk8s_tree(tmp_path)
    tree.write("/var/snap/microk8s/5000/args/containerd.toml", text)
    assert state_of(tree).default_runtime == "runc"


def test_placeholders_in_paths(tmp_path: Path) -> None:
    text = TEMPLATE_TEXT.replace('BinaryName = "nvidia', 'BinaryName = "${SNAP}/x/${SNAP_DATA}/${OTHER}/nvidia')
    path = "/snap/microk8s/5000/x//var/snap/microk8s/5000/${OTHER}/nvidia-container-runtime"
    assert state_of(microk8s_tree(tmp_path, text)).paths()[BUNDLED] == path


def test_inherits_the_options_of_runc(tmp_path: Path) -> None:
    options = f"    [{CRI}.containerd.runtimes.runc.options]\n      SystemdCgroup = true\n"
    tree = microk8s_tree(tmp_path, TEMPLATE_TEXT.replace("  [" + CRI + ".cni]", options + "  [" + CRI + ".cni]"))
    generate(tree, BUNDLED)
    tree.present()
    assert cri(tree)["containerd"]["runtimes"]["nvidia"]["options"] == {"SystemdCgroup": True, "BinaryName": NVIDIA}


def test_inherits_runtime_type(tmp_path: Path) -> None:
    tree = microk8s_tree(tmp_path, TEMPLATE_TEXT.replace('"${RUNTIME_TYPE}"', '"io.containerd.runc.v1"', 1))
    tree.present()
    assert cri(tree)["containerd"]["runtimes"]["nvidia"]["runtime_type"] == "io.containerd.runc.v1"


def test_replaces_and_restores_bundled_runtime(tmp_path: Path) -> None:
    tree = microk8s_tree(tmp_path)
    tree.present(runtime_name=BUNDLED, set_as_default=True)
    assert cri(tree)["containerd"]["runtimes"][BUNDLED]["options"]["BinaryName"] == NVIDIA
    tree.absent()
    assert tree.text(TEMPLATE) == TEMPLATE_TEXT


def test_absent_without_a_record(tmp_path: Path) -> None:
    foreign = (
        f'[{CRI}.containerd.runtimes.nvidia]\n[{CRI}.containerd.runtimes.nvidia.options]\nBinaryName = "{NVIDIA}"\n'
    )
    tree = microk8s_tree(tmp_path, TEMPLATE_TEXT.replace("${RUNTIME}", "nvidia") + foreign)
    tree.absent()
    assert tree.text(TEMPLATE) == TEMPLATE_TEXT
    assert not tree.absent().changed


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"config_mode": "drop_in"}, r"MicroK8s does not support config_mode: drop_in.*auto, in_place"),
        ({"config_mode": "hook"}, r"MicroK8s does not support config_mode: hook"),
        ({"drop_in_path": "/x.toml"}, r"MicroK8s does not support drop_in_path"),
        ({"use_legacy_config": True}, r"does not support use_legacy_config"),
    ],
)
def test_refuses_unsupported_options(tmp_path: Path, asked: dict[str, t.Any], problem: str) -> None:
    tree = microk8s_tree(tmp_path)
    with pytest.raises(NvidiaError, match=problem):
        tree.present(**asked)
    assert tree.text(TEMPLATE) == TEMPLATE_TEXT


def test_refuses_missing_template(tmp_path: Path) -> None:
    tree = EngineTree(tmp_path, flavor="microk8s", live=False)
    with pytest.raises(NvidiaError, match=r"containerd-template.toml does not exist. Install MicroK8s"):
        tree.present()
    assert not tree.absent().changed
    assert tree.files() == {}


@pytest.mark.parametrize("snaps", ["snap", "var/lib/snapd/snap"])
@pytest.mark.parametrize(("confinement", "warned"), [("classic", False), ("strict", True)])
def test_warns_about_strict_confinement(tmp_path: Path, snaps: str, confinement: str, warned: bool) -> None:
    tree = microk8s_tree(tmp_path)
    tree.write(f"{snaps}/microk8s/current/meta/snap.yaml", f"name: microk8s\nconfinement: {confinement}\n")
    assert any("strictly confined" in warning for warning in tree.present().warnings) is warned


# -- a refresh of the snap ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/snap/microk8s/5000/args/x", "/var/snap/microk8s/current/args/x"),
        ("/var/snap/microk8s/x1/args/x", "/var/snap/microk8s/current/args/x"),
        ("/var/snap/docker/2932/config/daemon.json", "/var/snap/docker/current/config/daemon.json"),
        ("/var/snap/microk8s/current/args/x", "/var/snap/microk8s/current/args/x"),
        ("/var/snap/microk8s/common/5000/x", "/var/snap/microk8s/common/5000/x"),
        ("/etc/var/snap/microk8s/5000/x", "/etc/var/snap/microk8s/5000/x"),
        ("/var/snap/microk8s/5000", "/var/snap/microk8s/5000"),
    ],
)
def test_stable_snap_path(path: str, expected: str) -> None:
    assert stable_snap_path(path) == expected


@pytest.mark.parametrize("gone", [False, True])
def test_refresh_of_the_snap(tmp_path: Path, gone: bool) -> None:
    tree = microk8s_tree(tmp_path)
    tree.present(set_as_default=True)
    previous = tree.text("/var/snap/microk8s/5000/args/containerd-template.toml")
    refresh(tree, "5000", "5100")
    if gone:
        (tmp_path / "var/snap/microk8s/5000/args/containerd-template.toml").unlink()
    assert not tree.present().changed
    (record,) = load_records(tree.host, "microk8s")
    assert record.path == record.main == "/var/snap/microk8s/5100/args/containerd-template.toml"
    # A later change is recorded in the same place.
    assert tree.present(extra_modes=("cdi",)).changed
    assert len(load_records(tree.host, "microk8s")) == 1
    tree.absent()
    assert tree.text(TEMPLATE) == TEMPLATE_TEXT
    assert not load_records(tree.host, "microk8s")
    # `snap revert` uses the data of the previous revision.
    if not gone:
        assert tree.text("/var/snap/microk8s/5000/args/containerd-template.toml") == previous


def test_refresh_with_a_changed_template(tmp_path: Path) -> None:
    tree = microk8s_tree(tmp_path)
    tree.present(set_as_default=True)
    refresh(tree, "5000", "5100")
    tree.write(TEMPLATE, tree.text(TEMPLATE).replace("pause:3.10", "pause:3.11"))
    assert not tree.present().changed
    tree.absent()
    assert tree.text(TEMPLATE) == TEMPLATE_TEXT.replace("pause:3.10", "pause:3.11")


# -- live state and validation -----------------------------------------------------------------------------------------


def _config(default: str, nvidia: str, kind: str = RUNC_TYPE) -> dict[str, t.Any]:
    programs = {"runc": "", BUNDLED: BUNDLED, "nvidia": nvidia}
    runtimes = {name: {"runtimeType": kind, "options": {"BinaryName": path}} for name, path in programs.items()}
    return {"containerd": {"defaultRuntimeName": default, "runtimes": runtimes}}


@pytest.mark.parametrize(
    ("config", "action"),
    [
        (_config("nvidia", NVIDIA), Action.NONE),
        (_config("runc", NVIDIA), Action.RESTART),
        (_config("nvidia", "/old/nvidia-container-runtime"), Action.RESTART),
        (_config("nvidia", NVIDIA, "io.containerd.runc.v1"), Action.RESTART),
    ],
)
def test_required_action(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: t.Any, action: Action) -> None:
    tree = microk8s_tree(tmp_path)
    tree.present(set_as_default=True)
    generate(tree)
    monkeypatch.setattr(rpc_cri, "runtime_config", lambda _path: config)
    monkeypatch.setattr(rpc_cri, "version", lambda _path: "1.7.20")
    tree.live = True
    assert tree.present().pending_action is action


def test_validates_with_containerd_of_the_snap(tmp_path: Path) -> None:
    tree = microk8s_tree(tmp_path)
    tree.live = True
    assert tree.present(check_mode=True).changed
    assert [argv[2] for argv in tree.commands if "dump" in argv] == ["/snap/microk8s/current/bin/containerd"] * 2
    tree.answers = {"/after0-": (1, "", "no")}
    with pytest.raises(NvidiaError, match="containerd refuses the new content"):
        tree.present()
    assert tree.text(TEMPLATE) == TEMPLATE_TEXT


@pytest.mark.parametrize(
    "output",
    ["/snap/x: error while loading shared libraries: libx.so", "/snap/x cannot be run: Permission denied"],
)
def test_no_validator_outside_the_snap(tmp_path: Path, output: str) -> None:
    tree = microk8s_tree(tmp_path)
    tree.live = True
    tree.answers = {"bin/containerd": (127, "", output)}
    assert tree.present(check_mode=True).changed
    with pytest.raises(NvidiaError, match="validate is true, but this version of containerd has no validator"):
        tree.present(options={"validate": "true"})
