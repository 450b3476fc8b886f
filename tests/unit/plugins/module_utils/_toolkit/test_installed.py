# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import itertools
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import PACKAGES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.constants import PROGRAMS, VULNERABILITIES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.installed import (
    Policies,
    Program,
    affecting_cves,
    below_minimum,
    known_vulnerabilities,
    oldest_safe_version,
    package_set,
    programs,
    single_version,
    upstream_version,
    version_key,
    version_mismatches,
)

if t.TYPE_CHECKING:
    from pathlib import Path


RUNTIME, HOOK, CLI, CTK = PROGRAMS
WHOLE = dict.fromkeys(PACKAGES, "1.19.1-1")
THERE = {name: Program(f"/usr/bin/{name}", "1.19.1") for name in PROGRAMS}
EACH = ", ".join(f"/usr/bin/{name} 1.19.1" for name in PROGRAMS)

# The output of the programs.
SAID = {
    RUNTIME: "NVIDIA Container Runtime version 1.19.1\ncommit: 0d8a2ad\nspec: 1.2.1\n\nrunc version 1.1.12\n",
    HOOK: "NVIDIA Container Runtime Hook version 1.19.1\ncommit: 0d8a2ad\n",
    CLI: "cli-version: 1.19.1\nlib-version: 1.19.1\nbuild date: 2026-03-12T09:10+00:00\nbuild compiler: gcc 8.5.0\n",
    CTK: "NVIDIA Container Toolkit CLI version 1.19.1\ncommit: 0d8a2ad\n",
}


class Runs:
    """Runs programs by path, with the given output."""

    def __init__(self, answers: dict[str, tuple[int, str, str]]) -> None:
        self.answers = answers
        self.ran: list[list[str]] = []

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        self.ran.append(argv)
        return self.answers.get(argv[-2], (127, "", f"{argv[0]} cannot be run: No such file or directory"))


def put(root: Path, path: str, mode: int = 0o755) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    file.chmod(mode)


# -- which programs --------------------------------------------------------------------------------------------------


def test_runs_each_program_once(tmp_path: Path) -> None:
    for name in PROGRAMS:
        put(tmp_path, f"/usr/bin/{name}")
    run = Runs({f"/usr/bin/{name}": (0, error, "") for name, error in SAID.items()})
    assert programs(HostFS(str(tmp_path)), run) == THERE
    assert run.ran == [["chroot", str(tmp_path), f"/usr/bin/{name}", "--version"] for name in PROGRAMS]


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ((0, SAID[RUNTIME], ""), "1.19.1"),
        # It reports its own version without a low-level runtime too.
        ((1, "NVIDIA Container Runtime version 1.19.1\n", "no runtime binary found from candidate list"), "1.19.1"),
        ((0, "", "NVIDIA Container Runtime version v1.17.8\n"), "1.17.8"),
        ((0, "NVIDIA Container Runtime version 1.18.0-rc.2\n", "0.5.0"), "1.18.0-rc.2"),
        # The output of a wrapper on a host without a driver.
        ((0, "runc version 1.1.12\nspec: 1.0.2-dev\n", ""), None),
        ((0, "crun version 1.14.1\n", "The module nvidia is not loaded.\n"), None),
        ((0, "", ""), None),
        ((127, "", "cannot be run: Permission denied"), None),
        ((127, "", "error while loading shared libraries: libnvidia-container.so.1: cannot open"), None),
    ],
)
def test_parses_program_output(tmp_path: Path, answer: tuple[int, str, str], version: str | None) -> None:
    put(tmp_path, f"/usr/bin/{RUNTIME}")
    found = programs(HostFS(str(tmp_path)), Runs({f"/usr/bin/{RUNTIME}": answer}))
    assert found == {RUNTIME: Program(f"/usr/bin/{RUNTIME}", version)}


