# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.plan import PlannedFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import OriginalFile, digest, record_path
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import (
    Action,
    ConfiguredState,
    HostFiles,
    Installation,
    LiveState,
    ValidationCommand,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.engine import (
    CONTAINERD,
    ContainerdOfUnit,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_configs import DROP_IN, MAIN
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import (
    CRI_2,
    NVIDIA,
    Host,
    default,
    runtime,
)

if t.TYPE_CHECKING:
    from pathlib import Path

SOCKET = "/run/containerd/containerd.sock"


def tree(root: Path, command: str | None = "/usr/bin/containerd", files: t.Mapping[str, str] | None = None) -> HostFS:
    """Return a host with containerd as process 7. ``command`` is the command of its unit."""
    given = {"proc/7/comm": "containerd\n", "usr/bin/containerd": "", "usr/local/bin/containerd": ""}
    given["sys/fs/cgroup/system.slice/containerd.service/cgroup.procs"] = "7\n"
    if command is not None:
        given["lib/systemd/system/containerd.service"] = f"[Service]\nExecStart={command}\n"
    for name, text in {**given, **(files or {})}.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if name.endswith("bin/containerd"):
            path.chmod(0o755)
    return HostFS(str(root))


# -- installation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "binary", "config_path", "socket"),
    [
        ("/usr/bin/containerd", "/usr/bin/containerd", MAIN, SOCKET),
        ("/usr/local/bin/containerd", "/usr/local/bin/containerd", MAIN, SOCKET),
        ("-/opt/none/containerd", "/usr/local/bin/containerd", MAIN, SOCKET),
        ("/usr/bin/containerd --config /x.toml", "/usr/bin/containerd", "/x.toml", SOCKET),
        ("/usr/bin/containerd --config=/x.toml --log-level debug", "/usr/bin/containerd", "/x.toml", SOCKET),
        ("/usr/bin/containerd -c /x.toml -a /s.sock", "/usr/bin/containerd", "/x.toml", "/s.sock"),
        ("/usr/bin/containerd -c=/x.toml --address=/s.sock", "/usr/bin/containerd", "/x.toml", "/s.sock"),
        ("/usr/bin/containerd --config /a.toml --address /b --config /c.toml", "/usr/bin/containerd", "/c.toml", "/b"),
        (None, "/usr/local/bin/containerd", MAIN, SOCKET),
    ],
)
def test_inspect(tmp_path: Path, command: str | None, binary: str, config_path: str, socket: str) -> None:
    found = CONTAINERD.inspect(tree(tmp_path, command))
    assert (found.binary, found.config_path, found.socket) == (binary, config_path, socket)
    assert found.service == "containerd.service"
    assert (found.unit is None) is (command is None)
    assert found.pid == (7 if command else None)


def test_masked_unit_is_no_installation(tmp_path: Path) -> None:
    host = tree(tmp_path, None)
    assert CONTAINERD.inspect(host).installed
    unit = tmp_path / "etc/systemd/system/containerd.service"
    unit.parent.mkdir(parents=True, exist_ok=True)
    unit.symlink_to("/dev/null")
    found = CONTAINERD.inspect(host)
    assert (found.installed, found.binary) == (False, "/usr/local/bin/containerd")


@pytest.mark.parametrize(
    ("text", "flags", "socket"),
    [
        ('version = 2\n[grpc]\n  address = "/run/gpu.sock"\n', "", "/run/gpu.sock"),
        ('version = 2\ngrpc.address = "/run/gpu.sock"\n', "", "/run/gpu.sock"),
        ("version = 2\ngrpc = {address = '/run/gpu.sock'}\n", "", "/run/gpu.sock"),
        # The flag has precedence.
        ('version = 2\n[grpc]\n  address = "/run/gpu.sock"\n', "--address /run/flag.sock", "/run/flag.sock"),
        ('version = 2\nimports = ["/etc/more.toml"]\n[grpc]\n  address = "/run/gpu.sock"\n', "", "/run/more.sock"),
        # Version 4 has another key. The old one has no effect (config dump of 2.3.4).
        ("version = 4\n[plugins.'io.containerd.server.v1.grpc']\naddress = '/run/4.sock'\n", "", "/run/4.sock"),
        ("version = 4\n[grpc]\n  address = '/run/gpu.sock'\n", "", SOCKET),
        (
            "version = 3\ngrpc.address = '/run/3'\nplugins.'io.containerd.server.v1.grpc'.address = '/run/4.sock'\n",
            "",
            "/run/4.sock",
        ),
        ("version = 4\nimports = ['/etc/more.toml']\n", "", "/run/more.sock"),
        ("version = 2\n[grpc]\n  uid = 0\n", "", SOCKET),
        ("version = 2\n[grpc]\n  address = 7\n", "", SOCKET),
        ('version = 2\n[grpc]\n  address = "relative"\n', "", SOCKET),
        # containerd starts with neither.
        ("version = 2\n[grpc]\n  address = \n", "", SOCKET),
        ('version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  address = "/run/none.sock"\n', "", SOCKET),
    ],
)
def test_socket_in_files(tmp_path: Path, text: str, flags: str, socket: str) -> None:
    more = 'version = 2\n[grpc]\n  address = "/run/more.sock"\n'
    made = tree(tmp_path, f"/usr/bin/containerd {flags}", {MAIN[1:]: text, "etc/more.toml": more})
    assert CONTAINERD.inspect(made).socket == socket


def test_inspect_without_containerd(tmp_path: Path) -> None:
    assert CONTAINERD.inspect(HostFS(str(tmp_path), live=False)) == Installation(
        None, None, "containerd.service", SOCKET, MAIN, None
    )


@pytest.mark.parametrize(
    ("command_line", "config_path", "socket", "wrapper"),
    [
        ("/opt/bin/containerd\0--config\0/x.toml\0--address\0/s.sock\0", "/x.toml", "/s.sock", ""),
        ("containerd\0", MAIN, SOCKET, ""),
        # The process has just ended.
        ("", MAIN, SOCKET, "/bin/sh"),
    ],
)
def test_flags_of_the_process_behind_a_wrapper(
    tmp_path: Path, command_line: str, config_path: str, socket: str, wrapper: str
) -> None:
    made = tree(tmp_path, "/bin/sh -c 'exec containerd $FLAGS'", {"proc/7/cmdline": command_line})
    found = CONTAINERD.inspect(made)
    assert (found.config_path, found.socket, found.pid) == (config_path, socket, 7)
    assert found.unit is not None
    assert found.unit.wrapper == wrapper
    (tmp_path / "sys/fs/cgroup/system.slice/containerd.service/cgroup.procs").write_text("")
    stopped = CONTAINERD.inspect(made)
    assert stopped.config_path == MAIN
    assert stopped.warnings()


@pytest.mark.parametrize(
    ("asked", "drop_in"),
    [(None, "/etc/gpu/containerd-gpu.d/99-nvidia.toml"), ("/etc/gpu/own.toml", "/etc/gpu/own.toml")],
)
def test_second_containerd_has_its_own_drop_in(tmp_path: Path, asked: str | None, drop_in: str) -> None:
    files = {
        "etc/systemd/system/containerd-gpu.service": "[Service]\nExecStart=/usr/bin/containerd -c /etc/gpu/c.toml\n",
        "etc/gpu/c.toml": "version = 3\n",
    }
    host = tree(tmp_path, files=files)
    engine = ContainerdOfUnit("containerd-gpu.service")
    context = HostFiles(host, engine.key).as_configured(engine.inspect(host), "2.1.9")
    plan = engine.present(RuntimeRequest(drop_in_path=asked), context)
    assert [file.path for file in plan.files if file.changed] == [drop_in, "/etc/gpu/c.toml"]
    assert plan.drop_in_path == drop_in


# -- live state --------------------------------------------------------------------------------------------------------


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> t.Callable[[t.Any], list[str]]:
    """Set the configuration that the CRI reports (None: no answer). Return the sockets that are used."""

    def prepare(config: t.Any) -> list[str]:
        asked: list[str] = []

        def status(path: str) -> t.Any:
            asked.append(path)
            return config

        monkeypatch.setattr(cri, "runtime_config", status)
        monkeypatch.setattr(cri, "version", lambda _path: "1.7.24")
        return asked

    return prepare


@pytest.mark.parametrize(
    ("config", "live"),
    [
        (
            {
                "containerd": {
                    "defaultRuntimeName": "nvidia",
                    "runtimes": {
                        "runc": {"options": None},
                        "crun": {"options": {}},
                        "nvidia": {"options": {"BinaryName": NVIDIA}},
                        "kubespray": {"options": {"binaryName": "/usr/local/bin/runc"}},
                        "odd": 5,
                    },
                },
                "enableCDI": False,
            },
            LiveState(
                "",
                {"runc": "", "crun": "", "nvidia": NVIDIA, "kubespray": "/usr/local/bin/runc", "odd": ""},
                "nvidia",
                cdi=False,
            ),
        ),
        ({"containerd": {"defaultRuntimeName": "runc"}}, LiveState("", {}, "runc")),
        ({"containerd": {"runtimes": None}, "enableCDI": True}, LiveState("", {}, "", cdi=True)),
        ({"cdiSpecDirs": ["/opt/cdi", 5]}, LiveState("", {}, "", cdi_folders=("/opt/cdi",))),
        # Reported by containerd 1.7.24 and 2.1.9.
        ({"cdiSpecDirs": [], "enableCDI": True}, LiveState("", {}, "", cdi=False, cdi_folders=())),
        ({"cdiSpecDirs": None, "enableCDI": True}, LiveState("", {}, "", cdi=True)),
        ({}, LiveState("", {}, "")),
    ],
)
def test_live(tmp_path: Path, report: t.Any, config: t.Any, live: LiveState) -> None:
    host = tree(tmp_path)
    asked = report(config)
    found = CONTAINERD.live(host, CONTAINERD.inspect(host))
    assert found is not None
    assert found._replace(entries={}) == live._replace(entries={}, version="1.7.24")
    assert asked == [str(tmp_path) + SOCKET]


def test_live_without_a_process(tmp_path: Path, report: t.Any) -> None:
    asked = report({})
    assert CONTAINERD.live(HostFS(str(tmp_path)), CONTAINERD.inspect(HostFS(str(tmp_path)))) is None
    assert asked == []


@pytest.mark.parametrize(
    ("newer", "late"), [(None, False), (MAIN, True), ("/x/imported.toml", True), ("/x/other.toml", False)]
)
def test_live_without_an_answer(tmp_path: Path, report: t.Any, newer: str | None, late: bool) -> None:
    main = 'version = 2\nimports = ["/x/i*.toml"]\n'
    files = {MAIN: main, "/x/imported.toml": "version = 2\n", "/x/other.toml": ""}
    host = tree(tmp_path, files={**files, "proc/7/stat": f"7 (containerd) S {' '.join(['0'] * 18)} 100 0\n"})
    report(None)
    for name in files:
        age = 2**31 if name == newer else 0
        os.utime(str(tmp_path) + name, (age, age))
    live = CONTAINERD.live(host, CONTAINERD.inspect(host))
    assert live == LiveState("", {}, "", runtimes_unknown=True, outdated=late)


@pytest.mark.parametrize(("own", "edited", "late"), [(True, "", True), (False, "", False), (True, "# edited", False)])
def test_live_compares_age_with_own_files(tmp_path: Path, report: t.Any, own: bool, edited: str, late: bool) -> None:
    drop_in = "/etc/containerd/conf.d/99-nvidia.toml"
    record = OriginalFile("containerd", drop_in, None, 0, 0, 0o644, created=own, main=MAIN, written=(digest(b""),))
    stat = f"7 (containerd) S {' '.join(['0'] * 18)} 100 0\n"
    files = {drop_in: edited, record_path("containerd", drop_in): record.to_bytes().decode(), "proc/7/stat": stat}
    host = tree(tmp_path, files=files)
    os.utime(str(tmp_path) + drop_in, (2**31, 2**31))
    report({"containerd": {"defaultRuntimeName": "runc"}})
    live = CONTAINERD.live(host, CONTAINERD.inspect(host))
    assert live is not None
    assert live.outdated is late
    assert CONTAINERD.required_action(live, state()) is (Action.RESTART if late else Action.NONE)


def test_live_without_an_answer_and_with_a_broken_file(tmp_path: Path, report: t.Any) -> None:
    host = tree(tmp_path, files={MAIN: "= broken", "proc/7/stat": f"7 (x) S {' '.join(['0'] * 18)} 100 0\n"})
    report(None)
    os.utime(str(tmp_path) + MAIN, (2**31, 2**31))
    live = CONTAINERD.live(host, CONTAINERD.inspect(host))
    assert live is not None
    assert live.outdated


# -- required action ---------------------------------------------------------------------------------------------------


def state(
    runtimes: t.Mapping[str, str | None] | None = None, default_name: str | None = None, **more: t.Any
) -> ConfiguredState:
    entries = {
        name: {"path": path, **({} if path is None else {"options": {"BinaryName": path}})}
        for name, path in (runtimes or {}).items()
    }
    return ConfiguredState(entries, default_name, **more)


@pytest.mark.parametrize(
    ("live", "wanted", "action"),
    [
        ({"runc": ""}, state(), Action.NONE),
        ({"runc": ""}, state({"runc": None}), Action.NONE),
        ({"runc": "", "nvidia": NVIDIA}, state({"runc": None, "nvidia": NVIDIA}), Action.NONE),
        ({"runc": ""}, state({"nvidia": NVIDIA}), Action.RESTART),
        ({"nvidia": "/old"}, state({"nvidia": NVIDIA}), Action.RESTART),
        ({"nvidia": ""}, state({"nvidia": NVIDIA}), Action.RESTART),
        # An NVIDIA runtime that is no longer configured. Other runtimes may be built in.
        ({"nvidia": NVIDIA}, state(), Action.RESTART),
        ({"nvidia-x": ""}, state(), Action.RESTART),
        ({"gpu": NVIDIA}, state(), Action.RESTART),
        ({"kata": ""}, state(), Action.NONE),
        ({"kata": "/k"}, state({"kata": "/k"}), Action.NONE),
    ],
)
def test_required_action_for_runtimes(live: dict[str, str], wanted: ConfiguredState, action: Action) -> None:
    entries = {name: {"options": {"BinaryName": path}} for name, path in live.items()}
    assert CONTAINERD.required_action(LiveState("", live, "runc", entries=entries), wanted) is action


@pytest.mark.parametrize(
    ("reported", "written", "action"),
    [
        ({"runtimeType": "v2", "PodAnnotations": None}, {"runtime_type": "v2"}, Action.NONE),
        ({"options": {"SystemdCgroup": False}}, {}, Action.NONE),
        ({"options": {"SystemdCgroup": True}}, {"options": {"SystemdCgroup": True}}, Action.NONE),
        ({"options": {"SystemdCgroup": True}}, {}, Action.RESTART),
        ({}, {"options": {"SystemdCgroup": True}}, Action.RESTART),
        ({"runtimeType": "v1"}, {"runtime_type": "v2"}, Action.RESTART),
        ({"ContainerAnnotations": ["a/*"]}, {"container_annotations": ["a/*"]}, Action.NONE),
        ({"ContainerAnnotations": ["a/*"]}, {"container_annotations": ["a/*", "b/*"]}, Action.RESTART),
        ({"PodAnnotations": ["a/*"]}, {}, Action.RESTART),
        ({"privileged_without_host_devices": True}, {}, Action.RESTART),
        # Entries that the CRI does not report are not compared.
        ({"snapshotter": "x"}, {"base_runtime_spec": "/etc/x.json"}, Action.NONE),
    ],
)
def test_required_action_for_settings_of_a_runtime(
    tmp_path: Path, report: t.Any, reported: dict[str, t.Any], written: dict[str, t.Any], action: Action
) -> None:
    host = tree(tmp_path)
    program = {"BinaryName": NVIDIA}
    entry = {**reported, "options": {**program, **reported.get("options", {})}}
    report({"containerd": {"defaultRuntimeName": "runc", "runtimes": {"nvidia": entry}}})
    live = CONTAINERD.live(host, CONTAINERD.inspect(host))
    assert live is not None
    options = {**program, **written.get("options", {})}
    wanted = ConfiguredState({"nvidia": {"path": NVIDIA, **written, "options": options}})
    assert CONTAINERD.required_action(live, wanted) is action


@pytest.mark.parametrize(
    ("live", "wanted", "action"),
    [
        (LiveState("", {}, "runc"), state(default_name="runc"), Action.NONE),
        (LiveState("", {}, "nvidia"), state(), Action.RESTART),
        (LiveState("", {}, "runc"), state(default_name="nvidia"), Action.RESTART),
        # containerd 1.x reports this name for the table default_runtime, which the files may have or not.
        (LiveState("", {}, "default"), ConfiguredState({"default": {"path": None}}, "default"), Action.NONE),
        (LiveState("", {}, "default"), state(), Action.RESTART),
        (LiveState("", {}, "runc", cdi=False), state(cdi=True), Action.RESTART),
        (LiveState("", {}, "runc", cdi=True), state(cdi=True), Action.NONE),
        (LiveState("", {}, "runc", cdi=True), state(cdi=None), Action.NONE),
        (LiveState("", {}, "runc"), state(cdi=True), Action.NONE),
        # The files disable the CRI.
        (LiveState("", {}, "nvidia"), state(lists_runtimes=False), Action.NONE),
        (LiveState("", {}, "", runtimes_unknown=True, outdated=True), state(lists_runtimes=False), Action.NONE),
        (LiveState("", {}, "", runtimes_unknown=True, outdated=True), state(), Action.RESTART),
        (LiveState("", {}, "", runtimes_unknown=True), state({"nvidia": NVIDIA}, "nvidia"), Action.NONE),
    ],
)
def test_required_action(live: LiveState, wanted: ConfiguredState, action: Action) -> None:
    assert CONTAINERD.required_action(live, wanted) is action


# -- configured state --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "cdi"), [(None, None), ((1, 6), None), ((1, 7), False), ((2, 0), True), ((2, 4), True)]
)
def test_configured(tmp_path: Path, version: tuple[int, ...] | None, cdi: bool | None) -> None:
    text = "version = 2\n" + runtime("nvidia", NVIDIA) + runtime("low", binaryName='"/x"') + default("nvidia")
    host = tree(tmp_path, files={MAIN: text})
    context = HostFiles(host, "containerd").context(MAIN, None, version)
    found = CONTAINERD.configured(context)
    assert (found.paths(), found.default_runtime, found.cdi) == ({"nvidia": NVIDIA, "low": "/x"}, "nvidia", cdi)
    assert found.lists_runtimes


