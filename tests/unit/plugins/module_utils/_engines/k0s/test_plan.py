# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# What k0s' containerd is given in drop-ins; how it stands on a host is in test__engine_k0s.py.

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action, HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k0s.engine import K0S
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.k0s_hosts import (
    GENERATED_2,
    GENERATED_3,
    MAIN_2,
    MAIN_3,
    MAIN_NATIVE,
    NVIDIA,
    Tree,
    k0s_tree,
)

if t.TYPE_CHECKING:
    from pathlib import Path

MAIN = "/etc/k0s/containerd.toml"
DROP_IN = "/etc/k0s/containerd.d/99-nvidia.toml"
CRI_2, CRI_3 = 'plugins."io.containerd.grpc.v1.cri"', "plugins.'io.containerd.cri.v1.runtime'"
RUNC_TYPE = "io.containerd.runc.v2"
OTHER = "etc/k0s/containerd.d/{0}.toml"
V130 = {"engine_version": "1.30.4+k0s.0"}


def document(tree: Tree, path: str = DROP_IN) -> dict[str, t.Any]:
    return TomlDocument.from_bytes(path, tree.text(path).encode()).data


def runtimes_2(tree: Tree) -> t.Any:
    return document(tree)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]


def runtime_2(name: str, program: str, **options: str) -> str:
    lines = "".join(f"{key} = {value}\n" for key, value in options.items())
    table = f"{CRI_2}.containerd.runtimes.{name}"
    return f'[{table}]\nruntime_type = "{RUNC_TYPE}"\n[{table}.options]\nBinaryName = "{program}"\n{lines}'


# -- there and back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("main", [MAIN_2, MAIN_3, MAIN_NATIVE, None])
def test_present_and_absent(tmp_path: Path, main: str | None) -> None:
    tree = k0s_tree(tmp_path, files={"etc/k0s/containerd.toml": main})
    before = tree.files()
    foretold = tree.present(check_mode=True, set_as_default=True, extra_modes=("cdi",))
    assert tree.files() == before
    done = tree.present(set_as_default=True, extra_modes=("cdi",))
    assert [(file.path, file.after) for file in foretold.files] == [(file.path, file.after) for file in done.files]
    assert [file.path for file in done.files] == [DROP_IN]
    assert done.drop_in_path == DROP_IN
    assert (done.default_runtime, done.restart_action) == ("nvidia", Action.RESTART)
    assert done.runtimes == {"nvidia": NVIDIA, "nvidia-cdi": NVIDIA + ".cdi"}
    assert tree.files()[DROP_IN[1:]][0] == 0o644
    assert set(tree.files()) - set(before) == {DROP_IN[1:]}
    assert not tree.present(set_as_default=True, extra_modes=("cdi",)).changed
    # The first start writes what is not there yet, which changes nothing of ours.
    tree.write("run/k0s/containerd-cri.toml", GENERATED_3 if main in (MAIN_3, MAIN_NATIVE) else GENERATED_2)
    assert not tree.present(extra_modes=("cdi",)).changed
    assert tree.absent().changed
    assert tree.files() == {**before, "run/k0s/containerd-cri.toml": tree.files()["run/k0s/containerd-cri.toml"]}
    assert not tree.absent().changed


def test_drop_in_contains_only_own_entries(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path)
    tree.present(set_as_default=True)
    assert document(tree) == {
        "version": 2,
        "plugins": {
            "io.containerd.grpc.v1.cri": {
                "containerd": {
                    "default_runtime_name": "nvidia",
                    "runtimes": {"nvidia": {"runtime_type": RUNC_TYPE, "options": {"BinaryName": NVIDIA}}},
                }
            }
        },
    }
    tree.present(set_as_default=False, enable_cdi=True)
    cri = document(tree)["plugins"]["io.containerd.grpc.v1.cri"]
    assert (cri["enable_cdi"], list(cri["containerd"])) == (True, ["runtimes"])


