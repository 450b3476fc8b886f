# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Which files a plan changes, and the format versions. What it writes for a runtime is in test_runtimes.py.

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_configs import DROP_IN, MAIN
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import (
    CRI_2,
    NVIDIA,
    OPTIONS,
    Host,
    default,
    runtime,
)

Version = t.Optional[t.Tuple[int, ...]]
Step = t.Callable[[Host], t.Any]

V2, V3 = "version = 2\n", "version = 3\n"
V16, V17, V20, V21, V23, V24 = (1, 6, 20), (1, 7, 24), (2, 0, 0), (2, 1, 9), (2, 3, 4), (2, 4, 0)
RUNC = runtime("runc", SystemdCgroup="true")
FOLDER = "/etc/containerd/conf.d/"
SITE, OTHER = FOLDER + "50-site.toml", FOLDER + "10-other.toml"
GLOB = f'imports = ["{FOLDER}*.toml"]\n'
LATER = f'imports = ["{FOLDER}*.toml", "/zz/*.toml"]\n'
DEBUG = '[debug]\nlevel = "info"\n'
CRI_3 = '[plugins."io.containerd.cri.v1.runtime"]\n'
ENTRY_3 = """\
version = 3

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
"""
BOTH_MODES = pytest.mark.parametrize("mode", ["in_place", "drop_in"])
BOTH_VERSIONS = pytest.mark.parametrize("version", [V17, V21])


def present(**asked: t.Any) -> Step:
    return lambda host: host.present(**asked)


def absent(host: Host) -> t.Any:
    return host.absent()


def edit(old: str, new: str, path: str = MAIN) -> Step:
    return lambda host: host.edit(old, new, path)


def put(path: str, text: str | None) -> Step:
    return lambda host: host.files.put(path, text)


def changed(plan: t.Any) -> list[str]:
    return [file.path for file in plan.files if file.changed]


# -- files in, files out ---------------------------------------------------------------------------------------------

IMPORTS_A = 'imports = ["/a/*.toml"] # site\n'
ADD_IMPORT = edit('/a/*.toml", ', '/a/*.toml", "/b/*.toml", ')
BOTH_IMPORTS = {MAIN: V2 + 'imports = ["/a/*.toml", "/b/*.toml"] # site\n'}
ROUNDTRIPS: dict[str, tuple[t.Any, Version, tuple[Step, ...], dict[str, str]]] = {
    "another drop-in path": ({MAIN: V2}, V21, (present(), present(drop_in_path="/srv/gpu/own"), absent), {MAIN: V2}),
    "an import is not removed while a foreign file needs it": (
        {MAIN: V2},
        V21,
        (present(), put(OTHER, V2), absent),
        {MAIN: V2 + GLOB, OTHER: V2},
    ),
    "an import is removed if another import covers the foreign file": (
        {MAIN: V2},
        V21,
        (present(), put(OTHER, V2), edit('.toml"]', f'.toml", "{FOLDER}1*"]'), absent),
        {MAIN: f'{V2}imports = ["{FOLDER}1*"]\n', OTHER: V2},
    ),
    "foreign imports stay": ({MAIN: V2 + IMPORTS_A}, V21, (present(), ADD_IMPORT, absent), BOTH_IMPORTS),
    "foreign imports stay after more runs": (
        {MAIN: V2 + IMPORTS_A},
        V21,
        (present(), ADD_IMPORT, present(drop_in_path="/c/x.toml"), present(), absent),
        BOTH_IMPORTS,
    ),
    **{
        f"a foreign drop-in stays: {text!r}": (
            {MAIN: V2 + GLOB, DROP_IN: text},
            V21,
            (present(set_as_default=True), absent),
            {MAIN: V2 + GLOB, DROP_IN: text},
        )
        for text in ("", "# site\n", V2, V2 + DEBUG)
    },
    "a removed drop-in is not restored": ({MAIN: V2}, V21, (present(), put(DROP_IN, None), absent), {MAIN: V2}),
    "removed files are not restored": (
        {MAIN: V2},
        V21,
        (present(), put(DROP_IN, None), put(MAIN, None), absent),
        {},
    ),
    **{
        f"an undefined default is restored too: {version}": (
            {MAIN: V2 + RUNC + default("nvidia")},
            version,
            (present(config_mode="in_place"), absent),
            {MAIN: V2 + RUNC + default("nvidia")},
        )
        for version in (V17, V21)
    },
    "a main file without a version gets that of its imports": (
        {MAIN: GLOB, OTHER: V2 + RUNC},
        V21,
        (present(), absent),
        {MAIN: GLOB, OTHER: V2 + RUNC},
    ),
}