def test_plans_with_a_disabled_cri(tmp_path: Path) -> None:
    host = tree(tmp_path, files={MAIN: "disabled_plugins = ['cri']\n"})
    context = HostFiles(host, "containerd").context(MAIN, None, None)
    assert not CONTAINERD.configured(context).lists_runtimes
    assert CONTAINERD.present(RuntimeRequest(), context).files == ()
    assert not any(file.changed for file in CONTAINERD.absent(context).files)


def test_commands(tmp_path: Path) -> None:
    host = tree(tmp_path, files={MAIN: "version = 2\n"})
    context = HostFiles(host, "containerd").context(MAIN, None, None)
    assert CONTAINERD.version_argv("/c") == ["/c", "--version"]
    found = CONTAINERD.validation_command("/c", "/t", CONTAINERD.present(RuntimeRequest(), context).files, context)
    assert isinstance(found, ValidationCommand)
    assert found.argv[:2] == ["/c", "--config"]
    assert not CONTAINERD.validator_missing("unknown command")
    assert (CONTAINERD.name, CONTAINERD.syntax, CONTAINERD.validates_all_files) == ("containerd", "toml", True)


V2 = "version = 2\n"
BINARY, FOLDER = "/usr/bin/containerd", "/tmp/scratch"


def staged(host: Host, **asked: t.Any) -> t.Any:
    return CONTAINERD.validation_command(BINARY, FOLDER, host.plan(**asked).files, host.context())