def test_inherits_options_of_generated_runc(tmp_path: Path) -> None:
    generated = GENERATED_2.replace("SystemdCgroup = false", "SystemdCgroup = true").replace(
        'BinaryName = ""', 'BinaryName = "/x/runc"'
    )
    tree = k0s_tree(tmp_path, files={"run/k0s/containerd-cri.toml": generated})
    tree.present()
    assert runtimes_2(tree)["nvidia"]["options"] == {"SystemdCgroup": True, "BinaryName": NVIDIA}


def test_inherits_options_of_other_drop_ins(tmp_path: Path) -> None:
    text = f"[{CRI_2}.containerd.runtimes.runc]\nbase_runtime_spec = '/b.json'\n"
    text += f"[{CRI_2}.containerd.runtimes.runc.options]\nSystemdCgroup = true\n"
    tree = k0s_tree(tmp_path, files={OTHER.format("cgroup"): text})
    tree.present()
    entry = runtimes_2(tree)["nvidia"]
    assert entry == {
        "runtime_type": RUNC_TYPE,
        "base_runtime_spec": "/b.json",
        "options": {"SystemdCgroup": True, "BinaryName": NVIDIA},
    }


@pytest.mark.parametrize("generated", ["not toml", "plugins = 5\n", GENERATED_3, ""])
def test_ignores_broken_generated_file(tmp_path: Path, generated: str) -> None:
    tree = k0s_tree(tmp_path, files={"run/k0s/containerd-cri.toml": generated})
    tree.present()
    assert runtimes_2(tree)["nvidia"]["options"] == {"BinaryName": NVIDIA}


def test_upgrade_converts_drop_in(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path)
    tree.present(set_as_default=True, options=V130)
    done = tree.present(options={"engine_version": "1.36.1"})
    assert (done.changed, done.default_runtime) == (True, "nvidia")
    assert document(tree)["version"] == 3
    assert list(document(tree)["plugins"]) == ["io.containerd.cri.v1.runtime"]
    tree.absent()
    assert not (tmp_path / DROP_IN[1:]).exists()


def test_another_drop_in_path(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path)
    before = tree.files()
    tree.present()
    done = tree.present(drop_in_path="/etc/k0s/containerd.d/nvidia.toml")
    assert sorted(file.path for file in done.files) == [DROP_IN, "/etc/k0s/containerd.d/nvidia.toml"]
    assert not (tmp_path / DROP_IN[1:]).exists()
    tree.absent()
    assert tree.files() == before


def test_omits_entries_of_earlier_drop_ins(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path, files={OTHER.format("10-nvidia"): "version = 2\n" + runtime_2("nvidia", NVIDIA)})
    before = tree.files()
    assert not tree.present().changed
    assert tree.files() == before


def test_overrides_entries_of_earlier_drop_ins(tmp_path: Path) -> None:
    earlier = runtime_2("nvidia", "/old/nvidia-container-runtime", Root='"/r"')
    tree = k0s_tree(tmp_path, files={OTHER.format("10-nvidia"): earlier})
    done = tree.present()
    assert done.runtimes["nvidia"] == NVIDIA
    assert runtimes_2(tree)["nvidia"] == {"options": {"BinaryName": NVIDIA}}


# -- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"config_mode": "in_place"}, r"k0s does not support config_mode: in_place.*auto, drop_in"),
        ({"config_mode": "hook"}, r"k0s does not support config_mode: hook"),
        ({"drop_in_path": "/etc/containerd/conf.d/x.toml"}, r"k0s does not read drop_in_path.*/etc/k0s/containerd.d"),
        ({"drop_in_path": "/etc/k0s/containerd.d/x.conf"}, r"ends in .toml"),
        ({"drop_in_path": "/etc/k0s/containerd.d/a/x.toml"}, r"k0s does not read drop_in_path"),
        ({"use_legacy_config": True}, r"does not support use_legacy_config"),
        ({"runtime_options": {"runtime_type": "x"}}, r"and set runtime_type instead"),
    ],
)
def test_refuses_unsupported_options(tmp_path: Path, asked: dict[str, t.Any], words: str) -> None:
    tree = k0s_tree(tmp_path)
    before = tree.files()
    with pytest.raises(NvidiaError, match=words):
        tree.present(**asked)
    assert tree.files() == before


