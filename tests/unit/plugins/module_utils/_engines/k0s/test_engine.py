# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action, HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k0s.engine import K0S
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri as rpc_cri
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import NVIDIA, EngineTree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.k0s_hosts import (
    CGROUP,
    CRI_2,
    DROP_IN,
    GENERATED_2,
    GENERATED_3,
    MAIN_2,
    MAIN_3,
    MAIN_NATIVE,
    RUNC_TYPE,
    UNIT,
    document,
    k0s_tree,
    runtime_2,
    runtimes_2,
)

if t.TYPE_CHECKING:
    from pathlib import Path

MAIN = "/etc/k0s/containerd.toml"
CRI_3 = "plugins.'io.containerd.cri.v1.runtime'"
OTHER = "etc/k0s/containerd.d/{0}.toml"
V130 = {"engine_version": "1.30.4+k0s.0"}


@pytest.fixture(autouse=True)
def no_running_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(K0S, "running", None)


# -- installation and live state ---------------------------------------------------------------------------------------


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
    tree = EngineTree(
        tmp_path,
        flavor="k0s",
        live=False,
        files={f"etc/systemd/system/{name}": UNIT.format("worker") for name in there},
    )
    for name in enabled:
        tree.write(f"etc/systemd/system/multi-user.target.wants/{name}", "")
    if running:
        tree.write(CGROUP.format(running), "7\n")
        tree.write("proc/7/comm", "containerd\n")
    tree.live = True
    assert K0S.inspect(tree.host).service == expected
    assert K0S.inspect(tree.host, "k0sworker").service == "k0sworker.service"


def test_version_command(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path, files={CGROUP.format("k0sworker.service"): ""})
    tree.live = True
    tree.answers = {"k0s": (0, "v1.30.4+k0s.0\n", "")}
    assert tree.present(check_mode=True).engine_version == "1.30.4+k0s.0"
    assert ["chroot", str(tmp_path), "/usr/local/bin/k0s", "version"] in tree.commands


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> t.Callable[..., None]:
    def prepare(config: t.Any, containerd: str = "1.7.20") -> None:
        monkeypatch.setattr(rpc_cri, "runtime_config", lambda _path: config)
        monkeypatch.setattr(rpc_cri, "version", lambda _path: containerd)

    return prepare


def _config(default: str, **programs: str) -> dict[str, t.Any]:
    runtimes = {
        name: {"runtimeType": RUNC_TYPE, "options": {"BinaryName": program, "SystemdCgroup": False}}
        for name, program in programs.items()
    }
    return {"containerd": {"defaultRuntimeName": default, "runtimes": runtimes}}


@pytest.mark.parametrize(
    ("config", "action"),
    [
        (_config("nvidia", runc="", nvidia=NVIDIA), Action.NONE),
        (_config("runc", runc="", nvidia=NVIDIA), Action.RESTART),
        (_config("nvidia", runc=""), Action.RESTART),
        (_config("nvidia", runc="", nvidia="/old/nvidia-container-runtime"), Action.RESTART),
        (_config("nvidia", runc="", nvidia=NVIDIA, gone=NVIDIA), Action.RESTART),
    ],
)
def test_required_action(tmp_path: Path, report: t.Any, config: t.Any, action: Action) -> None:
    tree = k0s_tree(tmp_path)
    tree.present(set_as_default=True)
    report(config)
    tree.live = True
    # The process is newer than all files.
    tree.write("proc/7/stat", "7 (containerd) " + " ".join(["0"] * 19 + ["99999999999"]))
    assert tree.present(options={"validate": "false"}).pending_action is action


@pytest.mark.parametrize("asked", [{"set_as_default": True}, {"enable_cdi": True}])
def test_checks_release_of_running_k0s(tmp_path: Path, report: t.Any, asked: dict[str, t.Any]) -> None:
    tree = k0s_tree(tmp_path)
    report(_config("runc", runc=""), "1.7.2")
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
    tmp_path: Path, report: t.Any, release: str, containerd: str, version: int
) -> None:
    tree = k0s_tree(tmp_path)
    report(_config("runc", runc=""), containerd)
    tree.live = True
    tree.answers = {"k0s": (0, f"v{release}+k0s.0\n", "")}
    done = tree.present(options={"validate": "false"})
    assert (done.config_version, document(tree)["version"]) == (version, version)
    assert done.engine_version == f"{release}+k0s.0"
    # A version of containerd that the user sets is used.
    asked = {"validate": "false", "engine_version": "2.0.1" if version == 2 else "1.7.1"}
    assert tree.present(check_mode=True, options=asked).config_version == 5 - version
    # After it is stopped, the version of the next start is used.
    tree.write(CGROUP.format("k0sworker.service"), "")
    assert tree.present(options={"validate": "false"}).config_version == (3 if release == "1.36.0" else 2)


def test_error_names_old_running_containerd(tmp_path: Path, report: t.Any) -> None:
    tree = k0s_tree(tmp_path)
    report(_config("runc", runc=""), "1.6.18")
    tree.live = True
    tree.answers = {"k0s": (0, "v1.30.4+k0s.0\n", "")}
    with pytest.raises(NvidiaError, match=r"A k0s with containerd 1.6.18 does not read"):
        tree.present()


# -- validation --------------------------------------------------------------------------------------------------------


def validation_commands(tree: EngineTree, **asked: t.Any) -> list[list[str]]:
    tree.live = True
    tree.present(check_mode=True, **asked)
    return [argv for argv in tree.commands if "dump" in argv]


def test_validates_with_containerd_of_k0s(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path, "worker", "--data-dir=/data/k0s", files={CGROUP.format("k0sworker.service"): ""})
    after, before = validation_commands(tree, options=V130)
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
        validation_commands(tree, options=V130)


