# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units whose command line was compared with the process that systemd 252 and 257 start from them."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import Unit, load_unit

if t.TYPE_CHECKING:
    from pathlib import Path

    Files = t.Mapping[str, str]

LOCAL, RUN, VENDOR = "/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system"
PROGRAM = "/usr/sbin/dockerd"


def load(root: Path, files: Files, name: str) -> Unit | None:
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            file.symlink_to(text[3:])
        else:
            file.write_bytes(text.encode())
    return load_unit(HostFS(str(root), live=False), name)


def command(root: Path, text: str) -> list[str]:
    unit = load(root, {f"{LOCAL}/docker.service": text}, "docker.service")
    assert unit is not None
    return list(unit.arguments[1:])


def service(arguments: str) -> str:
    return f"[Service]\nExecStart={PROGRAM} {arguments}\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (r"--a\x20b --c\tq --d\s", ["--a b", "--c\tq", "--d "]),
        (r"--a\101 --a\u00e4 --a\U000000e4", ["--aA", "--aä", "--aä"]),
        (r"--a\q --b", [r"--a\q", "--b"]),
        (r"--a=\$OPTS", [r"--a=\$OPTS"]),
        ('"--a\\nb" "a\\"b"', ["--a\nb", 'a"b']),
        (r"'a\tb' 'it\'s' c", ["a\tb", "it's", "c"]),
        (r"--x=\"a b\" --y", ['--x="a', 'b"', "--y"]),
        (r"--a \; --b", ["--a", ";", "--b"]),
        # Two backslashes at the end of a line are one escaped backslash.
        ("--a \\\\\nX=1", ["--a", "\\"]),
        ("--a \\\n --b", ["--a", "--b"]),
        # A word that begins with a dollar sign is the name of a variable.
        ("$OPTS$OPTS --b", ["--b"]),
        ("$1 --b $OPTS-x", ["--b"]),
        ("--a=$1 $$X", ["--a=$1", "$X"]),
    ],
)
def test_escapes_and_variables(tmp_path: Path, arguments: str, expected: list[str]) -> None:
    assert command(tmp_path, f"{service(arguments)}Environment=OPTS=--o\n") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\ufeff[Service]\nExecStart=/x/d --a\n", ["--a"]),
        ("[Service]\r\nExecStart=/x/d --a\r\n", ["--a"]),
        ("[Service]\nExecStart=/x/d --a\x0c--b\n", ["--a\x0c--b"]),
        ("[Service]\nExecStart=/x/d --a\x0bExecStart=--b\n", ["--a\x0bExecStart=--b"]),
        ("[Service]\nExecStart=/x/d --a\u2028ExecStart=/x/d\n", ["--a\u2028ExecStart=/x/d"]),
    ],
)
def test_lines(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert command(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("UnsetEnvironment=OPTS", []),
        ("UnsetEnvironment=OPTS=--a", []),
        ("UnsetEnvironment=OPTS=--b", ["--a"]),
        ("UnsetEnvironment=OPTS\nUnsetEnvironment=", ["--a"]),
        # Only the first dash says that the file may be missing.
        ("EnvironmentFile=--/etc/default/docker", ["--a"]),
        ("EnvironmentFile=-/etc/default/docker", ["--file"]),
        ("EnvironmentFile=-/etc/default/docker\nUnsetEnvironment=OPTS", []),
        (r'Environment="OPTS=--c\x20d"', ["--c", "d"]),
        ('Environment="OPTS = --b" "X= --b"', ["--a"]),
    ],
)
def test_environment(tmp_path: Path, settings: str, expected: list[str]) -> None:
    (tmp_path / "etc/default").mkdir(parents=True)
    (tmp_path / "etc/default/docker").write_text("OPTS=--file\n")
    assert command(tmp_path, f"{service('$OPTS')}Environment=OPTS=--a\n{settings}\n") == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(r"""'--x "a\tb" --y'""", ["--x", "atb", "--y"]), (r"'--x a\ b'", ["--x", "a b"]), (r"'--a\b'", ["--ab"])],
)
def test_the_value_of_a_variable_has_no_escapes_of_c(tmp_path: Path, value: str, expected: list[str]) -> None:
    (tmp_path / "etc/default").mkdir(parents=True)
    (tmp_path / "etc/default/docker").write_text(f"OPTS={value}\n")
    assert command(tmp_path, f"{service('$OPTS')}EnvironmentFile=/etc/default/docker\n") == expected