@pytest.mark.parametrize(("files", "version", "steps", "expected"), ROUNDTRIPS.values(), ids=ROUNDTRIPS)
def test_files_after_steps(files: t.Any, version: Version, steps: tuple[Step, ...], expected: dict[str, str]) -> None:
    host = Host(files, version)
    for step in steps:
        step(host)
    assert host.texts == expected


# -- which file ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "mode", "path"),
    [
        (None, "auto", MAIN),
        (V16, "auto", MAIN),
        (V17, "auto", MAIN),
        (V20, "auto", DROP_IN),
        (V21, "auto", DROP_IN),
        (V24, "auto", DROP_IN),
        (V21, "in_place", MAIN),
        (V20, "drop_in", DROP_IN),
    ],
)
def test_target_file(version: Version, mode: str, path: str) -> None:
    host = Host(V2 + RUNC, version)
    plan = host.present(config_mode=mode)
    assert [name for name, text in host.texts.items() if "nvidia-container" in text] == [path]
    assert plan.drop_in_path == (DROP_IN if path == DROP_IN else None)
    assert plan.config_version == 2
    assert plan.files[-1].path == MAIN


def test_minimal_drop_in() -> None:
    host = Host(None, V21)
    plan = host.present()
    assert host.text() == f"{V3}{GLOB}"
    assert host.drop_in().partition("\n\n")[2] == ENTRY_3
    assert [(file.path, file.like) for file in plan.files] == [(DROP_IN, (MAIN,)), (MAIN, ())]
    assert plan.config_version == 3


def test_drop_in_omits_what_other_files_contain() -> None:
    host = Host(V2 + GLOB + RUNC + runtime("nvidia", NVIDIA, SystemdCgroup="true") + default("nvidia"), V21)
    assert changed(host.present(set_as_default=True)) == []
    host.present(set_as_default=True, extra_modes=("cdi",))
    assert "runtimes.nvidia-cdi" in host.drop_in()
    assert "runtimes.nvidia]" not in host.drop_in()
    assert "default_runtime_name" not in host.drop_in()
    host.present(set_as_default=True)
    assert DROP_IN not in host.files.content


def test_another_drop_in_path() -> None:
    host = Host(V2, V21)
    host.present()
    plan = host.present(drop_in_path="/srv/gpu/own")
    assert changed(plan) == ["/srv/gpu/own", MAIN, DROP_IN]
    assert host.text() == V2 + 'imports = ["/srv/gpu/own*"]\n'
    assert plan.drop_in_path == "/srv/gpu/own"
    with pytest.raises(NvidiaError, match=r"drop_in_path /etc/containerd/config.toml is the main file"):
        host.present(drop_in_path=MAIN)


@BOTH_VERSIONS
@pytest.mark.parametrize("head", ["", V2])
def test_in_place_edits_the_file_that_has_effect(head: str, version: Version) -> None:
    imported = "/etc/containerd/site.toml"
    files = {MAIN: V2 + f'imports = ["{imported}"]\n' + RUNC, imported: head + CRI_2 + "enable_selinux = true\n"}
    host = Host(files, version)
    host.present(config_mode="in_place", set_as_default=True)
    path = MAIN if version == V21 else imported
    assert [name for name, text in host.texts.items() if "nvidia-container" in text] == [path]
    # A foreign file without a version gets none.
    assert host.text(imported).startswith(files[imported])
    # The record of an imported file must not hide it from the next run.
    assert changed(host.present(config_mode="in_place", set_as_default=True)) == []
    host.absent()
    assert host.texts == files


