# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""zypper with a fake program that prints what zypper 1.14.89 printed (tests/unit/files/zypper)."""

from __future__ import annotations

import os
import pathlib
import types
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import rpm_sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import (
    PACKAGES,
    Candidate,
    Change,
    CommandError,
    Commands,
    Preview,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.zypper import Zypper, elements, preview_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.zypper_locks import LOCKS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import FakePrograms, write_file

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS

FILES = pathlib.Path(__file__).parents[3] / "files/zypper"
ALIAS = packages_base.REPOSITORY_NAME
CACHED = f"/var/cache/zypp/raw/{ALIAS}/repodata/repomd.xml"
NAME = PACKAGES[0]
TOOLKIT = dict.fromkeys(PACKAGES, "1.19.1-1")


class Programs(FakePrograms):
    """A runner of zypper and rpm. rpm knows the packages in ``present``."""

    def __init__(self) -> None:
        super().__init__()
        self.present: dict[str, str] = {}

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        status, output, errors = super().__call__(argv)
        if argv[:2] != ["rpm", "-q"] or output:
            return status, output, errors
        rows = {name: f"package {name} is not installed" for name in argv[4:]}
        rows.update({name: f"{name}\t0\t{self.present[name]}\tx86_64" for name in rows if name in self.present})
        return 0, "".join(f"{row}\n" for row in rows.values()), ""


def printed(name: str) -> str:
    """Return what zypper printed."""
    return (FILES / f"{name}.xml").read_text()


@pytest.fixture
def programs() -> Programs:
    return Programs()


@pytest.fixture
def zypper(programs: Programs, live_host: HostFS) -> Zypper:
    programs.answers["repos"] = [(0, printed("repos"), "")]
    return Zypper(live_host, Commands.of(programs), 5)


def lock(zypper: Zypper, *names: str) -> pathlib.Path:
    """Write locks as zypper does, and return the path of the list."""
    form = "\ntype: package\nmatch_type: glob\ncase_sensitive: on\nsolvable_name: {}\n\n"
    return write_file(zypper.host.root, LOCKS, "".join(form.format(name) for name in names))


def arguments(programs: Programs, command: str) -> list[list[str]]:
    """Return the arguments of each run of a command of zypper."""
    return [argv[argv.index(command) + 1 :] for argv in programs.ran if "zypper" in argv and command in argv]


# -- available versions ------------------------------------------------------------------------------------------------


def test_candidates(zypper: Zypper, programs: Programs) -> None:
    programs.answers["search"] = [(0, printed("search"), "")]
    found = zypper.candidates(PACKAGES)
    assert set(found) == set(PACKAGES)
    assert found[NAME] == [
        Candidate("1.20.0-1", ALIAS, preferred=True),
        Candidate("1.19.1-1", ALIAS),
        Candidate("1.18.2-1", ALIAS),
    ]
    assert arguments(programs, "install") == []
    assert all("--no-refresh" in argv for argv in programs.ran)


def test_installed_packages_without_a_repository_are_not_offered(zypper: Zypper, programs: Programs) -> None:
    text = printed("search").replace('"NVIDIA Container Toolkit"', '"(System Packages)"')
    programs.answers["search"] = [(106, text, "")]
    assert zypper.candidates(PACKAGES) == {}
    programs.answers["search"] = [(104, "<stream><message type='info'>No matching items found.</message></stream>", "")]
    assert zypper.candidates(PACKAGES) == {}
    programs.answers["search"] = [(4, "<stream><message type='error'>broken</message></stream>", "")]
    with pytest.raises(CommandError, match="broken"):
        zypper.candidates(PACKAGES)


def test_prefers_what_zypper_would_install(zypper: Zypper, programs: Programs) -> None:
    other = '<repo alias="cuda" name="CUDA" priority="90" enabled="1"/><repo alias="off" name="Off" enabled="0"/>'
    row = f'<solvable status="other-version" name="{NAME}" kind="package" edition="1.18.2-1" repository="CUDA"/>'
    rows = f"{row}{row.replace('CUDA', 'Off')}</solvable-list>"
    programs.answers = {
        "repos": [(0, printed("repos").replace("</repo-list>", f"{other}</repo-list>"), "")],
        "search": [(0, printed("search").replace("</solvable-list>", rows), "")],
        "install": [(0, printed("replace"), "")],
    }
    programs.present = TOOLKIT

    def preferred() -> list[tuple[str, str]]:
        return [(offer.version, offer.origin) for offer in zypper.candidates([NAME])[NAME] if offer.preferred]

    assert preferred() == [("1.18.2-1", ALIAS), ("1.18.2-1", "cuda")]
    assert "--dry-run" in arguments(programs, "install")[0]
    programs.answers["install"] = [(0, "<stream><message type='info'>Nothing to do.</message></stream>", "")]
    assert preferred() == [("1.19.1-1", ALIAS)]
    programs.answers["install"] = [(4, printed("locked"), "")]
    assert preferred() == []


def test_takes_the_toolkit_only_from_own_repository(zypper: Zypper, programs: Programs) -> None:
    other = '<repo alias="cuda" name="CUDA" priority="90" enabled="1"/></repo-list>'
    programs.answers = {
        "repos": [(0, printed("repos").replace("</repo-list>", other), "")],
        "search": [(0, printed("search"), "")],
        "install": [(0, printed("replace"), "")],
    }
    write_file(zypper.host.root, CACHED, "")
    write_file(zypper.host.root, "/var/cache/zypp/raw/cuda/repomd.xml", "")
    for offline in (False, True):
        found = zypper.candidates([NAME], offline, own=True)
        assert {candidate.origin for candidate in found[NAME]} == {ALIAS}
        zypper.preview(Change({NAME: "1-1"}, own=True), offline)
    zypper.apply(Change({NAME: "1-1"}, own=True))
    zypper.apply(Change({NAME: "1-1"}))
    assert all(f"--repo={ALIAS}" in argv and "--repo=cuda" not in argv for argv in arguments(programs, "search"))
    # The option limits the named packages only. Their dependencies may come from all repositories.
    assert [f"--from={ALIAS}" in argv for argv in arguments(programs, "install")] == [True, True, True, False]


def test_check_mode_uses_local_lists(zypper: Zypper, programs: Programs) -> None:
    """zypper fetches a missing list also with --no-refresh."""
    programs.answers.update({"search": [(0, printed("search"), "")], "install": [(0, printed("replace"), "")]})
    for read in (lambda: zypper.candidates([NAME], offline=True), lambda: zypper.preview(Change({NAME: "1"}), True)):
        with pytest.raises(CommandError, match="No package list"):
            read()
    assert {argv[-1] for argv in programs.ran} == {"repos"}
    write_file(zypper.host.root, f"/var/cache/zypp/raw/{ALIAS}/.repo_gpgcheck", "")
    with pytest.raises(CommandError, match="No package list"):
        zypper.candidates([NAME], offline=True)
    write_file(zypper.host.root, CACHED, "")
    zypper.candidates([NAME], offline=True)
    zypper.preview(Change({NAME: "1"}), offline=True)
    limited = [*arguments(programs, "search"), *arguments(programs, "install")]
    assert [f"--repo={ALIAS}" in argv for argv in limited] == [True, True]


def test_refresh(zypper: Zypper, programs: Programs) -> None:
    write_file(zypper.host.root, rpm_sources.ZYPPER.source, f"[{ALIAS}]\n")
    zypper.refresh()
    zypper.refresh(everything=True)
    # Otherwise zypper would not check the signature again after a change of the key.
    assert arguments(programs, "refresh") == [["--force", ALIAS], []]
    # An import without a check could take the key from the repository.
    assert not any("--gpg-auto-import-keys" in argv for argv in programs.ran)
    programs.answers["refresh"] = [(4, "<stream><message type='error'>wrong signature</message></stream>", "")]
    with pytest.raises(CommandError, match=r"wrong signature\. No package was changed\."):
        zypper.refresh()


# -- transactions ------------------------------------------------------------------------------------------------------


def test_preview() -> None:
    former = ("nvidia-container-runtime", "nvidia-docker2")
    found = preview_of(printed("replace"))
    assert found._replace(downgrade=()) == Preview(dict.fromkeys(sorted(PACKAGES), "1.18.2-1"), former)
    assert sorted(found.downgrade) == sorted(PACKAGES)
    assert preview_of(printed("remove")) == Preview({}, ("gpufleet-bystander", *sorted(PACKAGES)))
    assert preview_of(printed("not_found")) == preview_of("<stream>") == preview_of("") == Preview()


def test_duplicate_is_no_removal() -> None:
    entry = f'<solvable type="package" name="{NAME}" edition="1"/>'
    text = f"<to-upgrade>{entry}</to-upgrade><to-remove>{entry}</to-remove>"
    assert preview_of(f"<stream><install-summary>{text}</install-summary></stream>") == Preview({NAME: "1"})


def test_one_transaction_installs_and_removes(zypper: Zypper, programs: Programs) -> None:
    programs.present = {"nvidia-docker2": "2.13.0-1"}
    zypper.apply(Change({NAME: "1:2-1"}, remove=("nvidia-docker2", "nvidia-docker")))
    zypper.apply(Change(files=("/a.rpm",)))
    zypper.apply(Change(remove=(NAME,)))
    (install, files), (remove,) = arguments(programs, "install"), arguments(programs, "remove")
    # A package that is not installed cannot be removed, and its name could select the package that provides it.
    assert install[-2:] == [f"{NAME}=1:2-1", "!nvidia-docker2"]
    assert {"--name", "--oldpackage", "--no-recommends"} <= set(install)
    assert files[-1] == "/a.rpm"
    assert (remove[-1], "--no-clean-deps" in remove) == (NAME, True)
    used = [argv for argv in programs.ran if "zypper" in argv]
    assert [("--reposd-dir=/nonexistent" in argv, "--no-gpg-checks" in argv) for argv in used] == [
        (False, False), (True, True), (False, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "warning"),
    [(0, ""), (100, ""), (102, "rebooted"), (106, ""), (107, "script")],
)
def test_successful_exit_status(zypper: Zypper, programs: Programs, status: int, warning: str) -> None:
    programs.answers["install"] = [(status, "", "")]
    zypper.apply(Change({NAME: "1-1"}))
    assert [warning in text for text in zypper.warnings] == [True] * bool(warning)


def test_repeats_after_a_change_of_zypper_itself(zypper: Zypper, programs: Programs) -> None:
    programs.answers.update({"install": [(103, "", ""), (0, "", "")], "remove": [(103, "", "")]})
    zypper.apply(Change({NAME: "1-1"}))
    zypper.apply(Change(remove=(NAME,)))
    assert (len(arguments(programs, "install")), len(arguments(programs, "remove"))) == (2, 1)


def test_waits_for_a_lock(zypper: Zypper, programs: Programs) -> None:
    programs.answers["install"] = [(7, "", ""), (0, "", "")]
    zypper.apply(Change({NAME: "1-1"}))
    assert len(arguments(programs, "install")) == 2


@pytest.mark.parametrize(
    ("status", "name", "fragment"),
    [
        (104, "not_found", "=1.99-1' not found"),
        (4, "locked", "remove lock to allow removal of libnvidia-container1"),
        (8, "missing_file", "nvidia-container-toolkit-base-1.19.1-1.x86_64.rpm' not found on medium"),
    ],
)
def test_failure(zypper: Zypper, programs: Programs, status: int, name: str, fragment: str) -> None:
    programs.answers["install"] = [(status, printed(name), "")]
    with pytest.raises(CommandError) as caught:
        zypper.apply(Change({NAME: "1-1"}))
    assert fragment in str(caught.value)
    assert caught.value.not_downloaded is (name == "missing_file")


def test_failure_of_libzypp_17_38(zypper: Zypper, programs: Programs) -> None:
    text = """<stream><message type="info">Preloading: x.rpm [The requested URL returned error: 404]</message>
<message type="error">Installation has completed with error.</message></stream>"""
    programs.answers["install"] = [(4, text, "")]
    with pytest.raises(CommandError, match="error: 404") as caught:
        zypper.apply(Change({NAME: "1-1"}))
    assert caught.value.not_downloaded


def test_messages_have_no_password_of_a_proxy(zypper: Zypper, programs: Programs) -> None:
    address = "http://h/r?proxy=http://me:sec%2520ret@proxy/&amp;proxyport=3128"
    text = f"<stream><message type='error'>Cannot read {address}\x1b</message></stream>"
    programs.answers["install"] = [(4, text, "")]
    with pytest.raises(CommandError, match=r"proxy=\*+@proxy/&proxyport=3128") as caught:
        zypper.apply(Change({NAME: "1-1"}))
    assert "sec" not in str(caught.value)


@pytest.mark.parametrize("character", ["\x1b", "\udcfc", "\ufffe"])
def test_characters_that_xml_does_not_allow(character: str) -> None:
    (found,) = elements(f"<stream><repo alias='a{character}b'/></stream>", "repo")
    assert found.get("alias") == "ab"


# -- hosts whose packages cannot change --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read_only", "updater", "refused"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_transactional_host(
    zypper: Zypper, monkeypatch: pytest.MonkeyPatch, read_only: bool, updater: bool, refused: bool
) -> None:
    flags = os.ST_RDONLY if read_only else 0
    monkeypatch.setattr(os, "statvfs", lambda _path: types.SimpleNamespace(f_flag=flags))
    if updater:
        write_file(zypper.host.root, "/usr/sbin/transactional-update", "").chmod(0o755)
    if not refused:
        zypper.require_transactions()
        return
    with pytest.raises(HostError, match=r"source: directory, .* transactional-update, .*source: existing"):
        zypper.require_transactions()


