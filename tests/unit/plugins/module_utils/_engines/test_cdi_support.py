# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.versions import VERSIONS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.cdi_support import (
    ENGINES,
    CdiEngine,
    engines_for,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.registry import Target
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri

if t.TYPE_CHECKING:
    from pathlib import Path

BOTH = ("/etc/cdi", "/var/run/cdi")
# What each program prints (Debian's builds, and the one of Kubernetes' CRI-O packages).
PRINTED = {
    "dockerd": "Docker version 28.5.2+dfsg4, build 3ef3c07c883be49a2e8097bcf6d2952fce1d70eb\n",
    "containerd": "containerd github.com/containerd/containerd/v2 2.1.9+unknown \n",
    "crio": "crio version 1.30.2\n   GitCommit:      7c0f1a8\n   GoVersion:      go1.22.5\n",
    "podman": "podman version 5.4.2\n",
}


class Programs:
    """A runner that answers for the programs of a host and records the commands."""

    def __init__(self, printed: t.Mapping[str, str], status: int = 0) -> None:
        self.calls: list[list[str]] = []
        self._printed = printed
        self._status = status

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        self.calls.append(argv)
        binary = next(word for word in argv if os.path.basename(word) in PRINTED)
        return self._status, self._printed.get(os.path.basename(binary), ""), ""


def refuse_to_run(argv: list[str]) -> tuple[int, str, str]:
    raise AssertionError(f"{argv} was run")


def install(root: Path, *names: str) -> None:
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    for name in names:
        program = root / "usr/bin" / name
        program.write_text(f"#!{name}\n")
        program.chmod(0o755)


def live(root: Path) -> HostFS:
    return HostFS(str(root), True)


def engine_of(word: str, root: Path) -> CdiEngine:
    return engines_for([word], HostFS(str(root), False), refuse_to_run)[0]


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "newest"),
    [
        ("docker:20.10.24", None),
        ("docker:24.0.9", None),
        ("docker:25", "0.6.0"),
        ("docker:25.0.0", "0.6.0"),
        ("docker:25.0.16", "0.6.0"),
        ("docker:25.0.17", "0.8.0"),
        ("docker:26.0.2", "0.6.0"),
        ("docker:26.1.0", "0.7.0"),
        ("docker:27.3.1", "0.7.0"),
        ("docker:27.4.0", "0.8.0"),
        ("docker:28.0.4", "0.8.0"),
        ("docker:28.1.0", "1.0.0"),
        ("docker:28.5.2+dfsg4", "1.0.0"),
        ("docker:29", "1.0.0"),
        ("docker:29.1.5", "1.0.0"),
        ("docker:29.2.0", "1.1.0"),
        ("containerd:1.6.20~ds1", None),
        ("containerd:1.7.0", "0.5.0"),
        ("containerd:1.7.11", "0.5.0"),
        ("containerd:1.7.12", "0.6.0"),
        ("containerd:1.7.15", "0.6.0"),
        ("containerd:1.7.16", "0.7.0"),
        ("containerd:v1.7.23-k3s2", "0.7.0"),
        ("containerd:1.7.26", "0.7.0"),
        ("containerd:1.7.27", "0.8.0"),
        ("containerd:2.0.0", "0.8.0"),
        ("containerd:2.0.4", "0.8.0"),
        ("containerd:2.0.5", "1.0.0"),
        ("containerd:2.1.9", "1.0.0"),
        ("containerd:2.2.0", "1.0.0"),
        ("containerd:2.2.1", "1.1.0"),
        ("crio:1.23.5", None),
        ("crio:1.24.0", "0.3.0"),
        ("crio:1.24.6", "0.3.0"),
        ("crio:1.25.0", "0.5.0"),
        ("crio:1.27.8", "0.5.0"),
        ("crio:1.28.0", "0.6.0"),
        ("crio:1.29.13", "0.6.0"),
        ("crio:1.30", "0.7.0"),
        ("crio:1.30.14", "0.7.0"),
        ("crio:1.31.0", "0.8.0"),
        ("crio:1.32.13", "0.8.0"),
        ("crio:1.33.0", "1.0.0"),
        ("crio:1.34.11", "1.0.0"),
        ("crio:1.35.0", "1.1.0"),
        ("crio:1.37.0", "1.1.0"),
        ("podman:3.4.4", None),
        ("podman:4.0.3", None),
        ("podman:4.1.0", "0.4.0"),
        ("podman:4.2.1", "0.4.0"),
        ("podman:4.3.0", "0.5.0"),
        ("podman:4.6.2", "0.5.0"),
        ("podman:4.7.0", "0.6.0"),
        ("podman:4.9.3", "0.6.0"),
        ("podman:4.9.4-rhel", "0.6.0"),
        ("podman:5.0.3", "0.6.0"),
        ("podman:5.1.0", "0.7.0"),
        ("podman:5.1.2", "0.7.0"),
        ("podman:5.2.0", "0.8.0"),
        ("podman:5.4.2", "0.8.0"),
        ("podman:5.8.6", "1.0.0"),
        ("podman:6", "1.0.0"),
    ],
)
def test_newest_cdi_version(word: str, newest: str | None, tmp_path: Path) -> None:
    engine = engine_of(word, tmp_path)
    assert engine.newest == newest
    assert engine.reads is (newest is not None)
    assert engine.folders == (() if newest is None else BOTH)
    assert engine.warning == ""


