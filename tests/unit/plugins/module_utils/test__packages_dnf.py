# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import itertools
import pathlib
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _packages
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import (
    Candidate,
    Change,
    CommandError,
    Commands,
    Package,
    PackageFile,
    Preview,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages_dnf import (
    LOCK_FILES,
    REPOSITORY_FILE,
    Dnf,
    candidates_of,
    is_locked,
    locks_in,
    preview_of,
    version_order,
)
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.test__packages_apt import Programs, write

if t.TYPE_CHECKING:
    from pathlib import Path

ABORTED = "Operation aborted.\n"
RULE = "=" * 80

# As dnf 4.23 writes it.
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

# As dnf 5 writes it.
UPGRADE_5 = """\
Updating and loading repositories:
Repositories loaded.
Package                 Arch   Version   Repository                    Size
Upgrading:
 libnvidia-container1   x86_64 1.19.1-1  nvidia-container-toolkit   5.5 KiB
   replacing libnvidia-container1
                        x86_64 1.18.2-1  nvidia-container-toolkit   5.4 KiB
Removing:
 nvidia-docker2         x86_64 2.13.0-1  nvidia-container-toolkit     70 B

Transaction Summary:
 Upgrading:          1 package
 Replacing:          1 package
 Removing:           1 package

Operation aborted by the user.
"""

LOCKED = """\
# Added lock on Sat Nov 21 20:06:16 2026
nvidia-container-toolkit-0:1.18.2-1.*
nvidia-container-toolkit-base-0:1.18.2-1.*
libnvidia-container1-1:1.18.2-1.el9.*
"""

LOCKED_5 = """\
# Added by 'versionlock add' command on 2026-08-21 10:00:00
Package name: nvidia-container-toolkit
evr = 1.18.2-1

Package name: libnvidia-container1
evr = 0:1.18.2-1
"""

OFFERS = """\
libnvidia-container1\t0\t1.9.0-1\tnvidia-container-toolkit

libnvidia-container1\t0\t1.19.10-1\tnvidia-container-toolkit
libnvidia-container1\t0\t1.19.9-1\tcuda
nvidia-docker2\t1\t2.13.0-1\tnvidia-container-toolkit
"""


@pytest.fixture
def programs() -> Programs:
    return Programs()


@pytest.fixture
def dnf(programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dnf:
    monkeypatch.setattr(_packages, "_PAUSE", 0.0)
    monkeypatch.setattr(HostRoot, "argv", lambda _host, argv: list(argv))
    return Dnf(HostRoot(str(tmp_path), live=True), Commands.of(programs), 5)


# -- what is installed -----------------------------------------------------------------------------------------------


def test_installed(dnf: Dnf, programs: Programs) -> None:
    programs.answers["rpm"] = [
        (1, "libnvidia-container1\t0\t1.19.1-1\tx86_64\nold\t2\t1.0-1\tnoarch\npackage x is not installed\n", "")
    ]
    assert dnf.installed(["libnvidia-container1", "old", "x"]) == {
        "libnvidia-container1": Package("1.19.1-1"),
        "old": Package("2:1.0-1"),
    }
    # Without a list of locks nobody is asked for one.
    assert [argv[0] for argv in programs.ran] == ["rpm"]
    assert not dnf.interrupted()
    assert dnf.leftovers(["x"]) == []


@pytest.mark.parametrize("path", LOCK_FILES)
def test_what_is_locked_is_held(dnf: Dnf, programs: Programs, path: str) -> None:
    write(dnf.host.root, path, "")
    programs.answers["rpm"] = [(0, "a\t0\t1-1\tx86_64\na-base\t0\t1-1\tx86_64\n", "")]
    programs.answers["versionlock"] = [(0, "a-base-0:1-1.*\n", "")]
    assert dnf.installed(["a", "a-base"]) == {"a": Package("1-1"), "a-base": Package("1-1", held=True)}


def test_two_versions_of_one_package_were_cut_off(dnf: Dnf, programs: Programs) -> None:
    programs.answers["rpm"] = [(0, "a\t0\t1.19.10-1\tx86_64\na\t0\t1.19.9-1\tx86_64\n", "")]
    assert dnf.installed(["a"]) == {"a": Package("1.19.10-1", whole=False)}
    assert dnf.interrupted()
    with pytest.raises(HostError, match=r"Two versions of a are registered.*dnf remove --duplicates"):
        dnf.mend(ours=True)


def test_the_database_of_a_tree_is_closed(programs: Programs, tmp_path: Path) -> None:
    offline = Dnf(HostRoot(str(tmp_path), live=False), Commands.of(programs))
    assert not offline.readable
    assert offline.installed(["a"]) == {}
    assert programs.ran == []


def test_locks() -> None:
    assert locks_in("") == []
    assert locks_in(LOCKED) == [
        "nvidia-container-toolkit-0:1.18.2-1.*",
        "nvidia-container-toolkit-base-0:1.18.2-1.*",
        "libnvidia-container1-1:1.18.2-1.el9.*",
    ]
    assert locks_in("!nvidia-container-toolkit-0:1.18.2-1.*\n") == []
    assert locks_in(LOCKED_5) == ["nvidia-container-toolkit-1.18.2-1", "libnvidia-container1-0:1.18.2-1"]


@pytest.mark.parametrize(
    ("lock", "locked"),
    [
        ("toolkit-0:1.18.2-1.*", True),
        ("toolkit-1.18.2-1.x86_64", True),
        ("toolkit-1.18.2", True),
        ("toolkit-1.18.*", True),
        ("toolkit-0:1.18.2-1", True),
        # Locked where it is not: it is going to move.
        ("toolkit-0:1.19.1-1.*", False),
        ("toolkit-1:1.18.2-1.*", False),
        ("toolkit-base-0:1.18.2-1.*", False),
        ("toolkit", False),
    ],
)
def test_a_lock_holds_one_version(lock: str, locked: bool) -> None:
    assert is_locked(("toolkit", "0", "1.18.2-1", "x86_64"), ["other-1", lock]) is locked


# -- what is on offer ------------------------------------------------------------------------------------------------


def test_candidates() -> None:
    assert candidates_of(OFFERS) == {
        "libnvidia-container1": [
            Candidate("1.19.10-1", "nvidia-container-toolkit", preferred=True),
            Candidate("1.19.9-1", "cuda"),
            Candidate("1.9.0-1", "nvidia-container-toolkit"),
        ],
        "nvidia-docker2": [Candidate("1:2.13.0-1", "nvidia-container-toolkit", preferred=True)],
    }
    assert candidates_of("") == {}


def test_versions_in_their_order() -> None:
    ordered = [
        "1.9.0-1", "1.19.1~rc.1-1", "1.19.1~rc.2-1", "1.19.1-1", "1.19.1-2", "1.19.1-10", "1.19.1.1-1", "1.19.2-1",
        "1.19.10-1", "1.20.0-1", "1:1.0.0-1",
    ]  # fmt: skip
    for older, newer in itertools.combinations(ordered, 2):
        assert version_order(older) < version_order(newer), (older, newer)


def test_check_mode_asks_only_the_lists_that_are_there(dnf: Dnf, programs: Programs) -> None:
    programs.answers["repoquery"] = [(0, OFFERS, "")]
    assert set(dnf.candidates(["libnvidia-container1"], offline=True)) == {"libnvidia-container1", "nvidia-docker2"}
    programs.answers["install"] = [(1, UPGRADE, ABORTED)]
    dnf.preview(Change({"a": "1-1"}), offline=True)
    dnf.candidates(["libnvidia-container1"])
    dnf.preview(Change({"a": "1-1"}))
    assert ["-C" in argv for argv in programs.ran] == [True, True, False, False]


# -- lists -----------------------------------------------------------------------------------------------------------


def test_only_our_lists_are_fetched(dnf: Dnf, programs: Programs) -> None:
    write(dnf.host.root, REPOSITORY_FILE, "[ours]\nname=x\nbaseurl=https://x\n\n[ours-too]\nenabled=0\n")
    dnf.refresh()
    dnf.refresh(everything=True)
    pathlib.Path(dnf.host.root + REPOSITORY_FILE).unlink()
    dnf.refresh()
    limited, everything, neither = programs.ran
    assert {
        "--disablerepo=*",
        "--enablerepo=ours",
        "--enablerepo=ours-too",
        "--setopt=ours.skip_if_unavailable=0",
    } <= set(limited)
    assert everything == neither == ["dnf", "-q", "-y", "makecache", "--refresh"]


def test_lists_that_cannot_be_fetched(dnf: Dnf, programs: Programs) -> None:
    said = "Error: Failed to download metadata for repo 'x': repomd.xml GPG signature verification error: Bad\n"
    programs.answers["makecache"] = [(1, "", "Unable to detect release version (x)\n" + said)]
    with pytest.raises(CommandError) as caught:
        dnf.refresh()
    assert caught.value.said == (said.strip(),)


# -- files of packages -----------------------------------------------------------------------------------------------


def test_describe(dnf: Dnf, programs: Programs) -> None:
    programs.answers["/x.rpm"] = [(0, "libnvidia-container1\t0\t1.20.0-1\tx86_64\n", "")]
    programs.answers["/etc/passwd"] = [(1, "", "error: /etc/passwd: not an rpm package\n")]
    assert dnf.describe(["/x.rpm"]) == [PackageFile("/x.rpm", "libnvidia-container1", "1.20.0-1", "x86_64")]
    with pytest.raises(CommandError, match="not an rpm package"):
        dnf.describe(["/etc/passwd"])
    programs.answers["/odd.rpm"] = [(0, "\n", "")]
    with pytest.raises(HostError, match=r"^/odd\.rpm is not a package"):
        dnf.describe(["/odd.rpm"])
    # Or any text is taken for a list of files.
    assert all("--nomanifest" in argv for argv in programs.ran)


# -- transactions ----------------------------------------------------------------------------------------------------


def test_preview_of_dnf_4() -> None:
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


def test_preview_of_dnf_5() -> None:
    assert preview_of(UPGRADE_5) == Preview({"libnvidia-container1": "1.19.1-1"}, ("nvidia-docker2",))


def test_what_is_replaced_goes_after_what_comes(dnf: Dnf, programs: Programs) -> None:
    dnf.carry_out(Change({"a": "1-1", "b": "1:2-1"}, remove=("nvidia-docker2",)))
    install, remove = programs.ran
    assert install[install.index("install") :] == ["install", "a-1-1", "b-1:2-1"]
    assert "--allowerasing" in install
    assert remove[remove.index("remove") :] == ["remove", "nvidia-docker2"]
    assert "--setopt=clean_requirements_on_remove=0" in remove
    assert not any("--disableplugin=versionlock" in argv for argv in programs.ran)


def test_files_need_no_source(dnf: Dnf, programs: Programs) -> None:
    dnf.carry_out(Change(files=("/a.rpm",), change_held=True))
    (argv,) = programs.ran
    assert argv[argv.index("install") :] == ["install", "/a.rpm"]
    assert {"--disablerepo=*", "--disableplugin=versionlock"} <= set(argv)
    assert "--allowerasing" not in argv


def test_a_preview_is_refused_by_dnf_itself_only(dnf: Dnf, programs: Programs) -> None:
    programs.answers["install"] = [(1, UPGRADE, ABORTED)]
    programs.answers["remove"] = [(0, "Nothing to do.\n", "")]
    found = dnf.preview(Change({"a": "1-1"}, remove=("b",)))
    assert found.downgrade == ("libseccomp",)
    assert all("--assumeno" in argv and "-y" not in argv for argv in programs.ran)
    programs.answers["install"] = [(1, "", "Error: \n Problem: package x requires y, but none can be installed\n")]
    with pytest.raises(CommandError, match=r"Problem: package x requires y"):
        dnf.preview(Change({"a": "1-1"}))


def test_a_transaction_that_fails(dnf: Dnf, programs: Programs) -> None:
    said = "Error: GPG check FAILED\nTry to add\n"
    programs.answers["install"] = [(1, "Downloading Packages:\nError: once\n", said)]
    with pytest.raises(CommandError, match=r"dnf install failed\. It says: Error: GPG check FAILED \| Try to add\.$"):
        dnf.carry_out(Change({"a": "1-1"}, remove=("b",)))
    assert len(programs.ran) == 1


def test_others_are_waited_for(dnf: Dnf, programs: Programs) -> None:
    busy = "RPMDB already locked by 2156\n  The application with PID 2156 is: python3\n"
    programs.answers["install"] = [(200, "", busy), (0, "", "")]
    dnf.carry_out(Change({"a": "1-1"}))
    assert len(programs.ran) == 2
    # Or dnf 4 itself waits for ever.
    assert "--setopt=exit_on_lock=1" in programs.ran[0]


def test_a_transaction_releases_what_it_may_change(dnf: Dnf, programs: Programs) -> None:
    programs.answers["/b.rpm"] = [(0, "b\t0\t1-1\tx86_64\n", "")]
    dnf.carry_out(Change({"a": "1-1"}, remove=("c",), change_held=True))
    # Nothing can be locked where there is no list of locks.
    assert not any("versionlock" in argv for argv in programs.ran)
    write(dnf.host.root, LOCK_FILES[0], "")
    dnf.carry_out(Change({"a": "1-1"}, remove=("c",), change_held=True))
    dnf.carry_out(Change(files=("/b.rpm",), change_held=True))
    dnf.carry_out(Change({"a": "1-1"}))
    words = [argv[argv.index("versionlock") + 1 :] for argv in programs.ran if "versionlock" in argv]
    assert words == [["delete", "a", "c"], ["delete", "b"]]


# -- holds -----------------------------------------------------------------------------------------------------------


def test_a_dnf_that_cannot_lock_versions(dnf: Dnf, programs: Programs) -> None:
    dnf.require_holds()
    programs.answers["versionlock"] = [(1, "", "No such command: versionlock. Please use /usr/bin/dnf --help\n")]
    with pytest.raises(HostError, match=r"No such command: versionlock.*python3-dnf-plugin-versionlock"):
        dnf.require_holds()


def test_a_lock_takes_the_place_of_others(dnf: Dnf, programs: Programs) -> None:
    write(dnf.host.root, LOCK_FILES[0], "")
    dnf.hold({"a": "1-1", "b": "2:1-1"})
    words = [argv[argv.index("versionlock") + 1 :] for argv in programs.ran if "versionlock" in argv]
    assert words == [["delete", "a", "b"], ["list"], ["add", "a-1-1", "b-2:1-1"]]


def test_a_lock_that_stays_is_an_error(dnf: Dnf, programs: Programs) -> None:
    write(dnf.host.root, LOCK_FILES[0], "")
    programs.answers["list"] = [(0, "a-0:1-1.*\nc-0:1-1.*\n", "")]
    programs.answers["rpm"] = [(0, "a\t0\t1-1\tx86_64\nb\t0\t1-1\tx86_64\n", "")]
    with pytest.raises(HostError, match=r"^a are still locked"):
        dnf.unhold(["a", "b"])
