# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio.plan import CrioPlanner
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.toml_plan import HEADER
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_crio import (
    BUNDLED,
    DISTRIBUTION,
    DROP_IN,
    FOLDER,
    MAIN,
    NVIDIA,
    PACKAGED,
    Host,
    default,
    named,
    table,
)

Version = t.Optional[t.Tuple[int, ...]]
Step = t.Callable[[Host], t.Any]

LATER = f"{FOLDER}/99-other.conf"
BOTH_MODES = pytest.mark.parametrize("mode", ["drop_in", "in_place"])


def present(**asked: t.Any) -> Step:
    return lambda host: host.present(**asked)


def absent(host: Host) -> t.Any:
    return host.absent()


def edit(path: str, old: str, new: str) -> Step:
    return lambda host: host.edit(path, old, new)


def append(path: str, text: str) -> Step:
    return lambda host: host.files.put(path, host.text(path) + text)


# -- files in, files out ---------------------------------------------------------------------------------------------

SITE = "[crio.image]\nx = 1\n"
NV_OLD = table("nvidia", runtime_path='"/old"')
NV_OLD_MONITOR = table("nvidia", runtime_path='"/old"', monitor_path='"/site"')
NV_ANNOTATED = table("nvidia", runtime_path=f'"{NVIDIA}"', allowed_annotations='["site"]')
FOREIGN_GPU = """\
# site
[crio.runtime]
default_runtime = "gpu"

[crio.runtime.runtimes.gpu]
runtime_path = "/opt/nvidia/nvidia-container-runtime"
monitor_path = "/usr/bin/conmon"
"""
ROUNDTRIPS: dict[str, tuple[dict[str, str], tuple[Step, ...], dict[str, str]]] = {
    "copied entries are removed although their source changed": (
        {PACKAGED: BUNDLED},
        (present(set_as_default=True), edit(PACKAGED, 'crio/conmon"', 'bin/conmon"'), absent),
        {PACKAGED: BUNDLED.replace('crio/conmon"', 'bin/conmon"')},
    ),
    "foreign entries in an own table are removed with it": (
        {PACKAGED: BUNDLED},
        (present(), edit(DROP_IN, 'monitor_path = "/usr/libexec/crio/conmon"', "site = 1"), absent),
        {PACKAGED: BUNDLED},
    ),
    "foreign annotations stay": (
        {PACKAGED: BUNDLED, DROP_IN: NV_ANNOTATED},
        (present(container_annotations=("x",)), present(container_annotations=("y",)), absent),
        {PACKAGED: BUNDLED, DROP_IN: NV_ANNOTATED},
    ),
    "entries added to a foreign table stay": (
        {PACKAGED: BUNDLED, DROP_IN: NV_OLD},
        (present(), append(DROP_IN, "site = 1\n"), present(container_annotations=("x",)), absent),
        {PACKAGED: BUNDLED, DROP_IN: NV_OLD + "site = 1\n"},
    ),
    "options are restored": (
        {PACKAGED: BUNDLED, DROP_IN: NV_OLD_MONITOR},
        (present(runtime_options={"monitor_path": "/asked", "runtime_root": "/asked"}), absent),
        {PACKAGED: BUNDLED, DROP_IN: NV_OLD_MONITOR},
    ),
    "foreign tables stay in the main file": (
        {MAIN: DISTRIBUTION},
        (present(set_as_default=True, config_mode="in_place"), append(MAIN, SITE), absent),
        {MAIN: DISTRIBUTION + SITE},
    ),
    "all modes": (
        {MAIN: DISTRIBUTION, PACKAGED: "# nothing\n"},
        (
            present(set_as_default=True),
            present(config_mode="in_place"),
            present(),
            present(drop_in_path=f"{FOLDER}/98-gpu"),
            absent,
        ),
        {MAIN: DISTRIBUTION, PACKAGED: "# nothing\n"},
    ),
    **{
        f"unrecorded NVIDIA runtimes in {path} stay, {mode}": (
            {path: FOREIGN_GPU},
            (present(config_mode=mode, extra_modes=("cdi",)), absent),
            {path: FOREIGN_GPU},
        )
        for path, mode in ((MAIN, "drop_in"), (DROP_IN, "in_place"), (MAIN, "auto"))
    },
    "without any record, NVIDIA runtimes are removed": ({MAIN: FOREIGN_GPU}, (absent,), {MAIN: "# site\n"}),
    "broken settings do not prevent a removal": (
        {PACKAGED: BUNDLED},
        (present(), edit(PACKAGED, 'runtime_path = "/usr/libexec/crio/runc"', "runtime_path = 1"), absent),
        {PACKAGED: BUNDLED.replace('runtime_path = "/usr/libexec/crio/runc"', "runtime_path = 1")},
    ),
}


