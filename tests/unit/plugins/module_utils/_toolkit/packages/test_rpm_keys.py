# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The key of the repository on hosts with dnf, with fakes of gpg and rpm, and with the real programs if they exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import rpm_sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import rpm_keys
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages.repository import RepositoryFile
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import FakePackageManager

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import Change

DNF_SOURCE = rpm_sources.DNF.source
FIRST, SECOND = "932DB22EB95185C97623FC2A05FB1531AF32C22F", "2D04E1D0B5C55E0975B6DF9E6FB6BE2BA105E8E0"
# Public keys. RENEWED is KEY with a later expiry date.
KEY = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEZZIAgBYJKwYBBAHaRw8BAQdADh2ooY3bvIj+VtMZWicRL252yQZn7hdqu6FH
piaY0l60A29uZYiWBBMWCAA+FiEEky2yLrlRhcl2I/wqBfsVMa8ywi8FAmWSAIAC
GwMFCS0lZcAFCwkIBwIGFQoJCAsCBBYCAwECHgECF4AACgkQBfsVMa8ywi/6VQD9
Fzh/RsGq8SzbXsq7R83YBgN30sDAuEeUzfu7HIS24T4BAJuUv3dMcoYW7bRCo7f+
kIlSEY0NaEMVtexmQ4xNtHQM
=Fe/V
-----END PGP PUBLIC KEY BLOCK-----
"""
RENEWED = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEZZIAgBYJKwYBBAHaRw8BAQdADh2ooY3bvIj+VtMZWicRL252yQZn7hdqu6FH
piaY0l60A29uZYiWBBMWCAA+AhsDBQsJCAcCBhUKCQgLAgQWAgMBAh4BAheAFiEE
ky2yLrlRhcl2I/wqBfsVMa8ywi8FAmZaZIAFCS8H6sAACgkQBfsVMa8ywi8+xQD+
JBUn8nfJ6Szsj+L5U5OJTRGpdZkF5uMKBXw0rLGgq10BAJfPhgXw85v51gc0xjf1
tHJW6PJjE/ePBJK4TrRvw6AL
=UAjt
-----END PGP PUBLIC KEY BLOCK-----
"""
OTHER = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEZZIAgBYJKwYBBAHaRw8BAQdAMdHaKjGAARueUC9eQih+gDv8PrXiJdTy4eix
fCb9HwC0A3R3b4iQBBMWCAA4FiEELQTh0LXFXgl1tt+eb7a+K6EF6OAFAmWSAIAC
GwMFCwkIBwIGFQoJCAsCBBYCAwECHgECF4AACgkQb7a+K6EF6ODozgEA5uivTItE
PDFFgxvfNOJ8vFtJ6p6CW3LedaPVkDgQ3KUBAIpKQl7BQrNyBLY+9PW8Zg9RPwNt
YF4VxV6PEokJu4EP
=j5vC
-----END PGP PUBLIC KEY BLOCK-----
"""
SECRET = "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlFgE\n-----END PGP PRIVATE KEY BLOCK-----\n"
# What gpg lists for each of them. Gpg adds a user ID, which may be anything.
LISTED = {
    KEY: f"pub:-:255:22:{FIRST[-16:]}:1704067200:2461492800::-:::scSC::::::23::0:\nfpr:::::::::{FIRST}:\n",
    RENEWED: f"pub:-:255:22:{FIRST[-16:]}:1704067200:2493115200::-:::scSC::::::23::0:\nfpr:::::::::{FIRST}:\n",
    OTHER: f"pub:-:255:22:{SECOND[-16:]}:1704067200:::-:::scSC::::::23::0:\nfpr:::::::::{SECOND}:\n",
    SECRET: f"sec:-:255:22:{SECOND[-16:]}:1704067200:::-:::scSC:::#:::23::0:\nfpr:::::::::{SECOND}:\n",
}
OWN_SECRET = SECRET.replace("lFgE", "lFgF")
LISTED[OWN_SECRET] = LISTED[KEY].replace("pub:", "sec:")
USER_ID = f"uid:-::::1704067200::086C::pub\\x3afpr {SECOND}::::::::::0:\n"
IN_RPM, OTHER_IN_RPM = "gpg-pubkey-af32c22f-65920080", "gpg-pubkey-a105e8e0-65920080"
UNREADABLE = "(gpg cannot read this)"

NAME = "gpufleet-nvidia-container-toolkit"
PATHS = {number: f"/etc/pki/rpm-gpg/RPM-GPG-KEY-{NAME}-{number[-16:].lower()}" for number in (FIRST, SECOND)}
STAGED = {number: f"/var/cache/gpufleet-nvidia-key-{number[-16:].lower()}.asc" for number in (FIRST, SECOND)}
REFRESH = "refresh"
QUERY = ["-qa", "--qf", "gpg-pubkey-%{VERSION}-%{RELEASE}\\n%{DESCRIPTION}\\n", "gpg-pubkey"]


def name_of(armor: str) -> str:
    return OTHER_IN_RPM if OTHER in armor else IN_RPM


class FakeDnf(FakePackageManager):
    """A host with dnf. Programs other than gpg and rpm are those of the toolkit."""

    name = "dnf"
    repository = rpm_sources.DNF
    records_reboot = False
    imports_keys = True

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        # The keys of rpm by their names.
        self.keys: dict[str, str] = {}
        self.homes: list[str] = []
        self.broken_rpm: set[str] = set()
        self.write("/usr/bin/gpg").chmod(0o755)
        self.path("/tmp").mkdir()

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        assert argv[:2] == ["chroot", str(self.root)]
        if argv[2] == "gpg":
            return self.gpg(argv[2:])
        return self.rpm(argv[3:]) if argv[2] == "rpm" else super().run(argv)

    def gpg(self, argv: list[str]) -> tuple[int, str, str]:
        options, home, path = argv[1:-2], argv[-2].partition("--homedir=")[2], argv[-1]
        assert options == [
            "--batch", "--no-tty", "--no-options", "--no-autostart", "--no-default-keyring", "--keyring=/dev/null",
            "--trust-model=always", "--with-colons", "--show-keys",
        ]  # fmt: skip
        assert (os.path.dirname(path), self.path(home).stat().st_mode & 0o777) == (home, 0o700)
        self.homes.append(home)
        content = self.path(path).read_text()
        listed = "".join(lines + USER_ID for text, lines in LISTED.items() if text in content)
        return (0 if listed and UNREADABLE not in content else 2), listed, "gpg: no valid OpenPGP data found."

    def rpm(self, arguments: list[str]) -> tuple[int, str, str]:
        if arguments[0] in self.broken_rpm:
            return 1, "", "error: cannot open Packages database"
        if arguments[0] == "-qa":
            assert arguments == QUERY
            return 0, "".join(f"{name}\n{armor}\n" for name, armor in self.keys.items()), ""
        self.calls.append(f"rpm {arguments[0]}")
        if arguments[0] == "--import":
            for path in arguments[1:]:
                self.add(self.path(path).read_text())
            return 0, "", ""
        assert arguments[:2] == ["--erase", "--allmatches"]
        for name in arguments[2:]:
            del self.keys[name]
        return 0, "", ""

    def add(self, armor: str) -> None:
        # rpm does not replace a key by another version.
        self.keys.setdefault(name_of(armor), armor)

    def apply(self, change: Change) -> None:
        super().apply(change)
        # dnf imports the key if rpm does not have it.
        for number, path in PATHS.items():
            if change.install and number in self.path(DNF_SOURCE).read_text():
                self.add(self.path(path).read_text())

    def requested(self, number: str = FIRST, source: str | None = None) -> dict[str, t.Any]:
        """Return the options of the role for the key with this fingerprint."""
        files = (
            RepositoryFile(PATHS[number], source=source or STAGED[number]),
            RepositoryFile(DNF_SOURCE, f"[{NAME}]\nbaseurl=https://mirror.example\n# {number}\n"),
        )
        return {"version": "1.20.0", "repository_files": files, "key_fingerprint": number}

    def state(self) -> dict[str, t.Any]:
        """Return everything except the lock's file."""
        return {**{path: text for path, text in self.snapshot().items() if "run/" not in f"{path}/"}, **self.keys}