# -- validation --------------------------------------------------------------------------------------------------------


def test_validates_one_file() -> None:
    host = Host(V2)
    found = staged(host)
    ((name, content),) = found.files.items()
    assert found.argv == [BINARY, "--config", f"{FOLDER}/{name}", "config", "dump"]
    assert found.compare == [BINARY, "--config", MAIN, "config", "dump"]
    assert content == host.plan().files[0].after


def test_validates_all_files_in_order() -> None:
    files = {
        MAIN: V2 + 'imports = ["/x/b.toml", "/x/a.toml"] # why\n',
        "/x/a.toml": V2 + 'imports = ["c.toml"]\n',
        "/x/b.toml": V2,
        "/x/c.toml": V2,
    }
    host = Host(files, (2, 1, 9))
    found = staged(host)
    names = [f"after{name}" for name in ("0-config.toml", "1-b.toml", "2-a.toml", "3-99-nvidia.toml", "4-c.toml")]
    assert list(found.files) == names
    imports = ", ".join(f'"{FOLDER}/{name}"' for name in names[1:])
    assert f"imports = [{imports}]".encode() in found.files["after0-config.toml"]
    # The main file's list already contains each import of an import.
    assert found.files["after2-a.toml"] == V2.encode()
    assert found.files["after1-b.toml"] == V2.encode()
    assert found.files["after3-99-nvidia.toml"] == host.plan().files[0].after
    assert host.plan().files[0].path == DROP_IN


