# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import STATE_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.registry import Target
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.usage import low_level_runtimes

if t.TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.one_python


DAEMON_JSON = "/etc/docker/daemon.json"
CONTAINERD = "/etc/containerd/config.toml"
CRIO = "/etc/crio/crio.conf"
NVIDIA = "/usr/bin/nvidia-container-runtime"
NAMES = ["runc", "crun"]
SITE, RUNC, CRUN, YOUKI = "/opt/site/bin/oci-site", "/usr/libexec/oci/runc", "/usr/local/bin/crun", "/opt/youki/youki"
RUNC_OLD, RUNSC, KATA = "/opt/old/runc-1.1", "/usr/bin/runsc", "/usr/bin/kata-runtime"
EXISTING = (NVIDIA, SITE, RUNC, CRUN, YOUKI, RUNC_OLD, RUNSC, KATA, "/usr/bin/plain")


class Tree:
    """A host's directory tree with all programs except engines."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for path in EXISTING:
            self.program(path)

    def write(self, path: str, text: str) -> Path:
        outer = self.root / path.lstrip("/")
        outer.parent.mkdir(parents=True, exist_ok=True)
        outer.write_text(text)
        return outer

    def program(self, path: str) -> None:
        self.write(path, "").chmod(0o755)

    @property
    def host(self) -> HostFS:
        return HostFS.of(str(self.root), live=False)

    def found(self) -> tuple[list[str], list[str]]:
        return low_level_runtimes(self.host)

    def configure(self, engine: str, request: RuntimeRequest | None, version: str | None = None) -> None:
        options = Options(engine, request, engine_version=version, validate="false")
        ConfigureEngine(options, self.host, lambda _argv: (0, "", "")).execute(check_mode=False)

    def default(self, engine: str, version: str) -> str | None:
        made = Target(engine).load()
        context = HostFiles(self.host, engine).as_configured(made.inspect(self.host), version)
        return made.configured(context).default_runtime


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def docker(default: str | None = None, **programs: str) -> str:
    text: dict[str, t.Any] = {"debug": True, "runtimes": {name: {"path": path} for name, path in programs.items()}}
    return json.dumps(text if default is None else {**text, "default-runtime": default})


def containerd(version: int, default: str | None = None, **programs: str) -> str:
    root = {
        1: "plugins.cri.containerd",
        2: 'plugins."io.containerd.grpc.v1.cri".containerd',
        3: 'plugins."io.containerd.cri.v1.runtime".containerd',
    }[version]
    lines = [f"version = {version}" if version > 1 else "", f"[{root}]"]
    lines += [] if default is None else [f'default_runtime_name = "{default}"']
    for name, path in programs.items():
        lines += [f"[{root}.runtimes.{name}]", 'runtime_type = "io.containerd.runc.v2"']
        lines += [f"[{root}.runtimes.{name}.options]", f'BinaryName = "{path}"']
    return "\n".join(lines) + "\n"


def crio(default: str | None = None, **programs: str) -> str:
    lines = ["[crio.runtime]", *([] if default is None else [f'default_runtime = "{default}"'])]
    for name, path in programs.items():
        lines += [f"[crio.runtime.runtimes.{name}]", f'runtime_path = "{path}"', 'monitor_path = "/usr/bin/conmon"']
    return "\n".join(lines) + "\n"


FILES = {"docker": DAEMON_JSON, "containerd": CONTAINERD, "crio": CRIO}
ALL = {"old": RUNC_OLD, "site": SITE, "crun": CRUN, "runc": RUNC, "youki": YOUKI, "gvisor": RUNSC, "kata": KATA}
# dockerd rejects a runtime with the name runc.
DOCKERS = {**ALL, "own-runc": RUNC}
del DOCKERS["runc"]


class Case(t.NamedTuple):
    """An engine with its version, the text of its file, and the paths found."""

    engine: str
    version: str
    text: str
    paths: list[str]


CASES = [
    Case("docker", "28.5.0", docker("site", **DOCKERS), [SITE, CRUN, RUNC_OLD, YOUKI, RUNC]),
    Case("docker", "20.10.24", docker(None, **DOCKERS), [CRUN, RUNC_OLD, YOUKI, RUNC]),
    Case("docker", "28.5.0", docker("gvisor", **DOCKERS), [CRUN, RUNC_OLD, YOUKI, RUNC]),
    Case("docker", "28.5.0", "", []),
    Case("crio", "1.37.0", crio("site", **ALL), [SITE, RUNC, CRUN, RUNC_OLD, YOUKI]),
    Case("crio", "1.37.0", crio(None, **ALL), [CRUN, RUNC, RUNC_OLD, YOUKI]),
    Case("crio", "1.28.0", crio("old", **ALL), [RUNC_OLD, RUNC, CRUN, YOUKI]),
    *(
        Case("containerd", engine, containerd(version, default, **ALL), paths)
        for version, engine in ((1, "1.6.20"), (2, "1.6.20"), (2, "1.7.24"), (2, "2.1.9"), (3, "2.1.9"), (3, "2.3.1"))
        for default, paths in (
            ("site", [SITE, RUNC, CRUN, RUNC_OLD, YOUKI]),
            ("crun", [CRUN, RUNC, RUNC_OLD, YOUKI]),
            (None, [RUNC, CRUN, RUNC_OLD, YOUKI]),
        )
    ),
]
REQUESTS: list[dict[str, t.Any]] = [
    {},
    {"set_as_default": True},
    {"set_as_default": True, "config_mode": "in_place"},
    {"set_as_default": True, "extra_modes": ("cdi", "legacy")},
    {"set_as_default": True, "runtime_name": "gpu", "runtime_dir": "/opt/toolkit"},
]


# Each request is tested with each engine, version and default, but not with each combination.
@pytest.mark.parametrize(
    ("case", "requested"),
    [
        (case, REQUESTS[(number + shift) % len(REQUESTS)])
        for number, case in enumerate(CASES)
        for shift in ((0,) if case.engine == "containerd" else (0, 2))
    ],
)
def test_result_is_independent_of_own_configuration(tree: Tree, case: Case, requested: dict[str, t.Any]) -> None:
    engine, version, text, paths = case
    if engine == "docker" and "config_mode" in requested:
        requested = {name: value for name, value in requested.items() if name != "config_mode"}
    tree.write(FILES[engine], text)
    before = tree.default(engine, version)
    expected: tuple[list[str], list[str]] = ([*paths, *NAMES], [])
    assert tree.found() == expected
    tree.configure(engine, RuntimeRequest(**requested), version)
    assert tree.found() == expected
    if requested.get("set_as_default"):
        assert tree.default(engine, version) == requested.get("runtime_name", "nvidia")
    # The default of earlier runs stays, and is then reset.
    tree.configure(engine, RuntimeRequest(**{**requested, "set_as_default": None}), version)
    assert tree.found() == expected
    tree.configure(engine, RuntimeRequest(**{**requested, "set_as_default": False}), version)
    assert tree.found() == expected
    tree.configure(engine, RuntimeRequest(**requested), version)
    tree.configure(engine, None, version)
    assert tree.default(engine, version) == before
    assert tree.found() == expected


@pytest.mark.parametrize("name", ["nvidia", "gpu"])
@pytest.mark.parametrize(
    ("engine", "text", "paths"),
    [
        ("docker", docker, [RUNC, CRUN, RUNC_OLD]),
        ("containerd", lambda *args, **programs: containerd(2, *args, **programs), [RUNC, CRUN, RUNC_OLD]),
        # The built-in default of CRI-O is crun.
        ("crio", crio, [CRUN, RUNC, RUNC_OLD]),
    ],
)
def test_ignores_nvidia_default_of_another_tool(
    tree: Tree, engine: str, text: t.Callable[..., str], paths: list[str], name: str
) -> None:
    tree.write(FILES[engine], text(name, **{name: NVIDIA, "own": RUNC_OLD, "crun": CRUN, "runc": RUNC}))
    assert tree.found() == ([*paths, *NAMES], [])
    tree.configure(engine, RuntimeRequest(set_as_default=True), "2.1.9")
    assert tree.found() == ([*paths, *NAMES], [])


@pytest.mark.parametrize(
    ("engine", "version", "text", "drop_in"),
    [
        ("containerd", "2.1.9", containerd(3, "site", **ALL), "/etc/containerd/conf.d/zz-gpu.toml"),
        ("crio", "1.37.0", crio("site", **ALL), "/etc/crio/crio.conf.d/zz-gpu.conf"),
    ],
)
def test_ignores_own_drop_in(tree: Tree, engine: str, version: str, text: str, drop_in: str) -> None:
    tree.write(FILES[engine], text)
    requested: dict[str, t.Any] = {"set_as_default": True, "config_mode": "drop_in", "drop_in_path": drop_in}
    tree.configure(engine, RuntimeRequest(**requested), version)
    assert tree.default(engine, version) == "nvidia"
    assert tree.host.exists(drop_in)
    assert tree.found() == ([SITE, RUNC, CRUN, RUNC_OLD, YOUKI, *NAMES], [])


def test_several_files(tree: Tree) -> None:
    imports = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
    tree.write(CONTAINERD, imports + containerd(3, None, runc=RUNC))
    tree.write("/etc/containerd/conf.d/10-site.toml", containerd(3, "site", site=SITE))
    assert tree.found() == ([SITE, RUNC, *NAMES], [])
    tree.configure("containerd", RuntimeRequest(set_as_default=True), "2.1.9")
    assert tree.found() == ([SITE, RUNC, *NAMES], [])


@pytest.mark.parametrize(
    ("engine", "text", "found"),
    [
        ("crio", "", ["crun", "runc"]),
        ("docker", "", ["runc", "crun"]),
        ("containerd", "", ["runc", "crun"]),
    ],
)
def test_crun_is_first_if_crio_is_the_only_engine(tree: Tree, engine: str, text: str, found: list[str]) -> None:
    tree.write(FILES[engine], text)
    tree.program({"docker": "/usr/bin/dockerd"}.get(engine, f"/usr/bin/{engine}"))
    assert tree.found() == (found, [])
    # A configuration without its engine is not an engine.
    tree.configure("docker", RuntimeRequest())
    assert tree.found() == (found, [])
    tree.write("/usr/lib/systemd/system/containerd.service", "[Service]\nExecStart=/usr/bin/containerd\n")
    assert tree.found() == (["runc", "crun"], [])


def test_host_without_engines(tree: Tree) -> None:
    assert tree.found() == (NAMES, [])


def test_lists_each_program_once(tree: Tree) -> None:
    (tree.root / "usr/sbin").mkdir()
    os.symlink("/usr/libexec/oci/runc", tree.root / "usr/sbin/runc")
    tree.write(DAEMON_JSON, docker("a", a="/usr/sbin/runc", b=RUNC, c="crun"))
    tree.write(CONTAINERD, containerd(2, None, runc=RUNC, crun="/usr/local/bin/../bin/crun"))
    assert tree.found() == (["/usr/sbin/runc", CRUN, *NAMES], [])


def test_warns_about_missing_programs(tree: Tree) -> None:
    tree.write(
        DAEMON_JSON, docker("gone", gone="/opt/gone/runc", bare="runc", crun="bin/crun", kata="/no/kata-runtime")
    )
    tree.write("/opt/plain/runc", "")
    # Only bare names are searched in PATH.
    tree.program("/usr/bin/bin/crun")
    tree.write(CRIO, crio(None, runc="/opt/plain/runc", crun=CRUN))
    found, warnings = tree.found()
    assert found == [CRUN, *NAMES]
    assert [message.split(" is not an executable")[0] for message in warnings] == [
        "docker: the runtime gone is ignored, because its program /opt/gone/runc",
        "docker: the runtime crun is ignored, because its program bin/crun",
        "docker: the runtime bare is ignored, because its program runc",
        "crio: the runtime runc is ignored, because its program /opt/plain/runc",
    ]


@pytest.mark.parametrize(
    "path",
    [
        "/opt/toolkit/nvidia-container-runtime",
        "/opt/toolkit/nvidia-container-runtime.real",
        "/opt/toolkit/nvidia-container-runtime.cdi",
        "/opt/gpu/nvidia-container-runtime.experimental",
        "/opt/bin/linked",
        "/opt/toolkit/crun",
        "/opt/linked/crun",
        "/usr/bin/runsc",
        "/opt/bin/runsc-link",
        "/opt/bin/krun",
        "/opt/bin/crun-wasm",
        "/opt/bin/crun-vm",
        "/opt/bin/containerd-shim-wasmtime-v1",
        "/usr/bin/kata-runtime",
    ],
)
@pytest.mark.parametrize("default", [None, "strange"])
def test_skips_toolkit_and_special_runtimes(tree: Tree, path: str, default: str | None) -> None:
    for program in (
        "nvidia-container-runtime",
        "nvidia-container-runtime.real",
        "nvidia-container-runtime.cdi",
        "crun",
    ):
        tree.program(f"/opt/toolkit/{program}")
    for link, target in {
        "bin/linked": "/opt/toolkit/nvidia-container-runtime",
        "linked": "/opt/toolkit",
        "bin/runsc-link": RUNSC,
        "bin/krun": CRUN,
    }.items():
        (tree.root / "opt/bin").mkdir(exist_ok=True)
        os.symlink(target, tree.root / "opt" / link)
    for program in ("crun-wasm", "crun-vm", "containerd-shim-wasmtime-v1"):
        tree.program(f"/opt/bin/{program}")
    tree.program("/opt/gpu/nvidia-container-runtime.experimental")
    assert tree.host.is_executable(path)
    tree.write(CRIO, crio(default, strange=path, runc=RUNC))
    assert tree.found() == ([RUNC, *NAMES], [])
    # The same for a runtime with the name crun.
    tree.write(CRIO, crio(default, strange=path, crun=path, runc=RUNC))
    assert tree.found() == ([RUNC, *NAMES], [])


def test_skips_runtimes_with_nvidia_names(tree: Tree) -> None:
    tree.write(CRIO, crio("nvidia-site", **{"nvidia-site": SITE, "nvidia-runc": RUNC_OLD, "runc": RUNC}))
    assert tree.found() == ([RUNC, *NAMES], [])


@pytest.mark.parametrize(
    ("kind", "used"),
    [
        ("oci", True),
        ("pod", True),
        ("vm", False),
        ("io.containerd.runc.v1", True),
        ("io.containerd.runtime.v1.linux", True),
        ("io.containerd.runsc.v1", False),
        ("io.containerd.kata.v2", False),
    ],
)
def test_runtime_types(tree: Tree, kind: str, used: bool) -> None:
    tree.write(CRIO, crio("site", site=SITE) + f'runtime_type = "{kind}"\n')
    assert tree.found() == ([*([SITE] if used else []), *NAMES], [])


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        (DAEMON_JSON, "{", "daemon.json, line 1, column 2"),
        (DAEMON_JSON, '{"default-runtime": ["site"]}', "default-runtime has the type array"),
        (CONTAINERD, "version = = 2\n", "config.toml, line 1, column"),
        (CRIO, "[crio\n", "crio.conf, line 1"),
        (CRIO + "/folder/file", "", "crio.conf is not a regular file"),
    ],
)
def test_warns_about_broken_files(tree: Tree, path: str, text: str, message: str) -> None:
    tree.write(DAEMON_JSON, docker("site", site=SITE))
    tree.write(CONTAINERD, containerd(2, None, runc=RUNC))
    if not path.startswith(CRIO):
        tree.write(CRIO, crio(None, crun=CRUN))
    tree.write(path, text)
    kept = {DAEMON_JSON: [RUNC, CRUN], CONTAINERD: [SITE, CRUN]}.get(path, [SITE, RUNC])
    found, (warning,) = tree.found()
    assert found == [*kept, *NAMES]
    assert message in warning


def test_warns_about_damaged_records(tree: Tree) -> None:
    tree.write(DAEMON_JSON, docker("site", site=SITE, crun=CRUN))
    tree.configure("docker", RuntimeRequest(set_as_default=True))
    (record,) = (tree.root / STATE_DIR.lstrip("/")).glob("docker-*.json")
    record.write_text("{}")
    found, (warning,) = tree.found()
    assert found == [CRUN, *NAMES]
    assert record.name in warning
    assert "is damaged" in warning


def test_unit_that_needs_an_own_runtime(tree: Tree) -> None:
    tree.program("/usr/bin/dockerd")
    unit = "/etc/systemd/system/docker.service"
    tree.write(unit, "[Service]\nExecStart=/usr/bin/dockerd --default-runtime nvidia\n")
    tree.write(DAEMON_JSON, docker(None, site=SITE, crun=CRUN))
    assert tree.found() == ([CRUN, *NAMES], [])
    tree.configure("docker", RuntimeRequest())
    assert tree.found() == ([CRUN, *NAMES], [])


def test_default_runtime_in_the_unit(tree: Tree) -> None:
    unit = "[Service]\nExecStart=/usr/bin/dockerd --default-runtime site --config-file /opt/docker.json\n"
    tree.write("/etc/systemd/system/docker.service", unit)
    tree.write("/opt/docker.json", docker(None, site=SITE, crun=CRUN))
    assert tree.found() == ([SITE, CRUN, *NAMES], [])
    tree.configure("docker", RuntimeRequest())
    assert tree.found() == ([SITE, CRUN, *NAMES], [])