@pytest.mark.parametrize(("files", "steps", "expected"), ROUNDTRIPS.values(), ids=ROUNDTRIPS)
def test_files_after_steps(files: dict[str, str], steps: tuple[Step, ...], expected: dict[str, str]) -> None:
    host = Host(files)
    for step in steps:
        step(host)
    assert {path: host.text(path) for path in host.files.content} == expected


def test_new_drop_in() -> None:
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
        # Never an NVIDIA runtime, by name or by program.
        ({MAIN: default("nvidia-x") + named("nvidia-x") + named("runc")}, None, "runc"),
        ({MAIN: default("x") + named("x").replace("/x", NVIDIA) + named("crun")}, None, "crun"),
        # The default runtime is built in: the tables of others have no effect.
        ({MAIN: default("crun") + named("runc")}, None, None),
        # Files after the drop-in have effect too.
        ({f"{FOLDER}/zz": default("kata") + named("kata"), MAIN: named("crun")}, None, "kata"),
        ({MAIN: named("kata")}, None, None),
    ],
)  # fmt: skip
def test_inherits_from_the_default_runtime(content: dict[str, str], version: Version, parent: str | None) -> None:
    host = Host(content, version=version)
    plan = host.present()
    assert host.runtime().get("monitor_path") == parent
    assert bool([warning for warning in plan.warnings if "conmon" in warning]) is (parent is None)


# -- the table -------------------------------------------------------------------------------------------------------