@pytest.mark.parametrize(
    "output",
    [
        "/var/lib/k0s/bin/containerd cannot be run: No such file or directory",
        "chroot: failed to run command '/var/lib/k0s/bin/containerd': No such file or directory",
    ],
)
def test_no_validator_before_first_start(tmp_path: Path, output: str) -> None:
    tree = k0s_tree(tmp_path, files={CGROUP.format("k0sworker.service"): ""})
    tree.answers = {"/bin/containerd": (127, "", output)}
    assert validation_commands(tree, options=V130)
    with pytest.raises(NvidiaError, match="validate is true, but this version of containerd has no validator"):
        validation_commands(tree, options={**V130, "validate": "true"})


# -- plans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("main", [MAIN_2, MAIN_3, MAIN_NATIVE, None])
def test_present_and_absent(tmp_path: Path, main: str | None) -> None:
    tree = k0s_tree(tmp_path, files={"etc/k0s/containerd.toml": main})
    before = tree.files()
    predicted = tree.present(check_mode=True, set_as_default=True, extra_modes=("cdi",))
    assert tree.files() == before
    done = tree.present(set_as_default=True, extra_modes=("cdi",))
    assert [(file.path, file.after) for file in predicted.files] == [(file.path, file.after) for file in done.files]
    assert [file.path for file in done.files] == [DROP_IN]
    assert done.drop_in_path == DROP_IN
    assert (done.default_runtime, done.restart_action) == ("nvidia", Action.RESTART)
    assert done.runtimes == {"nvidia": NVIDIA, "nvidia-cdi": NVIDIA + ".cdi"}
    assert tree.files()[DROP_IN[1:]][0] == 0o644
    assert set(tree.files()) - set(before) == {DROP_IN[1:]}
    assert not tree.present(set_as_default=True, extra_modes=("cdi",)).changed
    # The first start writes missing files, which changes no own entry.
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


@pytest.mark.parametrize(
    ("asked", "problem"),
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
def test_refuses_unsupported_options(tmp_path: Path, asked: dict[str, t.Any], problem: str) -> None:
    tree = k0s_tree(tmp_path)
    before = tree.files()
    with pytest.raises(NvidiaError, match=problem):
        tree.present(**asked)
    assert tree.files() == before


@pytest.mark.parametrize(
    ("version", "asked", "problem"),
    [
        ("1.26.9+k0s.0", {}, r"k0s 1.26.9 does not read /etc/k0s/containerd.d. Upgrade k0s to 1.27.1"),
        ("1.6.28", {}, r"A k0s with containerd 1.6.28 does not read"),
        ("1.27.4", {"set_as_default": True}, r"k0s 1.27.4 concatenates drop-ins .* Upgrade k0s to 1.27.5"),
        ("1.27.1", {"enable_cdi": True}, r"k0s 1.27.1 concatenates drop-ins"),
    ],
)
def test_refuses_old_release(tmp_path: Path, version: str, asked: dict[str, t.Any], problem: str) -> None:
    tree = k0s_tree(tmp_path)
    with pytest.raises(NvidiaError, match=problem):
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


def test_downgrade_with_own_cdi(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path)
    tree.present(enable_cdi=True, options=V130)
    with pytest.raises(NvidiaError, match="concatenates drop-ins"):
        tree.present(options={"engine_version": "1.27.2"})
    assert "enable_cdi" in (tmp_path / DROP_IN[1:]).read_text()
    assert tree.present(set_as_default=False, options={"engine_version": "1.27.2"}).changed
    assert "enable_cdi" not in (tmp_path / DROP_IN[1:]).read_text()


def test_unmanaged_main_file(tmp_path: Path) -> None:
    mine = "version = 2\n" + runtime_2("nvidia", NVIDIA)
    tree = k0s_tree(tmp_path, files={"etc/k0s/containerd.toml": mine})
    with pytest.raises(NvidiaError, match=r"k0s does not manage .*containerd.toml .*Move this file away and restart"):
        tree.present()
    assert not tree.absent().changed
    assert tree.text(MAIN) == mine
    # Its settings have effect.
    files = HostFiles(tree.host, "k0s")
    state = K0S.configured(files.as_configured(K0S.inspect(tree.host), "1.30.4"))
    assert state.paths() == {"nvidia": NVIDIA}


def test_absent_beside_unmanaged_main_file(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path)
    tree.present(set_as_default=True)
    tree.write("etc/k0s/containerd.toml", "version = 2\n")
    tree.absent()
    assert not (tmp_path / DROP_IN[1:]).exists()
    assert tree.text(MAIN) == "version = 2\n"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
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
def test_refuses_overriding_drop_ins(tmp_path: Path, name: str, text: str, problem: str) -> None:
    tree = k0s_tree(tmp_path, files={OTHER.format(name): text})
    before = tree.files()
    with pytest.raises(NvidiaError, match=problem):
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


@pytest.mark.parametrize(
    ("command", "problem"),
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
def test_warns_if_k0s_starts_no_containerd(tmp_path: Path, command: tuple[str, ...], problem: str) -> None:
    warnings = k0s_tree(tmp_path, *command).present().warnings
    found = [warning for warning in warnings if "have no effect" in warning]
    assert [problem in warning for warning in found] == ([True] if problem else [])


def test_present_without_k0s(tmp_path: Path) -> None:
    tree = EngineTree(tmp_path, flavor="k0s", live=False)
    assert tree.present(options={"engine_version": "1.36.0"}).changed
    assert document(tree)["version"] == 3
    tree.absent()
    assert tree.files() == {}
