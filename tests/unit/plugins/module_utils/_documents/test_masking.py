# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import typing as t
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking, toml_parser
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.json_document import mask_json
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.masking import (
    MASK,
    mask_urls,
    secrets_of,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import mask_toml

FILES = Path(__file__).parents[3] / "files"

SECRET = "hunter2"

SECRET_NAMES = [
    "auth",
    "auths",
    "Auth",
    "password",
    "db_password",
    "passphrase",
    "splunk-token",
    "identitytoken",
    "tokens",
    "secret",
    "clientSecret",
    "credentials",
    "api_key",
    "awsAccessKey",
    "access-key-id",
    "privateKeyPath",
    "pass",
    "pwd",
    "proxy-authorization",
]
PLAIN_NAMES = [
    "authorization-plugins",
    "author",
    "bypass",
    "passive",
    "credsStore",
    "data-root",
    "default-runtime",
    "insecure-registries",
    "keyring",
    "path",
    "runtimes",
    "tlscacert",
    "",
]

# -- URLs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("http://user:hunter2@proxy:3128", f"http://{MASK}@proxy:3128"),
        ("http://hunter2@proxy", f"http://{MASK}@proxy"),
        ("http://:hunter2@proxy", f"http://{MASK}@proxy"),
        ("https://user:hun@ter2@proxy/path", f"https://{MASK}@proxy/path"),
        ("https://us%40er:hunter2%2F@[::1]:80/x@y", f"https://{MASK}@[::1]:80/x@y"),
        ("socks5h://u:hunter2,!$&*+;=()~@proxy?x", f"socks5h://{MASK}@proxy?x"),
        # An apostrophe needs no escape in user information (RFC 3986, sub-delims).
        ("http://user:hunter2's@proxy", f"http://{MASK}@proxy"),
        ("a http://u:hunter2@x, b 'http://u:hunter2@y'", f"a http://{MASK}@x, b 'http://{MASK}@y'"),
        ('Get "http://u:hunter2@x/v2/": EOF', f'Get "http://{MASK}@x/v2/": EOF'),
        # Invalid URLs that users write. The error messages of Go's parser quote them.
        ("http://u:hun/ter2@proxy", f"http://{MASK}@proxy"),
        ("http://u:hun/t@er2@proxy:3128", f"http://{MASK}@proxy:3128"),
        ("http://u:hun?te#r2@proxy", f"http://{MASK}@proxy"),
        ("u:hunter2@proxy:3128", f"{MASK}@proxy:3128"),
        ("u:hun@ter2@proxy", f"{MASK}@proxy"),
        ("HTTP_PROXY=u:hunter2@proxy", f"HTTP_PROXY={MASK}@proxy"),
        ("password=hunter2 and more", f"password={MASK} and more"),
        ("x;db-password='hunter2 hunter2'", f"x;db-password={MASK}"),
        ("https://x/?a=b&token=hunter2&c=d", f"https://x/?a=b&token={MASK}&c=d"),
        ("--log-opt splunk-token=hunter2,tag=x", f"--log-opt splunk-token={MASK},tag=x"),
    ],
)
def test_hides_user_information_and_assignments(text: str, masked: str) -> None:
    assert mask_urls(text) == masked
    assert SECRET not in masked
    assert mask_urls(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "",
        "root@example.org",
        "http://proxy:3128/a@b",
        "http://proxy?mail=a@b",
        "http://proxy#a@b",
        "unix:///run/docker.sock",
        "http://proxy and root@example.org",
        '"http://proxy" "root@example.org"',
        "sha256:abc@def",
        "busybox:1.36@sha256:0123",
        "http://[::1]:80/x@y",
        "mailto:root@example.org",
        "keyring=x&path=y",
        "author=me",
        "at 12:30 root@example.org",
    ],
)
def test_keeps_texts_without_secrets(text: str) -> None:
    assert mask_urls(text) == text
    for document in (text, json.dumps([text])):
        assert mask_json(document) == document


