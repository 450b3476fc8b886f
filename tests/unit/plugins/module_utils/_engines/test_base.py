# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.constants import MAIN_PROGRAM, MODE_PROGRAMS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.plan import PlannedFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.text import parse_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import (
    Action,
    ConfiguredState,
    EnginePlan,
    Installation,
    is_nvidia_program,
    is_nvidia_runtime,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import MODE_NAMES, RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import Unit

_MAIN = "/usr/bin/nvidia-container-runtime"


@pytest.mark.parametrize(
    ("name", "modes", "expected"),
    [
        ("nvidia", (), {"nvidia": _MAIN}),
        ("gpu", (), {"gpu": _MAIN}),
        ("nvidia", ("cdi",), {"nvidia": _MAIN, "nvidia-cdi": f"{_MAIN}.cdi"}),
        ("gpu", ("legacy",), {"gpu": _MAIN, "nvidia-legacy": f"{_MAIN}.legacy"}),
        # The order is that of the table.
        (
            "nvidia",
            ("legacy", "cdi", "legacy"),
            {"nvidia": _MAIN, "nvidia-cdi": f"{_MAIN}.cdi", "nvidia-legacy": f"{_MAIN}.legacy"},
        ),
        # The name of a mode registers that mode, and the main runtime under its usual name.
        ("nvidia-cdi", (), {"nvidia": _MAIN, "nvidia-cdi": f"{_MAIN}.cdi"}),
        ("nvidia-legacy", ("legacy",), {"nvidia": _MAIN, "nvidia-legacy": f"{_MAIN}.legacy"}),
        (
            "nvidia-legacy",
            ("cdi",),
            {"nvidia": _MAIN, "nvidia-cdi": f"{_MAIN}.cdi", "nvidia-legacy": f"{_MAIN}.legacy"},
        ),
        ("nvidia", ("unheard-of",), {"nvidia": _MAIN}),
    ],
)
def test_runtimes(name: str, modes: tuple[str, ...], expected: dict[str, str]) -> None:
    runtimes = RuntimeRequest(runtime_name=name, extra_modes=modes).runtimes()
    assert list(runtimes.items()) == list(expected.items())


@pytest.mark.parametrize("directory", ["/usr/local/nvidia/toolkit", "/usr/local/nvidia/toolkit/"])
def test_directory(directory: str) -> None:
    runtimes = RuntimeRequest(runtime_dir=directory, extra_modes=("cdi",)).runtimes()
    assert list(runtimes.values()) == [
        "/usr/local/nvidia/toolkit/nvidia-container-runtime",
        "/usr/local/nvidia/toolkit/nvidia-container-runtime.cdi",
    ]


@pytest.mark.parametrize("name", ["nvidia", "n", "0", "NVIDIA_gpu-1.2", "nvidia-cdi", "runc2", "x.io.containerd.y"])
def test_valid_names(name: str) -> None:
    RuntimeRequest(runtime_name=name).check()
    assert name in RuntimeRequest(runtime_name=name).runtimes()


@pytest.mark.parametrize(
    "name", ["", " ", "-nvidia", ".nvidia", "_x", "a b", "nvidia\n", "a/b", "a=b", 'a"b', "n\u00e4me", "nvidia\0"]
)
def test_rejects_invalid_names(name: str) -> None:
    with pytest.raises(NvidiaError, match="contains unsupported characters"):
        RuntimeRequest(runtime_name=name).check()


@pytest.mark.parametrize("name", ["runc", "crun", "io.containerd.runc.v2", "io.containerd."])
def test_rejects_names_of_low_level_runtimes(name: str) -> None:
    with pytest.raises(NvidiaError, match=f"'{name}' is the name of a low-level runtime"):
        RuntimeRequest(runtime_name=name).check()


@given(
    st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,15}\Z") | st.sampled_from(["nvidia", *MODE_NAMES.values()]),
    st.lists(st.sampled_from(sorted(MODE_PROGRAMS))).map(tuple),
)
def test_property_runtimes(name: str, modes: tuple[str, ...]) -> None:
    runtimes = RuntimeRequest(runtime_name=name, extra_modes=modes).runtimes()
    assert name in runtimes
    assert next(iter(runtimes.values())) == f"/usr/bin/{MAIN_PROGRAM}"
    assert len(set(runtimes.values())) == len(runtimes)
    assert all(is_nvidia_program(path) for path in runtimes.values())
    assert all(runtimes[MODE_NAMES[mode]] == f"/usr/bin/{MODE_PROGRAMS[mode]}" for mode in modes)


@pytest.mark.parametrize(
    ("path", "nvidia"),
    [
        ("/usr/bin/nvidia-container-runtime", True),
        ("/usr/local/nvidia/toolkit/nvidia-container-runtime.cdi", True),
        ("nvidia-container-runtime.legacy", True),
        ("nvidia-container-runtime", True),
        ("/usr/bin/nvidia-container-runtime.experimental", True),
        ("/usr/bin/nvidia-container-runtime-experimental", True),
        ("/usr/bin/nvidia-container-runtime.real", False),
        ("/usr/bin/nvidia-container-runtime-hook", False),
        ("/usr/bin/my-nvidia-container-runtime", False),
        ("/opt/nvidia-container-runtime/runc", False),
        ("/opt/nvidia-container-runtime/", False),
        ("/usr/bin/runc", False),
        ("", False),
        (None, False),
        (1, False),
        (["/usr/bin/nvidia-container-runtime"], False),
        ({"path": "/usr/bin/nvidia-container-runtime"}, False),
    ],
)
def test_is_nvidia_program(path: t.Any, nvidia: bool) -> None:
    assert is_nvidia_program(path) is nvidia