PLAIN = {"runtime_path": NVIDIA, "runtime_type": "oci"}
CONMON = "/usr/libexec/crio/conmon"
KNOWN = ["io.containers.trace-syscall", "io.kubernetes.cri-o.Devices"]
ALL_KEYS = named(
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
EARLIER = table(
    "nvidia",
    runtime_path='"/old"',
    runtime_type='"vm"',
    inherit_default_runtime="true",
    runtime_root='"/run/site"',
    site="[1]",
    allowed_annotations='["site"]',
)


@pytest.mark.parametrize(
    ("content", "calls"),
    [
        # Keys that belong to one program are not inherited.
        (
            {MAIN: default("crun") + ALL_KEYS},
            [
                (
                    {},
                    {
                        **PLAIN,
                        "monitor_path": "crun",
                        "monitor_cgroup": "pod",
                        "monitor_env": ["A=b"],
                        "allowed_annotations": ["x"],
                        "privileged_without_host_devices": True,
                        "container_create_timeout": 300,
                        "default_annotations": {"a.b/c": "d"},
                        "of_next_year": [1, 2],
                    },
                )
            ],
        ),
        # An undefined default is ignored.
        ({MAIN: default("nope") + named("crun")}, [({"set_as_default": True}, {**PLAIN, "monitor_path": "crun"})]),
        # Annotations are added once, after existing ones.
        (
            {PACKAGED: BUNDLED},
            [
                (
                    {"container_annotations": ("x", "io.kubernetes.cri-o.Devices", "x")},
                    {**PLAIN, "monitor_path": CONMON, "allowed_annotations": [*KNOWN, "x"]},
                ),
                (
                    {"container_annotations": ("y",)},
                    {**PLAIN, "monitor_path": CONMON, "allowed_annotations": [*KNOWN, "y"]},
                ),
                ({}, {**PLAIN, "monitor_path": CONMON, "allowed_annotations": KNOWN}),
            ],
        ),
        (
            {PACKAGED: default("runc"), DROP_IN: NV_ANNOTATED},
            [
                ({"container_annotations": ("x",)}, {**PLAIN, "allowed_annotations": ["site", "x"]}),
                ({"container_annotations": ("y",)}, {**PLAIN, "allowed_annotations": ["site", "y"]}),
            ],
        ),
        # runtime_options override foreign entries, and the next run restores them.
        (
            {PACKAGED: default("runc"), DROP_IN: NV_OLD_MONITOR},
            [
                (
                    {"runtime_options": {"monitor_path": "/asked", "runtime_root": "/asked"}},
                    {**PLAIN, "monitor_path": "/asked", "runtime_root": "/asked"},
                ),
                ({}, {**PLAIN, "monitor_path": "/site"}),
            ],
        ),
        # The entries of the table that the new one replaces are copied.
        (
            {MAIN: BUNDLED + EARLIER, f"{FOLDER}/50-nvidia.conf": EARLIER.replace("[1]", "[2]")},
            [
                (
                    {"container_annotations": ("x",)},
                    {
                        **PLAIN,
                        "runtime_root": "/run/site",
                        "site": [2],
                        "allowed_annotations": ["site", "x"],
                        "monitor_path": CONMON,
                    },
                )
            ],
        ),
    ],
)
def test_table_after_calls(content: dict[str, str], calls: list[tuple[dict[str, t.Any], dict[str, t.Any]]]) -> None:
    host = Host(content, version=(1, 30))
    before = dict(host.files.content)
    for asked, expected in calls:
        host.present(**asked)
        assert host.runtime() == expected
    host.absent()
    assert host.files.content == before


def test_inherited_entries_follow_their_source() -> None:
    host = Host({PACKAGED: BUNDLED})
    host.present(set_as_default=True)
    host.edit(PACKAGED, CONMON, "/usr/bin/conmon")
    assert host.present(set_as_default=True).action is Action.RESTART
    assert host.runtime()["monitor_path"] == "/usr/bin/conmon"


def test_foreign_entries_in_an_own_table_do_not_follow() -> None:
    host = Host({PACKAGED: BUNDLED})
    host.present()
    host.edit(DROP_IN, f'monitor_path = "{CONMON}"', 'monitor_path = "/site"\nsite = 1 # why')
    host.edit(PACKAGED, CONMON, "/usr/bin/conmon")
    host.present(container_annotations=("x",))
    assert (host.runtime()["monitor_path"], host.runtime()["site"]) == ("/site", 1)
    assert "site = 1 # why" in host.text()


def test_no_inheritance_from_another_runtime_type() -> None:
    host = Host({MAIN: default("pod") + named("pod", runtime_type='"pod"')})
    plan = host.present()
    assert host.runtime() == PLAIN
    assert "is pod, not oci" in plan.warnings[0]
    assert host.present(runtime_type="pod").warnings == ()
    assert host.runtime() == {**PLAIN, "runtime_type": "pod", "monitor_path": "pod"}


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
def test_warns_about_conmon(content: str, flags: tuple[str, ...], options: dict[str, str], warned: bool) -> None:
    host = Host({MAIN: content}, *flags)
    plan = host.present(runtime_options=options)
    assert ["searches for conmon in its PATH" in warning for warning in plan.warnings] == [True] * warned
    assert host.runtime().get("monitor_path") == options.get("monitor_path")


def test_another_path_to_the_same_program_is_unchanged() -> None:
    text = table("nvidia", runtime_path='"/bin/nv"', runtime_type='"oci"')
    host = Host({PACKAGED: default("runc") + table("runc"), DROP_IN: text})
    host.same.add(frozenset(("/bin/nv", NVIDIA)))
    assert host.present().action is Action.NONE
    assert host.text() == text
    host.same.clear()
    assert host.present().action is Action.RESTART
    assert host.runtime()["runtime_path"] == NVIDIA


def test_removes_runtimes_that_are_no_longer_requested() -> None:
    host = Host({PACKAGED: BUNDLED})
    host.present(extra_modes=("cdi", "legacy"))
    assert host.runtime("nvidia-legacy")["monitor_path"] == CONMON
    host.present(runtime_name="gpu")
    assert [name for name in ("nvidia", "nvidia-cdi", "nvidia-legacy", "gpu") if host.runtime(name)] == ["gpu"]


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "flags", "asked", "problem"),
    [
        *(
            ({}, (), {"drop_in_path": path}, f"is not below {FOLDER}, the only directory that CRI-O reads")
            for path in ("/etc/crio/99.toml", f"{FOLDER}/../99.toml", f"{FOLDER}-old/99.toml", "/etc/crio/conf.d/99")
        ),
        ({}, ("--config-dir", "/opt/crio"), {"drop_in_path": DROP_IN}, "is not below /opt/crio"),
        ({}, ("--config-dir=",), {}, "Use config_mode: in_place"),
        *(
            ({}, (), {"runtime_options": {name: True}}, f"Remove {name} from runtime_options and set {parameter} inste")
            for name, parameter in (
                ("runtime_path", "runtime_dir"),
                ("runtime_type", "runtime_type"),
                ("allowed_annotations", "container_annotations"),
                ("inherit_default_runtime", "runtime_dir"),
                ("platform_runtime_paths", "runtime_dir"),
            )
        ),
        *(
            (
                {DROP_IN: table("nvidia", runtime_path=f'"{NVIDIA}"') + line},
                (),
                {},
                f"{DROP_IN}, line 3, column 1: with {line.partition(' ')[0]}, CRI-O ignores runtime_path",
            )
            for line in ("inherit_default_runtime = true\n", 'platform_runtime_paths = { "linux/amd64" = "/crun" }\n')
        ),
        ({PACKAGED: table("x", runtime_path="1")}, (), {}, f"{PACKAGED}, line 2, column 1: "),
        ({DROP_IN: NV_OLD}, (), {"config_mode": "in_place"}, f"{DROP_IN}, line 1"),
        *(
            ({MAIN: BUNDLED, LATER: default("runc")}, (), {"config_mode": mode, "set_as_default": True}, problem)
            for mode in ("drop_in", "in_place")
            for problem in (f"{LATER}, line 2, column 1: CRI-O reads this default_runtime",)
        ),
        # Flags override files.
        (
            {},
            ("--default-runtime", "runc"),
            {"set_as_default": True},
            "the flag --default-runtime=runc, or",
        ),
        ({}, ("--runtimes", "nvidia-cdi:/x"), {"extra_modes": ("cdi",)}, "CONTAINER_RUNTIMES, defines nvidia-cdi"),
    ],
)
def test_refusals(content: dict[str, str], flags: tuple[str, ...], asked: dict[str, t.Any], problem: str) -> None:
    host = Host(content, *flags)
    before = dict(host.files.content)
    with pytest.raises(NvidiaError) as caught:
        host.present(**asked)
    assert problem in str(caught.value)
    assert host.files.content == before