@pytest.mark.parametrize(
    ("version", "asked", "words"),
    [
        ("1.26.9+k0s.0", {}, r"k0s 1.26.9 does not read /etc/k0s/containerd.d. Upgrade k0s to 1.27.1"),
        ("1.6.28", {}, r"A k0s with containerd 1.6.28 does not read"),
        ("1.27.4", {"set_as_default": True}, r"k0s 1.27.4 concatenates drop-ins .* Upgrade k0s to 1.27.5"),
        ("1.27.1", {"enable_cdi": True}, r"k0s 1.27.1 concatenates drop-ins"),
    ],
)
def test_refuses_old_release(tmp_path: Path, version: str, asked: dict[str, t.Any], words: str) -> None:
    tree = k0s_tree(tmp_path)
    with pytest.raises(NvidiaError, match=words):
        tree.present(options={"engine_version": version}, **asked)
    assert not (tmp_path / DROP_IN[1:]).exists()


@pytest.mark.parametrize(
    ("version", "asked"),
    [("1.27.1", {}), ("1.27.1", {"enable_cdi": "auto"}), ("1.27.5", {"set_as_default": True}), ("1.7.0", {})],
)
def test_accepts_release(tmp_path: Path, version: str, asked: dict[str, t.Any]) -> None:
    assert k0s_tree(tmp_path).present(options={"engine_version": version}, **asked).changed


def test_downgrade_with_own_default(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path)
    tree.present(set_as_default=True, options=V130)
    with pytest.raises(NvidiaError, match="concatenates drop-ins"):
        tree.present(options={"engine_version": "1.27.2"})
    assert tree.present(set_as_default=False, options={"engine_version": "1.27.2"}).changed


def test_unmanaged_main_file(tmp_path: Path) -> None:
    mine = "version = 2\n" + runtime_2("nvidia", NVIDIA)
    tree = k0s_tree(tmp_path, files={"etc/k0s/containerd.toml": mine})
    with pytest.raises(NvidiaError, match=r"k0s does not manage .*containerd.toml .*Move the file away and restart"):
        tree.present()
    assert not tree.absent().changed
    assert tree.text(MAIN) == mine
    # What it says counts.
    files = HostFiles(tree.host, "k0s")
    state = K0S.configured(files.as_configured(K0S.inspect(tree.host), "1.30.4"))
    assert state.paths() == {"nvidia": NVIDIA}


@pytest.mark.parametrize(
    ("text", "version", "managed"),
    [
        ("", "1.30.4", False),
        ("", "1.36.1", False),
        ("\n" + MAIN_2, "1.30.4", True),
        ("\n" + MAIN_3, "1.36.1", False),
        (MAIN_3, "1.36.1", True),
    ],
)
def test_managed_main_file(tmp_path: Path, text: str, version: str, managed: bool) -> None:
    tree = k0s_tree(tmp_path, files={"etc/k0s/containerd.toml": text})
    if managed:
        assert tree.present(options={"engine_version": version}).changed
    else:
        with pytest.raises(NvidiaError, match=r"k0s does not manage .*containerd.toml"):
            tree.present(options={"engine_version": version})


