# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action, HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k0s.config import (
    K0sFiles,
    containerd_of,
    is_managed,
    is_release,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k0s.engine import K0S
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri as rpc_cri
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.k0s_hosts import (
    CGROUP,
    HEADER,
    MAIN_2,
    MAIN_3,
    MAIN_NATIVE,
    NVIDIA,
    UNIT,
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


@pytest.fixture(autouse=True)
def none_met_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(K0S, "running", None)


def document(tree: Tree, path: str = DROP_IN) -> dict[str, t.Any]:
    return TomlDocument.from_bytes(path, tree.text(path).encode()).data


def runtimes_2(tree: Tree) -> t.Any:
    return document(tree)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]


def runtime_2(name: str, program: str, **options: str) -> str:
    lines = "".join(f"{key} = {value}\n" for key, value in options.items())
    table = f"{CRI_2}.containerd.runtimes.{name}"
    return f'[{table}]\nruntime_type = "{RUNC_TYPE}"\n[{table}.options]\nBinaryName = "{program}"\n{lines}'


# -- how it is installed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "service"),
    [
        (("worker",), "k0sworker.service"),
        (("controller", "--enable-worker"), "k0scontroller.service"),
        (("controller", "--single"), "k0scontroller.service"),
    ],
)
def test_inspect(tmp_path: Path, command: tuple[str, ...], service: str) -> None:
    tree = k0s_tree(tmp_path, *command)
    tree.live = True
    found = K0S.inspect(tree.host)
    assert (found.binary, found.service, found.pid) == ("/usr/local/bin/k0s", service, 7)
    assert (found.socket, found.config_path) == ("/run/k0s/containerd.sock", MAIN)
    assert found.warnings() == []


@pytest.mark.parametrize(
    ("there", "enabled", "running", "expected"),
    [
        ((), (), None, "k0sworker.service"),
        (("k0scontroller.service",), (), None, "k0scontroller.service"),
        (("k0sworker.service", "k0scontroller.service"), (), None, "k0sworker.service"),
        (("k0sworker.service", "k0scontroller.service"), ("k0scontroller.service",), None, "k0scontroller.service"),
        (
            ("k0sworker.service", "k0scontroller.service"),
            ("k0sworker.service",),
            "k0scontroller.service",
            "k0scontroller.service",
        ),
    ],
)
def test_selects_unit(
    tmp_path: Path, there: tuple[str, ...], enabled: tuple[str, ...], running: str | None, expected: str
) -> None:
    tree = Tree(tmp_path, "k0s", {f"etc/systemd/system/{name}": UNIT.format("worker") for name in there})
    for name in enabled:
        tree.write(f"etc/systemd/system/multi-user.target.wants/{name}", "")
    if running:
        tree.write(CGROUP.format(running), "7\n")
        tree.write("proc/7/comm", "containerd\n")
    tree.live = True
    assert K0S.inspect(tree.host).service == expected
    assert K0S.inspect(tree.host, "k0sworker").service == "k0sworker.service"


# -- which version ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "release", "containerd"),
    [
        (None, False, None),
        ((1, 26, 3), True, (1, 6)),
        ((1, 27, 1), True, (1, 7)),
        ((1, 35, 9), True, (1, 7)),
        ((1, 36), True, (2, 0)),
        ((1, 36, 1), True, (2, 0)),
        # Of its containerd, as the CRI tells it.
        ((1, 6, 28), False, (1, 6, 28)),
        ((1, 7, 20), False, (1, 7, 20)),
        ((2, 2, 1), False, (2, 2, 1)),
    ],
)
def test_versions_of_k0s_and_containerd(
    version: tuple[int, ...] | None, release: bool, containerd: tuple[int, ...] | None
) -> None:
    assert is_release(version) is release
    assert containerd_of(version) == containerd


@pytest.mark.parametrize(
    ("text", "before_1_36", "since_1_36"),
    [
        ("", False, False),
        (MAIN_2, True, True),
        (MAIN_2.replace("\n", "\r\n"), True, True),
        ("\n" + MAIN_2, True, False),
        ("version = 2\n" + HEADER, True, False),
        ("# mine\n" + HEADER, True, False),
        (" # k0s_managed=true\nversion = 2\n", False, False),
        ("# k0s_managed=false\n", False, False),
        ("version = 2\n", False, False),
    ],
)
def test_is_managed(text: str, before_1_36: bool, since_1_36: bool) -> None:
    assert is_managed(text, None) is before_1_36
    assert is_managed(text, containerd_of((1, 35, 7))) is before_1_36
    assert is_managed(text, containerd_of((1, 36, 1))) is since_1_36