def test_runs_only_programs_of_the_directory(tmp_path: Path) -> None:
    put(tmp_path, f"/opt/toolkit/{CTK}")
    put(tmp_path, f"/usr/bin/{CTK}")
    put(tmp_path, f"/usr/local/bin/{CLI}")
    put(tmp_path, f"/opt/toolkit/{HOOK}", 0o644)
    run = Runs({f"/opt/toolkit/{CTK}": (0, "1.20.0", "")})
    found = programs(HostFS(str(tmp_path)), run, "/opt/toolkit/")
    assert found == {CLI: Program(f"/usr/local/bin/{CLI}", None), CTK: Program(f"/opt/toolkit/{CTK}", "1.20.0")}
    assert len(run.ran) == 1


def test_runs_nothing_of_an_offline_tree(tmp_path: Path) -> None:
    put(tmp_path, "/usr/bin/nvidia-cdi-hook")
    run = Runs({})
    found = programs(HostFS(str(tmp_path), live=False), run)
    assert found == {"nvidia-cdi-hook": Program("/usr/bin/nvidia-cdi-hook", None)}
    assert run.ran == []


# -- vulnerabilities -------------------------------------------------------------------------------------------------

OLD_PART = {CTK: Program(f"/usr/bin/{CTK}", "1.17.7")}
SILENT = {CTK: Program(f"/usr/bin/{CTK}", None)}


@pytest.mark.parametrize(
    ("packages", "there", "names"),
    [
        ({}, {}, []),
        (WHOLE, THERE, []),
        ({"nvidia-docker2": "2.13.0-1"}, {}, []),
        # The oldest part determines the vulnerabilities.
        (WHOLE, OLD_PART, ["CVE-2025-23266", "CVE-2025-23267", "CVE-2026-24260"]),
        ({**WHOLE, PACKAGES[3]: "1.19.0-1"}, THERE, ["CVE-2026-24260"]),
        (WHOLE, SILENT, []),
        ({PACKAGES[0]: "1.9.1-1", PACKAGES[1]: "1.19.1-1"}, {}, [entry.name for entry in VULNERABILITIES]),
        ({PACKAGES[0]: "strange"}, THERE, []),
        ({PACKAGES[0]: "strange"}, {}, None),
        ({}, SILENT, None),
        ({}, {**SILENT, CLI: Program("/x", "1.19.0")}, ["CVE-2026-24260"]),
    ],
)
def test_affecting_cves(packages: dict[str, str], there: dict[str, Program], names: list[str] | None) -> None:
    found = affecting_cves(packages, there)
    assert (None if found is None else [entry.name for entry in found]) == names


# -- versions --------------------------------------------------------------------------------------------------------

IN_ORDER = ["none", "0.9", "1.9.12", "1.18.0~alpha.1-1", "1.18.0~rc.1-1", "1.18.0-rc.2", "1.18.0-0.1.rc.10", "1.18-1"]
IN_ORDER += ["1.19.1~rc.1", "1.19.1-1", "1.19.9", "1.19.10", "1.20.0", "2.0"]


def test_version_order() -> None:
    for older, newer in itertools.combinations(IN_ORDER, 2):
        assert version_key(older) < version_key(newer), (older, newer)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1.19.1", "1.19.1-1"),
        ("1.19.1-1", "1.19.1-2ubuntu3"),
        ("1.20", "1.20.0"),
        ("1.18.0~rc.1-1", "1.18.0-rc.1"),
        ("1.18.0-0.1.rc.1", "1.18.0-rc.1"),
        ("v1.19.1", "1.19.1"),
        ("1:1.19.1-1", "1.19.1"),
    ],
)
def test_equal_versions(one: str, other: str) -> None:
    assert version_key(one) == version_key(other)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("1.19.1-1", "1.19.1"),
        ("1.18.0~rc.1-1", "1.18.0-rc.1"),
        ("1.18.0-0.1.rc.3", "1.18.0-rc.3"),
        ("built with go1.22.5", None),
        ("latest", None),
        ("", None),
    ],
)
def test_upstream(text: str, version: str | None) -> None:
    assert upstream_version(text) == version


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("1.20.0-1", []),
        ("1.19.1", []),
        ("1.19.1~rc.1-1", ["CVE-2026-24260"]),
        ("1.19.0-1", ["CVE-2026-24260"]),
        ("1.17.8", ["CVE-2026-24260"]),
        ("1.17.7", ["CVE-2025-23266", "CVE-2025-23267", "CVE-2026-24260"]),
        ("1.9.0", [entry.name for entry in VULNERABILITIES]),
    ],
)
def test_known_vulnerabilities(version: str, names: list[str]) -> None:
    assert [entry.name for entry in known_vulnerabilities(version)] == names