def list_keys(manager: FakePackageManager, content: str) -> rpm_keys.KeyListing:
    return rpm_keys.list_keys(HostFS(str(manager.root), live=True), manager.run, content.encode())


@pytest.fixture
def manager(tmp_path: Path) -> FakeDnf:
    """A host with one other key in rpm, and with the staged key."""
    manager = FakeDnf(tmp_path)
    manager.listed = manager.published = ["1.20.0-1", "1.19.1-1"]
    manager.keys["gpg-pubkey-00000001-00000002"] = "another vendor"
    manager.write(STAGED[FIRST], KEY)
    return manager


# -- the check of a file -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "accepted"),
    [
        (KEY, True),
        (RENEWED, True),
        (f"A comment before the key\n{KEY}", True),
        (OTHER, False),
        (KEY + OTHER, False),
        (OTHER + KEY, False),
        (KEY + SECRET, False),
        (SECRET, False),
        (OWN_SECRET, False),
        # gpg shows the first key, and ends with an error at the second one, which rpm may be able to read.
        (f"{KEY}\n{UNREADABLE}", False),
        (f"{KEY}-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmDME\n-----END PGP PUBLIC KEY BLOCK-----\n", False),
        ("", False),
        ("<html>", False),
    ],
)
def test_exactly_one_key(manager: FakeDnf, content: str, accepted: bool) -> None:
    listing = list_keys(manager, content)
    assert listing.is_only(FIRST) is accepted
    assert not listing.is_only(FIRST[:-1] + "0")
    assert len(manager.homes) == 1
    assert os.listdir(manager.path("/tmp")) == []