@pytest.mark.parametrize("folder", [FOLDER, f"{FOLDER}/99-site.d"])
@BOTH_MODES
def test_refuses_a_later_table_of_the_same_name(mode: str, folder: str) -> None:
    later = f"{folder}/99-other.conf"
    host = Host({later: "# site\n" + table("nvidia-cdi", runtime_path=f'"{NVIDIA}.cdi"')})
    host.present(config_mode=mode)
    with pytest.raises(ConfigurationError, match=f"{later}, line 2, column 1: .* Remove this table, or ") as caught:
        host.present(config_mode=mode, extra_modes=("cdi",))
    advice = {
        "drop_in": f"set drop_in_path to a file in {folder} whose name sorts after 99-other.conf",
        "in_place": "remove config_mode",
    }
    assert advice[mode] in str(caught.value)
    host.present(drop_in_path=f"{folder}/99-z.conf", extra_modes=("cdi",))


# -- files -----------------------------------------------------------------------------------------------------------


def test_another_drop_in_directory() -> None:
    host = Host({PACKAGED: named("crun"), "/opt/crio/10": default("kata") + named("kata")}, "-d", "/opt/crio")
    plan = host.present()
    assert plan.drop_in_path == "/opt/crio/99-nvidia.toml"
    assert host.runtime(path=plan.drop_in_path)["monitor_path"] == "kata"
    host.absent()
    assert sorted(host.files.content) == [PACKAGED, "/opt/crio/10"]


def test_no_drop_in_directory() -> None:
    host = Host({DROP_IN: default("x")}, "--config-dir=")
    host.present(config_mode="in_place")
    assert host.runtime(path=MAIN)["runtime_path"] == NVIDIA
    host.absent()
    assert list(host.files.content) == [DROP_IN]


def test_change_of_mode() -> None:
    host = Host({MAIN: DISTRIBUTION})
    host.present(set_as_default=True)
    first = dict(host.files.content)
    plan = host.present(config_mode="in_place")
    assert DROP_IN not in host.files.content
    assert host.default(MAIN) == "nvidia"
    assert host.runtime(path=MAIN)["monitor_cgroup"] == "system.slice"
    # New entries are written before old ones are removed, so the runtime is always defined.
    assert [file.path for file in plan.files] == [MAIN, DROP_IN]
    # A foreign entry in an own table is removed with it.
    host.edit(MAIN, f'runtime_path = "{NVIDIA}"', f'runtime_path = "{NVIDIA}"\nsite = 1')
    plan = host.present()
    assert [file.path for file in plan.files] == [DROP_IN, MAIN]
    assert host.files.content == first
    assert host.present().action is Action.NONE
    other = f"{FOLDER}/98-gpu"
    host.present(drop_in_path=other)
    assert DROP_IN not in host.files.content
    assert host.default(other) == "nvidia"


