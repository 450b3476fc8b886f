# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking, toml_parser
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.masking import MASK
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.masking_toml import mask_toml

FILES = Path(__file__).parents[3] / "files"


@pytest.mark.parametrize("name", ["auth", "identitytoken", "password", "token", "'db_password'", '"passw\\u006frd"'])
@pytest.mark.parametrize(
    "value", ['"hunter2"', "'hunter2'", '"""\nhunter2"""', '["hunter2", # no\n 1]', '{ a = "hunter2" }', "12"]
)
def test_the_value_of_a_secret_name_is_hidden_as_a_whole(name: str, value: str) -> None:
    for text in (
        "%s = %s # c\r\nb = 1",
        "[t.u]\n  %s=%s\n",
        "a.%s = %s",
        "a = [{ b = 1, c.%s = %s }]",
        "%s.x.y = %s\n",
    ):
        assert mask_toml(text % (name, value)) == text % (name, f'"{MASK}"')


def test_everything_in_a_secret_table_is_hidden() -> None:
    text = '[configs.r.auth]\n  username = "%s"\n[configs.r.auth.x]\ny = "%s"\n[z]\na = %s\n'
    assert mask_toml(text % ("hunter", "hunter2", "1")) == text % (MASK, MASK, "1")


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('a = "http://u:hunter2@x/y@z"', f'a = "http://{MASK}@x/y@z"'),
        ("a = ['http://u:hunter2@x', 'b']", f"a = [\"http://{MASK}@x\", 'b']"),
        ("a = 'http://u:\"hunter2@x'", f'a = "http://{MASK}@x"'),
        (r'a = "http://u:\"hunter2\u0040x"', f'a = "http://{MASK}@x"'),
        ('a = """\nhttp://u:hun\\\n   ter2@x"""', f'a = "\\nhttp://{MASK}@x"'),
        ('[a."http://u:hunter2@x"]\nb = 1', f'[a."http://{MASK}@x"]\nb = 1'),
        ("a = { 'http://u:hunter2@x'.b = 1 }", f'a = {{ "http://{MASK}@x".b = 1 }}'),
        ("a = 1 # http://u:hunter2@x\n", f"a = 1 # http://{MASK}@x\n"),
        ("a = [ # http://u:hunter2@x\n 1 ]\n", f"a = [ # http://{MASK}@x\n 1 ]\n"),
    ],
    ids=["one", "array", "quote", "escapes", "joined lines", "header", "name", "comment", "comment inside"],
)
def test_user_information_is_hidden(text: str, masked: str) -> None:
    assert mask_toml(text) == masked
    assert mask_toml(masked) == masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('# password = "hunter2"\na = 1\n', f"# password = {MASK}\na = 1\n"),
        ("a = 1\r\n#  auth.token='hunter2' # c\r\n", f"a = 1\r\n#  auth.token={MASK}\r\n"),
        ("a = 1 # secret = hunter2", f"a = 1 # secret = {MASK}"),
        ("# path = 1\n#[auth]\n", "# path = 1\n#[auth]\n"),
        ('a = "# password = 1"\n', 'a = "# password = 1"\n'),
    ],
)
def test_secrets_that_are_commented_out_are_hidden(text: str, masked: str) -> None:
    assert mask_toml(text) == masked


@pytest.mark.parametrize("file", sorted([*FILES.glob("*.toml"), *FILES.glob("*.conf")]), ids=lambda file: file.name)
def test_real_files_stay(file: Path) -> None:
    text = file.read_bytes().decode()
    assert mask_toml(text) == text
    assert mask_toml("\ufeff" + text) == "\ufeff" + text


def test_a_byte_order_mark_hides_no_secret() -> None:
    assert mask_toml("\ufeffpassword = 'hunter2'\n") == f'\ufeffpassword = "{MASK}"\n'


@pytest.mark.parametrize("text", ["", "\n", "a = 1\na = 2\n", "[" * 500, "{}", 'password = "x'])
def test_of_what_is_not_toml_only_urls_are_hidden(text: str) -> None:
    assert mask_toml(text) == text
    assert mask_toml(f"{text}\n# http://u:hunter2@x\n") == f"{text}\n# http://{MASK}@x\n"


@given(st.text(alphabet="ab=.[]{},#'\"\\\n \r1@:/é\ufeff"))
def test_any_text_is_taken(text: str) -> None:
    assert mask_toml(mask_toml(text)) == mask_toml(text)


def test_masking_json_needs_no_reader_of_toml() -> None:
    ours = masking.__package__ or ""
    readers = {toml_parser.__name__, "tomllib", "tomlkit"}
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for name in [name for name in sys.modules if name in readers or name.startswith(ours)]:
                del sys.modules[name]
            importlib.import_module(masking.__name__)
            status = len(readers & set(sys.modules))
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_a_long_comment_takes_little_time() -> None:
    start = time.process_time()
    mask_toml("#" + " " * 3_000 + "\n")
    assert time.process_time() - start < 3
