# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import fcntl
import os
import signal
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import apt_sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.apt import (
    LOCKS,
    STATUS_FILE,
    UPDATES,
    Apt,
    candidates_of,
    preview_of,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import (
    Candidate,
    Change,
    CommandError,
    Commands,
    Package,
    PackageFile,
    Preview,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import FakePrograms, stanza, write_file

if t.TYPE_CHECKING:
    from pathlib import Path

APT_SOURCE = apt_sources.REPOSITORY.source
ONLY_OWN = (f"Dir::Etc::SourceList={APT_SOURCE}", "Dir::Etc::SourceParts=/dev/null")
# The output of apt 2.6 and 3.
POLICY = """\
libnvidia-container1:
  Installed: 1.19.1-1
  Candidate: 1.20.0-1
  Version table:
     1.20.0-1 500
        500 https://nvidia.github.io/libnvidia-container/stable/deb/amd64  Packages
        400 file:/srv/repo ./ Packages
 *** 1.19.1-1 100
        100 /var/lib/dpkg/status
     1.18.2-1 -1
         -1 file:/srv/repo ./ Packages
nvidia-docker2:
  Installed: (none)
  Candidate: (none)
  Version table:
     2.13.0-1 500 (phased 10%)
        500 file:/srv/repo ./ Packages
"""

PREVIEW = """\
Reading package lists...
The following packages will be REMOVED:
  nvidia-docker2
The following packages will be DOWNGRADED:
  libnvidia-container-tools libnvidia-container1 nvidia-container-toolkit
  nvidia-container-toolkit-base
0 upgraded, 1 newly installed, 4 downgraded, 1 to remove and 0 not upgraded.
Remv nvidia-docker2 [2.13.0-1]
Inst nvidia-container-toolkit [1.20.0-1] (1.19.1-1 localhost [amd64]) []
Inst libnvidia-container1 [1.20.0-1] (1.19.1-1 localhost [amd64])
Inst libseccomp2:i386 (2.5.4-1 Debian:12.5/stable [i386])
Conf nvidia-container-toolkit (1.19.1-1 localhost [amd64])
Conf libnvidia-container1 (1.19.1-1 localhost [amd64])
"""

PURGE = """\
The following packages will be REMOVED:
  gpufleet-bystander* libnvidia-container1* nvidia-container-toolkit*
0 upgraded, 0 newly installed, 3 to remove and 0 not upgraded.
Purg gpufleet-bystander [1.0]
Purg libnvidia-container1 [1.19.1-1]
Remv libnvidia-container1 [1.19.1-1]
Purg nvidia-container-toolkit
"""

FAILED_SCRIPT = """\
The following packages will be upgraded:
  libnvidia-container-tools libnvidia-container1 nvidia-container-toolkit
  nvidia-container-toolkit-base
Preparing to unpack .../libnvidia-container1_1.19.1-1_amd64.deb ...
Unpacking libnvidia-container1 (1.19.1-1) over (1.18.2-1) ...
dpkg: warning: downgrading nvidia-container-toolkit-base from 1.20.0-1 to 1.19.1-1
Setting up nvidia-container-toolkit-base (1.19.1-1) ...
broken
broken
dpkg: error processing package nvidia-container-toolkit-base (--configure):
 installed nvidia-container-toolkit-base package post-installation script subprocess returned error exit status 3
dpkg: dependency problems prevent configuration of nvidia-container-toolkit:
 nvidia-container-toolkit depends on nvidia-container-toolkit-base (= 1.19.1-1); however:
  Package nvidia-container-toolkit-base is not configured yet.

dpkg: error processing package nvidia-container-toolkit (--configure):
 dependency problems - leaving unconfigured
Errors were encountered while processing:
 nvidia-container-toolkit-base
 nvidia-container-toolkit
"""

UNREACHABLE = """\
W: Failed to fetch http://127.0.0.1:9/x/./InRelease  Could not connect to 127.0.0.1:9 (127.0.0.1).
W: Some index files failed to download. They have been ignored, or old ones used instead.
"""

BUSY = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1232 (python3)\n"


@pytest.fixture
def apt(programs: FakePrograms, live_host: HostFS) -> Apt:
    return Apt(live_host, Commands.of(programs), 5)


# -- installed packages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "found"),
    [
        ("install ok installed", Package("1.19.1-1")),
        ("hold ok installed", Package("1.19.1-1", held=True)),
        ("install ok triggers-pending", Package("1.19.1-1")),
        ("install ok unpacked", Package("1.19.1-1", complete=False)),
        ("install ok half-configured", Package("1.19.1-1", complete=False)),
        ("install reinstreq half-installed", Package("1.19.1-1", complete=False)),
        ("hold reinstreq installed", Package("1.19.1-1", held=True, complete=False)),
        ("deinstall ok config-files", None),
        ("purge ok not-installed", None),
    ],
)
def test_installed(apt: Apt, programs: FakePrograms, tmp_path: Path, status: str, found: Package | None) -> None:
    other = stanza("other", "install ok installed")
    write_file(tmp_path, STATUS_FILE, other + stanza("libnvidia-container1", status) + other)
    assert apt.installed(["libnvidia-container1"]) == ({} if found is None else {"libnvidia-container1": found})
    removed = ["libnvidia-container1"] if "config-files" in status else []
    assert apt.config_only(["libnvidia-container1", "nowhere"]) == removed
    assert apt.readable
    assert programs.ran == []


@pytest.mark.parametrize(
    ("status", "found"),
    [
        (stanza("toolkit-base", "install ok installed", "1-1"), {}),
        # A description contains no packages.
        (f"{stanza('other', 'install ok installed', '1')[:-1]} Package: toolkit\n Status: hold ok installed\n", {}),
        # A removed package of a foreign architecture does not replace an installed one.
        (
            stanza("toolkit", "install ok installed")
            + stanza("toolkit", "deinstall ok config-files", "1.18.2-1", "Architecture: i386\n"),
            {"toolkit": Package("1.19.1-1")},
        ),
    ],
)
def test_finds_stanza(apt: Apt, tmp_path: Path, status: str, found: dict[str, Package]) -> None:
    write_file(tmp_path, STATUS_FILE, status)
    assert apt.installed(["toolkit"]) == found


def test_reads_unmerged_updates(apt: Apt, tmp_path: Path) -> None:
    name = "libnvidia-container1"
    write_file(tmp_path, STATUS_FILE, stanza(name, "install ok installed", "1.18.2-1"))
    assert not apt.interrupted()
    write_file(tmp_path, f"{UPDATES}/tmp.i", "")
    assert not apt.interrupted()
    write_file(tmp_path, f"{UPDATES}/0001", stanza(name, "install ok unpacked", "1.19.1-1"))
    assert apt.interrupted()
    assert apt.installed([name]) == {name: Package("1.19.1-1", complete=False)}


# -- interrupted transactions ----------------------------------------------------------------------------------------

ADVICE = r"Run `dpkg --configure -a` on the host and fix the package that it reports\.$"
OWN = ["nvidia-container-toolkit", "libnvidia-container1"]


def test_repair_configures_only_own_packages(apt: Apt, programs: FakePrograms, tmp_path: Path) -> None:
    programs.answers["--configure"] = [(1, "", "dpkg: error: x is broken\n")]
    # Without entries in updates, the transaction installs the missing half of the upgrade.
    apt.repair(OWN)
    assert programs.ran == [["dpkg", "--force-confdef", "--force-confold", "--configure", *OWN]]
    write_file(tmp_path, f"{UPDATES}/0001", stanza(OWN[0], "install ok unpacked"))
    with pytest.raises(CommandError, match=f"^dpkg --configure {' '.join(OWN)} failed.*x is broken. {ADVICE}"):
        apt.repair(OWN)


@pytest.mark.parametrize("own", [[], OWN])
def test_reports_other_pending_packages(apt: Apt, programs: FakePrograms, tmp_path: Path, own: list[str]) -> None:
    status = stanza("bash", "install ok installed") + stanza("man-db", "install ok triggers-pending")
    status += stanza("gone", "deinstall ok config-files") + stanza("libc6", "install ok half-configured")
    write_file(tmp_path, STATUS_FILE, status + "".join(stanza(name, "install ok unpacked") for name in own))
    write_file(tmp_path, f"{UPDATES}/0001", stanza("zlib1g", "install reinstreq half-installed"))
    expected = rf"^dpkg was interrupted.*\. Pending: libc6 \(half-configured\), zlib1g \(half-installed\)\. {ADVICE}"
    for refuse in (apt.refuse_interrupted, apt.repair):
        with pytest.raises(HostError, match=expected):
            refuse(own)
    assert programs.ran == []


def test_interruption_without_pending_packages(apt: Apt, tmp_path: Path) -> None:
    write_file(tmp_path, f"{UPDATES}/0001", stanza("bash", "install ok installed"))
    with pytest.raises(HostError, match=rf"Pending: the entries in {UPDATES}\. {ADVICE}"):
        apt.refuse_interrupted([])
    apt.refuse_interrupted(OWN)


def test_failure_reports_other_pending_packages(apt: Apt, programs: FakePrograms, tmp_path: Path) -> None:
    write_file(tmp_path, STATUS_FILE, stanza("x", "install ok unpacked") + stanza(OWN[0], "install ok unpacked"))
    programs.answers["apt-get"] = programs.answers["apt-cache"] = [(100, "", "E: unmet dependencies\n")]
    change = Change({OWN[0]: "1-1"})
    expected = rf"E: unmet.* Other packages are pending: x \(unpacked\)\. {ADVICE}"
    with pytest.raises(CommandError, match=expected):
        apt.preview(change)
    with pytest.raises(CommandError, match=expected):
        apt.apply(change)
    with pytest.raises(CommandError, match=r"E: unmet dependencies\.$"):
        apt.candidates(OWN)


# -- available versions ------------------------------------------------------------------------------------------------


def test_candidates() -> None:
    nvidia = "https://nvidia.github.io/libnvidia-container/stable/deb/amd64"
    assert candidates_of(POLICY) == {
        "libnvidia-container1": [
            Candidate("1.20.0-1", nvidia, preferred=True),
            Candidate("1.19.1-1", "/var/lib/dpkg/status"),
            Candidate("1.18.2-1", "file:/srv/repo ./"),
        ],
        "nvidia-docker2": [Candidate("2.13.0-1", "file:/srv/repo ./")],
    }
    assert candidates_of("") == {}


def test_unreadable_sources(apt: Apt, programs: FakePrograms) -> None:
    printed = (
        "E: Conflicting values set for option Signed-By regarding source x\nE: The list of sources could not be read.\n"
    )
    programs.answers["policy"] = [(100, "", printed)]
    with pytest.raises(CommandError, match="Conflicting values set for option Signed-By"):
        apt.candidates(["x"])


def test_names_pins_that_hide_packages(apt: Apt) -> None:
    folder = "/etc/apt/preferences.d"
    write_file(apt.host.root, "/etc/apt/preferences", "# none\nPackage: *\nPin: release a=sid\nPin-Priority: 50\n")
    write_file(
        apt.host.root,
        f"{folder}/no-nvidia",
        "Explanation: x\nPackage: bash\nPin: release *\nPin-Priority: -1\n\n"
        "Package: cuda-* nvidia-*\nPin: release *\nPin-Priority: -10\n\nPackage: src:cuda\nPin-Priority: -1\n",
    )
    assert apt.hiding(["nvidia-container-toolkit"]) == [f"{folder}/no-nvidia, line 8 (Pin-Priority: -10)"]
    assert apt.hiding(["libnvidia-container1"]) == []
    write_file(apt.host.root, f"{folder}/expression", "Package: /nvidia/\nPin: release *\nPin-Priority: -1\n")
    assert apt.hiding(["libnvidia-container1"]) == [f"{folder}/expression, line 3 (Pin-Priority: -1)"]


def test_candidates_of_own_source(apt: Apt, programs: FakePrograms) -> None:
    programs.answers["policy"] = [(0, POLICY, "")]
    found = apt.candidates(["libnvidia-container1"], own=True)["libnvidia-container1"]
    # The installed version, which no source has, is not offered.
    assert [entry.version for entry in found] == ["1.20.0-1", "1.18.2-1"]
    assert set(ONLY_OWN) <= set(programs.ran[0])
    apt.candidates(["libnvidia-container1"])
    assert not set(ONLY_OWN) & set(programs.ran[1])


def test_transaction_sees_no_other_source(apt: Apt, programs: FakePrograms) -> None:
    """apt takes a version from any source, also if another source has other contents of the same version."""
    change = Change({OWN[0]: "1-1"}, own=True)
    apt.preview(change)
    apt.apply(change)
    assert all(set(ONLY_OWN) <= set(argv) for argv in programs.ran)
    assert [argv[-2:] for argv in programs.ran if "-s" not in argv] == [["install", f"{OWN[0]}=1-1"]]


def test_dependencies_come_from_any_source(tmp_path: Path, apt: Apt, programs: FakePrograms) -> None:
    unmet = (100, "The following packages have unmet dependencies:\n x\n", "E: no\n")
    shown = f"Package: {OWN[0]}\nDepends: {OWN[1]} (= 1-1), libc6 (>= 2.4) | libc6.1, libcap2\nPre-Depends: dpkg\n"
    satisfied = "Inst libcap2 (1-1 Debian [amd64])\n"
    change = Change({OWN[0]: "1-1", OWN[1]: "1-1"}, own=True)

    def answer(argv: list[str]) -> tuple[int, str, str]:
        programs.ran.append(argv)
        if "satisfy" in argv:
            return 0, satisfied, ""
        missing = not [other for other in programs.ran if "satisfy" in other and "-s" not in other]
        if "-s" in argv and missing and set(ONLY_OWN) <= set(argv):
            return unmet
        return (0, shown, "") if "show" in argv else (0, f"Inst {OWN[0]} (1-1 x [amd64])\n", "")

    apt.commands = Commands.of(answer)
    assert apt.preview(change) == Preview({"libcap2": "1-1", OWN[0]: "1-1"})
    assert not [argv for argv in programs.ran if argv[0] == "apt-get" and "-s" not in argv]
    programs.ran.clear()
    apt.apply(change)
    satisfy, install = (argv for argv in programs.ran if argv[0] == "apt-get" and "-s" not in argv)
    assert satisfy[-2:] == ["satisfy", "libc6 (>= 2.4) | libc6.1, libcap2, dpkg"]
    # apt-get satisfy itself marks nothing.
    marked = [argv for argv in programs.ran if argv[0] == "apt-mark"]
    assert marked == [["apt-mark", "auto", "libcap2"]]
    assert programs.ran.index(satisfy) < programs.ran.index(marked[0]) < programs.ran.index(install)
    # Who installed a package that is upgraded is not known.
    write_file(tmp_path, STATUS_FILE, stanza("libcap2", "install ok installed"))
    programs.ran.clear()
    apt.apply(change)
    assert not [argv for argv in programs.ran if argv[0] == "apt-mark"]
    assert not set(ONLY_OWN) & set(satisfy)
    assert set(ONLY_OWN) <= set(install)
    # A dependency must not install a package of the toolkit from another source.
    programs.ran.clear()
    satisfied = f"Inst {OWN[1]} (1-1 cuda [amd64])\n"
    with pytest.raises(HostError, match=rf"would install {OWN[1]} from another source than {APT_SOURCE}"):
        apt.apply(change)
    assert all("-s" in argv for argv in programs.ran if argv[0] == "apt-get")


# -- lists -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "everything", "limited"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_refresh_fetches_own_lists(
    apt: Apt, programs: FakePrograms, there: bool, everything: bool, limited: bool
) -> None:
    if there:
        write_file(apt.host.root, APT_SOURCE, "")
    apt.refresh(everything)
    (argv,) = programs.ran
    assert argv[:2] == ["apt-get", "update"]
    assert "APT::Update::Error-Mode=any" in argv
    assert (f"Dir::Etc::SourceList={APT_SOURCE}" in argv) is limited
    assert ("Dir::Etc::SourceParts=/dev/null" in argv) is limited
    assert ("APT::Get::List-Cleanup=0" in argv) is limited