@pytest.mark.parametrize("version", [V20, (2, 0, 11), V21, (2, 2, 7), V23, V24])
def test_foreign_import_is_unchanged_and_hides_no_option(version: Version) -> None:
    host = Host({MAIN: V2 + GLOB + RUNC, SITE: V2 + CRI_2 + "enable_selinux = true\n"}, version)
    assert changed(host.present()) == [DROP_IN]
    assert host.runtimes["nvidia"]["options"] == {"SystemdCgroup": True, "BinaryName": NVIDIA}
    assert host.effect.cri()["enable_selinux"] is True


# nvidia-ctk 1.19 writes this beside a main file of version 4: the version of its drop-in is always 2.
CTK_DROP_IN = V2 + runtime("nvidia", NVIDIA) + runtime("nvidia-legacy", NVIDIA + ".legacy") + default("nvidia")


@pytest.mark.parametrize("version", [V23, V24])
@pytest.mark.parametrize("asked", [{"set_as_default": False}, {"set_as_default": True, "extra_modes": ("cdi",)}])
def test_drop_in_keeps_its_older_version(asked: dict[str, t.Any], version: Version) -> None:
    files = {MAIN: "version = 4\n" + GLOB, DROP_IN: CTK_DROP_IN}
    host = Host(files, version)
    plan = host.present(**asked)
    assert not plan.warnings
    assert plan.state.default_runtime == "nvidia"
    modes = {f"nvidia-{mode}" for mode in asked.get("extra_modes", ())}
    assert set(host.runtimes) == {"nvidia", "nvidia-legacy", *modes}
    assert "cri.v1.runtime" not in host.drop_in()
    assert changed(host.present(**asked)) == []
    if changed(plan):
        host.absent()
    assert host.texts == files


@pytest.mark.parametrize("version", [V23, V24])
def test_default_in_a_drop_in_of_another_version(version: Version) -> None:
    site = V2 + runtime("crun", "/usr/bin/crun", SystemdCgroup="true") + default("crun")
    host = Host({MAIN: V3 + GLOB, SITE: site}, version)
    plan = host.present()
    assert plan.state.default_runtime == "crun"
    assert not plan.warnings
    assert host.runtimes["nvidia"]["options"]["SystemdCgroup"] is True
    host.edit('"crun"\n', '"gone"\n', SITE)
    with pytest.raises(NvidiaError, match=r"50-site.toml: default_runtime_name is 'gone', but no file defines"):
        host.present()


# -- imports ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "covered"),
    [
        *(
            ({MAIN: f'{V2}imports = ["/x/*.toml", "{pattern}"]\n'}, True)
            for pattern in (f"{FOLDER}*.toml", "conf.d/*", DROP_IN, "/etc/*/conf.d/99-[m-o]vidia*")
        ),
        ({MAIN: V2 + 'imports = ["a"]\n', "/etc/containerd/a": V2 + 'imports = ["conf.d/*"]\n'}, True),
        *(
            ({MAIN: f'{V2}imports = ["{pattern}"]\n', f"{FOLDER}9?-nvidia.toml": ""}, False)
            for pattern in (f"{FOLDER}*.conf", f"{FOLDER}9?-nvidia.toml", "*/99-nvidia.toml/*", "conf.d/*/x")
        ),
    ],
)
def test_import_that_covers_the_drop_in(files: dict[str, str], covered: bool) -> None:
    host = Host(files, V21)
    assert (changed(host.present()) == [DROP_IN]) is covered
    assert (changed(host.absent()) == [DROP_IN]) is covered


