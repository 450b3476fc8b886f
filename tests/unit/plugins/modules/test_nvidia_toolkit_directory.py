# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module nvidia_toolkit_install with a toolkit in a directory, from the host and from the controller."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_directories import DEST, MACHINE, Host, tree_of

if t.TYPE_CHECKING:
    from pathlib import Path

    Run = t.Callable[..., dict[str, t.Any]]

LEVEL = {"nvidia-container-runtime.log-level": "debug"}
CONFIG = f"{DEST}/.config/nvidia-container-runtime/config.toml"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def run(host: Host, run_module: Run) -> Run:
    arguments = {"source": "directory", "dest": DEST, "host_root": str(host.root)}

    def run_with(**options: t.Any) -> dict[str, t.Any]:
        return run_module("nvidia_toolkit_install", **{**arguments, **options})

    return run_with


def test_installation_and_removal(host: Host, run: Run) -> None:
    arguments: dict[str, t.Any] = {"src": host.source("1.19.1"), "settings": LEVEL}
    before = tree_of(host.root / "opt")
    predicted = run(**arguments, _ansible_check_mode=True)
    assert tree_of(host.root / "opt") == before
    assert f"{DEST}/nvidia-ctk" in predicted["predicted"]["programs"]
    first = run(**arguments)
    assert (first["changed"], first["predicted"], first["version"]) == (True, None, "1.19.1")
    assert predicted["diff"] == first["diff"]
    programs, config = first["diff"]
    assert (programs["before"], programs["after_header"]) == ("", DEST)
    assert "nvidia-ctk" in programs["after"]
    assert 'log-level = "debug"' in config["after"]
    assert (host.root / CONFIG[1:]).read_text(encoding="utf-8") == config["after"]
    again = run(**arguments)
    assert (again["changed"], len(again["diff"])) == (False, 1)
    assert again["diff"][0]["before"] == again["diff"][0]["after"] == programs["after"]
    removed = run(state="absent")
    assert (removed["changed"], host.dest.exists()) == (True, False)
    assert (removed["diff"][0]["before"], removed["diff"][0]["after"]) == (programs["after"], "")
    assert run(state="absent")["changed"] is False


def test_parts_of_the_toolkit(host: Host, run: Run) -> None:
    result = run(src=host.source("1.19.1"), components=["ctk"], low_level_runtimes=["crun"])
    assert "failed" not in result, result["msg"]
    assert (host.dest / "nvidia-ctk").exists()
    assert not (host.dest / "nvidia-container-runtime").exists()
    assert 'runtimes = ["crun"]' in (host.root / CONFIG[1:]).read_text(encoding="utf-8")


def test_secrets_are_not_returned(host: Host, run: Run) -> None:
    result = run(src=host.source("1.19.1"), settings={"a.password": "secret-of-a"}, allow_unknown=True)
    assert result["changed"] is True
    assert "secret-of-a" in (host.root / CONFIG[1:]).read_text(encoding="utf-8")
    assert "secret-of-a" not in json.dumps(result)


def test_a_source_on_the_controller(host: Host, run: Run) -> None:
    """The action plugin describes the toolkit, and sends it if the module asks for it."""
    before = tree_of(host.root / "opt")
    alone = run(src="/toolkit", remote_src=False)
    assert "the controller sent no toolkit" in alone["msg"]
    part = {"name": "nvidia-ctk", "sha256": "0" * 64, "mode": 0o755, "size": 1, "machine": MACHINE}
    asked = run(src="/toolkit", remote_src=False, _bundled={"toolkit": json.dumps([part])})
    assert (asked["failed"], asked["needed"]) == (True, "toolkit_archive")
    assert tree_of(host.root / "opt") == before
    # A removal needs no source.
    assert run(state="absent", src="/toolkit", remote_src=False)["changed"] is False


@pytest.mark.parametrize("sources", [{}, {"src": "/a", "files": ["/b.deb"]}])
@pytest.mark.parametrize("remote_src", [True, False])
def test_one_source_is_required(run: Run, sources: dict[str, t.Any], remote_src: bool) -> None:
    failed = run(remote_src=remote_src, **sources)
    assert failed["failed"] is True
    assert "src" in failed["msg"]
    assert "files" in failed["msg"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"proxy": "http://a"}, "proxy"),
        ({"hold": False}, "hold"),
        ({"packages": "base"}, "packages: base"),
    ],
)
def test_options_of_packages_are_refused(run: Run, options: dict[str, t.Any], named: str) -> None:
    assert f"source: directory does not support these options: {named}. " in run(src="/a", **options)["msg"]


@pytest.mark.parametrize(
    ("options", "named"),
    [({"src": "/a"}, "src"), ({"components": ["ctk"]}, "components"), ({"remote_src": False}, "remote_src: false")],
)
def test_options_of_the_directory_are_refused(run: Run, options: dict[str, t.Any], named: str) -> None:
    failed = run(source="existing", dest=None, **options)
    assert f"Only source: directory supports these options: {named}. " in failed["msg"]
