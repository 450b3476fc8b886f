# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The model of the merge, compared with what installed releases of containerd print for generated files.

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import typing as t
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.options import canonical
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_configs import FILES, MAIN
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_strategies import (
    REQUESTS,
    Asked,
    ask,
    configurations,
    host_of,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import Host

NIGHTLY = os.environ.get("GPUFLEET_NIGHTLY") == "1"
CACHE = Path(os.environ.get("GPUFLEET_CACHE") or Path.home() / ".cache/gpufleet-nvidia")
_VERSION = re.compile(r"(?:v|\s)([0-9]+)\.([0-9]+)\.([0-9]+)")


def version_of(program: str) -> tuple[int, ...] | None:
    """Return the version of a containerd, None if this machine cannot run it."""
    try:
        output = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    match = _VERSION.search(output)
    return None if match is None else tuple(int(part) for part in match.groups())


def releases() -> dict[tuple[int, ...], str]:
    """Return the programs of this machine and of the images of the test hosts, by their versions."""
    if not NIGHTLY:
        return {}
    programs = [shutil.which("containerd"), *map(str, sorted(CACHE.glob("images/*/usr/bin/containerd")))]
    found = ((version_of(program), program) for program in programs if program is not None)
    return {version: program for version, program in found if version is not None}


RELEASES = releases()
pytestmark = pytest.mark.skipif(not RELEASES, reason="no containerd to compare with, or not GPUFLEET_NIGHTLY=1")
EACH = pytest.mark.parametrize("version", RELEASES, ids=str)
MANY = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
Printed = t.Optional[t.Dict[str, t.Any]]


def printed(program: str, files: t.Mapping[str, bytes]) -> TomlDocument | None:
    """Return what `containerd config dump` prints for the files, None if it refuses them."""
    with tempfile.TemporaryDirectory() as folder:
        for path, content in files.items():
            target = Path(folder + path)
            target.parent.mkdir(parents=True, exist_ok=True)
            # Imports are absolute paths.
            target.write_bytes(re.sub(rb"([\"'])(/(?:x|etc)/)", f"\\1{folder}\\2".encode(), content))
        argv = [program, "--config", folder + MAIN, "config", "dump"]
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
    return TomlDocument.from_bytes("dump", result.stdout.encode()) if result.returncode == 0 else None


def without_zeros(entry: t.Any) -> t.Any:
    if not isinstance(entry, dict):
        return entry
    cleaned = {name: without_zeros(value) for name, value in entry.items()}
    return {name: value for name, value in cleaned.items() if value not in ("", False, 0, [], {}, None)}


def compared(table: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return the part of a runtime that containerd prints for each release."""
    cleaned = without_zeros(table)
    return {name: cleaned[name] for name in ("runtime_type", "options", "container_annotations") if name in cleaned}


def snapshotter(document: TomlDocument) -> t.Any:
    return document.value("plugins", "io.containerd.cri.v1.images", "snapshotter")


def expect_same(host: Host, document: TomlDocument) -> None:
    """Check that the model of the files equals what containerd prints."""
    cri = containerd_config.printed_cri(document)
    assert cri is not None
    files = host.effect
    found = {name: compared(canonical(entry)) for name, entry in cri["containerd"]["runtimes"].items()}
    expected = {name: compared(entry) for name, entry in files.runtimes().items()}
    if files.merges or not expected:
        builtin = {"runtime_type": "io.containerd.runc.v2"}
        expected["runc"] = {**builtin, **expected.get("runc", {})}
    assert found == expected
    assert cri["containerd"]["default_runtime_name"] == (files.default_runtime() or "runc")
    if host.version is not None and host.version >= (1, 7):
        by_default = host.version >= (2,)
        assert cri["enable_cdi"] is files.cri().get("enable_cdi", by_default)


def is_read(host: Host) -> bool:
    """Return whether this containerd reads the CRI settings of the main file."""
    try:
        containerd_config.check_version(host.effect)
    except NvidiaError:
        return False
    return not host.effect.missing


@EACH
@pytest.mark.parametrize("name", FILES)
def test_real_files(name: str, version: tuple[int, ...]) -> None:
    host = Host(FILES[name], version)
    if MAIN not in host.files.content or not is_read(host):
        return
    document = printed(RELEASES[version], host.files.content)
    if document is not None:
        expect_same(host, document)


@EACH
@MANY
@given(configurations(), REQUESTS)
def test_generated_files(version: tuple[int, ...], files: dict[str, bytes | None], asked: Asked) -> None:
    host = host_of(files, version)
    assume(MAIN in host.files.content and is_read(host))
    before = printed(RELEASES[version], host.files.content)
    assume(before is not None)
    assert before is not None
    expect_same(host, before)
    if not ask(host, **asked):
        return
    after = printed(RELEASES[version], host.files.content)
    assert after is not None
    expect_same(host, after)
    assert snapshotter(after) == snapshotter(before)
