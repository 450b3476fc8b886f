# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Which of containerd's files our entries go into, and that they leave each of them again.

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_configs import DROP_IN, MAIN
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import (
    CRI_2,
    NVIDIA,
    OPTIONS,
    Host,
    default,
    runtime,
)

V2, V3 = "version = 2\n", "version = 3\n"
V17, V20, V21, V23, V24 = (1, 7, 24), (2, 0, 0), (2, 1, 9), (2, 3, 4), (2, 4, 0)
RUNC = runtime("runc", SystemdCgroup="true")
FOLDER = "/etc/containerd/conf.d/"
GLOB = f'imports = ["{FOLDER}*.toml"]\n'
ENTRY_3 = """\
version = 3

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
"""


def changed(plan: t.Any) -> list[str]:
    return [file.path for file in plan.files if file.changed]


# -- which file ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "mode", "where"),
    [
        (None, "auto", MAIN),
        ((1, 6, 20), "auto", MAIN),
        (V17, "auto", MAIN),
        (V20, "auto", DROP_IN),
        (V21, "auto", DROP_IN),
        ((2, 4, 0), "auto", DROP_IN),
        (V21, "in_place", MAIN),
        (None, "drop_in", DROP_IN),
        (V17, "drop_in", DROP_IN),
        (V20, "drop_in", DROP_IN),
    ],
)
def test_which_file(version: tuple[int, ...] | None, mode: str, where: str) -> None:
    host = Host(V2 + RUNC, version)
    plan = host.present(config_mode=mode)
    assert [path for path, text in host.files.content.items() if b"nvidia-container" in text] == [where]
    assert plan.drop_in_path == (DROP_IN if where == DROP_IN else None)
    assert plan.config_version == 2
    assert plan.files[-1].path == MAIN


def test_a_minimal_drop_in() -> None:
    host = Host(None, V21)
    plan = host.present()
    assert host.text() == f"{V3}{GLOB}"
    assert host.drop_in().partition("\n\n")[2] == ENTRY_3
    assert [(file.path, file.like) for file in plan.files] == [(DROP_IN, (MAIN,)), (MAIN, ())]
    assert plan.config_version == 3


def test_a_minimal_drop_in_says_only_what_the_others_do_not() -> None:
    there = runtime("nvidia", NVIDIA, SystemdCgroup="true")
    host = Host(V2 + GLOB + RUNC + there + default("nvidia"), V21)
    plan = host.present(set_as_default=True)
    assert changed(plan) == []
    host.present(set_as_default=True, extra_modes=("cdi",))
    assert "runtimes.nvidia-cdi" in host.drop_in()
    assert "runtimes.nvidia]" not in host.drop_in()
    assert "default_runtime_name" not in host.drop_in()
    host.present(set_as_default=True)
    assert DROP_IN not in host.files.content


def test_another_drop_in_path() -> None:
    host = Host(V2, V21)
    host.present()
    plan = host.present(drop_in_path="/srv/gpu/ours")
    assert changed(plan) == ["/srv/gpu/ours", MAIN, DROP_IN]
    assert host.text() == V2 + 'imports = ["/srv/gpu/ours*"]\n'
    assert plan.drop_in_path == "/srv/gpu/ours"
    host.absent()
    assert host.files.content == {MAIN: V2.encode()}


def test_the_main_file_is_no_drop_in() -> None:
    with pytest.raises(NvidiaError, match=r"drop_in_path /etc/containerd/config.toml is the main file"):
        Host(V2, V21).present(drop_in_path=MAIN)


@pytest.mark.parametrize("version", [V17, V21])
@pytest.mark.parametrize("head", ["", V2])
def test_in_place_is_where_it_takes_effect(head: str, version: tuple[int, ...]) -> None:
    imported = "/etc/containerd/site.toml"
    files = {MAIN: V2 + f'imports = ["{imported}"]\n' + RUNC, imported: head + CRI_2 + "enable_selinux = true\n"}
    host = Host(files, version)
    host.present(config_mode="in_place", set_as_default=True)
    after = dict(host.files.content)
    where = MAIN if version == V21 else imported
    assert [path for path, text in after.items() if b"nvidia-container" in text] == [where]
    # A file of others without a version takes the main file's.
    assert after[imported].startswith(files[imported].encode())
    # The record of an imported file must not hide it from the next run.
    assert changed(host.present(config_mode="in_place", set_as_default=True)) == []
    host.absent()
    assert {path: text.decode() for path, text in host.files.content.items()} == files


def test_a_foreign_drop_in_keeps_what_it_holds() -> None:
    for text in ("", "# theirs\n", V2, V2 + "[debug]\nlevel = 'info'\n"):
        host = Host({MAIN: V2 + GLOB, DROP_IN: text}, V21)
        host.present(set_as_default=True)
        assert text in host.drop_in()
        assert host.default == "nvidia"
        host.absent()
        assert host.drop_in() == text