def test_imports_with_comments() -> None:
    main = V2 + 'imports = [\n  # site\n  "/x/*", # all of it\n]\n[debug]\nlevel = "info"\n'
    found = staged(Host({MAIN: main, "/x/a": V2}))
    assert b'"/tmp/scratch/after1-a"' in found.files["after0-config.toml"]
    assert b'level = "info"' in found.files["after0-config.toml"]


@pytest.mark.parametrize("text", [V2, V2 + 'imports = ["conf.d/*"]\n'])
def test_removed_file_is_not_validated(text: str) -> None:
    host = Host(text, (2, 1, 9))
    host.present()
    found = staged(host, config_mode="in_place")
    assert list(found.files) == ["after0-config.toml"]
    assert b"conf.d" not in found.files["after0-config.toml"]


def test_compares_with_builtin_defaults_without_a_main_file() -> None:
    found = staged(Host(None))
    assert found.files["before0-config.toml"] == b""
    assert found.compare == [BINARY, "--config", f"{FOLDER}/before0-config.toml", "config", "dump"]


def test_refuses_a_missing_import() -> None:
    host = Host(V2 + 'imports = ["/x/a.toml", "/x/*.none", "b.toml"]\n')
    with pytest.raises(NvidiaError, match=r"would not start: /x/a.toml, /etc/containerd/b.toml"):
        staged(host)


