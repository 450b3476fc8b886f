# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action, RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.toml_plan import HEADER
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_crio import (
    ASKED,
    BUNDLED,
    DROP_IN,
    FOLDER,
    HOSTS,
    MAIN,
    NVIDIA,
    OLD,
    PACKAGED,
    STOCK,
    Host,
    default,
    named,
    table,
)

# -- real configurations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("content", HOSTS.values(), ids=HOSTS)
def test_a_real_configuration_keeps_the_rest_and_comes_back(content: dict[str, str], asked: dict[str, t.Any]) -> None:
    host = Host(content)
    before = dict(host.files.content)
    if asked.get("config_mode") and asked.get("set_as_default") and named_in_drop_in(content):
        with pytest.raises(ConfigurationError, match="CRI-O reads this default_runtime"):
            host.present(**asked)
        asked = {**asked, "set_as_default": None}
    plan = host.present(**asked)
    assert plan.action is Action.RESTART
    request = RuntimeRequest(**asked)
    paths = plan.state.paths()
    assert {name: paths.get(name) for name in request.runtimes()} == request.runtimes()
    target = MAIN if asked.get("config_mode") else asked.get("drop_in_path", DROP_IN)
    assert [file.path for file in plan.files if file.changed] == [target]
    assert (plan.drop_in_path, plan.config_version) == (None if target == MAIN else target, None)
    for path, text in content.items():
        if path != target:
            assert host.text(path) == text
        left = iter(host.text(path).split("\n"))
        assert all(line in left for line in text.split("\n") if line.strip() and "default_runtime" not in line)

    after = dict(host.files.content)
    again = host.present(**asked)
    assert host.files.content == after
    assert again.action is Action.NONE
    assert again.state == plan.state

    assert host.absent().action is Action.RESTART
    assert host.files.content == before
    assert host.files.records == {}
    assert host.absent().action is Action.NONE


def named_in_drop_in(content: t.Mapping[str, str]) -> bool:
    return any("default_runtime =" in text for path, text in content.items() if path != MAIN)


def test_a_new_drop_in() -> None:
    host = Host({PACKAGED: BUNDLED})
    plan = host.present(set_as_default=True)
    assert plan.warnings == ()
    assert host.text() == HEADER.decode() + (
        "\n[crio.runtime]\n"
        'default_runtime = "nvidia"\n'
        "\n[crio.runtime.runtimes.nvidia]\n"
        'runtime_path = "/usr/bin/nvidia-container-runtime"\n'
        'runtime_type = "oci"\n'
        'allowed_annotations = ["io.containers.trace-syscall", "io.kubernetes.cri-o.Devices"]\n'
        'monitor_path = "/usr/libexec/crio/conmon"\n'
    )
    assert plan.files[-1].path == MAIN
    assert plan.files[0].like[0] == MAIN


# -- inheritance -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "version", "parent"),
    [
        ({MAIN: default("runc") + named("runc") + named("crun")}, None, "runc"),
        ({MAIN: default("kata") + named("runc") + named("kata")}, None, "kata"),
        ({MAIN: default("runc") + named("runc"), PACKAGED: default("crun") + named("crun")}, None, "crun"),
        ({MAIN: named("runc") + named("crun")}, None, "crun"),
        ({MAIN: named("runc") + named("crun")}, (1, 30), "runc"),
        ({MAIN: named("runc") + named("crun")}, (1, 31), "crun"),
        ({MAIN: named("runc") + named("kata")}, None, "runc"),
        # Never one of NVIDIA's, by name or by program.
        ({MAIN: default("nvidia-x") + named("nvidia-x") + named("runc")}, None, "runc"),
        ({MAIN: default("x") + named("x").replace("/x", NVIDIA) + named("crun")}, None, "crun"),
        # In use, but built in: what another says does not matter.
        ({MAIN: default("crun") + named("runc")}, None, None),
        # What is in a file that comes later than ours counts too.
        ({f"{FOLDER}/zz": default("kata") + named("kata"), MAIN: named("crun")}, None, "kata"),
        ({MAIN: named("kata")}, None, None),
    ],
)  # fmt: skip
def test_whose_settings_are_taken_over(
    content: dict[str, str], version: tuple[int, ...] | None, parent: str | None
) -> None:
    host = Host(content, version=version)
    plan = host.present()
    assert host.runtime().get("monitor_path") == parent
    assert bool([words for words in plan.warnings if "conmon" in words]) is (parent is None)