def sets(value: str) -> str:
    return f"[Service]\nEnvironment=OPTS={value}\n"


PLAIN = service("$OPTS")
# The files of a unit, its name, and its arguments.
NAMES: list[tuple[str, Files, str, list[str]]] = [
    ("hidden", {f"{LOCAL}/a.service": PLAIN, f"{LOCAL}/a.service.d/.x.conf": sets("no")}, "a.service", []),
    ("dashes", {f"{LOCAL}/a-b-c.service": PLAIN, f"{LOCAL}/a-.service.d/1.conf": sets("a"),
                f"{LOCAL}/a-b-.service.d/2.conf": sets("ab")}, "a-b-c.service", ["ab"]),
    ("a directory wins over a longer name", {
        f"{LOCAL}/a-b.service": PLAIN, f"{LOCAL}/a-.service.d/x.conf": sets("etc"),
        f"{VENDOR}/a-b.service.d/x.conf": sets("usr")}, "a-b.service", ["etc"]),
    ("no other beginning", {f"{LOCAL}/ab.service": PLAIN, f"{LOCAL}/a-.service.d/x.conf": sets("no"),
                            f"{LOCAL}/-.service.d/x.conf": sets("no")}, "ab.service", []),
    ("control", {f"{LOCAL}/a.service": PLAIN, f"{LOCAL}.control/a.service.d/x.conf": sets("control")}, "a.service",
     ["control"]),
    ("transient", {"/run/systemd/transient/a.service": service("--t"), f"{LOCAL}/a.service": PLAIN}, "a.service",
     ["--t"]),
    ("generator", {"/run/systemd/generator/a.service": service("--g"), f"{VENDOR}/a.service": PLAIN}, "a.service",
     ["--g"]),
    ("alias", {f"{LOCAL}/a.service": PLAIN, f"{LOCAL}/b.service": f"-> {LOCAL}/a.service",
               f"{LOCAL}/a.service.d/x.conf": sets("%N")}, "b.service", ["a"]),
    ("alias in another directory", {f"{VENDOR}/a.service": PLAIN, f"{LOCAL}/b.service": f"-> {VENDOR}/a.service",
                                    f"{LOCAL}/a.service.d/x.conf": sets("a")}, "b.service", ["a"]),
    ("the drop-in of an alias", {f"{LOCAL}/a.service": PLAIN, f"{LOCAL}/b.service": "-> a.service",
                                 f"{LOCAL}/b.service.d/x.conf": sets("b")}, "a.service", ["b"]),
    ("no alias", {f"{LOCAL}/a.service": PLAIN, f"{LOCAL}/b.service": PLAIN,
                  f"{LOCAL}/b.service.d/x.conf": sets("b")}, "a.service", []),
    ("template", {f"{LOCAL}/a@.service": service("%i %n %p $OPTS"), f"{LOCAL}/a@.service.d/1.conf": sets("all"),
                  f"{LOCAL}/a@x.service.d/2.conf": sets("one")}, "a@x.service", ["x", "a@x.service", "a", "one"]),
    ("an instance with its own file", {f"{VENDOR}/a@x.service": service("own"), f"{LOCAL}/a@.service": PLAIN},
     "a@x.service", ["own"]),
    ("a linked template", {f"{LOCAL}/a@.service": service("%i"), f"{LOCAL}/a@x.service": f"-> {LOCAL}/a@.service"},
     "a@x.service", ["x"]),
    ("dashes of a template", {f"{LOCAL}/a-b@.service": PLAIN, f"{LOCAL}/a-@.service.d/x.conf": sets("a")},
     "a-b@x.service", ["a"]),
]  # fmt: skip


@pytest.mark.parametrize(("files", "name", "expected"), [row[1:] for row in NAMES], ids=[row[0] for row in NAMES])
def test_names(tmp_path: Path, files: Files, name: str, expected: list[str]) -> None:
    unit = load(tmp_path, files, name)
    assert unit is not None
    assert (unit.name, list(unit.arguments[1:])) == (name, expected)


def test_a_long_name_with_dashes(tmp_path: Path) -> None:
    name = f"{'-'.join('a' * 120)}.service"
    unit = load(tmp_path, {f"{LOCAL}/{name}": PLAIN, f"{LOCAL}/a-.service.d/x.conf": sets("a")}, name)
    assert unit is not None
    assert unit.arguments[1:] == ("a",)