DUMP = """\
disabled_plugins = []
imports = ["/etc/containerd/config.toml"]
oom_score = 0
version = 2
[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    enable_cdi = false
    sandbox_image = "pause"
    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "runc"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        sandbox_mode = "podsandbox"
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
          BinaryName = ""
          SystemdCgroup = false
          CriuPath = ""
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]
        runtime_type = "kata"
"""
NEW = DUMP + (
    f'      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\n        BinaryName = "{NVIDIA}"\n'
)
SPELLED_3 = NEW.replace("version = 2", "version = 3").replace("grpc.v1.cri", "cri.v1.runtime")


def changed(old: str, new: str, text: str = NEW) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("after", "complaint"),
    [
        (DUMP, ""),
        (NEW, ""),
        (changed('name = "runc"', 'name = "nvidia"'), ""),
        (changed("enable_cdi = false", "enable_cdi = true"), ""),
        (changed('"/etc/containerd/config.toml"', '"/tmp/x", "/tmp/y"'), ""),
        # The plan writes this entry.
        (changed('sandbox_mode = "podsandbox"', 'sandbox_mode = ""'), ""),
        # A zero value equals a missing value.
        (changed("oom_score = 0\n", ""), ""),
        (changed("disabled_plugins = []\n", ""), ""),
        (changed("oom_score = 0", "oom_score = 0\nroot = ''"), ""),
        (changed("oom_score = 0", "oom_score = 1"), "oom_score"),
        (changed("oom_score = 0", "oom_score = 0\nroot = '/x'"), "root"),
        (changed('    sandbox_image = "pause"\n', ""), "plugins.io.containerd.grpc.v1.cri.sandbox_image"),
        (changed('"kata"\n', '"kata2"\n'), "plugins.io.containerd.grpc.v1.cri.containerd.runtimes.kata.runtime_"),
        (
            changed("oom_score = 0", 'oom_score = 3\na = 1\nb = 1\nc = 1\nroot = "/x"'),
            "a, b, c, oom_score, root",
        ),
        ("= broken", ""),
        ("", "plugins.io.containerd.grpc.v1.cri"),
    ],
)
def test_compare_dumps(after: str, complaint: str) -> None:
    host = Host(V2 + CRI_2 + 'sandbox_image = "pause"\n', (1, 7, 24))
    message = CONTAINERD.compare_dumps(DUMP, after, host.plan().files)
    assert message.startswith(complaint)
    assert bool(message) is bool(complaint)