# What packages of CRI-O 1.31 to 1.37 leave on a host: 10-crio.conf is the same for all of them
# (templates/latest/cri-o/bundle of cri-o/packaging), and so are crun as the built-in default and /run/crun as the root
# of a runtime without one (pkg/config/config.go and config_linux.go of 1.31.0 to 1.36.0 and of release-1.37).
OF_BUNDLE = {"monitor_path": "/usr/libexec/crio/conmon"}
OF_CRUN = {**OF_BUNDLE, "allowed_annotations": ["io.containers.trace-syscall", "io.kubernetes.cri-o.Devices"]}
OF_OLD = {"default_annotations": {"example.com/zone": "a"}}
RELEASES: dict[str, tuple[dict[str, str], str, dict[str, t.Any]]] = {
    "package": ({PACKAGED: BUNDLED}, "crun", OF_CRUN),
    "package and crio.conf": ({MAIN: STOCK, PACKAGED: BUNDLED}, "crun", OF_CRUN),
    "runc as the default": ({PACKAGED: BUNDLED, f"{FOLDER}/20-runc.conf": default("runc")}, "runc", OF_BUNDLE),
    "brought along from an older release": ({MAIN: OLD}, "runc", OF_OLD),
    "both": ({MAIN: OLD, PACKAGED: BUNDLED}, "crun", OF_CRUN),
    "nothing": ({}, "crun", {}),
}


@pytest.mark.parametrize("minor", range(31, 38))
@pytest.mark.parametrize(("content", "default_runtime", "inherited"), RELEASES.values(), ids=RELEASES)
def test_releases(content: dict[str, str], default_runtime: str, inherited: dict[str, t.Any], minor: int) -> None:
    host = Host(content, version=(1, minor, 0))
    before = dict(host.files.content)
    plan = host.present()
    assert plan.state.default_runtime == default_runtime
    assert host.runtime() == {"runtime_path": NVIDIA, "runtime_type": "oci", **inherited}
    assert host.present(set_as_default=True).state.default_runtime == "nvidia"
    host.absent()
    assert host.files.content == before


def test_a_default_that_nobody_defines_gives_nothing() -> None:
    host = Host({MAIN: default("nope") + named("crun")})
    host.present(set_as_default=True)
    assert host.runtime()["monitor_path"] == "crun"


def test_what_is_taken_over() -> None:
    everything = named(
        "crun",
        runtime_type='"oci"',
        runtime_root='"/run/crun"',
        monitor_cgroup='"pod"',
        monitor_env='["A=b"]',
        allowed_annotations='["x"]',
        privileged_without_host_devices="true",
        container_create_timeout="300",
        inherit_default_runtime="false",
        runtime_config_path='"/etc/crun"',
        platform_runtime_paths='{ "linux/arm64" = "/crun-arm64" }',
        default_annotations='{ "a.b/c" = "d" }',
        of_next_year="[1, 2]",
    )
    host = Host({MAIN: default("crun") + everything})
    host.present()
    assert host.runtime() == {
        "runtime_path": NVIDIA,
        "runtime_type": "oci",
        "monitor_path": "crun",
        "monitor_cgroup": "pod",
        "monitor_env": ["A=b"],
        "allowed_annotations": ["x"],
        "privileged_without_host_devices": True,
        "container_create_timeout": 300,
        "default_annotations": {"a.b/c": "d"},
        "of_next_year": [1, 2],
    }