@pytest.mark.parametrize("status", [0, 100])
def test_refresh_fails(apt: Apt, programs: FakePrograms, status: int) -> None:
    # An apt without Error-Mode exits with 0 and only warns.
    programs.answers["update"] = [(status, "Reading package lists...\n", UNREACHABLE)]
    with pytest.raises(CommandError, match=r"Could not connect to 127\.0\.0\.1:9"):
        apt.refresh()


def test_refresh_ignores_other_warnings(apt: Apt, programs: FakePrograms) -> None:
    # The first text is from apt 2.6 with a local repository, the second from apt 3.3.
    tried = "Err:3 file:/srv/repo ./ Packages\n  Method gave a blank filename\n"
    deprecated = "W: Deprecated Signed-By fingerprint in the sources.list(5) entry for 'http://x'\n"
    programs.answers["update"] = [(0, tried, deprecated)]
    apt.refresh()
    assert len(programs.ran) == 1


# -- locks ---------------------------------------------------------------------------------------------


def test_waits_for_a_lock(apt: Apt, programs: FakePrograms) -> None:
    programs.answers["update"] = [(100, "", BUSY), (100, "", BUSY), (0, "", "")]
    apt.refresh()
    assert len(programs.ran) == 3


def test_waits_until_the_timeout(programs: FakePrograms, tmp_path: Path) -> None:
    programs.answers["hold"] = [(100, "", "dpkg: error: dpkg frontend lock was locked by another process with pid 7\n")]
    with pytest.raises(CommandError, match="locked by another process"):
        Apt(HostFS(str(tmp_path), live=True), Commands.of(programs), 0).hold({"x": "1"})
    assert len(programs.ran) == 1