@pytest.mark.parametrize(
    ("main", "engine_version", "version"),
    [
        (MAIN_2, None, 2),
        (MAIN_3, None, 3),
        (MAIN_NATIVE, None, 3),
        (None, None, 2),
        (None, "1.30.4+k0s.0", 2),
        (None, "1.36.0+k0s.0", 3),
        (None, "1.7.20", 2),
        (None, "2.2.1", 3),
        # The next start of another k0s writes the main file anew.
        (MAIN_2, "1.36.0+k0s.0", 3),
        (MAIN_3, "1.35.1+k0s.0", 2),
        # One that runs goes on reading what it has read so far.
        (MAIN_2, "1.7.27", 2),
        (MAIN_3.replace("version = 3", "version = 4"), "2.3.5", 4),
    ],
)
def test_configuration_version_at_next_start(
    tmp_path: Path, main: str | None, engine_version: str | None, version: int
) -> None:
    tree = k0s_tree(tmp_path, files={"etc/k0s/containerd.toml": main})
    done = tree.present(options={"engine_version": engine_version})
    assert done.config_version == version
    assert document(tree)["version"] == version
    plugin = "io.containerd.grpc.v1.cri" if version == 2 else "io.containerd.cri.v1.runtime"
    assert list(document(tree)["plugins"]) == [plugin]


def test_version_command(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path, files={CGROUP.format("k0sworker.service"): ""})
    tree.live = True
    tree.answers = {"k0s": (0, "v1.30.4+k0s.0\n", "")}
    assert tree.present(check_mode=True).engine_version == "1.30.4+k0s.0"
    assert ["chroot", str(tmp_path), "/usr/local/bin/k0s", "version"] in tree.commands


# -- the running one -------------------------------------------------------------------------------------------------


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> t.Callable[..., None]:
    def prepare(config: t.Any, containerd: str = "1.7.20") -> None:
        monkeypatch.setattr(rpc_cri, "runtime_config", lambda _path: config)
        monkeypatch.setattr(rpc_cri, "version", lambda _path: containerd)

    return prepare


def _told(default: str, **programs: str) -> dict[str, t.Any]:
    runtimes = {
        name: {"runtimeType": RUNC_TYPE, "options": {"BinaryName": program, "SystemdCgroup": False}}
        for name, program in programs.items()
    }
    return {"containerd": {"defaultRuntimeName": default, "runtimes": runtimes}}


@pytest.mark.parametrize(
    ("config", "action"),
    [
        (_told("nvidia", runc="", nvidia=NVIDIA), Action.NONE),
        (_told("runc", runc="", nvidia=NVIDIA), Action.RESTART),
        (_told("nvidia", runc=""), Action.RESTART),
        (_told("nvidia", runc="", nvidia="/old/nvidia-container-runtime"), Action.RESTART),
        (_told("nvidia", runc="", nvidia=NVIDIA, gone=NVIDIA), Action.RESTART),
    ],
)
def test_required_action(tmp_path: Path, say: t.Any, config: t.Any, action: Action) -> None:
    tree = k0s_tree(tmp_path)
    tree.present(set_as_default=True)
    say(config)
    tree.live = True
    # Started just now: the boot lies too far back for any file.
    tree.write("proc/7/stat", "7 (containerd) " + " ".join(["0"] * 19 + ["99999999999"]))
    assert tree.present(options={"validate": "false"}).pending_action is action


@pytest.mark.parametrize("asked", [{"set_as_default": True}, {"enable_cdi": True}])
def test_checks_release_of_running_k0s(tmp_path: Path, say: t.Any, asked: dict[str, t.Any]) -> None:
    tree = k0s_tree(tmp_path)
    say(_told("runc", runc=""), "1.7.2")
    tree.live = True
    tree.answers = {"k0s": (0, "v1.27.4+k0s.0\n", "")}
    before = tree.files()
    with pytest.raises(NvidiaError, match=r"k0s 1.27.4 concatenates drop-ins"):
        tree.present(**asked)
    assert tree.files() == before
    assert tree.present(check_mode=True).engine_version == "1.27.4+k0s.0"


@pytest.mark.parametrize(
    ("release", "containerd", "version"),
    [("1.36.0", "1.7.27", 2), ("1.35.1", "2.2.1", 3), ("1.36.0", "", 3)],
    ids=["a program that is newer", "one that is older", "it does not tell"],
)
def test_configuration_version_of_running_containerd(
    tmp_path: Path, say: t.Any, release: str, containerd: str, version: int
) -> None:
    tree = k0s_tree(tmp_path)
    say(_told("runc", runc=""), containerd)
    tree.live = True
    tree.answers = {"k0s": (0, f"v{release}+k0s.0\n", "")}
    done = tree.present(options={"validate": "false"})
    assert (done.config_version, document(tree)["version"]) == (version, version)
    assert done.engine_version == f"{release}+k0s.0"
    # Who names a containerd is believed.
    asked = {"validate": "false", "engine_version": "2.0.1" if version == 2 else "1.7.1"}
    assert tree.present(check_mode=True, options=asked).config_version == 5 - version
    # Once it is stopped, the next start decides.
    tree.write(CGROUP.format("k0sworker.service"), "")
    assert tree.present(options={"validate": "false"}).config_version == (3 if release == "1.36.0" else 2)


