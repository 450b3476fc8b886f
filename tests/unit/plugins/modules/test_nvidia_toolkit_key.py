# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module that fetches the key, with a proxy that serves every address."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import os
import stat
import threading
import typing as t

import pytest

if t.TYPE_CHECKING:
    from pathlib import Path

URL = "http://repository.example.com/gpgkey"


class Proxy(http.server.BaseHTTPRequestHandler):
    seen: t.ClassVar[list[tuple[str, str | None]]] = []
    status = 200
    key = b"the key\n"

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Proxy-Authorization")))
        self.send_response(self.status)
        self.end_headers()
        # The module stops reading a key that is too large.
        with contextlib.suppress(ConnectionError):
            self.wfile.write(self.key)

    def log_message(self, *_arguments: object) -> None:
        """Keep the output of the tests short."""


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> t.Iterator[str]:
    for name in ("http_proxy", "https_proxy"):
        # The module sets these, so the test has to restore them.
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setattr(Proxy, "seen", [])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://bob:hunter2@127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def fetch(run_module: t.Callable[..., dict[str, t.Any]]) -> t.Callable[..., dict[str, t.Any]]:
    def run(**arguments: t.Any) -> dict[str, t.Any]:
        result = run_module("nvidia_toolkit_key", **arguments)
        assert "hunter2" not in json.dumps(result)
        return result

    return run


def test_fetches_the_key(proxy: str, fetch: t.Callable[..., dict[str, t.Any]], tmp_path: Path) -> None:
    dest = tmp_path / "key.asc"
    arguments = {"url": URL, "dest": str(dest), "proxy": proxy}
    assert fetch(**arguments, _ansible_check_mode=True)["changed"]
    assert not dest.exists()
    assert fetch(**arguments)["changed"]
    assert dest.read_bytes() == Proxy.key
    assert stat.S_IMODE(dest.stat().st_mode) == 0o644
    assert not fetch(**arguments)["changed"]
    dest.write_bytes(b"another key\n")
    assert fetch(**arguments)["changed"]
    assert dest.read_bytes() == Proxy.key
    authorization = "Basic " + base64.b64encode(b"bob:hunter2").decode()
    assert Proxy.seen == [(URL, authorization)] * 4
    assert os.listdir(tmp_path) == ["key.asc"]


@pytest.mark.parametrize(
    "answer",
    [(404, b"", "cannot be fetched"), (200, b"x" * (1 << 21), "more than 1048576 bytes")],
    ids=["missing", "large"],
)
def test_refuses_invalid_responses(
    monkeypatch: pytest.MonkeyPatch,
    proxy: str,
    fetch: t.Callable[..., dict[str, t.Any]],
    tmp_path: Path,
    answer: tuple[int, bytes, str],
) -> None:
    status, key, message = answer
    monkeypatch.setattr(Proxy, "status", status)
    monkeypatch.setattr(Proxy, "key", key)
    result = fetch(url=URL, dest=str(tmp_path / "key.asc"), proxy=proxy)
    assert result["failed"]
    assert message in result["msg"]
    assert "nvidia_toolkit_key" in result["msg"]
    assert "code" not in result
    assert os.listdir(tmp_path) == []


def test_unreachable_server(fetch: t.Callable[..., dict[str, t.Any]], tmp_path: Path, proxy: str) -> None:
    result = fetch(url=URL, dest=str(tmp_path / "key.asc"), proxy=proxy.rpartition(":")[0] + ":1")
    assert result["failed"]
    assert "cannot be fetched" in result["msg"]
    assert "is on repository.example.com; nvidia_toolkit_proxy (proxy) is 127.0.0.1:1. If" in result["msg"]
    assert result["code"] == "repository-unreachable"
