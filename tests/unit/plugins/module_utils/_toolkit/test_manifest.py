# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.manifest import (
    FileDigest,
    Identity,
    Installed,
    Manifest,
    PartDigest,
)

KNOWN = FileDigest("ab" * 32, Identity(7, 10**18 + 1, 10**18 + 2, 42))
OTHER = Identity(7, 10**18 + 3, 10**18 + 4, 43)
WHOLE = Manifest(
    "1.20.0-0123456789ab",
    "1.20.0",
    "1.19.1-0123456789ab",
    ("ctk", "cli"),
    (
        PartDigest("nvidia-ctk", "cd" * 32, 0o755, 7, 62),
        PartDigest("libx.so.1.20.0", "ef" * 32, 0o644, 9, 62, "libx.so.1"),
    ),
    {"/srv/größe": KNOWN},
    {"nvidia-ctk.real": Installed(0o755, 0, 0, KNOWN), "libx.so.1": Installed(0o777, 0, 0, None, "libx.so.1.20.0")},
)
LEAST = Manifest("unknown-0123456789ab", None, None, None, (), {}, {})


def read(content: bytes) -> Manifest | None:
    return Manifest.from_bytes("/opt/x/.manifest.json", content)


@pytest.mark.parametrize("manifest", [WHOLE, LEAST])
def test_what_is_written_is_read(manifest: Manifest) -> None:
    found = read(manifest.to_bytes())
    assert found == manifest
    assert found is not None
    assert found.to_bytes() == manifest.to_bytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'"schema"',
        b"\xff\xfe",
        b'{"schema": 1}',
        b'{"schema": "1"}',
        b'{"schema": null}',
        WHOLE.to_bytes()[:-10],
        WHOLE.to_bytes().replace(b'"identity"', b'"identify"'),
        WHOLE.to_bytes().replace(b'"soname"', b'"sonnet"'),
        b"[" * 100000,
    ],
)
def test_what_is_no_manifest(content: bytes) -> None:
    assert read(content) is None


@pytest.mark.parametrize("field", ["parts", "sources", "files", "name", "version", "replaces", "components"])
@pytest.mark.parametrize("value", [7, "x", [7], {"a": 7}])
def test_a_field_that_cannot_be(field: str, value: t.Any) -> None:
    """Nothing of what somebody has written into it breaks a run."""
    fields = json.loads(WHOLE.to_bytes().decode())
    fields[field] = value
    found = read(json.dumps(fields).encode())
    assert found is None or isinstance(found, Manifest)
    if field in {"parts", "sources", "files"}:
        assert found is None


def test_a_newer_collection() -> None:
    content = WHOLE.to_bytes().replace(b'"schema": 1', b'"schema": 2')
    with pytest.raises(HostError, match=r"/opt/x/\.manifest\.json was written by a newer version.* Update it"):
        read(content)


def test_what_was_found_out_anew() -> None:
    found = WHOLE.refreshed({"nvidia-ctk.real": OTHER, "nobody": OTHER, "libx.so.1": OTHER}, {"/srv/x": KNOWN})
    assert found.files == {**WHOLE.files, "nvidia-ctk.real": Installed(0o755, 0, 0, FileDigest(KNOWN.sha256, OTHER))}
    assert found.sources == {"/srv/x": KNOWN}
    assert found._replace(files=WHOLE.files, sources=WHOLE.sources) == WHOLE