def test_drop_in_of_another_configuration_stays() -> None:
    host = Host({MAIN: "[crio]\n", "/etc/other/crio.conf": "[crio]\n"})
    host.present()
    context = host.files.context("/etc/other/crio.conf")._replace(recorded=())
    assert not any(file.changed for file in CrioPlanner(context).absent().files)


def test_absent_leaves_a_runtime_whose_program_was_changed() -> None:
    host = Host({PACKAGED: BUNDLED})
    host.present()
    host.edit(DROP_IN, NVIDIA, "/usr/bin/site")
    host.absent()
    assert host.runtime()["runtime_path"] == "/usr/bin/site"


def test_absent_without_a_record_removes_only_nvidia_programs() -> None:
    programs = {
        "nvidia": "nvidia-container-runtime",
        "a": "nvidia-container-runtime.cdi",
        "b": "nvidia-container-runtime.legacy",
        "nvidia-c": "nvidia-container-runtime.other",
        "runc": "runc",
    }
    entries = "".join(table(name, runtime_path=f'"/opt/{program}"') for name, program in programs.items())
    other = f"{FOLDER}/50-other"
    host = Host({MAIN: default("nvidia") + entries, DROP_IN: entries, other: table("x", runtime_path=f'"{NVIDIA}"')})
    plan = host.absent()
    for path in (MAIN, DROP_IN):
        assert list(host.data(path)["crio"]["runtime"]["runtimes"]) == ["nvidia-c", "runc"]
    # Only the main file and the default drop-in are searched.
    assert host.runtime("x", other) == {"runtime_path": NVIDIA}
    assert host.default(MAIN) is None
    assert "no longer defined" in plan.warnings[0]


# -- the default runtime ---------------------------------------------------------------------------------------------


@BOTH_MODES
@pytest.mark.parametrize("asked", [{"set_as_default": None}, {"set_as_default": True}])
def test_default_runtime(mode: str, asked: dict[str, t.Any]) -> None:
    host = Host({MAIN: DISTRIBUTION})
    assert host.present(config_mode=mode, set_as_default=True).state.default_runtime == "nvidia"
    assert host.present(config_mode=mode, **asked).state.default_runtime == "nvidia"
    assert host.present(config_mode=mode, set_as_default=False).state.default_runtime == "runc"
    assert host.default(MAIN) == "runc"
    host.present(config_mode=mode, set_as_default=True)
    plan = host.present(config_mode=mode, runtime_name="gpu")
    assert (plan.state.default_runtime, plan.warnings) == ("runc", ())
    host.absent()
    assert host.text(MAIN) == DISTRIBUTION


def test_foreign_default_stays() -> None:
    host = Host({MAIN: DISTRIBUTION, DROP_IN: default("nvidia") + table("nvidia", runtime_path=f'"{NVIDIA}"')})
    assert host.present(set_as_default=False).state.default_runtime == "nvidia"
    host = Host({MAIN: DISTRIBUTION})
    host.present()
    host.files.put(DROP_IN, default("nvidia") + host.text())
    host.present(set_as_default=True, container_annotations=("x",))
    assert host.present(set_as_default=False).state.default_runtime == "nvidia"


@BOTH_MODES
def test_later_default_without_a_request(mode: str) -> None:
    host = Host({MAIN: BUNDLED, LATER: default("runc")})
    assert host.present(config_mode=mode).state.default_runtime == "runc"
    host.files.put(LATER, default("nvidia"))
    assert host.present(config_mode=mode, set_as_default=True).state.default_runtime == "nvidia"