@pytest.mark.parametrize("content", [OTHER, KEY + OTHER, "<html>"])
def test_wrong_key(manager: FakeDnf, content: str) -> None:
    manager.write(STAGED[FIRST], content)
    before = manager.state()
    with pytest.raises(HostError, match=f"with exactly one key, which has the fingerprint {FIRST}"):
        manager.execute(check_mode=True, **manager.requested())
    assert manager.state() == before
    with pytest.raises(HostError, match=r"Check nvidia_toolkit_key_url"):
        manager.execute(**manager.requested())
    # The next run fetches the key again.
    del before[STAGED[FIRST][1:]]
    assert manager.state() == before
    assert manager.calls == []


def test_wrong_key_of_the_user_stays(manager: FakeDnf) -> None:
    manager.write("/srv/key.asc", OTHER)
    with pytest.raises(HostError, match=SECOND):
        manager.execute(**manager.requested(source="/srv/key.asc"))
    assert manager.path("/srv/key.asc").read_text() == OTHER


def test_missing_gpg(manager: FakeDnf) -> None:
    manager.path("/usr/bin/gpg").unlink()
    for check_mode in (True, False):
        with pytest.raises(HostError, match="gnupg2"):
            manager.execute(check_mode, **manager.requested())
    assert manager.calls == []
    assert manager.path(STAGED[FIRST]).exists()


def test_invalid_fingerprint(manager: FakeDnf) -> None:
    with pytest.raises(NvidiaError, match="key_fingerprint must have 40 hexadecimal digits"):
        manager.execute(**{**manager.requested(), "key_fingerprint": FIRST[:-1]})


# -- installation ------------------------------------------------------------------------------------------------------


def test_first_run_and_unchanged_run(manager: FakeDnf) -> None:
    before = manager.state()
    predicted = manager.execute(check_mode=True, **manager.requested())
    assert manager.state() == before
    result = manager.execute(**manager.requested())
    assert result["changed"]
    # Check mode does not know the revision of the packages.
    assert result["diff"][1:] == predicted["diff"][1:]
    assert result["diff"][-1]["after"] == f"{PATHS[FIRST]}\n"
    assert manager.keys[IN_RPM] == KEY
    after, ran = manager.state(), list(manager.calls)
    for check_mode in (True, False):
        unchanged = manager.execute(check_mode, **manager.requested())
        assert not unchanged["changed"]
        assert len(unchanged["diff"]) == 1
    assert (manager.state(), manager.calls) == (after, ran)