# -- JSON ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SECRET_NAMES)
@pytest.mark.parametrize("value", ['"hunter2"', "[1, {}]", '{"a": "hunter2"}', "null", "12"])
def test_json_hides_the_whole_value_of_a_secret_name(name: str, value: str) -> None:
    for text in ('{"%s": %s}', '{"a": {"%s": %s, "b": 1}}', '[0, [{"%s":%s}]]', '\n{\n\t"%s"  :\r\n %s\n}\n'):
        assert mask_json(text % (name, value)) == text % (name, f'"{MASK}"')


def test_daemon_json() -> None:
    text = """{
    "proxies": {"http-proxy": "http://user:hun@ter2@proxy:3128", "no-proxy": "localhost"},
    "log-opts": {"splunk-token": "hunter2", "splunk-url": "https://u:hunter2@splunk:8088", "tag": "a@b"},
    "auths": {"https://registry": {"auth": "aHVudGVyMg=="}},
    "registry-mirrors": ["https://u:hunter2@mirrör", "https://other"],
    "exec-opts": ["password=hunter2"],
    "password": "a", "password": "hunter2"
}"""
    masked = """{
    "proxies": {"http-proxy": "http://********@proxy:3128", "no-proxy": "localhost"},
    "log-opts": {"splunk-token": "********", "splunk-url": "https://********@splunk:8088", "tag": "a@b"},
    "auths": "********",
    "registry-mirrors": ["https://********@mirrör", "https://other"],
    "exec-opts": ["password=********"],
    "password": "********", "password": "********"
}"""
    assert mask_json(text) == masked
    assert mask_json(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        r'{"passw\u006frd": "hunter2"}',
        r'{"password": "\"hunter2"}',
        r'{"a": "http:\/\/user:hunter2@proxy"}',
        r'{"a": "http://user:hunter2\u0040proxy"}',
        r'{"a": "http://user:\"hunter2@proxy"}',
        '{"http://user:hunter2@registry": {}}',
    ],
    ids=["name", "quote in a secret", "slashes", "at sign", "quote in a URL", "URL as a name"],
)
def test_json_escapes_are_decoded_first(text: str) -> None:
    masked = mask_json(text)
    assert SECRET not in masked
    assert isinstance(json.loads(masked), dict)


def test_json_keeps_a_lone_surrogate_escaped() -> None:
    assert mask_json(r'{"a": "http://u:p@h/\ud83d"}') == r'{"a": "http://********@h/\ud83d"}'


def test_json_with_a_byte_order_mark() -> None:
    assert mask_json('\ufeff{"password": "hunter2"}') == f'\ufeff{{"password": "{MASK}"}}'


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("", ""),
        (" \n", " \n"),
        ("proxy = 'http://u:hunter2@x'\n[a]\n", f"proxy = 'http://{MASK}@x'\n[a]\n"),
        ('{"a": "http://u:hunter2@x",}', f'{{"a": "http://{MASK}@x",}}'),
        ("[" * 500 + "http://u:hunter2@x", "[" * 500 + f"http://{MASK}@x"),
        ('"http://u:hunter2@x"', f'"http://{MASK}@x"'),
    ],
)
def test_invalid_json_is_masked_as_plain_text(text: str, masked: str) -> None:
    assert mask_json(text) == masked


_NAMES = st.sampled_from([*SECRET_NAMES[:6], *PLAIN_NAMES])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='aé"\\/: \n\U0001f600', max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=15,
)


def _expected(value: t.Any) -> t.Any:
    if isinstance(value, dict):
        return {name: MASK if name in SECRET_NAMES else _expected(inner) for name, inner in value.items()}
    return [_expected(inner) for inner in value] if isinstance(value, list) else value


@given(_VALUES, st.sampled_from([None, 0, 2]), st.booleans())
def test_json_hides_exactly_the_secret_values(value: t.Any, indent: int | None, ascii_only: bool) -> None:
    masked = mask_json(json.dumps(value, indent=indent, ensure_ascii=ascii_only))
    assert masked == json.dumps(_expected(value), indent=indent, ensure_ascii=ascii_only)


@given(st.text())
def test_json_accepts_any_text(text: str) -> None:
    assert mask_urls(mask_json(text)) == mask_json(text)