@pytest.fixture
def locked() -> t.Iterator[t.Callable[[Path], t.Callable[[], None]]]:
    """A function that lets another process lock a file as dpkg does, and returns a function to unlock it."""
    pids: list[int] = []

    def end(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        pids.remove(pid)

    def lock(file: Path) -> t.Callable[[], None]:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            with file.open("w") as stream:
                fcntl.lockf(stream, fcntl.LOCK_EX)
                os.write(writing, b"x")
                signal.pause()
        pids.append(pid)
        os.read(reading, 1)
        os.close(reading)
        os.close(writing)
        return lambda: end(pid)

    yield lock
    for pid in pids:
        end(pid)


@pytest.mark.parametrize("path", LOCKS)
def test_running_dpkg_is_not_an_interruption(
    programs: FakePrograms, tmp_path: Path, path: str, locked: t.Callable[[Path], t.Callable[[], None]]
) -> None:
    at_once = Apt(HostFS(str(tmp_path), live=True), Commands.of(programs), 0)
    write_file(tmp_path, path, "")
    release = locked(tmp_path / path[1:])
    # A lock alone is no interruption.
    assert not at_once.interrupted()
    write_file(tmp_path, f"{UPDATES}/0001", "")
    with pytest.raises(HostError, match=rf"process [0-9]+\) uses dpkg and has locked {path}\."):
        at_once.interrupted()
    release()
    assert at_once.interrupted()


def test_waits_for_running_dpkg(
    apt: Apt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: t.Callable[[Path], t.Callable[[], None]]
) -> None:
    write_file(tmp_path, LOCKS[0], "")
    write_file(tmp_path, f"{UPDATES}/0001", "")
    release = locked(tmp_path / LOCKS[0][1:])
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        (tmp_path / UPDATES[1:] / "0001").unlink()
        release()

    monkeypatch.setattr("time.sleep", sleep)
    assert not apt.interrupted()
    assert len(slept) == 1


# -- files of packages -----------------------------------------------------------------------------------------------


def test_describe(apt: Apt, programs: FakePrograms) -> None:
    programs.answers["/x.deb"] = [(0, "libnvidia-container1\t1.20.0-1\tamd64\n", "")]
    programs.answers["/etc/passwd"] = [(2, "", "dpkg-deb: error: '/etc/passwd' is not a Debian format archive\n")]
    assert apt.describe(["/x.deb"]) == [PackageFile("/x.deb", "libnvidia-container1", "1.20.0-1", "amd64")]
    with pytest.raises(CommandError, match="not a Debian format archive"):
        apt.describe(["/x.deb", "/etc/passwd"])
    programs.answers["/odd.deb"] = [(0, "\n", "")]
    with pytest.raises(HostError, match=r"^/odd\.deb is not a valid deb package"):
        apt.describe(["/odd.deb"])


# -- transactions ----------------------------------------------------------------------------------------------------


def test_preview() -> None:
    found = preview_of(PREVIEW)
    assert found.install == {
        "nvidia-container-toolkit": "1.19.1-1",
        "libnvidia-container1": "1.19.1-1",
        "libseccomp2:i386": "2.5.4-1",
    }
    assert found.remove == ("nvidia-docker2",)
    assert len(found.downgrade) == 4
    assert "nvidia-container-toolkit-base" in found.downgrade
    removed = ("gpufleet-bystander", "libnvidia-container1", "nvidia-container-toolkit")
    assert preview_of(PURGE) == Preview({}, removed)


def test_preview_reports_held_packages(apt: Apt, programs: FakePrograms, tmp_path: Path) -> None:
    held, free = "hold ok installed", "install ok installed"
    status = stanza("libseccomp2", held) + stanza("nvidia-docker2", held) + stanza("libnvidia-container1", free)
    write_file(tmp_path, STATUS_FILE, status + stanza("bash", held))
    programs.answers["-s"] = [(0, PREVIEW, "")]
    change = Change({"libnvidia-container1": "1.19.1-1"}, change_held=True)
    assert apt.preview(change).held == ("libseccomp2:i386", "nvidia-docker2")


@pytest.mark.parametrize(
    "change",
    [Change({"a": "1-1"}), Change(files=("/a.deb",)), Change(remove=("a",))],
    ids=["install", "files", "purge"],
)
def test_never_removes_unneeded_packages(apt: Apt, programs: FakePrograms, change: Change) -> None:
    apt.preview(change)
    apt.apply(change)
    assert all(argv[argv.index("APT::Get::AutomaticRemove=false") - 1] == "-o" for argv in programs.ran)
    # Only an installation by version needs sources.
    assert ["Dir::Etc::SourceParts=/dev/null" in argv for argv in programs.ran] == [not change.install] * 2


def test_installs_and_removes_in_one_command(apt: Apt, programs: FakePrograms) -> None:
    apt.apply(Change({"a": "1-1", "b": "1-1"}, remove=("nvidia-docker2",)))
    (argv,) = programs.ran
    assert argv[0] == "apt-get"
    assert argv[argv.index("install") :] == ["install", "a=1-1", "b=1-1", "nvidia-docker2-"]
    for option in (
        "-y", "--no-install-recommends", "--allow-downgrades", "DPkg::Lock::Timeout=5",
        "Dpkg::Options::=--force-confdef", "Dpkg::Options::=--force-confold",
    ):  # fmt: skip
        assert option in argv
    assert "--allow-change-held-packages" not in argv


def test_changes_held_packages(apt: Apt, programs: FakePrograms) -> None:
    apt.apply(Change({"a": "1-1"}, change_held=True))
    assert "--allow-change-held-packages" in programs.ran[0]


def test_installs_files_without_sources(apt: Apt, programs: FakePrograms) -> None:
    apt.apply(Change(files=("/a.deb", "/b.deb"), remove=("c",)))
    (argv,) = programs.ran
    assert argv[argv.index("install") :] == ["install", "/a.deb", "/b.deb", "c-"]
    assert {"Dir::Etc::SourceList=/dev/null", "Dir::Etc::SourceParts=/dev/null"} <= set(argv)


def test_purges_removed_packages(apt: Apt, programs: FakePrograms) -> None:
    programs.answers["-s"] = [(0, PURGE, "")]
    assert apt.preview(Change(remove=("libnvidia-container1",))).remove[0] == "gpufleet-bystander"
    apt.apply(Change(remove=("libnvidia-container1",)))
    assert [argv[argv.index("purge") :] for argv in programs.ran] == [["purge", "libnvidia-container1"]] * 2


def test_error_contains_output_of_script(apt: Apt, programs: FakePrograms) -> None:
    programs.answers["install"] = [(100, FAILED_SCRIPT, "E: Sub-process /usr/bin/dpkg returned an error code (1)\n")]
    with pytest.raises(CommandError) as caught:
        apt.apply(Change({"a": "1-1"}))
    assert caught.value.output == (
        "broken",
        "dpkg: error processing package nvidia-container-toolkit-base (--configure):",
        FAILED_SCRIPT.splitlines()[10].strip(),
        "dpkg: error processing package nvidia-container-toolkit (--configure):",
        "nvidia-container-toolkit-base",
        "nvidia-container-toolkit",
        "E: Sub-process /usr/bin/dpkg returned an error code (1)",
    )


def test_error_contains_unmet_dependencies(apt: Apt, programs: FakePrograms) -> None:
    printed = (
        "Reading package lists...\nThe following information may help to resolve the situation:\n\n"
        "The following packages have unmet dependencies:\n nvidia-container-toolkit : Depends: x (= 1) but 2 is to be"
        " installed\n"
    )
    programs.answers["-s"] = [(100, printed, "E: Unable to correct problems, you have held broken packages.\n")]
    with pytest.raises(CommandError, match=r"nvidia-container-toolkit : Depends: x .* held broken packages"):
        apt.preview(Change({"a": "1-1"}))


def test_transactions_have_a_separate_runner(tmp_path: Path) -> None:
    read, fetch, change = FakePrograms(), FakePrograms(), FakePrograms()
    apt = Apt(HostFS(str(tmp_path), live=True), Commands(read, fetch, change))
    apt.candidates(["x"])
    apt.refresh()
    apt.apply(Change({"a": "1"}))
    apt.hold({"a": "1"})
    apt.unhold(["a"])
    apt.require_holds()
    commands = [[argv[2:4] for argv in programs.ran] for programs in (read, fetch, change)]
    assert commands[0] == [["apt-cache", "policy"], ["apt-mark", "hold"], ["apt-mark", "unhold"]]
    assert commands[1] == [["apt-get", "update"]]
    assert [argv[0] for argv in commands[2]] == ["apt-get"]