@pytest.mark.parametrize(
    ("version", "folders"),
    [
        ("5.4.2", BOTH),
        ("5.5.0", ("/etc/cdi",)),
        ("5.5.2", ("/etc/cdi",)),
        ("5.6.0", BOTH),
        ("5.8.6", BOTH),
    ],
)
def test_folders_of_podman(version: str, folders: tuple[str, ...], tmp_path: Path) -> None:
    assert engine_of(f"podman:{version}", tmp_path).folders == folders


@pytest.mark.parametrize("name", ENGINES)
def test_table_has_released_cdi_versions(name: str, tmp_path: Path) -> None:
    rows = flavors.FACTS[name].cdi_newest
    assert [since for since, _newest in rows] == sorted(since for since, _newest in rows)
    for since, newest in rows:
        assert newest in VERSIONS
        assert engine_of(f"{name}:{'.'.join(map(str, since))}", tmp_path).newest == newest


# -- the host ----------------------------------------------------------------------------------------------------------


def test_auto(tmp_path: Path) -> None:
    install(tmp_path, *PRINTED)
    run = Programs(PRINTED)
    engines = engines_for(["auto"], live(tmp_path), run)
    assert [(engine.name, engine.version, engine.newest) for engine in engines] == [
        ("docker", "28.5.2", "1.0.0"),
        ("containerd", "2.1.9", "1.0.0"),
        ("crio", "1.30.2", "0.7.0"),
        ("podman", "5.4.2", "0.8.0"),
    ]
    assert [engine.binary for engine in engines] == [f"/usr/bin/{name}" for name in PRINTED]
    assert run.calls == [["chroot", str(tmp_path), f"/usr/bin/{name}", "--version"] for name in PRINTED]


def test_auto_without_engines(tmp_path: Path) -> None:
    assert engines_for(["auto"], live(tmp_path), refuse_to_run) == []


def test_no_engines(tmp_path: Path) -> None:
    install(tmp_path, *PRINTED)
    assert engines_for([], live(tmp_path), refuse_to_run) == []


def test_name(tmp_path: Path) -> None:
    install(tmp_path, *PRINTED)
    run = Programs(PRINTED)
    engines = engines_for(["podman", "podman"], live(tmp_path), run)
    assert [str(engine) for engine in engines] == ["podman 5.4.2"]
    assert len(run.calls) == 1


def test_auto_with_named_version(tmp_path: Path) -> None:
    install(tmp_path, "podman", "crio")
    run = Programs(PRINTED)
    engines = engines_for(["auto", "podman:4.9.3", "docker:27.5"], live(tmp_path), run)
    assert [str(engine) for engine in engines] == ["podman 4.9.3", "docker 27.5", "crio 1.30.2"]
    assert [argv[2] for argv in run.calls] == ["/usr/bin/crio"]


def test_two_versions_of_one_engine(tmp_path: Path) -> None:
    engines = engines_for(["podman:4.9.3", "podman:5.8.6"], live(tmp_path), refuse_to_run)
    assert [engine.newest for engine in engines] == ["0.6.0", "1.0.0"]


