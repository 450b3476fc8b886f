# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Secrets of varied shapes that no text of a result may show, and harmless values that must stay readable, each as a
# value, in JSON and in TOML. "S" stands for the secret.

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.json_document import mask_json
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import mask_toml

SECRET = "Zx9hunterQq7"

VALUES: list[t.Any] = [
    # Lists of arguments.
    ["--token", "S"],
    ["run", "--token", "S", "--debug"],
    ["-token", "S"],
    ["--api-key", "S"],
    ["--registry-password", "S", "--verbose"],
    ["--bearer", "S"],
    ["--github-pat", "S"],
    ["--token", "-S"],
    ["--token=", "S"],
    ["--auth.token", "S"],
    ["token", "S"],
    ["user", "bob", "password", "S"],
    ["config", "set", "secret", "S"],
    [["a", "b"], ["password", "S"]],
    ["--token=S"],
    ["--log-opt=splunk-token=S"],
    ["--log-opt", "splunk-token=S,tag=x"],
    ["--set", "auth.token=S"],
    ["-e", "NGC_API_KEY=S"],
    ["--env", "DB_PASSWORD=two words S"],
    ["-H", "Authorization: Basic S"],
    ["--header", "Authorization: Bearer two S"],
    ["--header", "Cookie: session=S; path=/"],
    ["--header", 'Cookie: a="b"; session=S'],
    ["--header", "X-Registry-Auth: S"],
    ["--header=X-Api-Key: S"],
    ["sh", "-c", "login --token S --debug"],
    ["sh", "-c", "curl -H 'Authorization: Bearer S' https://x"],
    ["sh", "-c", 'curl -H "PRIVATE-TOKEN: S" https://x'],
    ["sh", "-c", "export HF_TOKEN=S; run"],
    ["password: S"],
    # Names.
    {"bearer": "S"},
    {"TS_AUTHKEY": "S"},
    {"authKey": "S"},
    {"client-key-data": "S"},
    {"pat": "S"},
    {"githubPat": "S"},
    {"GITHUB_PAT": "S"},
    {"cookie": "S"},
    {"Set-Cookie": "S"},
    {"sasToken": "S"},
    {"jwt": "S"},
    {"sig": "S"},
    {"registry-creds": "S"},
    {"encryptionKey": "S"},
    {"session_id": "S"},
    {"X-Registry-Config": "S"},
    {".dockerconfigjson": "S"},
    {"token2": "S"},
    {"DBPass": "S"},
    {"auths": {"registry": {"username": "S"}}},
    {"header": {"Authorization": ["Basic S"]}},
    {"env": [{"name": "NGC_TOKEN", "value": "S"}]},
    {"env": [{"value": "S", "name": "PASSWORD"}]},
    {"annotations": [{"key": "secret", "value": "S"}]},
    {"token-file": "S"},
    {"default_env": ["A=b", "NAME_TOKEN=S"]},
    # URLs.
    "https://account.blob.core.windows.net/x?sv=2024&sig=S&se=2030",
    "https://s3/x?X-Amz-Signature=S",
    "https://s3/x?X-Amz-Security-Token=S&a=b",
    "https://x/?a=b&key=S",
    "https://x/#access_token=S&type=b",
    "https://x/?next=https%3A%2F%2Fy%2F%3Ftoken%3DS",
    "https://bob:S@registry/v2",
    "https://S@registry/v2",
    "HTTP_PROXY=http://bob:S@proxy:3128",
    # Strings that contain other formats.
    '{"token": "S"}',
    '{"a": [{"name": "TOKEN", "value": "S"}]}',
    '["--token", "S"]',
    json.dumps({"a": json.dumps({"password": "S"})}),
    'CONFIG={"token": "S"}',
    "opts {'password': 'S'} end",
    "a=1\npassword = S\n",
    "Bearer S",
    "error: Authorization: Basic S",
    # Tokens with the mark of their issuer, without a name.
    ["login", "ghp_S0123456789"],
    ["login", "nvapi-S0123456789"],
    ["login", "eyJhbGciOiJI.eyJzdWIiOiIx.S"],
    "-----BEGIN RSA PRIVATE KEY-----\nS\n-----END RSA PRIVATE KEY-----",
]

