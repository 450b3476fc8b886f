# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# What holds for every config.toml and every order of wishes.

from __future__ import annotations

import re
import typing as t

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_parser import equal
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.configure import SettingsRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.settings import BY_PATH, default_of
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_configs import (
    PATH,
    SAMPLES,
    VARIANTS,
    Config,
)

contents = st.sampled_from(list(VARIANTS.values()))
names = st.lists(st.sampled_from(list(SAMPLES)), unique=True, max_size=6)
MINE = "# somebody's own line\n"


@st.composite
def request(draw: t.Any, nulls: bool = True) -> dict[str, t.Any]:
    """Some settings, flat or nested."""
    flat = {}
    for name in draw(names):
        value = draw(st.sampled_from([*SAMPLES[name], *([None] if nulls else [])]))
        flat[name] = list(value) if isinstance(value, list) else value
    if draw(st.booleans()):
        return flat
    nested: dict[str, t.Any] = {}
    for name, value in flat.items():
        *outer, last = name.split(".")
        table = nested
        for part in outer:
            table = table.setdefault(part, {})
        table[last] = value
    return nested


def flat(asked: dict[str, t.Any], outer: str = "") -> dict[str, t.Any]:
    found: dict[str, t.Any] = {}
    for name, value in asked.items():
        found.update(flat(value, f"{outer}{name}.") if isinstance(value, dict) else {outer + name: value})
    return found


def words_of(config: Config) -> list[str]:
    return sorted(re.findall(r"[^\s,{}]+", config.text))


def implied(key: str) -> t.Any:
    setting = BY_PATH[tuple(key.split("."))]
    return default_of(setting, real_ldconfig=False) if setting.implied is not None else None


@given(contents, request())
def test_the_settings_are_those_that_were_asked_for_and_no_others(
    content: bytes | None, asked: dict[str, t.Any]
) -> None:
    config = Config(content)
    before = config.settings
    config.present(asked)
    wanted = {key: implied(key) if value is None else value for key, value in flat(asked).items()}
    features = {key: False for key, value in wanted.items() if value is None and key.startswith("features.")}
    assert config.settings == {**before, **wanted, **features}


@given(contents, request())
def test_the_second_run_changes_nothing(content: bytes | None, asked: dict[str, t.Any]) -> None:
    config = Config(content)
    config.present(asked)
    assert not config.file.present(SettingsRequest(asked)).file.changed


@given(contents, request())
def test_lines_of_others_stay_in_their_order(content: bytes | None, asked: dict[str, t.Any]) -> None:
    config = Config(content)
    config.present(asked)
    names = [key.rpartition(".")[2] for key in flat(asked)]
    lines = [line for line in (content or b"").decode().splitlines() if line.strip()]
    # Lines of arrays, the table in one line, and headers in comments that may be turned on have their own tests.
    theirs = [line for line in lines if not any(f"{name} =" in line for name in names)]
    theirs = [line for line in theirs if "= {" not in line and not re.match(r" *#[ #]*\[| +\"| *\]", line)]
    remaining = iter(config.text.splitlines())
    assert [line for line in theirs if line not in remaining] == []


@given(contents, request())
def test_what_was_never_set_leaves_no_trace_when_it_is_null_again(
    content: bytes | None, asked: dict[str, t.Any]
) -> None:
    config = Config(content)
    there = TomlDocument.from_bytes(PATH, content or b"")
    keys = list(flat(asked))
    for key in keys:
        path = tuple(key.split("."))
        standard = not BY_PATH[path].commented and equal(there.value(*path), implied(key))
        assume(not there.has(*path) or standard)
    config.present(asked)
    config.present(dict.fromkeys(keys))
    assert config.content == content


@given(contents, st.lists(st.tuples(request(), st.booleans()), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_all_comes_back_to_the_byte(
    content: bytes | None, runs: list[tuple[dict[str, t.Any], bool]], debug: bool, removal: bool
) -> None:
    config = Config(content)
    for asked, exclusive in runs:
        config.present(asked, debug=debug, exclusive=exclusive)
        # Nothing is forgotten as long as anything is different.
        assert config.record is not None or config.content == content
    if removal:
        config.absent()
    else:
        config.present({}, exclusive=True)
    assert (config.content, config.record) == (content, None)


@given(contents, st.lists(request(), min_size=1, max_size=2))
def test_all_comes_back_beside_a_line_of_somebody_else(content: bytes | None, runs: list[dict[str, t.Any]]) -> None:
    assume(content)
    config = Config(content)
    for asked in runs:
        config.present(asked)
    bom = b"\xef\xbb\xbf" if (content or b"").startswith(b"\xef") else b""

    def disturbed(text: bytes) -> bytes:
        return bom + MINE.encode() + text[len(bom) :]

    config.content = disturbed(config.content or b"")
    before = Config(content).settings
    config.absent()
    assert config.settings == before
    # A line that went altogether comes back at another place.
    if all(value is not None for asked in runs for value in flat(asked).values()):
        assert config.content == disturbed(content or b"")


@given(contents, request(), request())
def test_an_only_owner_leaves_what_it_would_have_written_at_once(
    content: bytes | None, former: dict[str, t.Any], asked: dict[str, t.Any]
) -> None:
    config, fresh = Config(content), Config(content)
    config.present(former, exclusive=True)
    config.present(asked, exclusive=True)
    fresh.present(asked, exclusive=True)
    assert config.settings == fresh.settings
    # In the packages' layout in the same words too, whatever their order; elsewhere a line may come back as another.
    set_only = all(value is not None for request in (former, asked) for value in flat(request).values())
    if set_only and content in (VARIANTS["packages"], VARIANTS["packages, with values"]):
        assert words_of(config) == words_of(fresh)


@given(request(nulls=False), st.booleans())
def test_what_package_scripts_take_away_is_written_again(asked: dict[str, t.Any], faulty: bool) -> None:
    config = Config()
    before = config.settings
    config.present(asked)
    config.rewrite(faulty)
    config.present(asked)
    assert config.settings == {**before, **flat(asked)}
    config.rewrite()
    config.absent()
    assert config.settings == before


@pytest.mark.parametrize("content", list(VARIANTS.values()), ids=list(VARIANTS))
def test_every_setting_at_once_and_back(content: bytes | None) -> None:
    config = Config(content)
    asked = {key: values[0] for key, values in SAMPLES.items() if key != "nvidia-container-cli.environment"}
    config.present(asked)
    assert {key: config.settings[key] for key in asked} == asked
    assert not config.file.present(SettingsRequest(asked)).file.changed
    config.absent()
    assert config.content == content
