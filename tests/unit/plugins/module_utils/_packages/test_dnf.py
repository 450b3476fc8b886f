# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import itertools
import pathlib
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import rpm_sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import (
    PACKAGES,
    Candidate,
    Change,
    CommandError,
    Commands,
    Package,
    PackageFile,
    Preview,
    warnings_of,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.dnf import (
    Dnf,
    candidates_of,
    preview_of,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.dnf_versionlock import PLUGIN_CONFIG
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.rpm import version_order
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import FakePrograms, write_file

if t.TYPE_CHECKING:
    from pathlib import Path

DNF_REPOSITORY = packages_base.REPOSITORY_NAME
DNF_SOURCE = rpm_sources.DNF.source
ABORTED = "Operation aborted.\n"
RULE = "=" * 80

# The output of dnf 4.23.
UPGRADE = f"""\
Last metadata expiration check: 0:00:01 ago on Sat Nov 21 20:00:50 2026.
Dependencies resolved.
{RULE}
 Package                       Arch   Version    Repository                Size
{RULE}
Upgrading:
 libnvidia-container-tools     x86_64 1.19.1-1   nvidia-container-toolkit 6.1 k
 libnvidia-container1          x86_64 1.19.1-1   nvidia-container-toolkit 5.5 k
     replacing  nvidia-container-runtime-hook.x86_64 1.4.0-1
Installing dependencies:
 a-package-with-a-name-that-is-longer-than-its-column
                               x86_64 2.0-3.el9  baseos                    11 k
Downgrading:
 libseccomp                    x86_64 2.5.2-2    baseos                    70 k
Removing dependent packages:
 gpufleet-bystander            x86_64 1.0-1      @nvidia-container-toolkit   0

Transaction Summary
{RULE}
Upgrade    2 Packages
Downgrade  1 Package

Total size: 24 k
"""

OFFERS = """\
libnvidia-container1\t0\t1.9.0-1\tnvidia-container-toolkit

libnvidia-container1\t0\t1.19.10-1\tnvidia-container-toolkit
libnvidia-container1\t0\t1.19.9-1\tcuda
nvidia-docker2\t1\t2.13.0-1\tnvidia-container-toolkit
"""


# The output of rpm -q.
DOCKER2 = "nvidia-docker2\t0\t2.13.0-1\tnoarch\n"
LOCK_FILE = "/etc/dnf/plugins/versionlock.list"


@pytest.fixture
def dnf(programs: FakePrograms, live_host: HostFS) -> Dnf:
    return Dnf(live_host, Commands.of(programs), 5)


def absent(*names: str) -> str:
    return "".join(f"package {name} is not installed\n" for name in names)


# -- installed packages -----------------------------------------------------------------------------------------------


def test_installed(dnf: Dnf, programs: FakePrograms) -> None:
    programs.answers["rpm"] = [
        (1, "libnvidia-container1\t0\t1.19.1-1\tx86_64\nold\t2\t1.0-1\tnoarch\npackage x is not installed\n", "")
    ]
    assert dnf.installed(["libnvidia-container1", "old", "x"]) == {
        "libnvidia-container1": Package("1.19.1-1"),
        "old": Package("2:1.0-1"),
    }
    assert [argv[0] for argv in programs.ran] == ["rpm"]
    assert not dnf.interrupted()
    assert dnf.config_only(["x"]) == []


def lock(dnf: Dnf, *locks: str) -> Path:
    """Write the list of locks of dnf 4's plugin, and return its path."""
    write_file(dnf.host.root, PLUGIN_CONFIG, f"[main]\nenabled = 1\nlocklist = {LOCK_FILE}\n")
    write_file(dnf.host.root, LOCK_FILE, "".join(f"{lock}\n" for lock in locks))
    return pathlib.Path(dnf.host.root + LOCK_FILE)


def test_locked_packages_are_held(dnf: Dnf, programs: FakePrograms) -> None:
    lock(dnf, "a-base-0:1-1.*")
    programs.answers["rpm"] = [(0, "a\t0\t1-1\tx86_64\na-base\t0\t1-1\tx86_64\n", "")]
    assert dnf.installed(["a", "a-base"]) == {"a": Package("1-1"), "a-base": Package("1-1", held=True)}
    # The list is read without a program.
    assert [argv[0] for argv in programs.ran] == ["rpm"]


@pytest.mark.parametrize(
    ("output", "errors"),
    [
        # The output of rpm 4.20 with an invalid database.
        ("package a is not installed\n", "error: cannot open Packages database in /var/lib/rpm\n"),
        ("a\t0\t1-1\tx86_64\n", "Unable to open sqlite database /var/lib/rpm/rpmdb.sqlite: x\n"),
        ("", ""),
        ("package b is not installed\n", ""),
    ],
)
def test_unreadable_database(dnf: Dnf, programs: FakePrograms, output: str, errors: str) -> None:
    programs.answers["rpm"] = [(1, output, errors)]
    with pytest.raises(CommandError, match=r"^Reading the installed packages \(rpm -q\) failed\..*rpm --rebuilddb"):
        dnf.installed(["a"])


def test_ignores_warnings_of_rpm(dnf: Dnf, programs: FakePrograms) -> None:
    printed = "warning: Found bdb_ro Packages database while attempting sqlite backend: using bdb_ro backend.\n"
    programs.answers["rpm"] = [(1, "package a is not installed\n", printed)]
    assert dnf.installed(["a"]) == {}


def test_two_versions_are_an_interruption(dnf: Dnf, programs: FakePrograms) -> None:
    programs.answers["rpm"] = [(0, "a\t0\t1.19.10-1\tx86_64\na\t0\t1.19.9-1\tx86_64\n", "")]
    assert dnf.installed(["a"]) == {"a": Package("1.19.10-1", complete=False)}
    assert dnf.interrupted()
    with pytest.raises(HostError, match=r"rpm lists two versions of a, .*dnf remove --duplicates"):
        dnf.repair(["a"])


def test_reads_no_database_of_an_offline_tree(programs: FakePrograms, tmp_path: Path) -> None:
    offline = Dnf(HostFS(str(tmp_path), live=False), Commands.of(programs))
    assert not offline.readable
    assert offline.installed(["a"]) == {}
    assert programs.ran == []


# -- available versions ------------------------------------------------------------------------------------------------


def test_prefers_what_dnf_would_install(dnf: Dnf, programs: FakePrograms) -> None:
    name = "libnvidia-container1"
    behind = UPGRADE.replace("1.19.1-1", "1.19.9-1").replace("nvidia-container-toolkit 5.5 k", "cuda 5.5 k")
    programs.answers = {
        "repoquery": [(0, OFFERS, "")],
        "install": [(1, behind, ABORTED)],
        "rpm": [(1, absent(name), "")],
    }

    def preferred() -> list[str]:
        return [offer.version for offer in dnf.candidates([name], offline=True)[name] if offer.preferred]

    assert preferred() == ["1.19.9-1"]
    preview = programs.ran[1]
    assert {"-C", "--assumeno"} <= set(preview)
    assert preview[-2:] == ["install", name]
    # The installed version is the best.
    programs.answers["install"] = [(0, "Nothing to do.\n", "")]
    programs.answers["rpm"] = [(0, f"{name}\t0\t1.9.0-1\tx86_64\n", "")]
    assert preferred() == ["1.9.0-1"]
    programs.answers["install"] = [(1, "", "Error: \n Problem: x\n")]
    assert preferred() == []


def test_one_repository_needs_no_preview(dnf: Dnf, programs: FakePrograms) -> None:
    programs.answers["repoquery"] = [(0, OFFERS.replace("cuda", "nvidia-container-toolkit"), "")]
    assert dnf.candidates(["libnvidia-container1"])["libnvidia-container1"][0].preferred
    assert len(programs.ran) == 1


def test_check_mode_uses_local_lists(dnf: Dnf, programs: FakePrograms) -> None:
    programs.answers["repoquery"] = [(0, OFFERS.replace("cuda", "nvidia-container-toolkit"), "")]
    assert set(dnf.candidates(["libnvidia-container1"], offline=True)) == {"libnvidia-container1", "nvidia-docker2"}
    programs.answers["install"] = [(1, UPGRADE, ABORTED)]
    dnf.preview(Change({"a": "1-1"}), offline=True)
    dnf.candidates(["libnvidia-container1"])
    dnf.preview(Change({"a": "1-1"}))
    assert ["-C" in argv for argv in programs.ran] == [True, True, False, False]


@pytest.mark.parametrize(
    ("line", "hides"),
    [
        ("exclude=*nvidia* *cuda*", True),
        ("excludepkgs = kernel*,nvidia-container-toolkit.x86_64", True),
        ("excludepkgs=kernel*\n  nvidia-*", True),
        ("exclude=nvidia-container-toolkit-1.20*", True),
        ("includepkgs=kernel* bash", True),
        ("includepkgs=nvidia-*, libnvidia-*\n\n# other", False),
        ("exclude=kernel*", False),
        ("exclude=", False),
        ("# exclude=*nvidia*", False),
        ("installonly_limit=3", False),
    ],
)
def test_names_settings_that_hide_packages(dnf: Dnf, line: str, hides: bool) -> None:
    """Amazon's image for ECS excludes *nvidia* in dnf.conf."""
    write_file(dnf.host.root, "/etc/dnf/dnf.conf", f"[main]\ngpgcheck=1\n{line}\n")
    write_file(dnf.host.root, "/etc/yum.repos.d/cuda.repo", "[cuda]\nexclude=nvidia-container-*\n")
    write_file(dnf.host.root, DNF_SOURCE, f"[{DNF_REPOSITORY}]\nbaseurl=https://x\n")
    number = 3 + line.count("\n")
    expected = [f"/etc/dnf/dnf.conf, line {number} ({line.splitlines()[-1].strip()})"] * hides
    assert dnf.hiding(["nvidia-container-toolkit"]) == expected
    # Without a repository of this collection, those of the host count.
    pathlib.Path(dnf.host.root + DNF_SOURCE).unlink()
    assert dnf.hiding(["nvidia-container-toolkit"])[len(expected) :] == [
        "/etc/yum.repos.d/cuda.repo, line 2 (exclude=nvidia-container-*)"
    ]


def test_refuses_a_host_that_boots_an_image(dnf: Dnf) -> None:
    dnf.require_transactions()
    write_file(dnf.host.root, "/run/ostree-booted", "")
    with pytest.raises(HostError, match=r"/run/ostree-booted exists.*source: directory, .*source: existing"):
        dnf.require_transactions()


def test_refuses_a_host_with_dnf_5(dnf: Dnf) -> None:
    write_file(dnf.host.root, "/usr/bin/dnf5", "")
    pathlib.Path(dnf.host.root + "/usr/bin/dnf").symlink_to("dnf5")
    with pytest.raises(HostError, match=r"is dnf 5, .*source: directory, .*source: existing"):
        dnf.require_transactions()


def test_takes_the_toolkit_only_from_own_repository(dnf: Dnf, programs: FakePrograms) -> None:
    dnf.candidates(["libnvidia-container1"], own=True)
    dnf.preview(Change({"libnvidia-container1": "1-1"}, own=True))
    dnf.apply(Change({"libnvidia-container1": "1-1"}, own=True))
    query, *changes = programs.ran
    assert {"--disablerepo=*", f"--enablerepo={DNF_REPOSITORY}"} <= set(query)
    names = ",".join(PACKAGES)
    for argv in changes:
        # The dependencies may come from all repositories.
        assert "--disablerepo=*" not in argv
        excludes = [f"--setopt=*.excludepkgs={names}", f"--setopt={DNF_REPOSITORY}.excludepkgs="]
        start = argv.index(excludes[0])
        assert argv[start : start + 2] == excludes
    dnf.apply(Change({"libnvidia-container1": "1-1"}))
    assert not [argument for argument in programs.ran[-1] if "excludepkgs" in argument]


# -- lists -----------------------------------------------------------------------------------------------------------


def test_refresh_fetches_own_lists(dnf: Dnf, programs: FakePrograms) -> None:
    write_file(dnf.host.root, DNF_SOURCE, f"[{DNF_REPOSITORY}]\nbaseurl=https://x\n\n[others]\nenabled=0\n")
    dnf.refresh()
    dnf.refresh(everything=True)
    pathlib.Path(dnf.host.root + DNF_SOURCE).unlink()
    dnf.refresh()
    limited, everything, neither = programs.ran
    required = f"--setopt={DNF_REPOSITORY}.skip_if_unavailable=0"
    only = ["--disablerepo=*", f"--enablerepo={DNF_REPOSITORY}"]
    assert limited == ["dnf", "-q", "-y", required, *only, "makecache", "--refresh"]
    assert everything == neither == ["dnf", "-q", "-y", "makecache", "--refresh"]


def test_refresh_fails(dnf: Dnf, programs: FakePrograms) -> None:
    printed = "Error: Failed to download metadata for repo 'x': repomd.xml GPG signature verification error: Bad\n"
    programs.answers["makecache"] = [(1, "", "Unable to detect release version (x)\n" + printed)]
    with pytest.raises(CommandError) as caught:
        dnf.refresh()
    assert caught.value.output == (printed.strip(),)


# -- files of packages -----------------------------------------------------------------------------------------------


def test_describe(dnf: Dnf, programs: FakePrograms) -> None:
    programs.answers["/x.rpm"] = [(0, "libnvidia-container1\t0\t1.20.0-1\tx86_64\n", "")]
    programs.answers["/etc/passwd"] = [(1, "", "error: /etc/passwd: not an rpm package\n")]
    assert dnf.describe(["/x.rpm"]) == [PackageFile("/x.rpm", "libnvidia-container1", "1.20.0-1", "x86_64")]
    with pytest.raises(CommandError, match="not an rpm package"):
        dnf.describe(["/etc/passwd"])
    programs.answers["/odd.rpm"] = [(0, "\n", "")]
    with pytest.raises(HostError, match=r"^/odd\.rpm is not a valid rpm package"):
        dnf.describe(["/odd.rpm"])
    # Otherwise rpm reads any text as a list of files.
    assert all("--nomanifest" in argv for argv in programs.ran)


# -- transactions ----------------------------------------------------------------------------------------------------


def test_installs_before_it_removes(dnf: Dnf, programs: FakePrograms) -> None:
    programs.answers["rpm"] = [(0, f"{DOCKER2}{absent('nvidia-docker')}", "")]
    dnf.apply(Change({"a": "1-1", "b": "1:2-1"}, remove=("nvidia-docker2", "nvidia-docker")))
    owned, install, _query, remove = programs.ran
    assert owned == ["rpm", "-qc", "nvidia-docker2", "nvidia-docker"]
    assert install[install.index("install") :] == ["install", "a-1-1", "b-1:2-1"]
    assert "--allowerasing" in install
    # Only the remaining package, and not by a name that the new packages provide.
    assert remove[remove.index("remove") :] == ["remove", "nvidia-docker2-2.13.0-1"]
    assert "--setopt=clean_requirements_on_remove=0" in remove
    assert not any("--disableplugin=versionlock" in argv for argv in programs.ran)


def test_does_not_remove_obsoleted_packages_again(dnf: Dnf, programs: FakePrograms) -> None:
    programs.answers["rpm"] = [(1, absent("nvidia-container-runtime"), "")]
    dnf.apply(Change({"a": "1-1"}, remove=("nvidia-container-runtime",)))
    assert not any("remove" in argv for argv in programs.ran)


def test_installs_files_without_sources(dnf: Dnf, programs: FakePrograms) -> None:
    dnf.apply(Change(files=("/a.rpm",), change_held=True))
    (argv,) = programs.ran
    assert argv[argv.index("install") :] == ["install", "/a.rpm"]
    assert "--disablerepo=*" in argv
    assert "--allowerasing" not in argv


def test_preview(dnf: Dnf, programs: FakePrograms) -> None:
    programs.answers["install"] = [(1, UPGRADE, ABORTED)]
    programs.answers["remove"] = [(0, "Nothing to do.\n", "")]
    found = dnf.preview(Change({"a": "1-1"}, remove=("b",)))
    assert found.downgrade == ("libseccomp",)
    assert all("--assumeno" in argv and "-y" not in argv for argv in programs.ran)
    programs.answers["install"] = [(1, "", "Error: \n Problem: package x requires y, but none can be installed\n")]
    with pytest.raises(CommandError, match=r"Problem: package x requires y"):
        dnf.preview(Change({"a": "1-1"}))


def test_error_contains_output(dnf: Dnf, programs: FakePrograms) -> None:
    printed = "Error: GPG check FAILED\nTry to add\n"
    programs.answers["install"] = [(1, "Downloading Packages:\nError: once\n", printed)]
    with pytest.raises(
        CommandError, match=r"install failed\. Program output: Error: GPG check FAILED \| Try to add\.$"
    ):
        dnf.apply(Change({"a": "1-1"}, remove=("b",)))
    assert [argv[0] for argv in programs.ran] == ["rpm", "dnf"]


def test_waits_for_a_lock(dnf: Dnf, programs: FakePrograms) -> None:
    busy = "RPMDB already locked by 2156\n  The application with PID 2156 is: python3\n"
    programs.answers["install"] = [(200, "", busy), (0, "", "")]
    dnf.apply(Change({"a": "1-1"}))
    assert len(programs.ran) == 2
    # Otherwise dnf 4 waits without a limit.
    assert "--setopt=exit_on_lock=1" in programs.ran[0]


def test_releases_locks_of_changed_packages(dnf: Dnf, programs: FakePrograms) -> None:
    programs.answers["/b.rpm"] = [(0, "b\t0\t1-1\tx86_64\n", "")]
    programs.answers["rpm"] = [(3, absent("a", "b", "c"), "")]
    dnf.apply(Change({"a": "1-1"}, remove=("c",), change_held=True))
    # Without a list, no package is locked.
    assert not any("versionlock" in argv for argv in programs.ran)
    lock(dnf, "a-0:1-1.*", "a-base-0:1-1.*", "!b-0:3-1.*", "b-0:2-1.*", "c-0:1-1.*")
    dnf.apply(Change({"a": "1-1"}, remove=("c",), change_held=True))
    dnf.apply(Change(files=("/b.rpm",), change_held=True))
    dnf.apply(Change({"a": "1-1"}))
    commands = [argv[argv.index("versionlock") + 1 :] for argv in programs.ran if "versionlock" in argv]
    # The name of a package would also delete entries that exclude a version.
    assert commands == [["delete", "a-0:1-1.*", "c-0:1-1.*"], ["delete", "b-0:2-1.*"]]
    # Other locks stay in force.
    assert not any("--disableplugin=versionlock" in argv for argv in programs.ran)


def test_restores_locks_after_a_failure(dnf: Dnf) -> None:
    file = lock(dnf, "# mine", "a-0:1-1.*")
    before = file.read_text()
    seen = "a\t0\t1-1\tx86_64\n"

    def run(argv: list[str]) -> tuple[int, str, str]:
        if "delete" in argv:
            file.write_text("")
        return (0, seen, "") if argv[0] == "rpm" else (1 if "install" in argv else 0, "", "Error: x\n")

    dnf = Dnf(dnf.host, Commands.of(run), 0)
    with pytest.raises(CommandError, match="Error: x"):
        dnf.apply(Change({"a": "2-1"}, change_held=True))
    assert file.read_text() == before

    def run_halfway(argv: list[str]) -> tuple[int, str, str]:
        nonlocal seen
        seen = "a\t0\t2-1\tx86_64\n" if "install" in argv else seen
        return run(argv)

    with pytest.raises(CommandError, match="Error: x"):
        Dnf(dnf.host, Commands.of(run_halfway), 0).apply(Change({"a": "2-1"}, change_held=True))
    # A lock at the previous version would prevent the next run.
    assert file.read_text() == ""


def test_keeps_locks_that_another_program_changed_meanwhile(dnf: Dnf) -> None:
    file = lock(dnf, "# mine", "a-0:1-1.*")

    def run(argv: list[str]) -> tuple[int, str, str]:
        if "delete" in argv:
            file.write_text("")
        if "install" in argv:
            file.write_text("b-0:2-1.*\n")
        return (0, "a\t0\t1-1\tx86_64\n", "") if argv[0] == "rpm" else (1 if "install" in argv else 0, "", "Error: x\n")

    with pytest.raises(CommandError, match="Error: x"):
        Dnf(dnf.host, Commands.of(run), 0).apply(Change({"a": "2-1"}, change_held=True))
    assert file.read_text() == "b-0:2-1.*\n"


def test_keeps_locks_of_several_packages(dnf: Dnf, programs: FakePrograms) -> None:
    lock(dnf, "a*-0:1-1.*")
    programs.answers["rpm"] = [(0, "a\t0\t1-1\tx86_64\n", "")]
    with pytest.raises(HostError, match=r"^a is still locked"):
        dnf.apply(Change({"a": "2-1"}, change_held=True))
    assert not any("install" in argv for argv in programs.ran)


@pytest.mark.parametrize("locked", [False, True])
def test_preview_ignores_locks_of_the_change(dnf: Dnf, programs: FakePrograms, locked: bool) -> None:
    lock(dnf, *["libnvidia-container1-0:1.18.2-1.*"] * locked, "gpufleet-bystander-0:1.0-1.*")
    programs.answers = {"install": [(1, UPGRADE, ABORTED)]}
    dnf.preview(Change({"libnvidia-container1": "1.19.1-1"}, change_held=True))
    assert ["--disableplugin=versionlock" in argv for argv in programs.ran] == [locked]


# -- configuration files of replaced packages -------------------------------------------------------------------------

DAEMON = "/etc/docker/daemon.json"


def replacing(dnf: Dnf, saved: str | None, status: int = 0) -> Dnf:
    """Return a dnf that removes the configuration file together with the package, as rpm does."""
    file = pathlib.Path(dnf.host.root + DAEMON)

    def run(argv: list[str]) -> tuple[int, str, str]:
        if "-qc" in argv:
            return 0, f"{DAEMON}\n/etc/gone\n(contains no files)\n", ""
        if argv[0] == "rpm":
            return 0, DOCKER2, ""
        if "remove" in argv:
            file.unlink()
            if saved is not None:
                file.with_name("daemon.json.rpmsave").write_text(saved)
            return status, "", ""
        return 0, "", ""

    return Dnf(dnf.host, Commands.of(run), 0)


@pytest.mark.parametrize(("saved", "left"), [(None, False), ("{}", False), ("others", True)])
@pytest.mark.parametrize("status", [0, 1])
def test_keeps_configuration_files_of_replaced_packages(dnf: Dnf, saved: str | None, left: bool, status: int) -> None:
    write_file(dnf.host.root, DAEMON, "{}")
    file = pathlib.Path(dnf.host.root + DAEMON)
    file.chmod(0o640)
    dnf = replacing(dnf, saved, status)
    with contextlib.suppress(CommandError):
        dnf.apply(Change({"a": "1-1"}, remove=("nvidia-docker2",)))
    assert file.read_text() == "{}"
    assert file.stat().st_mode & 0o7777 == 0o640
    assert file.with_name("daemon.json.rpmsave").exists() is left
    assert warnings_of(dnf) == [f"dnf removed {DAEMON} together with nvidia-docker2. Its previous content is restored."]


def test_removes_configuration_files_of_removed_packages(dnf: Dnf) -> None:
    write_file(dnf.host.root, DAEMON, "{}")
    dnf = replacing(dnf, None)
    dnf.apply(Change(remove=("nvidia-docker2",)))
    assert not pathlib.Path(dnf.host.root + DAEMON).exists()
    assert warnings_of(dnf) == warnings_of(None) == []


def test_keeps_existing_configuration_files(dnf: Dnf, programs: FakePrograms) -> None:
    write_file(dnf.host.root, DAEMON, "{}")
    programs.answers["-qc"] = [(0, f"{DAEMON}\n", "")]
    programs.answers["rpm"] = [(0, DOCKER2, "")]
    dnf.apply(Change({"a": "1-1"}, remove=("nvidia-docker2",)))
    assert warnings_of(dnf) == []


# -- holds -----------------------------------------------------------------------------------------------------------


def test_dnf_without_versionlock(dnf: Dnf, programs: FakePrograms) -> None:
    dnf.require_holds()
    programs.answers["versionlock"] = [(1, "", "No such command: versionlock. Please use /usr/bin/dnf --help\n")]
    with pytest.raises(HostError, match=r"No such command: versionlock.*python3-dnf-plugin-versionlock"):
        dnf.require_holds()


def test_hold_replaces_locks(dnf: Dnf, programs: FakePrograms) -> None:
    lock(dnf, "a-0:0-1.*")
    programs.answers["rpm"] = [(0, "a\t0\t1-1\tx86_64\nb\t2\t1-1\tx86_64\n", "")]
    dnf.hold({"a": "1-1", "b": "2:1-1"})
    commands = [argv[argv.index("versionlock") + 1 :] for argv in programs.ran if "versionlock" in argv]
    assert commands == [["delete", "a-0:0-1.*"], ["add", "a-1-1", "b-2:1-1"]]


def test_unhold_fails(dnf: Dnf, programs: FakePrograms) -> None:
    lock(dnf, "a-0:1-1.*", "c-0:1-1.*")
    programs.answers["rpm"] = [(0, "a\t0\t1-1\tx86_64\nb\t0\t1-1\tx86_64\n", "")]
    with pytest.raises(HostError, match=r"^a is still locked"):
        dnf.unhold(["a", "b"])


# -- output of dnf ----------------------------------------------------------------------------------------------------


def test_parses_candidates() -> None:
    assert candidates_of(OFFERS) == {
        "libnvidia-container1": [
            Candidate("1.19.10-1", "nvidia-container-toolkit", preferred=True),
            Candidate("1.19.9-1", "cuda"),
            Candidate("1.9.0-1", "nvidia-container-toolkit"),
        ],
        "nvidia-docker2": [Candidate("1:2.13.0-1", "nvidia-container-toolkit", preferred=True)],
    }
    assert candidates_of("") == {}


def test_order_of_versions() -> None:
    ordered = [
        "1.9.0-1", "1.19.1~rc.1-1", "1.19.1~rc.2-1", "1.19.1-1", "1.19.1-2", "1.19.1-10", "1.19.1.1-1", "1.19.2-1",
        "1.19.10-1", "1.20.0-1", "1:1.0.0-1",
    ]  # fmt: skip
    for older, newer in itertools.combinations(ordered, 2):
        assert version_order(older) < version_order(newer), (older, newer)


def test_parses_preview() -> None:
    assert preview_of(UPGRADE) == Preview(
        {
            "libnvidia-container-tools": "1.19.1-1",
            "libnvidia-container1": "1.19.1-1",
            "a-package-with-a-name-that-is-longer-than-its-column": "2.0-3.el9",
            "libseccomp": "2.5.2-2",
        },
        ("gpufleet-bystander", "nvidia-container-runtime-hook"),
        ("libseccomp",),
    )
    # With another package of the toolkit, the replaced one stays installed in its new version.
    own = UPGRADE.replace("nvidia-container-runtime-hook", "libnvidia-container-tools")
    assert preview_of(own).remove == ("gpufleet-bystander",)
