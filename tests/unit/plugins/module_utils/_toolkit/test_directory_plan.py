# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory_layout import (
    ConfigInputs,
    DirectoryLayout,
    DirectorySpec,
    build_layout,
    check_dest,
    check_runtime,
    content_digest,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.manifest import PartDigest
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_directories import CONFIG, DEST

FOLDER = f"{DEST}.versions/1.20.0-0123456789ab"
PROGRAMS = {
    "runtime": ["nvidia-container-runtime", "nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy"],
    "hook": ["nvidia-container-runtime-hook"],
    "cli": ["nvidia-container-cli"],
    "ctk": ["nvidia-ctk"],
}


def part(name: str, mode: int = 0o755, soname: str = "") -> PartDigest:
    return PartDigest(name, "ab" * 32, mode, 7, 62, soname)


ALL = [
    *(part(name) for names in PROGRAMS.values() for name in names),
    part("nvidia-cdi-hook"),
    part("libnvidia-container.so.1.20.0", 0o644, "libnvidia-container.so.1"),
    part("libnvidia-container-go.so.1", 0o644),
]


def plan(parts: t.Sequence[PartDigest] = ALL, default: str | None = None, **wanted: t.Any) -> DirectoryLayout:
    asked = {"driver_root": "/", "runtimes": ("runc", "crun"), "settings": {}, **wanted}
    return build_layout(parts, DirectorySpec(DEST, ConfigInputs(**asked), default), FOLDER)


def config(**wanted: t.Any) -> dict[str, t.Any]:
    entry = plan(**wanted).entries[CONFIG]
    return TomlDocument.from_bytes("config.toml", entry.text).data


@pytest.mark.parametrize("component", PROGRAMS)
def test_one_component(component: str) -> None:
    names = PROGRAMS[component]
    found = plan([part(name) for name in names]).entries
    link = {"nvidia-container-toolkit"} if component == "hook" else set()
    assert set(found) == {*names, *(f"{name}.real" for name in names), *link, CONFIG}
    for name in names:
        assert (found[f"{name}.real"].part, found[f"{name}.real"].sha256) == (name, "ab" * 32)
        assert found[name].text.startswith(b"#!/bin/sh\n")
        assert not found[name].part


def test_links_and_what_is_not_wrapped() -> None:
    found = plan().entries
    assert found["nvidia-container-toolkit"].target == "nvidia-container-runtime-hook"
    assert found["libnvidia-container.so.1"].target == "libnvidia-container.so.1.20.0"
    assert found["libnvidia-container-go.so.1"].part == "libnvidia-container-go.so.1"
    assert found["nvidia-cdi-hook"].part == "nvidia-cdi-hook"
    assert "nvidia-cdi-hook.real" not in found


@pytest.mark.parametrize(
    ("mode", "program", "script", "library"),
    [
        (0o755, 0o755, 0o755, 0o755),
        (0o644, 0o755, 0o755, 0o644),
        (0o4755, 0o755, 0o755, 0o755),
        (0o777, 0o755, 0o755, 0o755),
        (0o600, 0o711, 0o755, 0o644),
        (0o000, 0o111, 0o555, 0o444),
    ],
)
def test_modes(mode: int, program: int, script: int, library: int) -> None:
    """Everybody may run and load, nobody else may write, and nothing gets another user's rights."""
    found = plan([part("nvidia-ctk", mode), part("nvidia-cdi-hook", mode), part("libx.so.1", mode)]).entries
    assert found["nvidia-ctk.real"].mode == found["nvidia-cdi-hook"].mode == program
    assert found["nvidia-ctk"].mode == script
    assert found["libx.so.1"].mode == library
    assert found[CONFIG].mode == 0o644


def test_config() -> None:
    assert config() == {
        "accept-nvidia-visible-devices-as-volume-mounts": False,
        "accept-nvidia-visible-devices-envvar-when-unprivileged": True,
        "nvidia-container-cli": {
            "root": "/",
            "path": f"{FOLDER}/nvidia-container-cli",
            "ldconfig": "@/sbin/ldconfig",
        },
        "nvidia-container-runtime": {"runtimes": ["runc", "crun"]},
        "nvidia-container-runtime-hook": {
            "path": f"{FOLDER}/nvidia-container-runtime-hook",
            "skip-mode-detection": True,
        },
        "nvidia-ctk": {"path": f"{FOLDER}/nvidia-ctk"},
    }


@pytest.mark.parametrize(
    ("root", "real", "ldconfig"),
    [
        ("/", True, "@/sbin/ldconfig.real"),
        ("/run/nvidia/driver", False, "@/run/nvidia/driver/sbin/ldconfig"),
        ("/run/nvidia/driver", True, "@/run/nvidia/driver/sbin/ldconfig.real"),
    ],
)
def test_the_root_of_the_driver(root: str, real: bool, ldconfig: str) -> None:
    found = config(driver_root=root, real_ldconfig=real)["nvidia-container-cli"]
    assert (found["root"], found["ldconfig"]) == (root, ldconfig)


