# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import fcntl
import os
import pathlib
import signal
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
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
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.sources import APT_SOURCE

if t.TYPE_CHECKING:
    from pathlib import Path

Answer = t.Tuple[int, str, str]

# As apt 2.6 and 3 write them.
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


class Programs:
    """Answers for programs by words of their command line; keeps what was run."""

    def __init__(self) -> None:
        self.ran: list[list[str]] = []
        self.answers: dict[str, list[Answer]] = {}

    def __call__(self, argv: list[str]) -> Answer:
        self.ran.append(argv)
        for word, answers in self.answers.items():
            if word in argv:
                return answers.pop(0) if len(answers) > 1 else answers[0]
        return 0, "", ""


@pytest.fixture
def programs() -> Programs:
    return Programs()


@pytest.fixture
def apt(programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Apt:
    monkeypatch.setattr(packages_base, "_PAUSE", 0.0)
    # Without a root in front the commands are as on a host of its own; files are of no concern then.
    monkeypatch.setattr(HostFS, "argv", lambda _host, argv: list(argv))
    return Apt(HostFS(str(tmp_path), live=True), Commands.of(programs), 5)


def write(root: str | Path, path: str, text: str) -> None:
    file = pathlib.Path(root) / path[1:]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def stanza(name: str, status: str, version: str = "1.19.1-1", extra: str = "") -> str:
    return f"Package: {name}\nStatus: {status}\nPriority: optional\n{extra}Version: {version}\nDescription: x\n y\n\n"


# -- what is installed -----------------------------------------------------------------------------------------------


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
def test_installed(apt: Apt, tmp_path: Path, status: str, found: Package | None) -> None:
    other = stanza("other", "install ok installed")
    write(tmp_path, STATUS_FILE, other + stanza("libnvidia-container1", status) + other)
    assert apt.installed(["libnvidia-container1"]) == ({} if found is None else {"libnvidia-container1": found})
    leftover = ["libnvidia-container1"] if "config-files" in status else []
    assert apt.config_only(["libnvidia-container1", "nowhere"]) == leftover


def test_a_name_is_not_the_beginning_of_another(apt: Apt, tmp_path: Path) -> None:
    write(tmp_path, STATUS_FILE, stanza("nvidia-container-toolkit-base", "install ok installed", "1-1"))
    assert apt.installed(["nvidia-container-toolkit"]) == {}


def test_a_description_is_no_package(apt: Apt, tmp_path: Path) -> None:
    text = stanza("other", "install ok installed", "1").rstrip("\n") + "\n Package: y\n Status: hold ok installed\n"
    write(tmp_path, STATUS_FILE, text)
    assert apt.installed(["y", "other"]) == {"other": Package("1")}


def test_a_foreign_architecture_that_is_gone_hides_nothing(apt: Apt, tmp_path: Path) -> None:
    name = "libnvidia-container1"
    gone = stanza(name, "deinstall ok config-files", "1.18.2-1", "Architecture: i386\n")
    write(tmp_path, STATUS_FILE, stanza(name, "install ok installed") + gone)
    assert apt.installed([name]) == {name: Package("1.19.1-1")}


def test_what_dpkg_has_not_merged_counts(apt: Apt, tmp_path: Path) -> None:
    name = "libnvidia-container1"
    write(tmp_path, STATUS_FILE, stanza(name, "install ok installed", "1.18.2-1"))
    assert not apt.interrupted()
    write(tmp_path, f"{UPDATES}/tmp.i", "")
    assert not apt.interrupted()
    write(tmp_path, f"{UPDATES}/0001", stanza(name, "install ok unpacked", "1.19.1-1"))
    assert apt.interrupted()
    assert apt.installed([name]) == {name: Package("1.19.1-1", complete=False)}


def test_nothing_is_run_to_read(apt: Apt, programs: Programs) -> None:
    assert apt.installed(["x"]) == {}
    assert apt.readable
    assert programs.ran == []


# -- interrupted transactions ----------------------------------------------------------------------------------------

ADVICE = r"Run `dpkg --configure -a` on the host and fix the package that it reports\.$"
OWN = ["nvidia-container-toolkit", "libnvidia-container1"]


def test_only_packages_of_the_toolkit_are_configured(apt: Apt, programs: Programs, tmp_path: Path) -> None:
    programs.answers["--configure"] = [(1, "", "dpkg: error: x is broken\n")]
    # The other half of the upgrade is missing: that is for the transaction.
    apt.repair(OWN)
    assert programs.ran == [["dpkg", "--force-confdef", "--force-confold", "--configure", *OWN]]
    write(tmp_path, f"{UPDATES}/0001", stanza(OWN[0], "install ok unpacked"))
    with pytest.raises(CommandError, match=f"^dpkg --configure {' '.join(OWN)} failed.*x is broken. {ADVICE}"):
        apt.repair(OWN)


@pytest.mark.parametrize("own", [[], OWN])
def test_pending_packages_of_others_are_named_and_not_configured(
    apt: Apt, programs: Programs, tmp_path: Path, own: list[str]
) -> None:
    status = stanza("bash", "install ok installed") + stanza("man-db", "install ok triggers-pending")
    status += stanza("gone", "deinstall ok config-files") + stanza("libc6", "install ok half-configured")
    write(tmp_path, STATUS_FILE, status + "".join(stanza(name, "install ok unpacked") for name in own))
    write(tmp_path, f"{UPDATES}/0001", stanza("zlib1g", "install reinstreq half-installed"))
    expected = rf"^dpkg was interrupted.*\. Pending: libc6 \(half-configured\), zlib1g \(half-installed\)\. {ADVICE}"
    for refuse in (apt.refuse_interrupted, apt.repair):
        with pytest.raises(HostError, match=expected):
            refuse(own)
    assert programs.ran == []


def test_an_interruption_without_pending_packages(apt: Apt, tmp_path: Path) -> None:
    write(tmp_path, f"{UPDATES}/0001", stanza("bash", "install ok installed"))
    with pytest.raises(HostError, match=rf"Pending: the entries in {UPDATES}\. {ADVICE}"):
        apt.refuse_interrupted([])
    apt.refuse_interrupted(OWN)


def test_a_failure_of_apt_names_pending_packages_of_others(apt: Apt, programs: Programs, tmp_path: Path) -> None:
    write(tmp_path, STATUS_FILE, stanza("x", "install ok unpacked") + stanza(OWN[0], "install ok unpacked"))
    programs.answers["apt-get"] = programs.answers["apt-cache"] = [(100, "", "E: unmet dependencies\n")]
    change = Change({OWN[0]: "1-1"})
    expected = rf"E: unmet.* Other packages are pending: x \(unpacked\)\. {ADVICE}"
    with pytest.raises(CommandError, match=expected):
        apt.preview(change)
    with pytest.raises(CommandError, match=expected):
        apt.apply(change)
    with pytest.raises(CommandError, match=r"E: unmet dependencies\.$"):
        apt.candidates(OWN)


# -- what is on offer ------------------------------------------------------------------------------------------------


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


def test_sources_that_cannot_be_read(apt: Apt, programs: Programs) -> None:
    said = (
        "E: Conflicting values set for option Signed-By regarding source x\nE: The list of sources could not be read.\n"
    )
    programs.answers["policy"] = [(100, "", said)]
    with pytest.raises(CommandError, match="Conflicting values set for option Signed-By"):
        apt.candidates(["x"])


# -- lists -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "everything", "limited"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_only_our_lists_are_fetched(apt: Apt, programs: Programs, there: bool, everything: bool, limited: bool) -> None:
    if there:
        write(apt.host.root, APT_SOURCE, "")
    apt.refresh(everything)
    (argv,) = programs.ran
    assert argv[:2] == ["apt-get", "update"]
    assert "APT::Update::Error-Mode=any" in argv
    assert (f"Dir::Etc::SourceList={APT_SOURCE}" in argv) is limited
    assert ("Dir::Etc::SourceParts=/dev/null" in argv) is limited
    assert ("APT::Get::List-Cleanup=0" in argv) is limited


@pytest.mark.parametrize("status", [0, 100])
def test_lists_that_cannot_be_fetched(apt: Apt, programs: Programs, status: int) -> None:
    # Where Error-Mode is not known, apt ends well and only warns.
    programs.answers["update"] = [(status, "Reading package lists...\n", UNREACHABLE)]
    with pytest.raises(CommandError, match=r"Could not connect to 127\.0\.0\.1:9"):
        apt.refresh()


def test_not_every_warning_is_an_error(apt: Apt, programs: Programs) -> None:
    # The first is of apt 2.6 with a local repository, the second of apt 3.3.
    tried = "Err:3 file:/srv/repo ./ Packages\n  Method gave a blank filename\n"
    deprecated = "W: Deprecated Signed-By fingerprint in the sources.list(5) entry for 'http://x'\n"
    programs.answers["update"] = [(0, tried, deprecated)]
    apt.refresh()
    assert len(programs.ran) == 1


# -- who else is at work ---------------------------------------------------------------------------------------------


def test_others_are_waited_for(apt: Apt, programs: Programs) -> None:
    programs.answers["update"] = [(100, "", BUSY), (100, "", BUSY), (0, "", "")]
    apt.refresh()
    assert len(programs.ran) == 3


def test_nobody_is_waited_for_beyond_the_limit(programs: Programs, tmp_path: Path) -> None:
    programs.answers["hold"] = [(100, "", "dpkg: error: dpkg frontend lock was locked by another process with pid 7\n")]
    with pytest.raises(CommandError, match="locked by another process"):
        Apt(HostFS(str(tmp_path), live=True), Commands.of(programs), 0).hold({"x": "1"})
    assert len(programs.ran) == 1


@pytest.fixture
def locked() -> t.Iterator[t.Callable[[Path], t.Callable[[], None]]]:
    """Lets another process lock a file as dpkg does; what comes back lets it go."""
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
def test_dpkg_at_work_is_not_interrupted(
    programs: Programs, tmp_path: Path, path: str, locked: t.Callable[[Path], t.Callable[[], None]]
) -> None:
    at_once = Apt(HostFS(str(tmp_path), live=True), Commands.of(programs), 0)
    write(tmp_path, path, "")
    release = locked(tmp_path / path[1:])
    # What it holds is of no concern before there is something in the journal.
    assert not at_once.interrupted()
    write(tmp_path, f"{UPDATES}/0001", "")
    with pytest.raises(HostError, match=rf"process [0-9]+\) uses dpkg and has locked {path}\."):
        at_once.interrupted()
    release()
    assert at_once.interrupted()


def test_dpkg_at_work_is_waited_for(
    apt: Apt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: t.Callable[[Path], t.Callable[[], None]]
) -> None:
    write(tmp_path, LOCKS[0], "")
    write(tmp_path, f"{UPDATES}/0001", "")
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


def test_describe(apt: Apt, programs: Programs) -> None:
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


def test_holds_of_others_are_told(apt: Apt, programs: Programs, tmp_path: Path) -> None:
    held, free = "hold ok installed", "install ok installed"
    status = stanza("libseccomp2", held) + stanza("nvidia-docker2", held) + stanza("libnvidia-container1", free)
    write(tmp_path, STATUS_FILE, status + stanza("bash", held))
    programs.answers["-s"] = [(0, PREVIEW, "")]
    change = Change({"libnvidia-container1": "1.19.1-1"}, change_held=True)
    assert apt.preview(change).held == ("libseccomp2:i386", "nvidia-docker2")


@pytest.mark.parametrize(
    "change",
    [Change({"a": "1-1"}), Change(files=("/a.deb",)), Change(remove=("a",))],
    ids=["install", "files", "purge"],
)
def test_nothing_goes_only_because_nobody_needs_it(apt: Apt, programs: Programs, change: Change) -> None:
    apt.preview(change)
    apt.apply(change)
    assert all(argv[argv.index("APT::Get::AutomaticRemove=false") - 1] == "-o" for argv in programs.ran)
    # Only what is installed from sources needs sources.
    assert ["Dir::Etc::SourceParts=/dev/null" in argv for argv in programs.ran] == [not change.install] * 2


def test_one_command_for_all(apt: Apt, programs: Programs) -> None:
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


def test_a_hold_is_only_changed_where_it_is_ours(apt: Apt, programs: Programs) -> None:
    apt.apply(Change({"a": "1-1"}, change_held=True))
    assert "--allow-change-held-packages" in programs.ran[0]


def test_files_need_no_source(apt: Apt, programs: Programs) -> None:
    apt.apply(Change(files=("/a.deb", "/b.deb"), remove=("c",)))
    (argv,) = programs.ran
    assert argv[argv.index("install") :] == ["install", "/a.deb", "/b.deb", "c-"]
    assert {"Dir::Etc::SourceList=/dev/null", "Dir::Etc::SourceParts=/dev/null"} <= set(argv)


def test_what_is_removed_alone_is_purged(apt: Apt, programs: Programs) -> None:
    programs.answers["-s"] = [(0, PURGE, "")]
    assert apt.preview(Change(remove=("libnvidia-container1",))).remove[0] == "gpufleet-bystander"
    apt.apply(Change(remove=("libnvidia-container1",)))
    assert [argv[argv.index("purge") :] for argv in programs.ran] == [["purge", "libnvidia-container1"]] * 2


def test_a_script_that_fails_is_quoted(apt: Apt, programs: Programs) -> None:
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


def test_dependencies_that_cannot_be_met_are_quoted(apt: Apt, programs: Programs) -> None:
    said = (
        "Reading package lists...\nThe following information may help to resolve the situation:\n\n"
        "The following packages have unmet dependencies:\n nvidia-container-toolkit : Depends: x (= 1) but 2 is to be"
        " installed\n"
    )
    programs.answers["-s"] = [(100, said, "E: Unable to correct problems, you have held broken packages.\n")]
    with pytest.raises(CommandError, match=r"nvidia-container-toolkit : Depends: x .* held broken packages"):
        apt.preview(Change({"a": "1-1"}))


def test_transactions_have_a_runner_of_their_own(tmp_path: Path) -> None:
    read, fetch, change = Programs(), Programs(), Programs()
    apt = Apt(HostFS(str(tmp_path), live=True), Commands(read, fetch, change))
    apt.candidates(["x"])
    apt.refresh()
    apt.apply(Change({"a": "1"}))
    apt.hold({"a": "1"})
    apt.unhold(["a"])
    apt.require_holds()
    words = [[argv[2:4] for argv in programs.ran] for programs in (read, fetch, change)]
    assert words[0] == [["apt-cache", "policy"], ["apt-mark", "hold"], ["apt-mark", "unhold"]]
    assert words[1] == [["apt-get", "update"]]
    assert [argv[0] for argv in words[2]] == ["apt-get"]