def test_what_was_taken_over_follows_its_source() -> None:
    host = Host({PACKAGED: BUNDLED})
    host.present(set_as_default=True)
    host.edit(PACKAGED, "/usr/libexec/crio/conmon", "/usr/bin/conmon")
    assert host.present(set_as_default=True).action is Action.RESTART
    assert host.runtime()["monitor_path"] == "/usr/bin/conmon"
    host.absent()
    assert DROP_IN not in host.files.content


def test_what_others_wrote_into_our_table_does_not_follow() -> None:
    host = Host({PACKAGED: BUNDLED})
    host.present()
    host.edit(DROP_IN, 'monitor_path = "/usr/libexec/crio/conmon"', 'monitor_path = "/mine"\nof_mine = 1 # why')
    host.edit(PACKAGED, "/usr/libexec/crio/conmon", "/usr/bin/conmon")
    host.present(container_annotations=("x",))
    assert (host.runtime()["monitor_path"], host.runtime()["of_mine"]) == ("/mine", 1)
    assert "of_mine = 1 # why" in host.text()
    # Without its program the rest of the table would only hide what stands elsewhere.
    host.absent()
    assert host.runtime() is None


def test_a_runtime_of_another_type_gives_nothing() -> None:
    host = Host({MAIN: default("pod") + named("pod", runtime_type='"pod"')})
    plan = host.present()
    assert host.runtime() == {"runtime_path": NVIDIA, "runtime_type": "oci"}
    assert "is pod, not oci" in plan.warnings[0]
    assert host.present(runtime_type="pod").warnings == ()
    assert host.runtime() == {"runtime_path": NVIDIA, "runtime_type": "pod", "monitor_path": "pod"}


@pytest.mark.parametrize(
    ("content", "flags", "options", "warned"),
    [
        ("", (), {}, True),
        ("[crio.runtime]\nconmon = ''\n", (), {}, True),
        ("[crio.runtime]\nconmon = '/conmon'\n", (), {}, False),
        ("", ("--conmon", "/conmon"), {}, False),
        ("", (), {"monitor_path": "/conmon"}, False),
        (default("runc") + table("runc", runtime_path='"/runc"'), (), {}, False),
    ],
)
def test_conmon_must_be_found(content: str, flags: tuple[str, ...], options: dict[str, str], warned: bool) -> None:
    host = Host({MAIN: content}, *flags)
    plan = host.present(runtime_options=options)
    assert [("searches conmon in its PATH" in words) for words in plan.warnings] == [True] * warned
    assert host.runtime().get("monitor_path") == options.get("monitor_path")


# -- the table -------------------------------------------------------------------------------------------------------


def test_annotations_are_added_once_behind_those_that_were_there() -> None:
    host = Host({PACKAGED: BUNDLED})
    known = ["io.containers.trace-syscall", "io.kubernetes.cri-o.Devices"]
    host.present(container_annotations=("x", "io.kubernetes.cri-o.Devices", "x"))
    assert host.runtime()["allowed_annotations"] == [*known, "x"]
    host.present(container_annotations=("y",))
    assert host.runtime()["allowed_annotations"] == [*known, "y"]
    host.present()
    assert host.runtime()["allowed_annotations"] == known


def test_annotations_of_others_in_our_table_stay() -> None:
    text = table("nvidia", runtime_path=f'"{NVIDIA}"', allowed_annotations='["mine"]')
    host = Host({PACKAGED: BUNDLED, DROP_IN: text})
    host.present(container_annotations=("x",))
    assert host.runtime()["allowed_annotations"] == ["mine", "x"]
    host.present(container_annotations=("y",))
    assert host.runtime()["allowed_annotations"] == ["mine", "y"]
    host.absent()
    assert host.text() == text


def test_what_others_added_to_their_own_table_stays_theirs() -> None:
    text = table("nvidia", runtime_path='"/old"')
    host = Host({PACKAGED: BUNDLED, DROP_IN: text})
    host.present()
    host.files.put(DROP_IN, host.text() + "of_mine = 1\n")
    host.present(container_annotations=("x",))
    host.absent()
    assert host.text() == text + "of_mine = 1\n"