def test_what_is_asked_wins() -> None:
    mode = "accept-nvidia-visible-devices-as-volume-mounts"
    variable = "accept-nvidia-visible-devices-envvar-when-unprivileged"
    found = config(
        settings={
            variable: True,
            "nvidia-container-cli": {"path": "/x"},
            "nvidia-container-runtime.runtimes": ["youki"],
        },
        profile="kubernetes_hardened",
        debug=True,
    )
    assert (found[mode], found[variable]) == (True, True)
    assert found["nvidia-container-cli"]["path"] == "/x"
    assert found["nvidia-container-runtime"]["runtimes"] == ["youki"]
    assert found["nvidia-container-runtime"]["log-level"] == "debug"
    assert found["nvidia-container-cli"]["debug"]
    assert config(profile="kubernetes_hardened")[variable] is False
    assert config(debug=False) == config()


def test_null_is_nobodys_wish() -> None:
    found = config(settings={"nvidia-container-cli": {"root": None}, "nvidia-ctk.path": None})
    assert "root" not in found["nvidia-container-cli"]
    assert "nvidia-ctk" not in found


def test_settings_are_what_the_file_amounts_to() -> None:
    found = plan(settings={"nvidia-container-cli.environment": ["TOKEN=abc", "A=b"]})
    assert found.settings["nvidia-container-runtime.mode"] == "auto"
    assert found.settings["nvidia-container-cli.root"] == "/"
    assert b"TOKEN=abc" in found.entries[CONFIG].text
    assert "abc" not in str(found.settings)


def test_odd_texts_are_spelled_right() -> None:
    odd = "/a\"b\\c'd ü #"
    assert config(settings={"nvidia-ctk.path": odd})["nvidia-ctk"]["path"] == odd


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"no-such": 1}, "no-such is not a setting"),
        ({"nvidia-container-cli": {"load-kmods": "maybe"}}, "nvidia-container-cli.load-kmods"),
        ({"nvidia-container-runtime.runtimes": ["/opt/nvidia/toolkit/runc"]}, "would call itself for ever"),
        ({"nvidia-container-runtime.runtimes": ["nvidia-container-runtime.cdi"]}, "would call itself for ever"),
        ({"nvidia-ctk.path": "/x", "nvidia-ctk": {"path": "/y"}}, "there twice"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, t.Any], words: str) -> None:
    with pytest.raises(NvidiaError, match=words):
        plan(settings=settings)


def test_what_takes_over_without_a_driver() -> None:
    text = plan(default="/usr/bin/crun").entries["nvidia-container-runtime"].text
    assert b"for runtime in /usr/bin/crun runc crun;" in text
    assert b"for runtime in runc crun;" in plan(default="runc").entries["nvidia-container-runtime"].text


@pytest.mark.parametrize("dest", ["/opt/a:b", "/opt/a;b", "/opt/$ORIGIN", "/opt/a\nb", "/opt/a\tb", "/", "/opt/\udcff"])
def test_a_dest_that_cannot_be(dest: str) -> None:
    with pytest.raises(NvidiaError, match="dest"):
        check_dest(dest)


@pytest.mark.parametrize(
    "dest", ["/opt/nvidia", "/opt/a b", "/opt/it's", '/o/"x"', "/opt/größe", "/opt/a\\b", "/opt/*"]
)
def test_a_dest_that_can_be(dest: str) -> None:
    check_dest(dest)


@pytest.mark.parametrize(
    "runtime",
    [
        "",
        "-runc",
        "bin/runc",
        "./runc",
        "a\nb",
        "nvidia-container-runtime",
        f"/x/{PROGRAMS['runtime'][2]}",
        f"{DEST}/x",
    ],
)
def test_a_runtime_that_cannot_be(runtime: str) -> None:
    with pytest.raises(NvidiaError, match="low_level_runtimes has"):
        check_runtime("low_level_runtimes has", runtime, DEST)


@pytest.mark.parametrize("runtime", ["runc", "/usr/bin/crun", "/opt/a b/youki", f"{DEST}2/runc"])
def test_a_runtime_that_can_be(runtime: str) -> None:
    check_runtime("low_level_runtimes has", runtime, DEST)


def test_whatever_makes_a_difference_is_in_the_digest() -> None:
    wanted = ConfigInputs("/", ("runc",), {})
    designs = [
        DirectorySpec(DEST, wanted),
        DirectorySpec(DEST + "2", wanted),
        DirectorySpec(DEST, wanted, "crun"),
        DirectorySpec(DEST, wanted._replace(driver_root="/x")),
        DirectorySpec(DEST, wanted._replace(runtimes=("crun",))),
        DirectorySpec(DEST, wanted._replace(settings={"disable-require": True})),
        DirectorySpec(DEST, wanted._replace(profile="rootless")),
        DirectorySpec(DEST, wanted._replace(debug=True)),
        DirectorySpec(DEST, wanted._replace(real_ldconfig=True)),
    ]
    found = {content_digest(ALL, spec) for spec in designs}
    found |= {content_digest(ALL[1:], designs[0]), content_digest([ALL[0]._replace(sha256="x"), *ALL[1:]], designs[0])}
    assert len(found) == len(designs) + 2
    assert content_digest(list(ALL), DirectorySpec(DEST, ConfigInputs("/", ("runc",), {}))) in found