@pytest.mark.parametrize("version", [V20, (2, 0, 11), V21, (2, 2, 7), V23, V24])
def test_a_foreign_import_stays_as_it_is_and_hides_no_option(version: tuple[int, ...]) -> None:
    imported = "/etc/containerd/conf.d/50-site.toml"
    files = {MAIN: V2 + GLOB + RUNC, imported: V2 + CRI_2 + "enable_selinux = true\n"}
    host = Host(files, version)
    assert changed(host.present()) == [DROP_IN]
    assert host.runtimes["nvidia"]["options"] == {"SystemdCgroup": True, "BinaryName": NVIDIA}
    assert host.effect.cri()["enable_selinux"] is True


# What nvidia-ctk 1.19 leaves beside a main file of version 4: the version of its drop-in is always 2.
CTK_DROP_IN = V2 + runtime("nvidia", NVIDIA) + runtime("nvidia-legacy", NVIDIA + ".legacy") + default("nvidia")


@pytest.mark.parametrize("version", [V23, V24])
@pytest.mark.parametrize("asked", [{"set_as_default": False}, {"set_as_default": True, "extra_modes": ("cdi",)}])
def test_a_drop_in_of_an_older_version_keeps_it(asked: dict[str, t.Any], version: tuple[int, ...]) -> None:
    files = {MAIN: "version = 4\n" + GLOB, DROP_IN: CTK_DROP_IN}
    host = Host(files, version)
    plan = host.present(**asked)
    assert not plan.warnings
    assert plan.state.default_runtime == "nvidia"
    assert {"nvidia", "nvidia-legacy", *(f"nvidia-{mode}" for mode in asked.get("extra_modes", ()))} == set(
        host.runtimes
    )
    assert "cri.v1.runtime" not in host.drop_in()
    assert changed(host.present(**asked)) == []
    if changed(plan):
        host.absent()
    assert {path: text.decode() for path, text in host.files.content.items()} == files


@pytest.mark.parametrize("version", [V23, V24])
def test_the_default_of_a_drop_in_of_another_version_counts(version: tuple[int, ...]) -> None:
    """A main file of version 3, and a file that was written for containerd 1.7."""
    imported = "/etc/containerd/conf.d/50-site.toml"
    site = V2 + runtime("crun", "/usr/bin/crun", SystemdCgroup="true") + default("crun")
    host = Host({MAIN: V3 + GLOB, imported: site}, version)
    plan = host.present()
    assert plan.state.default_runtime == "crun"
    assert not plan.warnings
    assert host.runtimes["nvidia"]["options"]["SystemdCgroup"] is True
    host.edit('"crun"\n', '"gone"\n', imported)
    with pytest.raises(NvidiaError, match=r"50-site.toml: default_runtime_name is 'gone', but no file defines"):
        host.present()


def test_2_3_does_not_start_with_a_drop_in_of_a_higher_version() -> None:
    host = Host({MAIN: V2 + GLOB, DROP_IN: V3 + "[debug]\nlevel = 'info'\n"}, V23)
    with pytest.raises(ConfigurationError, match=r"99-nvidia.toml, line 1, column 1: version 3 is higher than"):
        host.present()
    host.version = V24
    host.present()
    assert "cri.v1.runtime" in host.drop_in()


# -- imports ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [f"{FOLDER}*.toml", "conf.d/*", DROP_IN, "/etc/*/conf.d/99-[m-o]vidia*"])
def test_a_main_file_that_imports_it_already_is_untouched(pattern: str) -> None:
    host = Host(f'{V2}imports = ["/x/*.toml", "{pattern}"]\n', V21)
    plan = host.present()
    assert changed(plan) == [DROP_IN]
    assert changed(host.absent()) == [DROP_IN]


def test_an_import_of_an_import_covers_it_too() -> None:
    host = Host({MAIN: V2 + 'imports = ["a.toml"]\n', "/etc/containerd/a.toml": V2 + 'imports = ["conf.d/*"]\n'}, V21)
    assert changed(host.present()) == [DROP_IN]


@pytest.mark.parametrize("pattern", [f"{FOLDER}*.conf", f"{FOLDER}9?-nvidia.toml", "*/99-nvidia.toml/*", "conf.d/*/x"])
def test_other_imports_do_not_cover_it(pattern: str) -> None:
    host = Host(f'{V2}imports = ["{pattern}"]\n', None)
    host.files.put(f"{FOLDER}9?-nvidia.toml", "")
    host.version = V21
    assert MAIN in changed(host.present())