def test_oldest_safe_version_has_no_cves() -> None:
    assert known_vulnerabilities(oldest_safe_version()) == []
    assert oldest_safe_version() in [entry.floor for entry in VULNERABILITIES]


# -- mismatches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "packages",
    [WHOLE, {}, {**WHOLE, CLI: "0.1"}, dict.fromkeys(PACKAGES, "1.19.1"), {**WHOLE, "nvidia-docker2": "2.13.0-1"}],
)
def test_complete_toolkit(packages: dict[str, str]) -> None:
    later = {**THERE, "nvidia-cdi-hook": Program("/usr/bin/nvidia-cdi-hook", "1.19.1")}
    for found in (THERE, later):
        assert version_mismatches(packages, found) == []
        assert single_version(packages, found) == "1.19.1"


def test_base_package_alone_is_complete() -> None:
    base, there = {PACKAGES[1]: "1.19.1-1"}, {name: THERE[name] for name in (RUNTIME, CTK)}
    assert package_set(base) == package_set({**base, "nvidia-docker2": "2.13.0-1"}) == PACKAGES[1:2]
    assert package_set({}) == package_set(WHOLE) == package_set({**base, PACKAGES[3]: "1.19.1-1"}) == PACKAGES
    assert version_mismatches(base, there, required=PACKAGES[1:2]) == []
    assert version_mismatches(WHOLE, THERE, required=PACKAGES[1:2]) == []
    assert len(version_mismatches(base, there)) == 2
    (mismatch,) = version_mismatches(base, {RUNTIME: THERE[RUNTIME]}, required=PACKAGES[1:2])
    assert mismatch == f"The program {CTK} is not installed."
    # Only a part of the other packages is worse than none of them.
    assert version_mismatches({**base, PACKAGES[3]: "1.19.0-1"}, there, required=PACKAGES[1:2]) != []


def test_programs_without_version_are_no_mismatch() -> None:
    found = {name: Program(program.path, None) for name, program in THERE.items()}
    assert version_mismatches(WHOLE, found) == []
    assert single_version(WHOLE, found) == "1.19.1"
    assert single_version({}, found) is None
    assert single_version({}, {}) is None


@pytest.mark.parametrize(
    ("packages", "changed", "parts"),
    [
        (
            {PACKAGES[0]: "1.18.2-1"},
            {},
            [
                f" {', '.join(PACKAGES[1:])} are not installed, ",
                f"/usr/bin/{RUNTIME} has version 1.19.1, but the packages have 1.18.2.",
                f"/usr/bin/{HOOK} has version 1.19.1, but the packages have 1.18.2.",
                f"/usr/bin/{CLI} has version 1.19.1, but the packages have 1.18.2.",
                f"/usr/bin/{CTK} has version 1.19.1, but the packages have 1.18.2.",
            ],
        ),
        (
            {**WHOLE, PACKAGES[3]: "1.19.10-1"},
            {},
            [f": {' 1.19.1, '.join(PACKAGES)} 1.19.10."],
        ),
        (
            WHOLE,
            {CTK: Program("/usr/bin/nvidia-ctk", "1.19.0")},
            ["/usr/bin/nvidia-ctk has version 1.19.0, but the packages have 1.19.1."],
        ),
        (
            {},
            {"nvidia-cdi-hook": Program("/usr/bin/nvidia-cdi-hook", "1.20.0")},
            [
                f": {EACH}, /usr/bin/nvidia-cdi-hook 1.20.0.",
            ],
        ),
        (WHOLE, {CLI: None}, [f" {CLI} is not installed"]),
        (WHOLE, {CLI: None, CTK: None}, [f" {CLI}, {CTK} are not installed"]),
        (
            WHOLE,
            {CTK: Program("/usr/local/bin/nvidia-ctk", None)},
            [" nvidia-ctk is not in /usr/bin, but in /usr/local/bin."],
        ),
        (
            WHOLE,
            {CLI: Program(f"/usr/bin/{CLI}", None)},
            [f"/usr/bin/{CLI} reports no version. "],
        ),
    ],
)
def test_version_mismatches(packages: dict[str, str], changed: dict[str, Program | None], parts: list[str]) -> None:
    found = {name: program for name, program in {**THERE, **changed}.items() if program is not None}
    messages = version_mismatches(packages, found)
    assert len(messages) == len(parts)
    assert [part for part, message in zip(parts, messages) if part not in message] == []