def test_two_versions_are_an_interruption(zypper: Zypper, programs: Programs) -> None:
    programs.answers["rpm"] = [(0, f"{NAME}\t0\t1-1\tx86_64\n{NAME}\t0\t2-1\tx86_64\n", "")]
    assert not zypper.installed([NAME])[NAME].complete
    assert zypper.interrupted()
    with pytest.raises(HostError, match="rpm --erase"):
        zypper.repair([NAME])


# -- locks -------------------------------------------------------------------------------------------------------------

LISTED = f"""<stream><locks size="4"><lock number="1"><name>gpufleet-bystander</name><type>package</type></lock>
<lock number="2"><name>{NAME}</name><type>patch</type></lock>
<lock number="3"><name>{NAME}</name><type>package</type><range flag="=" epoch="0" version="1" release=""/></lock>
<lock number="4"><name>{NAME}</name><type>package</type></lock>
</locks></stream>"""


def unlocking(zypper: Zypper, programs: Programs) -> Zypper:
    """Return zypper that removes all locks of the toolkit's packages."""

    def run(argv: list[str]) -> tuple[int, str, str]:
        if "removelock" in argv:
            lock(zypper, "gpufleet-bystander")
        return programs(argv)

    programs.answers["locks"] = [(0, LISTED, "")]
    programs.present = TOOLKIT
    return Zypper(zypper.host, Commands.of(run), 0)


