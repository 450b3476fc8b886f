# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import sys
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import (
    ConfigurationError,
    MissingPackageError,
    NvidiaError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k3s.config import (
    RancherDistribution,
    RancherSettings,
    config_file,
    data_dir,
    flags,
    is_own_line,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import Unit

if t.TYPE_CHECKING:
    from pathlib import Path

K3S = RancherDistribution("k3s")
MAIN = "/etc/rancher/k3s/config.yaml"


def host_with(root: Path, **files: str | bytes) -> HostFS:
    """Return a host with the settings file ``main`` and drop-ins by name, with _ for the dot."""
    for name, text in files.items():
        path = root / MAIN[1:] if name == "main" else root / f"{MAIN[1:]}.d" / name.replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return HostFS(str(root), live=False)


def unit_with(*arguments: str, **environment: str) -> Unit:
    return Unit("k3s.service", "/u", arguments=("/usr/local/bin/k3s", *arguments), environment=environment)


def default_of(root: Path, **files: str | bytes) -> str:
    return RancherSettings(K3S, host_with(root, **files), None).value("default-runtime")


@pytest.mark.parametrize(
    ("files", "value"),
    [
        ({}, ""),
        ({"main": "default-runtime: nvidia\n"}, "nvidia"),
        ({"main": '"default-runtime" : "nvidia"\n'}, "nvidia"),
        ({"main": "{default-runtime: nvidia, token: x}"}, "nvidia"),
        ({"main": "? default-runtime\n: nvidia\n"}, "nvidia"),
        ({"main": "default-runtime:\n"}, ""),
        ({"main": "default-runtime: [crun, nvidia]\n"}, "nvidia"),
        ({"main": "default-runtime: []\n"}, ""),
        ({"main": "default-runtime: 5\n"}, "5"),
        ({"main": "# default-runtime: nvidia\n"}, ""),
        ({"main": "node-label: ['default-runtime: nvidia']\n"}, ""),
        # The last file has effect.
        ({"main": "default-runtime: a", "a_yaml": "default-runtime: b", "z_yml": "default-runtime: c"}, "c"),
        ({"main": "default-runtime: a", "b_yaml": "default-runtime: b", "a_yml": "default-runtime: c"}, "b"),
        ({"a_YAML": "default-runtime: b"}, "b"),
        ({"a_yaml.bak": "default-runtime: b", "b_txt": "default-runtime: c"}, ""),
        # A plus appends, and the last value has effect.
        ({"main": "default-runtime: a", "a_yaml": "default-runtime+: b"}, "b"),
        ({"main": "default-runtime: a", "a_yaml": "default-runtime+: []"}, "a"),
        ({"a_yaml": "default-runtime+: b"}, "b"),
        ({"main": "default-runtime: a", "a_yaml": "default-runtime: []"}, ""),
    ],
)
def test_effective_value(tmp_path: Path, files: dict[str, str], value: str) -> None:
    assert default_of(tmp_path, **files) == value


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (("server",), "yaml"),
        (("server", "--default-runtime", "crun"), "crun"),
        (("server", "--default-runtime=crun"), "crun"),
        (("server", "-default-runtime=crun"), "crun"),
        (("server", "--default-runtime=crun", "--default-runtime=nvidia"), "nvidia"),
        (("server", "--default-runtime="), ""),
        (("server", "--default-runtime"), ""),
        (("server", "--node-label", "default-runtime=crun"), "yaml"),
    ],
)
def test_flags_override_files(tmp_path: Path, arguments: tuple[str, ...], value: str) -> None:
    settings = RancherSettings(K3S, host_with(tmp_path, main="default-runtime: yaml"), unit_with(*arguments))
    assert settings.value("default-runtime") == value
    assert settings.source("default-runtime") == (MAIN if value == "yaml" else "the unit k3s.service")


def test_flags() -> None:
    found = flags(unit_with("server", "--docker", "--default-runtime", "nvidia", "--container-runtime-endpoint=x"))
    assert {name: setting.value for name, setting in found.items()} == {
        "docker": "true",
        "default-runtime": "nvidia",
        "container-runtime-endpoint": "x",
    }
    assert flags(unit_with("--docker=false"))["docker"].value == "false"
    assert flags(None) == {}


def test_overlay_replaces_files(tmp_path: Path) -> None:
    host = host_with(tmp_path, a_yaml="default-runtime: a", b_yaml="default-runtime: b")

    def value(overlay: dict[str, bytes | None]) -> str:
        return RancherSettings(K3S, host, None, overlay).value("default-runtime")

    assert value({f"{MAIN}.d/b.yaml": None}) == "a"
    assert value({f"{MAIN}.d/c.yaml": b"default-runtime: c"}) == "c"
    assert value({f"{MAIN}.d/0.yaml": b"default-runtime: c"}) == "b"
    assert value({"/elsewhere/z.yaml": b"default-runtime: c"}) == "b"
    assert RancherSettings(K3S, host, None, {f"{MAIN}.d/c.yaml": b""}).files() == [
        f"{MAIN}.d/{name}" for name in ("a.yaml", "b.yaml", "c.yaml")
    ]


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("default-runtime: [\n", (2, 1), "invalid YAML"),
        ("a: b\n\tdefault-runtime: x\n", (2, 1), "invalid YAML"),
        ("- default-runtime: nvidia\n", (None, None), "no mapping of settings"),
        (b"default-runtime: \xff\n", (1, 18), "invalid UTF-8"),
        ("default-runtime: a\nother: {}\ndefault-runtime: b\n", (3, 1), "twice"),
    ],
)
def test_errors_name_the_position(
    tmp_path: Path, text: str | bytes, position: tuple[t.Any, t.Any], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        default_of(tmp_path, a_yaml=text)
    assert (caught.value.line, caught.value.column) == position
    assert caught.value.path == f"{MAIN}.d/a.yaml"
    assert "read it at every start" in str(caught.value)


@pytest.mark.parametrize("text", ["token: [\n", b"\xff", "a: docker.io/x\n", "server: default-runtime\n"])
def test_skips_files_without_these_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | bytes) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert default_of(tmp_path, main=text) == ""