@pytest.mark.parametrize(
    ("foreign", "pattern"),
    [
        ([], "*.toml"),
        (["99-nvidia.toml.bak", "readme"], "*.toml"),
        (["10-other.toml"], "99-nvidia*.toml"),
        (["99-nvidia-old.toml"], "99-nvidia.tom*l"),
    ],
)
def test_new_import_selects_no_other_files(foreign: list[str], pattern: str) -> None:
    host = Host({MAIN: V2, **{FOLDER + name: "broken" for name in foreign}}, V21)
    plan = host.present()
    assert host.text() == f'{V2}imports = ["{FOLDER}{pattern}"]\n'
    expected = [f"contains files that containerd does not import ({FOLDER}{name})" for name in foreign]
    assert [expected[0] in warning for warning in plan.warnings] == ([] if pattern == "*.toml" else [True])
    assert changed(host.present()) == []
    host.absent()
    assert host.text() == V2


def test_imported_files_do_not_narrow_the_new_import() -> None:
    host = Host({MAIN: V2 + f'imports = ["{FOLDER}a.toml"]\n', FOLDER + "a.toml": V2}, V21)
    host.present()
    assert host.text() == V2 + f'imports = ["{FOLDER}a.toml", "{FOLDER}*.toml"]\n'


def test_warns_about_an_import_that_stays() -> None:
    host = Host(None, V21)
    host.present()
    host.add(DEBUG, DROP_IN)
    host.files.put(OTHER, V3)
    (warning,) = host.absent().warnings
    assert f"the import {FOLDER}*.toml stays" in warning
    assert warning.endswith(f": {OTHER}, {DROP_IN}.")
    assert DEBUG.strip() in host.drop_in()
    assert "nvidia" not in host.drop_in().partition("\n")[2]
    assert host.text() == V3 + GLOB


def replaced_by_ctk(host: Host) -> None:
    """Replace the own drop-in as `nvidia-ctk runtime configure --set-as-default` does."""
    header = '[plugins."io.containerd.cri.v1.runtime".containerd]\ndefault_runtime_name = "nvidia"\n\n[plugins'
    host.files.put(DROP_IN, ENTRY_3.replace("[plugins", header, 1))


def test_drop_in_that_ctk_replaced_is_removed() -> None:
    host = Host(V3, V21)
    host.present()
    replaced_by_ctk(host)
    warnings = host.absent().warnings
    assert warnings == ("The previous default runtime is no longer defined. The default runtime is now runc.",)
    assert host.texts == {MAIN: V3}


def test_change_of_mode_removes_a_drop_in_that_ctk_replaced() -> None:
    host = Host(V3, V21)
    host.present()
    replaced_by_ctk(host)
    host.present(config_mode="in_place", runtime_name="gpu")
    assert list(host.texts) == [MAIN]
    assert "imports" not in host.text()
    host.absent()
    assert host.texts == {MAIN: V3}


def test_version_goes_with_a_default_that_the_user_set() -> None:
    host = Host(None, V17)
    host.present()
    host.add(default("nvidia"))
    host.absent()
    assert host.texts == {}


def test_linked_directory() -> None:
    host = Host({MAIN: V2 + GLOB}, V21, links={"/etc/containerd/conf.d": "/data/conf.d"})
    assert changed(host.present()) == ["/data/conf.d/99-nvidia.toml"]
    assert "nvidia" in host.runtimes
    assert changed(host.present()) == []
    host.absent()
    assert host.texts == {MAIN: V2 + GLOB}


# -- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [None, V2 + RUNC])
def test_order_survives_a_crash(text: str | None) -> None:
    host = Host(text, V21)
    assert changed(host.present()) == [DROP_IN, MAIN]
    plan = host.absent()
    assert changed(plan) == [MAIN, DROP_IN]
    assert [file.path for file in plan.files if file.after is not None] == ([MAIN] if text else [])


def test_change_of_mode_always_keeps_the_runtime_defined() -> None:
    host = Host(V2 + RUNC, V21)
    host.present(config_mode="in_place")
    assert changed(host.present()) == [DROP_IN, MAIN]
    assert changed(host.present(config_mode="in_place")) == [MAIN, DROP_IN]