def test_absent_beside_unmanaged_main_file(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path)
    tree.present(set_as_default=True)
    tree.write("etc/k0s/containerd.toml", "version = 2\n")
    tree.absent()
    assert not (tmp_path / DROP_IN[1:]).exists()
    assert tree.text(MAIN) == "version = 2\n"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "nvidia",
            runtime_2("nvidia", "/op/nvidia-container-runtime"),
            r"containerd.d/nvidia.toml: .*overrides the runtime",
        ),
        (
            "zz",
            f'[{CRI_2}.containerd]\ndefault_runtime_name = "runc"\n',
            r"zz.toml: .*overrides default_runtime_name",
        ),
        (
            "aa",
            f'[{CRI_3}.containerd.runtimes.x]\nruntime_type = "y"\n',
            r"aa.toml: .*contains \[plugins.io.containerd.cri.v1.runtime",
        ),
        ("aa", "version = 3\n", r"aa.toml: k0s requires version = 2, but the file contains version = 3"),
    ],
)
def test_refuses_overriding_drop_ins(tmp_path: Path, name: str, text: str, words: str) -> None:
    tree = k0s_tree(tmp_path, files={OTHER.format(name): text})
    before = tree.files()
    with pytest.raises(NvidiaError, match=words):
        tree.present(set_as_default=True)
    assert tree.files() == before


@pytest.mark.parametrize("version", [None, "1.36.1", "2.3.3"])
def test_refuses_drop_in_of_another_version(tmp_path: Path, version: str | None) -> None:
    tree = k0s_tree(tmp_path, files={"etc/k0s/containerd.toml": MAIN_3, OTHER.format("x"): "version = 2\n"})
    with pytest.raises(NvidiaError, match=r"x.toml: k0s requires version = 3, but the file contains version = 2"):
        tree.present(options={"engine_version": version})


@pytest.mark.parametrize("text", ["[plugins\n", "plugins = 5\n", f"[{CRI_2}]\ncontainerd = 'x'\n"])
def test_names_broken_drop_in(tmp_path: Path, text: str) -> None:
    tree = k0s_tree(tmp_path, files={OTHER.format("broken"): text})
    with pytest.raises(ConfigurationError, match=r"containerd.d/broken.toml, line [12], column"):
        tree.present()


def test_foreign_file_at_drop_in_path(tmp_path: Path) -> None:
    text = f"# mine\nversion = 2\n[{CRI_2}]\nmax_container_log_line_size = 5\n"
    tree = k0s_tree(tmp_path, files={DROP_IN[1:]: text})
    tree.present()
    assert tree.text(DROP_IN).startswith(text)
    tree.absent()
    assert tree.text(DROP_IN) == text


def test_absent_without_a_record(tmp_path: Path) -> None:
    text = "version = 2\n" + runtime_2("nvidia", NVIDIA) + runtime_2("kata", "/k")
    tree = k0s_tree(tmp_path, files={DROP_IN[1:]: text})
    tree.absent()
    assert list(runtimes_2(tree)) == ["kata"]


# -- where no containerd of k0s runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("worker",), ""),
        (("worker", "--token-file=/t"), ""),
        (("controller", "--single"), ""),
        (("controller", "--single=true"), ""),
        (("controller", "--enable-worker"), ""),
        (("controller",), "k0scontroller.service runs a controller without a worker"),
        (("controller", "--enable-worker=false"), "k0scontroller.service runs a controller without a worker"),
        (("worker", "--cri-socket=remote:unix:///x.sock"), "uses another container runtime"),
        (("worker", "--cri-socket", "remote:unix:///x.sock"), "uses another container runtime"),
    ],
)
def test_warns_if_k0s_starts_no_containerd(tmp_path: Path, command: tuple[str, ...], words: str) -> None:
    warnings = k0s_tree(tmp_path, *command).present().warnings
    found = [warning for warning in warnings if "have no effect" in warning]
    assert [words in warning for warning in found] == ([True] if words else [])


def test_present_without_k0s(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "k0s")
    assert tree.present(options={"engine_version": "1.36.0"}).changed
    assert document(tree)["version"] == 3
    tree.absent()
    assert tree.files() == {}