def test_locks_are_read_without_zypper(zypper: Zypper, programs: Programs) -> None:
    lock(zypper, NAME)
    programs.present = TOOLKIT
    assert [name for name, package in zypper.installed(PACKAGES).items() if package.held] == [NAME]
    assert [argv[0] for argv in programs.ran] == ["rpm"]


def test_hold_and_unhold(zypper: Zypper, programs: Programs) -> None:
    zypper.hold({NAME: "1-1"})
    assert arguments(programs, "addlock") == [["--type=package", NAME]]
    lock(zypper, NAME, "gpufleet-bystander")
    unlocking(zypper, programs).unhold(PACKAGES)
    # The locks of other packages, and of patches, stay.
    assert arguments(programs, "removelock") == [["3", "4"]]


def test_transaction_without_locks(zypper: Zypper, programs: Programs) -> None:
    file = lock(zypper, NAME, "gpufleet-bystander")
    before = file.read_text()
    programs.answers["install"] = [(8, printed("missing_file"), "")]
    with pytest.raises(CommandError):
        unlocking(zypper, programs).apply(Change({NAME: "2-1"}, change_held=True))
    assert file.read_text() == before
    programs.answers["install"] = [(0, "", "")]
    unlocking(zypper, programs).apply(Change({NAME: "2-1"}, change_held=True))
    assert "bystander" in file.read_text()
    assert file.read_text() != before