HARMLESS: list[t.Any] = [
    {"token-ttl": 5},
    {"tokenTTL": "5m"},
    {"token_ttl_seconds": 300},
    {"token-expiration": "24h"},
    {"tokenExpiresIn": 3600},
    {"token-refresh-interval": "10m"},
    {"token-type": "opaque"},
    {"max-tokens": 4096},
    {"max_token_length": 512},
    {"tokens-per-second": 40},
    {"password-min-length": 12},
    {"password-policy": "strict"},
    {"secretName": "registry"},
    {"secret-rotation-days": 30},
    {"secretKeyRef": {"name": "registry", "key": "value"}},
    {"enable-token": True},
    {"no-auth": True},
    {"auth-plugin": "opa"},
    {"authorization-plugins": ["opa", "audit"]},
    {"credsStore": "pass"},
    {"credHelpers": {"registry": "ecr-login"}},
    {"private_key_path": "/etc/ssl/key.pem"},
    {"private_key": "/etc/ssl/private/key.pem"},
    {"token-file": "/var/run/token"},
    {"tlskey": "/etc/docker/key.pem"},
    {"tls": {"key_file": "/etc/ssl/key.pem", "ca_file": "/etc/ssl/ca.pem"}},
    {"global_auth_file": "/etc/crio/auth.json"},
    {"signature_policy": "/etc/containers/policy.json"},
    {"decryption_keys_path": "/etc/crio/keys/"},
    {"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime", "runtimeArgs": ["--debug", "--log=/x"]}}},
    {"runtimeArgs": ["--root", "/run/x", "--systemd-cgroup", "--log-format", "json"]},
    {"args": ["--token-ttl", "5", "--token-file", "/etc/token"]},
    {"args": ["--no-auth", "server", "--password-stdin", "user"]},
    {"args": ["--token", "--debug"]},
    {"args": ["--password-file=/etc/password"]},
    {"env": ["NVIDIA_VISIBLE_DEVICES=all", "PATH=/usr/bin:/bin", "KEYS=1"]},
    {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
    {"runtime_type": "io.containerd.runc.v2", "BinaryName": "/usr/bin/nvidia-container-runtime"},
    {"default-runtime": "nvidia", "log-driver": "json-file", "features": {"cdi": True}},
    {"image": "auth:2.1", "sandbox": "registry.k8s.io/pause:3.9"},
    {"mirror": "https://mirror.example/v2?page=2&sort=key"},
    {"compat": "compat-path", "compatible": "spatial", "bypass": "x", "author": "x"},
    {"keyring": "/usr/share/keyrings/nvidia.gpg", "gpgkey": "https://x/gpgkey"},
    "deb [signed-by=/usr/share/keyrings/nvidia.gpg] https://nvidia.github.io/x /",
    "Basic example of a bearer protocol",
    "unexpected token } in JSON at position 4",
    "unknown flag: --token",
    "the sig is missing, the session ended",
    "busybox@sha256:0123456789abcdef",
    "/sys/fs/cgroup/system.slice",
    '{"a": ["b", 1.50], "token-ttl": 5}',
]


def _filled(value: t.Any) -> t.Any:
    if isinstance(value, dict):
        return {name: _filled(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner) for inner in value]
    if not isinstance(value, str):
        return value
    # A secret is the last capital S that stands alone.
    return value.replace("_S0", f"_{SECRET}0").replace("-S0", f"-{SECRET}0") if "S0" in value else _alone(value)


def _alone(value: str) -> str:
    places = [
        place
        for place, sign in enumerate(value)
        if sign == "S" and not (value[:place][-1:].isalnum() or value[place + 1 : place + 2].isalnum())
    ]
    encoded = value.find("%3DS")
    place = encoded + 3 if encoded >= 0 else places[-1] if places else None
    return value if place is None else value[:place] + SECRET + value[place + 1 :]


def toml(value: t.Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def documents(value: t.Any) -> t.Iterator[tuple[str, t.Callable[[str], str]]]:
    """Yield ``value`` in all formats, with the function that masks each."""
    for indent in (None, 2):
        yield json.dumps({"x": value}, indent=indent), mask_json
        # A comment or a comma makes it a text that no parser reads.
        yield json.dumps({"x": value}, indent=indent) + " //", mask_json
    yield f"x = {toml(value)}\n", mask_toml
    yield f"# x = {toml(value)}\ny = 1\n", mask_toml
    if isinstance(value, dict):
        yield "[x]\n" + "".join(f"{json.dumps(name)} = {toml(inner)}\n" for name, inner in value.items()), mask_toml


@pytest.mark.parametrize("value", VALUES, ids=json.dumps)
def test_a_secret_is_hidden(value: t.Any) -> None:
    planted = _filled(value)
    assert SECRET in json.dumps(planted)
    for text, mask in documents(planted):
        shown = mask(text)
        assert SECRET not in shown, text
        assert mask(shown) == shown
    assert SECRET not in json.dumps(masking.mask_value(planted))
    # AnsibleModule hides these strings in the invocation of the task, and in all of its results.
    found = "".join(masking.secrets_of({"x": planted}))
    assert SECRET in found
    if isinstance(planted, str):
        assert SECRET not in masking.mask_urls(f"docker: {planted}" if "\n" not in planted else planted)


@pytest.mark.parametrize("value", HARMLESS, ids=json.dumps)
def test_a_harmless_value_stays_readable(value: t.Any) -> None:
    for text, mask in documents(value):
        assert mask(text) == text
    assert masking.mask_value(value) == value
    assert list(masking.secrets_of({"x": value})) == []
    if isinstance(value, str):
        assert masking.mask_urls(value) == value


def test_a_line_of_yaml() -> None:
    assert masking.mask_urls(f"- password: {SECRET}\n  b: c\n") == f"- password: {masking.MASK}\n  b: c\n"


def test_the_tables_are_long() -> None:
    assert len(VALUES) >= 60
    assert len(HARMLESS) >= 40