def test_options_take_precedence_and_go_again() -> None:
    text = table("nvidia", runtime_path='"/old"', monitor_path='"/mine"')
    host = Host({PACKAGED: BUNDLED, DROP_IN: text})
    host.present(runtime_options={"monitor_path": "/asked", "runtime_root": "/asked"})
    assert (host.runtime()["monitor_path"], host.runtime()["runtime_root"]) == ("/asked", "/asked")
    host.present()
    assert (host.runtime()["monitor_path"], host.runtime().get("runtime_root")) == ("/mine", None)
    assert host.runtime()["runtime_path"] == NVIDIA
    host.absent()
    assert host.text() == text


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("runtime_path", "runtime_dir"),
        ("runtime_type", "runtime_type"),
        ("allowed_annotations", "container_annotations"),
        ("inherit_default_runtime", "runtime_dir"),
        ("platform_runtime_paths", "runtime_dir"),
    ],
)
def test_options_that_are_parameters_are_refused(name: str, parameter: str) -> None:
    with pytest.raises(NvidiaError, match=rf"Remove {name} from runtime_options and set {parameter} instead\."):
        Host({}).present(runtime_options={name: True})


def test_a_path_to_the_same_program_stays_as_it_is_spelled() -> None:
    text = table("nvidia", runtime_path='"/bin/nv"', runtime_type='"oci"')
    host = Host({PACKAGED: default("runc") + table("runc"), DROP_IN: text})
    host.same.add(frozenset(("/bin/nv", NVIDIA)))
    assert host.present().action is Action.NONE
    assert host.text() == text
    host.same.clear()
    assert host.present().action is Action.RESTART
    assert host.runtime()["runtime_path"] == NVIDIA


def test_what_ours_replaces_moves_in() -> None:
    earlier = table(
        "nvidia",
        runtime_path='"/old"',
        runtime_type='"vm"',
        inherit_default_runtime="true",
        runtime_root='"/run/theirs"',
        of_theirs="[1]",
        allowed_annotations='["theirs"]',
    )
    host = Host({MAIN: BUNDLED + earlier, f"{FOLDER}/50-nvidia.conf": earlier.replace("[1]", "[2]")})
    host.present(container_annotations=("x",))
    assert host.runtime() == {
        "runtime_path": NVIDIA,
        "runtime_type": "oci",
        "runtime_root": "/run/theirs",
        "of_theirs": [2],
        "allowed_annotations": ["theirs", "x"],
        "monitor_path": "/usr/libexec/crio/conmon",
    }
    host.edit(f"{FOLDER}/50-nvidia.conf", "of_theirs = [2]\n", "")
    host.present(container_annotations=("x",))
    assert "of_theirs" not in host.runtime()
    host.absent()
    assert DROP_IN not in host.files.content


@pytest.mark.parametrize(
    "line", ["inherit_default_runtime = true", 'platform_runtime_paths = { "linux/amd64" = "/usr/bin/crun" }']
)
def test_what_would_run_another_program_is_refused(line: str) -> None:
    host = Host({DROP_IN: table("nvidia", runtime_path=f'"{NVIDIA}"') + line + "\n"})
    with pytest.raises(ConfigurationError, match="CRI-O ignores runtime_path") as caught:
        host.present()
    assert (caught.value.path, caught.value.line) == (DROP_IN, 3)


def test_runtimes_no_longer_named_go() -> None:
    host = Host({PACKAGED: BUNDLED})
    host.present(extra_modes=("cdi", "legacy"))
    assert host.runtime("nvidia-legacy")["monitor_path"] == "/usr/libexec/crio/conmon"
    host.present(runtime_name="gpu")
    assert [name for name in ("nvidia", "nvidia-cdi", "nvidia-legacy", "gpu") if host.runtime(name)] == ["gpu"]