def test_ignores_directories_and_dangling_links(tmp_path: Path) -> None:
    host = host_with(tmp_path, b_yaml="default-runtime: b")
    (tmp_path / f"{MAIN[1:]}.d/a.yaml").mkdir()
    (tmp_path / f"{MAIN[1:]}.d/c.yaml").symlink_to("nowhere")
    assert RancherSettings(K3S, host, None).value("default-runtime") == "b"


def test_missing_pyyaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.setattr(bundled, "_registered", {})
    host = host_with(tmp_path, main="data-dir: /data\n")
    with pytest.raises(MissingPackageError) as caught:
        RancherSettings(K3S, host, None)
    assert caught.value.details == {"needed": "yaml"}
    # The data directory is found nevertheless.
    assert data_dir(K3S, host, unit_with("server")) == "/var/lib/rancher/k3s"
    assert data_dir(K3S, host, unit_with("server", "-d", "/given/")) == "/given"


@pytest.mark.parametrize(
    ("unit", "files", "folder"),
    [
        (None, {}, "/var/lib/rancher/k3s"),
        (None, {"main": "data-dir: /yaml/"}, "/yaml"),
        (None, {"main": "d: /yaml"}, "/yaml"),
        (None, {"main": "data-dir: relative"}, "/var/lib/rancher/k3s"),
        (None, {"main": "data-dir: ["}, "/var/lib/rancher/k3s"),
        (unit_with("server", "--data-dir", "/flag"), {"main": "data-dir: /yaml"}, "/flag"),
        (unit_with("server", "-d", "/flag"), {"main": "data-dir: ["}, "/flag"),
        (unit_with("server", K3S_DATA_DIR="/env"), {"main": "data-dir: /yaml"}, "/yaml"),
        (unit_with("server", K3S_DATA_DIR="/env"), {}, "/env"),
        (unit_with("server", "--docker", K3S_DATA_DIR="/env"), {}, "/env"),
    ],
)
def test_data_dir(tmp_path: Path, unit: Unit | None, files: dict[str, str], folder: str) -> None:
    assert data_dir(K3S, host_with(tmp_path, **files), unit) == folder


@pytest.mark.parametrize(
    ("unit", "path"),
    [
        (None, MAIN),
        (unit_with("server"), MAIN),
        (unit_with("server", "--config", "/c.yaml"), "/c.yaml"),
        (unit_with("server", "-c=/c.yaml", "--config=/d.yaml"), "/c.yaml"),
        (unit_with("server", "-c", "/c.yaml", K3S_CONFIG_FILE="/env.yaml"), "/env.yaml"),
        (unit_with("server", K3S_CONFIG_FILE=""), MAIN),
        (unit_with("server", RKE2_CONFIG_FILE="/env.yaml"), MAIN),
    ],
)
def test_config_file(unit: Unit | None, path: str) -> None:
    assert config_file(K3S, unit) == path


def test_drop_ins_of_another_config_file(tmp_path: Path) -> None:
    host = host_with(tmp_path, main="default-runtime: usual", a_yaml="default-runtime: usual")
    (tmp_path / "srv/k3s.yml.d").mkdir(parents=True)
    (tmp_path / "srv/k3s.yml.d/a.yaml").write_text("default-runtime: other")
    unit = unit_with("server", K3S_CONFIG_FILE="/srv/k3s.yml")
    assert RancherSettings(K3S, host, unit).value("default-runtime") == "other"
    # A URL, and a relative path.
    for name in ("https://host/k3s.yaml", "srv/k3s.yml"):
        assert RancherSettings(K3S, host, unit_with("server", "-c", name)).files() == []


def test_unreadable_files(tmp_path: Path) -> None:
    host = host_with(tmp_path)
    (tmp_path / MAIN[1:]).mkdir(parents=True)
    with pytest.raises(NvidiaError, match="not a regular file"):
        RancherSettings(K3S, host, None)
    (tmp_path / MAIN[1:]).rmdir()
    link = tmp_path / f"{MAIN[1:]}.d/loop.yaml"
    link.parent.mkdir()
    link.symlink_to("loop.yaml")
    with pytest.raises(NvidiaError, match="loop"):
        RancherSettings(K3S, host, None)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"default-runtime: nvidia\n", True),
        (b"default-runtime: 'nvidia' # mine", True),
        (b"default-runtime: nvidia2\n", False),
        # In YAML, a colon and a number sign need a blank.
        (b"default-runtime:nvidia\n", False),
        (b"default-runtime: nvidia#1\n", False),
    ],
)
def test_lines_that_set_the_default_runtime(line: bytes, expected: bool) -> None:
    assert is_own_line(line, "nvidia") is expected