@pytest.mark.parametrize(("version", "cdi"), [((1, 7, 24), False), ((2, 3, 4), False), ((2, 4, 0), True)])
def test_an_empty_list_of_directories(version: tuple[int, ...], cdi: bool) -> None:
    text = f"{V2}{CRI_2}enable_cdi = true\ncdi_spec_dirs = []\n"
    printed = CONTAINERD.printed_state(text, version)
    assert printed is not None
    # The validator compares the two.
    assert (printed.cdi, Host(text, version).plan(enable_cdi=True).state.cdi) == (cdi, cdi)


def test_compare_dumps_in_another_version() -> None:
    """containerd 2.1 always prints version 3."""
    files = Host(V2, (2, 1, 9)).plan().files
    before = SPELLED_3.replace(NEW[len(DUMP) :].replace("grpc.v1.cri", "cri.v1.runtime"), "")
    assert before != SPELLED_3
    assert CONTAINERD.compare_dumps(before, SPELLED_3, files) == ""
    assert "kata" in CONTAINERD.compare_dumps(before, SPELLED_3.replace('"kata"', '"kata2"'), files)


def test_compare_dumps_accepts_a_removed_runtime() -> None:
    before = (V2 + '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\nx = 1\n').encode()
    assert CONTAINERD.compare_dumps(NEW, DUMP, [PlannedFile(MAIN, before, V2.encode())]) == ""
    assert "runtimes.nvidia.options.BinaryName" in CONTAINERD.compare_dumps(
        NEW, DUMP, [PlannedFile(MAIN, before, before)]
    )