@pytest.mark.parametrize("printed", ["", "podman\n", "podman version unknown, build 4af1234\n"])
def test_unknown_version(printed: str, tmp_path: Path) -> None:
    install(tmp_path, "podman")
    engines = engines_for(["auto"], live(tmp_path), Programs({"podman": printed}))
    assert (engines[0].version, engines[0].newest, engines[0].reads) == (None, None, True)
    assert engines[0].folders == BOTH
    assert "because /usr/bin/podman printed no version" in engines[0].warning
    assert "podman:5.5.0" in engines[0].warning


def test_program_fails(tmp_path: Path) -> None:
    install(tmp_path, "podman")
    engines = engines_for(["podman"], live(tmp_path), Programs(PRINTED, status=1))
    assert engines[0].version is None


def test_offline_tree(tmp_path: Path) -> None:
    install(tmp_path, "podman")
    host = HostFS(str(tmp_path), False)
    engines = engines_for(["auto", "docker"], host, refuse_to_run)
    assert [engine.name for engine in engines] == ["docker", "podman"]
    assert [engine.newest for engine in engines] == [None, None]
    assert "docker is not installed on this host" in engines[0].warning
    assert "/usr/bin/podman must not be run in an offline tree" in engines[1].warning


# -- for_engines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["", "Podman", "lxc", "lxc:1.2", "auto:1.2", ":1.2", "podman 4.9.3"])
def test_rejects_unknown_engines(word: str, tmp_path: Path) -> None:
    with pytest.raises(NvidiaError, match=r"for_engines: unknown engine .* docker, containerd, crio, podman"):
        engines_for([word], live(tmp_path), refuse_to_run)


@pytest.mark.parametrize("version", ["", "latest", "4..9", "4.9.", "-4", "4.9x", "9999999999", "4.9.3 "])
def test_rejects_invalid_versions(version: str, tmp_path: Path) -> None:
    with pytest.raises(NvidiaError, match=r"no valid version after the colon. Write it like podman:5\.5\.0\."):
        engines_for([f"podman:{version}"], live(tmp_path), refuse_to_run)


@pytest.mark.parametrize(
    ("name", "service", "program"),
    [
        ("docker", "docker.service", "opt/docker/dockerd"),
        ("containerd", "containerd.service", "opt/bin/containerd"),
        ("crio", "crio.service", "opt/crio/bin/crio"),
    ],
)
def test_auto_finds_a_program_that_only_its_unit_names(tmp_path: Path, name: str, service: str, program: str) -> None:
    files = {f"etc/systemd/system/{service}": f"[Service]\nExecStart=/{program} --x\n", program: "#!x\n"}
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    (found,) = engines_for(["auto"], live(tmp_path), Programs(PRINTED))
    assert (found.name, found.binary) == (name, f"/{program}")
    assert found.newest is not None
    # The inspection of the engine finds the same program.
    assert Target(name).load().inspect(live(tmp_path)).binary == f"/{program}"


@pytest.mark.parametrize("row", [row for row in flavors.FLAVORS.values() if row.cri], ids=lambda row: row.flavor)
def test_auto_asks_the_engine_of_a_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: flavors.Flavor
) -> None:
    engine = Target(row.engine, row.flavor).load()
    asked = {str(tmp_path) + str(getattr(engine, "socket", "")): "v1.7.6-k3s1"}
    monkeypatch.setattr(cri, "version", lambda path: asked[path])
    assert engines_for(["auto"], live(tmp_path), refuse_to_run) == []
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system" / row.services[-1]).touch()
    (found,) = engines_for(["auto"], live(tmp_path), refuse_to_run)
    assert (found.name, found.version, found.newest, found.warning) == ("containerd", "1.7.6", "0.5.0", "")
    (named,) = engines_for(["auto", "containerd:1.7.16"], live(tmp_path), refuse_to_run)
    assert (named.newest, named.warning) == ("0.7.0", "")
    # An engine of an offline tree is not asked.
    for is_live, cause in ((False, "does not run in an offline tree"), (True, f"did not report it on {row.cri}")):
        if is_live:
            monkeypatch.setattr(cri, "version", lambda _path: "")
        (found,) = engines_for(["auto"], HostFS(str(tmp_path), is_live), refuse_to_run)
        assert (found.version, found.newest) == (None, None)
        assert f"that of {row.flavor} {cause}" in found.warning
        assert "Set the version in for_engines, like containerd:" in found.warning