def test_error_names_old_running_containerd(tmp_path: Path, say: t.Any) -> None:
    tree = k0s_tree(tmp_path)
    say(_told("runc", runc=""), "1.6.18")
    tree.live = True
    tree.answers = {"k0s": (0, "v1.30.4+k0s.0\n", "")}
    with pytest.raises(NvidiaError, match=r"A k0s with containerd 1.6.18 does not read"):
        tree.present()


def test_config_files(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path, files={OTHER.format("x"): "version = 2\n"})
    assert K0S.config_files(tree.host, K0S.inspect(tree.host)) == [
        MAIN,
        "/etc/k0s/containerd.d/x.toml",
        "/run/k0s/containerd-cri.toml",
    ]
    tree.write(MAIN, "[")
    assert K0S.config_files(tree.host, K0S.inspect(tree.host)) == [MAIN]


def test_defines_runc(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path)
    tree.present()
    state = K0S.configured(HostFiles(tree.host, "k0s").as_configured(K0S.inspect(tree.host), None))
    for version in (None, (1, 7, 20), (1, 30, 4), (1, 36), (2, 2)):
        assert K0S.defines_runtime("runc", state, version)
        assert K0S.defines_runtime("nvidia", state, version)
        assert not K0S.defines_runtime("gpu", state, version)


@pytest.mark.parametrize(("version", "known"), [((1, 35), False), ((1, 36), True), ((1, 7, 20), False), ((2, 2), True)])
def test_defines_runc_beside_unmanaged_main_file(tmp_path: Path, version: tuple[int, ...], known: bool) -> None:
    lone = "version = 2\n" + f'[{CRI_2}.containerd.runtimes.nvidia.options]\nBinaryName = "{NVIDIA}"\n'
    tree = k0s_tree(tmp_path, files={"etc/k0s/containerd.toml": lone})
    state = K0S.configured(HostFiles(tree.host, "k0s").as_configured(K0S.inspect(tree.host), None))
    assert K0S.defines_runtime("runc", state, version) is known


# -- the validator ---------------------------------------------------------------------------------------------------


def judged(tree: Tree, **asked: t.Any) -> list[list[str]]:
    tree.live = True
    tree.present(check_mode=True, **asked)
    return [argv for argv in tree.commands if "dump" in argv]


def test_validates_with_containerd_of_k0s(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path, "worker", "--data-dir=/data/k0s", files={CGROUP.format("k0sworker.service"): ""})
    after, before = judged(tree, options=V130)
    assert after[2] == before[2] == "/data/k0s/bin/containerd"
    assert after[4].endswith("/after.toml")
    assert before[4].endswith("/before.toml")


def test_validates_merged_drop_ins(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path, files={OTHER.format("a"): f"[{CRI_2}]\nenable_selinux = true\n"})
    configuration = tree.configuration(None)
    tree.present()
    context = configuration.state.context()
    plan = K0S.absent(configuration.state.context()._replace(recorded=(DROP_IN,)))
    command = K0S.validation_command("", "/scratch", [file for file in plan.files if file.changed], context)
    texts = {name: TomlDocument.from_bytes(name, text).data for name, text in command.files.items()}
    cri = {name: data["plugins"]["io.containerd.grpc.v1.cri"] for name, data in texts.items()}
    assert sorted(cri["before.toml"]["containerd"]["runtimes"]) == ["nvidia", "runc"]
    assert sorted(cri["after.toml"]["containerd"]["runtimes"]) == ["runc"]
    assert cri["after.toml"]["enable_selinux"] is True
    assert command.original_paths == {"after.toml": DROP_IN}
    before, after = (command.files[name].decode() for name in ("before.toml", "after.toml"))
    assert K0S.compare_dumps(before, after, plan.files) == ""
    assert "enable_selinux" in K0S.compare_dumps(before, after.replace("enable_selinux = true\n", ""), plan.files)


def test_refused_by_validator(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path, files={CGROUP.format("k0sworker.service"): ""})
    tree.answers = {"/after.toml": (1, "", "containerd: failed to load TOML from /x/after.toml: no")}
    with pytest.raises(NvidiaError, match="containerd refuses the new content"):
        judged(tree, options=V130)


@pytest.mark.parametrize(
    "said",
    [
        "/var/lib/k0s/bin/containerd cannot be run: No such file or directory",
        "chroot: failed to run command '/var/lib/k0s/bin/containerd': No such file or directory",
    ],
)
def test_no_validator_before_first_start(tmp_path: Path, said: str) -> None:
    tree = k0s_tree(tmp_path, files={CGROUP.format("k0sworker.service"): ""})
    tree.answers = {"/bin/containerd": (127, "", said)}
    assert judged(tree, options=V130)
    with pytest.raises(NvidiaError, match="validate is true, but this version of containerd has no validator"):
        judged(tree, options={**V130, "validate": "true"})


def test_files_of_an_empty_host() -> None:
    files = K0sFiles(HostFiles(HostFS("/nonexistent", live=False), "k0s"), MAIN, None)
    assert files.managed
    assert files.version == 2
    assert files.runtimes() == {"runc": {"runtime_type": RUNC_TYPE}}