@pytest.mark.parametrize(
    ("strangers", "pattern"),
    [
        ([], "*.toml"),
        (["99-nvidia.toml.bak", "readme"], "*.toml"),
        (["10-other.toml"], "99-nvidia*.toml"),
        (["99-nvidia-old.toml"], "99-nvidia.tom*l"),
    ],
)
def test_files_that_were_not_read_so_far_are_not_read_afterwards(strangers: list[str], pattern: str) -> None:
    host = Host({MAIN: V2, **{FOLDER + name: "broken" for name in strangers}}, V21)
    plan = host.present()
    assert host.text() == f'{V2}imports = ["{FOLDER}{pattern}"]\n'
    words = [f"contains files that containerd does not import ({FOLDER}{name})" for name in strangers]
    assert [words[0] in warning for warning in plan.warnings] == ([] if pattern == "*.toml" else [True])
    assert changed(host.present()) == []
    host.absent()
    assert host.text() == V2


def test_files_that_are_read_already_do_not_narrow_the_import() -> None:
    host = Host({MAIN: V2 + f'imports = ["{FOLDER}a.toml"]\n', FOLDER + "a.toml": V2}, V21)
    host.present()
    assert host.text() == V2 + f'imports = ["{FOLDER}a.toml", "{FOLDER}*.toml"]\n'


def test_an_import_stays_where_files_of_others_need_it() -> None:
    host = Host(V2, V21)
    host.present()
    host.files.put(FOLDER + "10-theirs.toml", V2)
    plan = host.absent()
    assert host.text() == V2 + GLOB
    assert (
        f"the import {FOLDER}*.toml stays, because it also imports files of other tools: {FOLDER}10-theirs.toml"
        in plan.warnings[0]
    )


def test_an_import_stays_where_others_wrote_into_the_drop_in() -> None:
    host = Host(None, V21)
    host.present()
    host.add('[debug]\nlevel = "info"\n', DROP_IN)
    plan = host.absent()
    assert 'level = "info"' in host.drop_in()
    assert "nvidia" not in host.drop_in().partition("\n")[2]
    assert host.text() == V3 + GLOB
    assert DROP_IN in plan.warnings[0]


def test_an_import_goes_where_another_reads_the_files_of_others() -> None:
    host = Host(V2, V21)
    host.present()
    host.files.put(FOLDER + "10-theirs.toml", V2)
    host.edit('.toml"]', f'.toml", "{FOLDER}1*"]')
    host.absent()
    assert host.text() == f'{V2}imports = ["{FOLDER}1*"]\n'


@pytest.mark.parametrize("runs", [0, 1, 2])
def test_imports_that_others_add_beside_ours_stay(runs: int) -> None:
    host = Host(V2 + 'imports = ["/a/*.toml"] # theirs\n', V21)
    host.present()
    host.edit('/a/*.toml", ', '/a/*.toml", "/b/*.toml", ')
    for number in range(runs):
        # The second of these changes the main file, and its record with it.
        host.present(drop_in_path=["/c/x.toml", DROP_IN][number])
    host.absent()
    assert host.text() == V2 + 'imports = ["/a/*.toml", "/b/*.toml"] # theirs\n'


def test_links_on_the_way() -> None:
    host = Host({MAIN: V2 + GLOB}, V21, links={"/etc/containerd/conf.d": "/data/conf.d"})
    plan = host.present()
    assert changed(plan) == ["/data/conf.d/99-nvidia.toml"]
    assert "nvidia" in host.runtimes
    assert changed(host.present()) == []
    host.absent()
    assert host.files.content == {MAIN: (V2 + GLOB).encode()}


# -- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "mode"), [(V17, "drop_in"), (V21, "auto")])
@pytest.mark.parametrize("text", [None, V2 + RUNC])
def test_a_crash_between_two_files_leaves_a_configuration_that_starts(
    text: str | None, version: tuple[int, ...], mode: str
) -> None:
    host = Host(text, version)
    plan = host.present(config_mode=mode)
    assert changed(plan) == [DROP_IN, MAIN]
    plan = host.absent()
    assert changed(plan) == [MAIN, DROP_IN]
    assert [file.path for file in plan.files if file.after is not None] == ([MAIN] if text else [])


def test_a_switch_of_modes_never_leaves_a_moment_without_the_runtime() -> None:
    host = Host(V2 + RUNC, V21)
    host.present(config_mode="in_place")
    assert changed(host.present()) == [DROP_IN, MAIN]
    assert changed(host.present(config_mode="in_place")) == [MAIN, DROP_IN]


# -- snapshots -------------------------------------------------------------------------------------------------------