# -- foreign entries -------------------------------------------------------------------------------------------------

UNDEFINED = "but no file defines this runtime"


@pytest.mark.parametrize(
    ("files", "version", "asked", "problem"),
    [
        # A later file overrides the planned entries.
        ({MAIN: V2 + LATER, "/zz/a.toml": V2 + runtime("nvidia", "/x")}, V21, {}, "overrides the runtime nvidia"),
        # A drop-in would replace all settings of the CRI.
        (
            {MAIN: V2 + RUNC},
            V17,
            {"config_mode": "drop_in"},
            "containerd 1.7.24 replaces all settings of the CRI by those of a drop-in. Use config_mode: in_place.",
        ),
        ({MAIN: V2 + RUNC}, None, {"config_mode": "drop_in"}, "containerd is unknown, and containerd 1.x replaces all"),
        (
            {MAIN: V2 + LATER, "/zz/a.toml": V2 + default("runc")},
            V21,
            {"set_as_default": True},
            "overrides default_runtime_name with 'runc'",
        ),
        ({MAIN: V2 + LATER, "/zz/a.toml": V2 + default("none")}, V21, {}, f"name is 'none', {UNDEFINED}"),
        # Format versions.
        ({MAIN: V3}, V17, {}, "line 1, column 1: containerd 1.7.24 does not support configuration version 3"),
        ({MAIN: "version = 4\n"}, V21, {}, "not support configuration version 4. Use version = 2, or upgrade to"),
        ({MAIN: "version = 1\n"}, V20, {}, "containerd 2.0.0 ignores the CRI settings of a file in configuration"),
        ({MAIN: "[plugins.cri]\n"}, V21, {}, "containerd 2.1.9 ignores the CRI settings of a file in configuration"),
        (
            {MAIN: V3 + GLOB, DROP_IN: V2},
            V21,
            {},
            f"99-nvidia.toml, line 1, column 1: the file has configuration version 2, but {MAIN} has version 3",
        ),
        ({MAIN: V2 + GLOB, DROP_IN: V3 + DEBUG}, V23, {}, "line 1, column 1: version 3 is higher than version 2"),
        # An undefined default.
        *(
            ({MAIN: V2 + RUNC + default(name)}, version, {}, f"config.toml: default_runtime_name is '{name}', but")
            for name in ("missing", "")
            for version in (None, V17, V21)
        ),
    ],
)
def test_refuses_files_that_would_not_work(files: dict[str, str], version: Version, asked: t.Any, problem: str) -> None:
    host = Host(files, version)
    with pytest.raises(NvidiaError) as caught:
        host.present(**asked)
    assert problem in str(caught.value)
    assert host.texts == files
    host.absent()
    assert host.texts == files


def test_2_4_accepts_a_drop_in_of_a_higher_version() -> None:
    host = Host({MAIN: V2 + GLOB, DROP_IN: V3 + DEBUG}, V24)
    host.present()
    assert "cri.v1.runtime" in host.drop_in()


def test_warns_about_files_in_another_version() -> None:
    files = {MAIN: V2 + 'imports = ["/zz/*"]\n' + CRI_2, "/zz/a.toml": V3 + CRI_3}
    for version, path, other in ((V21, MAIN, "/zz/a.toml"), (None, "/zz/a.toml", MAIN)):
        host = Host(files, version)
        expected = f"{path} has CRI settings for another configuration version than {other}, and containerd ignores one"
        assert expected in host.present().warnings[-1]


@pytest.mark.parametrize("mode", ["in_place", "drop_in"])
def test_writes_the_version_that_counts(mode: str) -> None:
    host = Host({MAIN: V2 + 'imports = ["/zz/*"]\n' + CRI_2, "/zz/a.toml": V3 + "[debug]\nlevel = 'info'\n"}, V21)
    before = host.texts
    host.present(config_mode=mode, set_as_default=True)
    assert "grpc" not in (host.drop_in() if mode == "drop_in" else host.text().split(CRI_2)[1])
    assert (host.default, list(host.runtimes)) == ("nvidia", ["nvidia"])
    assert not any(file.changed for file in host.present(config_mode=mode, set_as_default=True).files)
    host.absent()
    assert host.texts == before