@pytest.mark.parametrize(
    ("packages", "changed"),
    [({**WHOLE, PACKAGES[1]: "1.19.2-1"}, {}), (WHOLE, {CTK: Program("/usr/bin/nvidia-ctk", "1.19.0")})],
)
def test_single_version(packages: dict[str, str], changed: dict[str, Program]) -> None:
    assert single_version(packages, {**THERE, **changed}) is None


def test_programs_in_a_directory() -> None:
    there = {name: Program(f"/opt/toolkit/{name}", "1.19.1") for name in PROGRAMS}
    assert version_mismatches({}, there, "/opt/toolkit/") == []
    assert len(version_mismatches({}, there)) == len(PROGRAMS)


# -- Policies --------------------------------------------------------------------------------------------------------


def guard(policies: Policies, *containers: str) -> None:
    policies.check_containers(containers, "are hurt.", "Remove them first", "Start them again.")


def test_container_policy() -> None:
    with pytest.raises(HostError, match=r"The containers a, b are hurt\. Remove them first, or set running"):
        guard(Policies("fail", None, "warn"), "a", "b")
    warned, ignored = Policies("warn", None, "warn"), Policies("ignore", None, "warn")
    for _again in range(2):
        guard(warned, "a")
        guard(ignored, "a")
    assert warned.warnings == ["The containers a are hurt. Start them again."]
    assert ignored.warnings == []
    guard(Policies("fail", None, "warn"))


@pytest.mark.parametrize(
    ("version", "minimum", "old"),
    [
        ("1.18.0", "1.18.0", False),
        ("1.17.9", "1.18.0", True),
        ("1.9.0", "1.10", True),
        ("1.20.0-rc.1", "1.20.0", True),
        (oldest_safe_version(), None, False),
        ("1.16.0", None, True),
        (None, "9.0.0", False),
    ],
)
def test_minimum_version_policy(version: str | None, minimum: str | None, old: bool) -> None:
    fails, warns, ignores = (Policies("fail", minimum, policy) for policy in ("fail", "warn", "ignore"))
    if old:
        with pytest.raises(NvidiaError, match="Choose a newer version, or set minimum_version_policy: warn"):
            fails.check_minimum(version)
    else:
        fails.check_minimum(version)
    for policies in (warns, ignores):
        policies.check_minimum(version)
        policies.check_minimum(version)
    assert len(warns.warnings) == int(old)
    assert ignores.warnings == []


def test_rejects_invalid_minimum_version() -> None:
    with pytest.raises(NvidiaError, match=r"Invalid minimum_version 'newest'\. Use a version such as"):
        Policies("fail", "newest", "warn")


@pytest.mark.parametrize(
    ("version", "floor", "problem"),
    [
        ("1.19.1-1", "1.19.1", None),
        ("1.19.10-1", "1.19.9", None),
        ("1.19.9-1", "1.19.10", "Version 1.19.9 of the toolkit is older than 1.19.10."),
        (
            "1.18.2-1",
            "1.19.1",
            (
                "Version 1.18.2 of the toolkit is older than 1.19.1."
                " Its known vulnerabilities are CVE-2026-24260 (race between check and use)."
            ),
        ),
    ],
)
def test_below_minimum(version: str, floor: str, problem: str | None) -> None:
    assert below_minimum(version, floor) == problem


def test_below_minimum_with_invalid_version() -> None:
    assert below_minimum("unknown", "1.19.1") == (
        "Version 'unknown' of the toolkit cannot be compared with the minimum version 1.19.1."
    )