def test_lock_of_several_packages(zypper: Zypper, programs: Programs) -> None:
    lock(zypper, "libnvidia*")
    programs.present = TOOLKIT
    held = Change(dict.fromkeys(PACKAGES, "2-1"), change_held=True)
    for change in (zypper.preview, zypper.apply):
        with pytest.raises(HostError, match=r"^libnvidia-container-tools, libnvidia-container1 are still locked"):
            change(held)
    assert [argv for argv in programs.ran if "zypper" in argv] == []


def test_preview_ignores_own_locks(zypper: Zypper, programs: Programs) -> None:
    seen: list[str] = []

    def run(argv: list[str]) -> tuple[int, str, str]:
        if argv[0] == "env":
            seen.append(pathlib.Path(zypper.host.root + argv[1].partition("ZYPP_CONF=")[2]).read_text())
        return programs(argv)

    (pathlib.Path(zypper.host.root) / "tmp").mkdir(exist_ok=True)
    write_file(zypper.host.root, "/etc/zypp/zypp.conf", "[main]\nsolver.onlyRequires = true\nlocksfile.apply=yes\n")
    programs.answers["install"] = [(0, printed("replace"), "")]
    programs.present = TOOLKIT
    locked = Zypper(zypper.host, Commands.of(run), 0)
    lock(zypper, "gpufleet-bystander")
    locked.preview(Change({NAME: "1.18.2-1"}, change_held=True))
    lock(zypper, NAME)
    locked.preview(Change({NAME: "1.18.2-1"}))
    assert seen == []
    locked.preview(Change({NAME: "1.18.2-1"}, change_held=True))
    (text,) = seen
    assert text.split() == ["[main]", "solver.onlyRequires", "=", "true", "[main]", "locksfile.apply", "=", "no"]
    assert not list((pathlib.Path(zypper.host.root) / "tmp").iterdir())
