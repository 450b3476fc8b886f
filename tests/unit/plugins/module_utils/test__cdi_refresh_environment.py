# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_parameters import CdiOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_environment import (
    EnvironmentText,
    environment_file,
    variables,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import ConfigurationError, GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import FileRecord

FILE = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
PREFIX = "NVIDIA_CTK_CDI_GENERATE_"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (CdiOptions(), {}),
        (CdiOptions(path="/etc/cdi/nvidia.yaml"), {"NVIDIA_CTK_CDI_OUTPUT_FILE_PATH": "/etc/cdi/nvidia.yaml"}),
        (CdiOptions(format="json", mode="csv"), {f"{PREFIX}OUTPUT_FORMAT": "json", f"{PREFIX}MODE": "csv"}),
        (
            CdiOptions(request=Request(vendor="example.com", class_="fast", device_ids=("0", "1:0"), all_device=False)),
            {
                f"{PREFIX}VENDOR": "example.com",
                f"{PREFIX}CLASS": "fast",
                f"{PREFIX}DEVICE_IDS": "0,1:0",
                f"{PREFIX}NO_ALL_DEVICE": "true",
            },
        ),
        (
            CdiOptions(
                request=Request(
                    driver_root="/run/nvidia/driver",
                    dev_root="/",
                    library_search_paths=("/opt/a", "/opt/b"),
                    config_search_paths=("/opt/c",),
                    cdi_hook_path="/opt/hook",
                    ldconfig_path="/sbin/ldconfig.real",
                )
            ),
            {
                "NVIDIA_CTK_DRIVER_ROOT": "/run/nvidia/driver",
                "NVIDIA_CTK_DEV_ROOT": "/",
                f"{PREFIX}LIBRARY_SEARCH_PATHS": "/opt/a,/opt/b",
                f"{PREFIX}CONFIG_SEARCH_PATHS": "/opt/c",
                "NVIDIA_CTK_CDI_HOOK_PATH": "/opt/hook",
                f"{PREFIX}LDCONFIG_PATH": "/sbin/ldconfig.real",
            },
        ),
        (
            CdiOptions(request=Request(enabled_hooks=("chmod",), disabled_hooks=("all",), feature_flags=("a", "b"))),
            {f"{PREFIX}ENABLED_HOOKS": "chmod", f"{PREFIX}DISABLED_HOOKS": "all", f"{PREFIX}FEATURE_FLAGS": "a,b"},
        ),
        (
            CdiOptions(request=Request(hooks="none", enabled_hooks=("chmod",))),
            {f"{PREFIX}DISABLED_HOOKS": "all"},
        ),
        (
            CdiOptions(request=Request(device_name_strategies=("type-index",))),
            {f"{PREFIX}DEVICE_NAME_STRATEGIES": "type-index"},
        ),
    ],
)
def test_variables(options: CdiOptions, expected: dict[str, str]) -> None:
    assert variables(options) == expected


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(library_search_paths=("/a,b",)), "takes no commas"),
        (Request(driver_root="/a\nX=1"), "takes no control characters"),
    ],
)
def test_values_that_no_variable_carries(request_: Request, words: str) -> None:
    with pytest.raises(GpufleetError, match=words):
        variables(CdiOptions(request=request_))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=1\n", "1"),
        ("A=1", "1"),
        ("  A = 1  \n", "1"),
        ("#A=1\n", None),
        (" ; A=1\n", None),
        ("AB=1\n", None),
        ("A=1\nA=2\n", "2"),
        ('A="a b"\n', "a b"),
        ("A='a \"b'\n", 'a "b'),
        ('A="a \\"b\\\\"\n', 'a "b\\'),
        ("A=\n", ""),
        ("A=1\r\n", "1"),
        ("A=one\\\ntwo\n", "onetwo"),
    ],
)
def test_reading(text: str, value: str | None) -> None:
    document = EnvironmentText.from_bytes(FILE, text.encode())
    assert document.value("A") == value
    assert document.has("A") is (value is not None)
    assert document.to_bytes() == text.encode()


@pytest.mark.parametrize(
    ("content", "words"), [(b"X=1\nA='1\n2'\n", "line 2: this value"), (b"X=1\n\xff\n", "line 2: this is not UTF-8")]
)
def test_texts_that_cannot_be_edited_safely(content: bytes, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        EnvironmentText.from_bytes(FILE, content)


@given(st.text(st.characters(min_codepoint=32, blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=30))
def test_what_is_written_is_read(value: str) -> None:
    document = EnvironmentText.from_bytes(FILE, b"# mine\n").set(("A",), value)
    again = EnvironmentText.from_bytes(FILE, document.to_bytes())
    assert again.value("A") == value
    assert again.delete(("A",)).to_bytes() == b"# mine\n"


def recorded(before: bytes | None, wanted: t.Mapping[str, str]) -> tuple[FileRecord, bytes | None]:
    """The record and the file after a first run."""
    planned = environment_file(before, None, wanted)
    record = FileRecord("cdi.refresh", FILE, before, 0, 0, 0o644)
    return record.after_write(before, planned.after, planned.keys), planned.after


ORIGINALS = [
    None,
    b"",
    b"# comment\n",
    b"# comment",
    b"# c\nOTHER='1'\nA=0\n",
    b"A=0\nA='x'",
    b"A=1\n",
]


@pytest.mark.parametrize("original", ORIGINALS)
@pytest.mark.parametrize("wanted", [{}, {"A": "1"}, {"A": "1", "B": "a b"}], ids=["nothing", "one", "two"])
def test_taking_back_gives_every_byte_back(original: bytes | None, wanted: dict[str, str]) -> None:
    record, content = recorded(original, wanted)
    if content is not None:
        document = EnvironmentText.from_bytes(FILE, content)
        assert {name: document.value(name) for name in wanted} == wanted
    assert environment_file(content, record, {}).after == original
    assert not environment_file(content, record, wanted).changed


def test_nothing_wanted_makes_no_file() -> None:
    assert environment_file(None, None, {}).after is None


def test_lines_of_others_stay() -> None:
    before = b"# c\nOTHER=1\nA=0 \n\n; d\n"
    assert environment_file(before, None, {"A": "1"}).after == b"# c\nOTHER=1\nA=1\n\n; d\n"


def test_what_others_add_later_stays_when_ours_goes() -> None:
    record, content = recorded(b"A=0\n", {"A": "1", "B": "2"})
    assert content is not None
    assert environment_file(content + b"C=3\n", record, {}).after == b"A=0\nC=3\n"


def test_what_others_change_later_is_theirs() -> None:
    record, content = recorded(b"A=0\n", {"A": "1", "B": "2"})
    assert content == b"A=1\nB=2\n"
    assert environment_file(b"A=5\nB=2\n", record, {}).after == b"A=5\n"


def test_a_variable_that_is_wanted_no_more_goes() -> None:
    record, content = recorded(b"# c\n", {"A": "1", "B": "2"})
    assert environment_file(content, record, {"B": "2"}).after == b"# c\nB=2\n"


def test_a_line_that_was_so_before_us_is_not_ours() -> None:
    assert environment_file(b"A=1\n", None, {"A": "1"}).keys == {}
    record, content = recorded(b"A=1\n", {"A": "1", "B": "2"})
    assert environment_file((content or b"") + b"# new\n", record, {}).after == b"A=1\n# new\n"