def test_check_mode_without_a_fetched_key(manager: FakeDnf) -> None:
    manager.path(STAGED[FIRST]).unlink()
    result = manager.execute(check_mode=True, **manager.requested())
    assert (result["changed"], result["diff"][-1]["after"]) == (True, f"{PATHS[FIRST]}\n")
    manager.keys[IN_RPM] = KEY
    assert "keys of rpm" not in str(manager.execute(check_mode=True, **manager.requested())["diff"])
    assert manager.homes == []


def test_rpm_has_lost_the_key(manager: FakeDnf) -> None:
    manager.execute(**manager.requested())
    del manager.keys[IN_RPM]
    manager.calls.clear()
    assert manager.execute(check_mode=True, **manager.requested())["changed"]
    assert manager.execute(**manager.requested())["changed"]
    assert (manager.keys[IN_RPM], manager.calls) == (KEY, ["rpm --import"])


def test_renewed_key(manager: FakeDnf) -> None:
    manager.execute(**manager.requested())
    manager.write(STAGED[FIRST], RENEWED)
    manager.calls.clear()
    predicted = manager.execute(check_mode=True, **manager.requested())
    assert manager.keys[IN_RPM] == KEY
    result = manager.execute(**manager.requested())
    assert result["diff"] == predicted["diff"]
    assert result["diff"][-1]["before"] == f"{IN_RPM}\n"
    # rpm would keep the previous version.
    assert manager.calls == ["rpm --erase", "rpm --import", REFRESH]
    assert (manager.keys[IN_RPM], manager.path(PATHS[FIRST]).read_text()) == (RENEWED, RENEWED)
    assert not manager.execute(**manager.requested())["changed"]


@pytest.mark.parametrize("renewed", [True, False])
def test_failed_run(manager: FakeDnf, renewed: bool) -> None:
    manager.execute(**manager.requested())
    number, content = (FIRST, RENEWED) if renewed else (SECOND, OTHER)
    manager.write(STAGED[number], content)
    before = manager.state()
    manager.failures[REFRESH] = "wrong signature"
    with pytest.raises(HostError, match="wrong signature"):
        manager.execute(**manager.requested(number))
    del before[STAGED[number][1:]]
    assert manager.state() == before


def test_failed_first_run(manager: FakeDnf) -> None:
    before = manager.state()
    manager.failures[REFRESH] = "wrong signature"
    with pytest.raises(HostError, match="wrong signature"):
        manager.execute(**manager.requested())
    # zypper would go on to trust the key for all repositories.
    assert manager.calls == ["rpm --import", REFRESH, "rpm --erase"]
    del before[STAGED[FIRST][1:]]
    assert manager.state() == before


def test_another_key(manager: FakeDnf) -> None:
    manager.execute(**manager.requested())
    manager.write(STAGED[SECOND], OTHER)
    manager.calls.clear()
    predicted = manager.execute(check_mode=True, **manager.requested(SECOND))
    assert IN_RPM in manager.keys
    result = manager.execute(**manager.requested(SECOND))
    assert result["diff"] == predicted["diff"]
    # zypper accepts what any key in rpm has signed.
    assert manager.calls == ["rpm --erase", "rpm --import", REFRESH]
    assert sorted(manager.keys) == ["gpg-pubkey-00000001-00000002", OTHER_IN_RPM]
    assert not manager.execute(**manager.requested(SECOND))["changed"]


def test_key_with_the_same_short_name(manager: FakeDnf) -> None:
    """rpm names a key by 32 bits of its fingerprint."""
    manager.keys[f"{IN_RPM[:-1]}1"] = OTHER
    manager.execute(**manager.requested())
    assert manager.keys[f"{IN_RPM[:-1]}1"] == OTHER
    assert manager.keys[IN_RPM] == KEY


def test_full_fingerprints_in_names(manager: FakeDnf) -> None:
    """rpm 6 names a key by its fingerprint."""
    name = f"gpg-pubkey-{FIRST.lower()}-65920080"
    manager.execute(**manager.requested())
    manager.keys[name] = manager.keys.pop(IN_RPM)
    assert not manager.execute(**manager.requested())["changed"]
    manager.execute(state="absent")
    assert name not in manager.keys


