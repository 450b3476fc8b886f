# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action
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
    table,
)

# -- the default runtime ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["drop_in", "in_place"])
@pytest.mark.parametrize("asked", [{"set_as_default": None}, {"set_as_default": True}])
def test_a_default_of_ours_stays_until_it_is_given_back(mode: str, asked: dict[str, t.Any]) -> None:
    host = Host({MAIN: DISTRIBUTION})
    before = host.text(MAIN)
    assert host.present(config_mode=mode, set_as_default=True).state.default_runtime == "nvidia"
    assert host.present(config_mode=mode, **asked).state.default_runtime == "nvidia"
    assert host.present(config_mode=mode, set_as_default=False).state.default_runtime == "runc"
    assert host.default(MAIN) == "runc"
    host.absent()
    assert host.text(MAIN) == before


def test_a_default_of_others_stays() -> None:
    host = Host({MAIN: DISTRIBUTION, DROP_IN: default("nvidia") + table("nvidia", runtime_path=f'"{NVIDIA}"')})
    assert host.present(set_as_default=False).state.default_runtime == "nvidia"


def test_a_default_that_others_wrote_into_our_file_is_theirs() -> None:
    host = Host({MAIN: DISTRIBUTION})
    host.present()
    host.files.put(DROP_IN, default("nvidia") + host.text())
    host.present(set_as_default=True, container_annotations=("x",))
    assert host.present(set_as_default=False).state.default_runtime == "nvidia"


def test_a_default_goes_with_its_runtime() -> None:
    host = Host({MAIN: DISTRIBUTION})
    host.present(set_as_default=True)
    plan = host.present(runtime_name="gpu")
    assert (plan.state.default_runtime, plan.warnings) == ("runc", ())


@pytest.mark.parametrize(("before", "after"), [(default("runc"), "runc"), ("", None), (default("kata"), None)])
def test_removal_never_leaves_a_default_that_is_not_defined(before: str, after: str | None) -> None:
    """The user has made our runtime the default by hand, and some runtime may have gone since."""
    kata = table("kata", runtime_path='"/kata"')
    host = Host({MAIN: before + table("runc", runtime_path='"/runc"') + kata})
    host.present(config_mode="in_place")
    text = host.text(MAIN).replace(before, "").replace(kata, "")
    host.files.put(MAIN, default("nvidia") + text)
    plan = host.absent()
    assert host.default(MAIN) == after
    assert plan.state.default_runtime == (after or "crun")
    assert "no longer defined" in plan.warnings[0]


def test_removal_is_refused_where_another_file_needs_the_runtime() -> None:
    host = Host({PACKAGED: BUNDLED})
    host.present()
    host.files.put(f"{FOLDER}/20-theirs", default("nvidia"))
    with pytest.raises(NvidiaError, match=rf"^{FOLDER}/20-theirs: the default runtime is nvidia"):
        host.absent()
    with pytest.raises(NvidiaError, match=rf"^{FOLDER}/20-theirs: the default runtime is nvidia"):
        host.present(runtime_name="gpu")


@pytest.mark.parametrize("version", [None, (1, 30), (1, 31)])
@pytest.mark.parametrize("name", ["crun", "runc", "nope"])
def test_a_default_that_nobody_defines_is_refused(name: str, version: tuple[int, ...] | None) -> None:
    host = Host({MAIN: default(name)}, version=version)
    builtin = name != "nope" and (version is None or (name == "crun") is (version >= (1, 31)))
    if builtin:
        assert host.present().state.default_runtime == name
        return
    with pytest.raises(
        ConfigurationError, match=f"{MAIN}, line 2, column 1: the default runtime '{name}' has no table"
    ):
        host.present()


def test_without_any_word_the_default_is_what_is_built_in() -> None:
    assert Host({}, version=(1, 30)).present().state.default_runtime == "runc"
    assert Host({}, version=(1, 31)).present().state.default_runtime == "crun"


# -- CDI -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "asked", "words"),
    [
        ("", True, None),
        ("cdi_spec_dirs = []", True, f"{MAIN}: cdi_spec_dirs is empty"),
        ("cdi_spec_dirs = []", None, None),
        ("cdi_spec_dirs = ['/etc/cdi']", True, None),
        ("", False, "enable_cdi: false has no effect"),
        ("", "auto", None),
    ],
)
def test_cdi_is_never_written(line: str, asked: bool | str | None, words: str | None) -> None:
    content = {MAIN: default("runc") + line + "\n" + table("runc")}
    plain, host = Host(content), Host(content)
    plain.present()
    plan = host.present(enable_cdi=asked)
    assert host.files.content == plain.files.content
    assert len(plan.warnings) == (words is not None)
    assert words is None or words in plan.warnings[0]
    assert plan.state.cdi is not line.endswith("[]")


def test_a_disabled_cri_means_nothing() -> None:
    assert Host({MAIN: 'disabled_plugins = ["cri"]\n'}).present(cri_disabled="fail").action is Action.RESTART


# -- removal ---------------------------------------------------------------------------------------------------------


def test_removal_keeps_what_others_added_since() -> None:
    host = Host({MAIN: DISTRIBUTION})
    host.present(set_as_default=True, config_mode="in_place")
    host.files.put(MAIN, host.text(MAIN) + "[crio.image]\nx = 1\n")
    host.absent()
    assert host.text(MAIN) == DISTRIBUTION + "[crio.image]\nx = 1\n" or host.data(MAIN) == {
        **TomlDocument.from_bytes("x", DISTRIBUTION.encode()).data,
        "crio": {**TomlDocument.from_bytes("x", DISTRIBUTION.encode()).data["crio"], "image": {"x": 1}},
    }
    host = Host({PACKAGED: BUNDLED})
    host.present(set_as_default=True)
    host.files.put(DROP_IN, host.text() + "[crio.image]\nx = 1\n")
    host.absent()
    assert host.data(DROP_IN) == {"crio": {"image": {"x": 1}}}


def test_removal_leaves_a_runtime_that_others_made_theirs() -> None:
    host = Host({PACKAGED: BUNDLED})
    host.present()
    host.edit(DROP_IN, NVIDIA, "/usr/bin/theirs")
    host.absent()
    assert host.runtime()["runtime_path"] == "/usr/bin/theirs"


def test_removal_without_a_record_takes_nvidia_s_programs_from_the_usual_files_only() -> None:
    entries = "".join(
        table(name, runtime_path=f'"/opt/{program}"')
        for name, program in (
            ("nvidia", "nvidia-container-runtime"),
            ("a", "nvidia-container-runtime.cdi"),
            ("b", "nvidia-container-runtime.legacy"),
            ("nvidia-c", "nvidia-container-runtime.other"),
            ("runc", "runc"),
        )
    )
    other = f"{FOLDER}/50-other"
    host = Host({MAIN: default("nvidia") + entries, DROP_IN: entries, other: table("x", runtime_path=f'"{NVIDIA}"')})
    plan = host.absent()
    for path in (MAIN, DROP_IN):
        assert list(host.data(path)["crio"]["runtime"]["runtimes"]) == ["nvidia-c", "runc"]
    assert host.runtime("x", other) == {"runtime_path": NVIDIA}
    assert host.default(MAIN) is None
    assert "no longer defined" in plan.warnings[0]