@pytest.mark.parametrize(("before", "after"), [(default("runc"), "runc"), ("", None), (default("kata"), None)])
def test_absent_repairs_an_undefined_default(before: str, after: str | None) -> None:
    """The user made the own runtime the default by hand, and another runtime may be gone."""
    kata = table("kata", runtime_path='"/kata"')
    host = Host({MAIN: before + table("runc", runtime_path='"/runc"') + kata})
    host.present(config_mode="in_place")
    host.files.put(MAIN, default("nvidia") + host.text(MAIN).replace(before, "").replace(kata, ""))
    plan = host.absent()
    assert host.default(MAIN) == after
    assert plan.state.default_runtime == (after or "crun")
    assert f"The default runtime is now {after or 'crun'}." in plan.warnings[0]


@pytest.mark.parametrize("step", [absent, present(config_mode="in_place", set_as_default=False)])
@pytest.mark.parametrize(("before", "after"), [("kata", None), ("crun", "crun")])
def test_default_whose_runtime_is_gone_is_not_restored(before: str, after: str | None, step: Step) -> None:
    kata = table("kata", runtime_path='"/kata"')
    host = Host({MAIN: default(before) + kata}, version=(1, 33))
    host.present(config_mode="in_place", set_as_default=True)
    host.edit(MAIN, kata, "")
    plan = step(host)
    assert host.default(MAIN) == after
    assert plan.state.default_runtime == "crun"
    assert any("no longer defined" in warning for warning in plan.warnings) is (after is None)


@BOTH_MODES
def test_warns_about_an_undefined_default_that_was_there_before(mode: str) -> None:
    host = Host({MAIN: default("missing")})
    host.present(config_mode=mode, set_as_default=True)
    plan = host.absent()
    assert host.text(MAIN) == default("missing")
    assert plan.warnings[0].startswith(f"{MAIN}: the default runtime is missing, but no file defines it")
    assert host.absent().warnings == ()


def test_refuses_to_remove_the_default_of_another_file() -> None:
    host = Host({PACKAGED: BUNDLED})
    host.present()
    host.files.put(f"{FOLDER}/20-site", default("nvidia"))
    for step in (absent, present(runtime_name="gpu")):
        with pytest.raises(NvidiaError, match=rf"^{FOLDER}/20-site: the default runtime is nvidia"):
            step(host)
    flagged = Host({MAIN: BUNDLED}, "--default-runtime=nvidia")
    flagged.present(set_as_default=True)
    with pytest.raises(NvidiaError, match=r"/lib/crio\.service: the default runtime is nvidia"):
        flagged.absent()


@pytest.mark.parametrize("version", [None, (1, 30), (1, 31)])
@pytest.mark.parametrize("name", ["crun", "runc", "nope"])
def test_refuses_an_undefined_default(name: str, version: Version) -> None:
    host = Host({MAIN: default(name)}, version=version)
    builtin = name != "nope" and (version is None or (name == "crun") is (version >= (1, 31)))
    if builtin:
        assert host.present().state.default_runtime == name
        return
    problem = f"{MAIN}, line 2, column 1: the default runtime '{name}' has no table"
    with pytest.raises(ConfigurationError, match=problem):
        host.present()


# -- CDI -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "asked", "warning"),
    [
        ("", True, None),
        ("cdi_spec_dirs = []", True, None),
        ("cdi_spec_dirs = []", None, None),
        ("cdi_spec_dirs = ['/etc/cdi']", True, None),
        ("", False, "enable_cdi: false has no effect"),
        ("", "auto", None),
    ],
)
def test_cdi_is_never_written(line: str, asked: bool | str | None, warning: str | None) -> None:
    content = {MAIN: default("runc") + line + "\n" + table("runc")}
    plain, host = Host(content), Host(content)
    plain.present()
    plan = host.present(enable_cdi=asked, cri_disabled="fail")
    assert host.files.content == plain.files.content
    assert len(plan.warnings) == (warning is not None)
    assert warning is None or warning in plan.warnings[0]
    assert plan.state.cdi is (not line.endswith("[]"))
    folders = {"": None, "cdi_spec_dirs = []": (), "cdi_spec_dirs = ['/etc/cdi']": ("/etc/cdi",)}
    assert plan.state.cdi_folders == folders[line]


def test_cdi_of_an_old_release() -> None:
    host = Host({MAIN: default("runc") + table("runc")}, version=(1, 22, 5))
    plan = host.present(enable_cdi=True)
    assert plan.state.cdi is None
    assert any("does not support CDI, which requires CRI-O 1.24 or newer" in warning for warning in plan.warnings)
    assert host.present(enable_cdi="auto").warnings == ()