def test_without_a_fingerprint(manager: FakeDnf) -> None:
    manager.write(STAGED[FIRST], OTHER)
    manager.execute(**{**manager.requested(), "key_fingerprint": None})
    assert manager.homes == []
    assert "rpm --import" not in manager.calls


@pytest.mark.parametrize("command", ["-qa", "--import", "--erase"])
def test_failure_of_rpm(manager: FakeDnf, command: str) -> None:
    manager.execute(**manager.requested())
    manager.write(STAGED[FIRST], RENEWED)
    before = manager.state()
    manager.broken_rpm.add(command)
    with pytest.raises(HostError, match=rf"rpm {command} failed.*cannot open Packages database"):
        manager.execute(**manager.requested())
    manager.broken_rpm.clear()
    manager.write(STAGED[FIRST], RENEWED)
    if command != "--import":
        assert manager.state() == before
    assert manager.execute(**manager.requested())["changed"]
    assert manager.keys[IN_RPM] == RENEWED


# -- removal -----------------------------------------------------------------------------------------------------------


def test_removal(manager: FakeDnf) -> None:
    manager.execute(**manager.requested())
    # The removal needs no gpg.
    manager.path("/usr/bin/gpg").unlink()
    predicted = manager.execute(check_mode=True, state="absent")
    assert IN_RPM in manager.keys
    result = manager.execute(state="absent")
    assert result["diff"] == predicted["diff"]
    assert result["diff"][-1]["before"] == f"{IN_RPM}\n"
    assert list(manager.keys) == ["gpg-pubkey-00000001-00000002"]
    assert not manager.path(PATHS[FIRST]).exists()
    assert not manager.execute(state="absent")["changed"]


def test_interrupted_removal(manager: FakeDnf) -> None:
    manager.execute(**manager.requested())
    manager.broken_rpm.add("--erase")
    with pytest.raises(HostError, match="rpm --erase failed"):
        manager.execute(state="absent")
    manager.broken_rpm.clear()
    assert manager.execute(state="absent")["changed"]
    assert IN_RPM not in manager.keys


def test_offline_tree(manager: FakeDnf) -> None:
    """The database of rpm belongs to the running host."""
    manager.execute(**manager.requested())
    manager.live = False
    assert manager.execute(state="absent", source="existing")["changed"]
    assert IN_RPM in manager.keys


# -- real programs -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (shutil.which("gpg") and shutil.which("rpm")), reason="needs gpg and rpm: apt install gpg rpm")
def test_real_programs(manager: FakeDnf, tmp_path: Path) -> None:
    database = tmp_path / "rpm"
    database.mkdir()

    def run(argv: list[str]) -> tuple[int, str, str]:
        if argv[2] not in ("gpg", "rpm"):
            return FakePackageManager.run(manager, argv)
        # Without chroot, which needs root.
        command = [re.sub("^(--homedir=)?/", rf"\g<1>{manager.root}/", argument) for argument in argv[2:]]
        command[1:1] = [f"--dbpath={database}"] if argv[2] == "rpm" else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def keys() -> list[str]:
        """Return the last digits of the fingerprints of all keys."""
        return [name.split("-")[2][-8:].upper() for name in run(["", "", "rpm", "-qa", "gpg-pubkey"])[1].split()]

    manager.run = run  # type: ignore[method-assign]
    for content, accepted in ((KEY, True), (RENEWED, True), (OTHER, False), (KEY + OTHER, False), ("", False)):
        assert list_keys(manager, content).is_only(FIRST) is accepted
    manager.execute(**manager.requested())
    assert keys() == [FIRST[-8:]]
    assert not manager.execute(**manager.requested())["changed"]
    manager.write(STAGED[FIRST], RENEWED)
    assert manager.execute(**manager.requested())["changed"]
    armor = run(["", "", "rpm", "-q", "--qf", "%{DESCRIPTION}", "gpg-pubkey"])[1]
    assert list_keys(manager, armor).records == list_keys(manager, RENEWED).records
    assert not manager.execute(**manager.requested())["changed"]
    manager.write(STAGED[SECOND], OTHER)
    assert manager.execute(**manager.requested(SECOND))["changed"]
    assert keys() == [SECOND[-8:]]
    assert manager.execute(state="absent")["changed"]
    assert keys() == []