@pytest.mark.parametrize(
    ("name", "program", "nvidia"),
    [
        ("nvidia", "/x", True),
        ("nvidia-experimental", None, True),
        ("gpu", "/opt/nvidia-container-runtime", True),
        ("gpu", "nvidia-container-runtime.legacy", True),
        ("gpu", "/opt/nvidia-container-runtime-hook", False),
        ("runc", "/usr/bin/runc", False),
        ("x", 5, False),
    ],
)
def test_is_nvidia_runtime(name: str, program: t.Any, nvidia: bool) -> None:
    assert is_nvidia_runtime(name, program) is nvidia


@pytest.mark.parametrize(
    "asked",
    [
        {"config_mode": "drop_in"},
        {"drop_in_path": "/etc/docker/nvidia.json"},
        {"runtime_type": "oci"},
        {"runtime_options": {"privileged": True}},
        {"container_annotations": ("cdi.k8s.io/*",)},
    ],
)
def test_refuse_toml_settings(asked: dict[str, t.Any]) -> None:
    with pytest.raises(NvidiaError, match=f"^Unsupported options for docker: {next(iter(asked))}"):
        RuntimeRequest(**asked).refuse_toml_settings("docker")
    RuntimeRequest(config_mode="in_place").refuse_toml_settings("docker")


ALL_SETTINGS = RuntimeRequest(
    "other", "/opt", ("cdi",), True, "auto", "drop_in", "/x.toml", "type", {"a": 1}, ("cdi.k8s.io/*",), "fail", True
)


@pytest.mark.parametrize(
    ("engine", "flavor", "config_mode", "unset"),
    [
        ("containerd", "system", "drop_in", ()),
        ("containerd", "system", "hook", ("config_mode", "drop_in_path")),
        ("crio", "system", "hook", ("use_legacy_config",)),
        ("containerd", "k0s", "drop_in", ("config_mode", "drop_in_path")),
        (
            "containerd", "k3s", "drop_in",
            ("extra_modes", "config_mode", "drop_in_path", "runtime_type", "runtime_options", "container_annotations"),
        ),
        (
            "docker", "rootless", "drop_in",
            ("config_mode", "drop_in_path", "runtime_type", "runtime_options", "container_annotations",
             "use_legacy_config"),
        ),
        (
            "podman", "system", "auto",
            set(RuntimeRequest._fields) - {"runtime_dir", "cri_disabled"},
        ),
    ],
)  # fmt: skip
def test_settings_that_an_engine_cannot_have(
    engine: str, flavor: str, config_mode: str, unset: t.Collection[str]
) -> None:
    request = ALL_SETTINGS._replace(config_mode=config_mode)
    supported = request.for_engine(engine, flavor)
    for name in RuntimeRequest._fields:
        expected = RuntimeRequest() if name in unset else request
        assert getattr(supported, name) == getattr(expected, name), name


def test_action_order() -> None:
    assert max(Action) is Action.RESTART
    assert [str(action) for action in sorted(Action)] == ["none", "reload", "restart"]
    # The role compares them as strings.
    assert sorted(str(action) for action in Action) == [str(action) for action in sorted(Action)]
    assert [bool(action) for action in sorted(Action)] == [False, True, True]


def test_joined_plans() -> None:
    files = PlannedFile("/a", None, b""), PlannedFile("/b", b"", b"")
    one = EnginePlan(files[:1], ConfiguredState(default_runtime="x"), Action.RELOAD, ("w",), "/drop", 2)
    other = EnginePlan(files[1:], ConfiguredState(), Action.RESTART, ("v",))
    assert one.joined(other) == EnginePlan(files, one.state, Action.RESTART, ("w", "v"), "/drop", 2)
    assert [file.changed for file in files] == [True, False]


def test_configured_paths() -> None:
    state = ConfiguredState({"a": {"path": "/a"}, "b": {"runtimeType": "x"}, "c": None, "d": {"path": 1}})
    assert state.paths() == {"a": "/a"}


@pytest.mark.parametrize(("wrapper", "count"), [("", 0), ("/bin/sh", 1)])
def test_warning_about_wrapper(wrapper: str, count: int) -> None:
    unit = Unit("x.service", "/lib/x.service", wrapper=wrapper)
    installation = Installation("/usr/bin/x", unit, "x.service", "/run/x.sock", "/etc/x")
    assert len(installation.warnings()) == count
    assert installation._replace(unit=None).warnings() == []


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("20.10.24+dfsg1", (20, 10, 24)),
        ("v2.1.9", (2, 1, 9)),
        (" 28.5.2-0ubuntu1~24.04", (28, 5, 2)),
        ("27", (27,)),
        ("1.6.20~ds1", (1, 6, 20)),
        ("", None),
        ("latest", None),
        ("dev-26.1", None),
    ],
)
def test_parse_version(text: str, version: tuple[int, ...] | None) -> None:
    assert parse_version(text) == version