@pytest.mark.parametrize("text", ["a" * 100_000, "a=" * 50_000, "a:" * 50_000, "a@" * 50_000, "://a" * 50_000])
def test_secrets_of_a_long_parameter_take_little_time(text: str) -> None:
    start = time.process_time()
    list(secrets_of({"settings": [text]}))
    assert time.process_time() - start < 3


@pytest.mark.parametrize("part", ["a", "://a:", ";a:", "(", 'a="', ";a:@", "://a:@ ", "://1:@", "a@"])
def test_a_long_text_takes_little_time(part: str) -> None:
    text = part * 30_000
    start = time.process_time()
    mask_urls(text)
    mask_json(json.dumps([text]))
    assert time.process_time() - start < 3


# -- TOML ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["auth", "identitytoken", "password", "token", "'db_password'", '"passw\\u006frd"'])
@pytest.mark.parametrize(
    "value", ['"hunter2"', "'hunter2'", '"""\nhunter2"""', '["hunter2", # no\n 1]', '{ a = "hunter2" }', "12"]
)
def test_toml_hides_the_whole_value_of_a_secret_name(name: str, value: str) -> None:
    for text in (
        "%s = %s # c\r\nb = 1",
        "[t.u]\n  %s=%s\n",
        "a.%s = %s",
        "a = [{ b = 1, c.%s = %s }]",
        "%s.x.y = %s\n",
    ):
        assert mask_toml(text % (name, value)) == text % (name, f'"{MASK}"')


def test_toml_hides_all_values_of_a_secret_table() -> None:
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
def test_toml_hides_user_information_in_urls(text: str, masked: str) -> None:
    assert mask_toml(text) == masked
    assert mask_toml(masked) == masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('# password = "hunter2"\na = 1\n', f"# password = {MASK}\na = 1\n"),
        ("a = 1\r\n#  auth.token='hunter2' # c\r\n", f"a = 1\r\n#  auth.token={MASK}\r\n"),
        ("a = 1 # secret = hunter2", f"a = 1 # secret = {MASK}"),
        ("# path = 1\n#[auth]\n", "# path = 1\n#[auth]\n"),
        ('a = "# password = 1"\n', f'a = "# password = {MASK}"\n'),
    ],
)
def test_toml_hides_secrets_in_comments(text: str, masked: str) -> None:
    assert mask_toml(text) == masked


@pytest.mark.parametrize("file", sorted([*FILES.glob("*.toml"), *FILES.glob("*.conf")]), ids=lambda file: file.name)
def test_toml_keeps_files_without_secrets(file: Path) -> None:
    text = file.read_bytes().decode()
    assert mask_toml(text) == text
    assert mask_toml("\ufeff" + text) == "\ufeff" + text


def test_toml_with_a_byte_order_mark() -> None:
    assert mask_toml("\ufeffpassword = 'hunter2'\n") == f'\ufeffpassword = "{MASK}"\n'


@pytest.mark.parametrize("text", ["", "\n", "a = 1\na = 2\n", "[" * 500, "{}", 'path = "x'])
def test_invalid_toml_is_masked_as_plain_text(text: str) -> None:
    assert mask_toml(text) == text
    assert mask_toml(f"{text}\n# http://u:hunter2@x\n") == f"{text}\n# http://{MASK}@x\n"


def test_a_secret_without_its_second_quote() -> None:
    assert mask_toml('a = 1\npassword = "hunter2') == f"a = 1\npassword = {MASK}"


@given(st.text(alphabet="ab=.[]{},#'\"\\\n \r1@:/é\ufeff"))
def test_toml_accepts_any_text(text: str) -> None:
    assert mask_toml(mask_toml(text)) == mask_toml(text)


def test_masking_imports_no_toml_parser() -> None:
    package = masking.__package__ or ""
    readers = {toml_parser.__name__, "tomllib", "tomlkit"}
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for name in [name for name in sys.modules if name in readers or name.startswith(package)]:
                del sys.modules[name]
            importlib.import_module(masking.__name__)
            status = len(readers & set(sys.modules))
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_toml_with_a_long_comment_takes_little_time() -> None:
    start = time.process_time()
    mask_toml("#" + " " * 3_000 + "\n")
    assert time.process_time() - start < 3