def test_absent_removes_only_own_entries() -> None:
    host = Host(V2 + RUNC, V17)
    host.present(set_as_default=True)
    host.edit("version = 2\n", 'version = 2\nroot = "/site" # why\n')
    host.present(set_as_default=True, extra_modes=("cdi",), enable_cdi=True)
    host.add(runtime("kata", kind="io.containerd.kata.v2") + OPTIONS.format("nvidia-cdi2") + "Debug = true\n")
    host.absent()
    assert host.text().startswith('version = 2\nroot = "/site" # why\n' + RUNC)
    assert list(host.runtimes) == ["runc", "kata", "nvidia-cdi2"]
    assert host.effect.cri().keys() == {"containerd"}


@pytest.mark.parametrize(("version", "path"), [(V17, MAIN), (V21, DROP_IN)])
def test_foreign_entries_after_own_ones_move_nothing(version: Version, path: str) -> None:
    host = Host(V2, version)
    host.present(set_as_default=True)
    host.add("\n" + DEBUG, path)
    assert changed(host.present(set_as_default=True)) == []


# -- versions --------------------------------------------------------------------------------------------------------


@BOTH_MODES
def test_downgrade_below_the_version_that_this_collection_wrote(mode: str) -> None:
    host = Host("# site\n", V21)
    host.present(config_mode=mode)
    assert host.effect.version == 3
    host.version = V17
    removed = Host(dict(host.files.content), V17)
    removed.files.records = dict(host.files.records)
    removed.absent()
    assert removed.texts == {MAIN: "# site\n"}
    host.present()
    assert host.effect.version == 2
    assert not any("cri.v1.runtime" in text for text in host.texts.values())
    host.absent()
    assert host.texts == {MAIN: "# site\n"}


@BOTH_MODES
def test_migrated_main_file(mode: str) -> None:
    """`containerd config migrate` rewrites the file in this way."""
    host = Host(V2 + RUNC + default("runc"), V21)
    host.present(config_mode=mode, set_as_default=True)
    migrated = host.text().replace("version = 2", "version = 3")
    host.files.put(MAIN, migrated.replace("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"))
    removed = Host(dict(host.files.content), V21)
    removed.files.records = dict(host.files.records)
    host.present(config_mode=mode)
    assert (list(host.runtimes), host.default) == (["runc", "nvidia"], "nvidia")
    for each in (host, removed):
        each.absent()
        assert (list(each.runtimes), each.default) == (["runc"], "runc")
        assert list(each.files.content) == [MAIN]


def test_version_stays_for_foreign_entries() -> None:
    host = Host("", V17)
    host.present()
    host.add(CRI_2 + 'sandbox_image = "site"\n')
    host.absent()
    # Without the version, this table would be one of version 1, in which it has no effect.
    assert host.effect.main.data["version"] == 2
    assert host.effect.cri() == {"sandbox_image": "site"}


def test_version_1_in_place() -> None:
    host = Host("# old\n[plugins.cri]\n  # site\n", V17)
    host.present(set_as_default=True, enable_cdi=True)
    assert host.effect.main.value("plugins", "cri", "containerd", "default_runtime_name") == "nvidia"
    assert host.effect.main.value("plugins", "cri", "enable_cdi") is True
    assert "version" not in host.text()


def test_error_names_the_position_in_an_imported_file() -> None:
    host = Host({MAIN: V2 + 'imports = ["/zz/*"]\n', "/zz/a.toml": "[debug]\nlevel = info\n"}, V21)
    with pytest.raises(ConfigurationError, match=r"/zz/a.toml, line 2, column "):
        host.present()