def test_a_snapshot_follows_the_main_file() -> None:
    host = Host(V2 + CRI_2 + 'sandbox_image = "a"\nlist = ["x"]\n' + RUNC + runtime("kata", kind="kata"), V17)
    host.present(config_mode="drop_in")
    assert host.effect.cri()["sandbox_image"] == "a"
    host.edit('sandbox_image = "a"\nlist = ["x"]', 'sandbox_image = "b"\nmore.inner = 1')
    host.edit(runtime("kata", kind="kata"), "")
    host.present(config_mode="drop_in")
    cri = host.effect.cri()
    assert (cri["sandbox_image"], cri["more"], "list" in cri) == ("b", {"inner": 1}, False)
    assert list(host.runtimes) == ["runc", "nvidia"]
    assert host.drop_in().count("# This containerd replaces") == 1
    host.version = V21
    host.present(config_mode="drop_in")
    assert "sandbox_image" not in host.drop_in()
    assert "# This containerd replaces" not in host.drop_in()


def test_version_1_has_snapshots_too() -> None:
    text = "[plugins.cri]\nenable_selinux = true\n"
    host = Host(text, V17)
    host.present(config_mode="drop_in")
    assert "version" not in host.effect.files[1].document.data
    assert host.effect.cri()["enable_selinux"] is True
    assert changed(host.present(config_mode="drop_in")) == []


# -- others ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "asked", "words"),
    [
        (runtime("nvidia", "/opt/x"), {}, r"/zz/a.toml: this file overrides the runtime nvidia."),
        (
            default("runc"),
            {"set_as_default": True},
            r"/zz/a.toml: this file overrides default_runtime_name with",
        ),
        (default("none"), {}, r"/zz/a.toml: default_runtime_name is 'none', but no file defines this runtime"),
    ],
)
def test_refuses_where_a_later_file_overrides_ours(theirs: str, asked: t.Any, words: str) -> None:
    host = Host({MAIN: f'{V2}imports = ["{FOLDER}*.toml", "/zz/*.toml"]\n', "/zz/a.toml": V2 + theirs}, V21)
    with pytest.raises(NvidiaError, match=words):
        host.present(**asked)


def test_refuses_a_snapshot_that_a_later_file_replaces() -> None:
    host = Host({MAIN: f'{V2}imports = ["{FOLDER}*.toml", "/zz/*.toml"]\n', "/zz/a.toml": V2 + CRI_2}, V17)
    with pytest.raises(NvidiaError, match=r"/zz/a.toml: this file overrides the runtime nvidia"):
        host.present(config_mode="drop_in")


def test_warns_of_files_in_another_version() -> None:
    stranger = V3 + '[plugins."io.containerd.cri.v1.runtime"]\n'
    host = Host({MAIN: V2 + 'imports = ["/zz/*"]\n', "/zz/a.toml": stranger}, V21)
    plan = host.present()
    assert (
        "/zz/a.toml and /etc/containerd/config.toml have CRI settings in different configuration versions"
        in plan.warnings[-1]
    )


def test_only_ours_goes_where_others_edited_between_our_runs() -> None:
    host = Host(V2 + RUNC, V17)
    host.present(set_as_default=True)
    host.edit("version = 2\n", 'version = 2\nroot = "/theirs" # why\n')
    host.present(set_as_default=True, extra_modes=("cdi",), enable_cdi=True)
    host.add(runtime("kata", kind="io.containerd.kata.v2") + OPTIONS.format("nvidia-cdi2") + "Debug = true\n")
    host.absent()
    text = 'version = 2\nroot = "/theirs" # why\n' + RUNC
    assert host.text().startswith(text)
    assert list(host.runtimes) == ["runc", "kata", "nvidia-cdi2"]
    assert host.effect.cri().keys() == {"containerd"}


@pytest.mark.parametrize(("version", "path"), [(V17, MAIN), (V21, DROP_IN)])
def test_ours_stays_where_it_is_while_others_write_behind_it(version: tuple[int, ...], path: str) -> None:
    host = Host(V2, version)
    host.present(set_as_default=True)
    host.add('\n[debug]\nlevel = "info"\n', path)
    assert changed(host.present(set_as_default=True)) == []


def test_absent_does_not_bring_back_what_somebody_removed() -> None:
    host = Host(V2, V21)
    host.present()
    host.files.put(DROP_IN, None)
    host.absent()
    assert host.files.content == {MAIN: V2.encode()}
    host.present()
    host.files.put(MAIN, None)
    plan = host.absent()
    assert host.files.content == {}
    assert plan.action is Action.RESTART


def test_errors_name_the_place_in_an_imported_file() -> None:
    host = Host({MAIN: V2 + 'imports = ["/zz/*"]\n', "/zz/a.toml": "[debug]\nlevel = info\n"}, V21)
    with pytest.raises(ConfigurationError, match=r"/zz/a.toml, line 2, column "):
        host.present()
