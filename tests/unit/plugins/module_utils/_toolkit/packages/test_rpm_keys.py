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
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import dnf_sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import rpm_keys
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages.repository import RepositoryFile
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import World

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import Change

DNF_SOURCE = dnf_sources.REPOSITORY.source
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


class DnfWorld(World):
    """A host with dnf. Programs other than gpg and rpm are those of the toolkit."""

    name = "dnf"
    repository = dnf_sources.REPOSITORY
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


def list_keys(world: World, content: str) -> rpm_keys.KeyListing:
    return rpm_keys.list_keys(HostFS(str(world.root), live=True), world.run, content.encode())


@pytest.fixture
def world(tmp_path: Path) -> DnfWorld:
    """A host with one other key in rpm, and with the staged key."""
    world = DnfWorld(tmp_path)
    world.listed = world.published = ["1.20.0-1", "1.19.1-1"]
    world.keys["gpg-pubkey-00000001-00000002"] = "another vendor"
    world.write(STAGED[FIRST], KEY)
    return world


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
def test_exactly_one_key(world: DnfWorld, content: str, accepted: bool) -> None:
    listing = list_keys(world, content)
    assert listing.is_only(FIRST) is accepted
    assert not listing.is_only(FIRST[:-1] + "0")
    assert len(world.homes) == 1
    assert os.listdir(world.path("/tmp")) == []


@pytest.mark.parametrize("content", [OTHER, KEY + OTHER, "<html>"])
def test_wrong_key(world: DnfWorld, content: str) -> None:
    world.write(STAGED[FIRST], content)
    before = world.state()
    with pytest.raises(HostError, match=f"with exactly one key, which has the fingerprint {FIRST}"):
        world.execute(check_mode=True, **world.requested())
    assert world.state() == before
    with pytest.raises(HostError, match=r"Check nvidia_toolkit_key_url"):
        world.execute(**world.requested())
    # The next run fetches the key again.
    del before[STAGED[FIRST][1:]]
    assert world.state() == before
    assert world.calls == []


def test_wrong_key_of_the_user_stays(world: DnfWorld) -> None:
    world.write("/srv/key.asc", OTHER)
    with pytest.raises(HostError, match=SECOND):
        world.execute(**world.requested(source="/srv/key.asc"))
    assert world.path("/srv/key.asc").read_text() == OTHER


def test_missing_gpg(world: DnfWorld) -> None:
    world.path("/usr/bin/gpg").unlink()
    for check_mode in (True, False):
        with pytest.raises(HostError, match="gnupg2"):
            world.execute(check_mode, **world.requested())
    assert world.calls == []
    assert world.path(STAGED[FIRST]).exists()


def test_invalid_fingerprint(world: DnfWorld) -> None:
    with pytest.raises(NvidiaError, match="key_fingerprint must have 40 hexadecimal digits"):
        world.execute(**{**world.requested(), "key_fingerprint": FIRST[:-1]})


# -- installation ------------------------------------------------------------------------------------------------------


def test_first_run_and_unchanged_run(world: DnfWorld) -> None:
    before = world.state()
    predicted = world.execute(check_mode=True, **world.requested())
    assert world.state() == before
    result = world.execute(**world.requested())
    assert result["changed"]
    # Check mode does not know the revision of the packages.
    assert result["diff"][1:] == predicted["diff"][1:]
    assert result["diff"][-1]["after"] == f"{PATHS[FIRST]}\n"
    assert world.keys[IN_RPM] == KEY
    after, ran = world.state(), list(world.calls)
    for check_mode in (True, False):
        unchanged = world.execute(check_mode, **world.requested())
        assert not unchanged["changed"]
        assert len(unchanged["diff"]) == 1
    assert (world.state(), world.calls) == (after, ran)


def test_check_mode_without_a_fetched_key(world: DnfWorld) -> None:
    world.path(STAGED[FIRST]).unlink()
    result = world.execute(check_mode=True, **world.requested())
    assert (result["changed"], result["diff"][-1]["after"]) == (True, f"{PATHS[FIRST]}\n")
    world.keys[IN_RPM] = KEY
    assert "keys of rpm" not in str(world.execute(check_mode=True, **world.requested())["diff"])
    assert world.homes == []


def test_rpm_has_lost_the_key(world: DnfWorld) -> None:
    world.execute(**world.requested())
    del world.keys[IN_RPM]
    world.calls.clear()
    assert world.execute(check_mode=True, **world.requested())["changed"]
    assert world.execute(**world.requested())["changed"]
    assert (world.keys[IN_RPM], world.calls) == (KEY, ["rpm --import"])


def test_renewed_key(world: DnfWorld) -> None:
    world.execute(**world.requested())
    world.write(STAGED[FIRST], RENEWED)
    world.calls.clear()
    predicted = world.execute(check_mode=True, **world.requested())
    assert world.keys[IN_RPM] == KEY
    result = world.execute(**world.requested())
    assert result["diff"] == predicted["diff"]
    assert result["diff"][-1]["before"] == f"{IN_RPM}\n"
    # rpm would keep the previous version.
    assert world.calls == ["rpm --erase", "rpm --import", REFRESH]
    assert (world.keys[IN_RPM], world.path(PATHS[FIRST]).read_text()) == (RENEWED, RENEWED)
    assert not world.execute(**world.requested())["changed"]


@pytest.mark.parametrize("renewed", [True, False])
def test_failed_run(world: DnfWorld, renewed: bool) -> None:
    world.execute(**world.requested())
    number, content = (FIRST, RENEWED) if renewed else (SECOND, OTHER)
    world.write(STAGED[number], content)
    before = world.state()
    world.failures[REFRESH] = "wrong signature"
    with pytest.raises(HostError, match="wrong signature"):
        world.execute(**world.requested(number))
    del before[STAGED[number][1:]]
    assert world.state() == before


def test_failed_first_run(world: DnfWorld) -> None:
    before = world.state()
    world.failures[REFRESH] = "wrong signature"
    with pytest.raises(HostError, match="wrong signature"):
        world.execute(**world.requested())
    # zypper would go on to trust the key for all repositories.
    assert world.calls == ["rpm --import", REFRESH, "rpm --erase"]
    del before[STAGED[FIRST][1:]]
    assert world.state() == before


def test_another_key(world: DnfWorld) -> None:
    world.execute(**world.requested())
    world.write(STAGED[SECOND], OTHER)
    world.calls.clear()
    predicted = world.execute(check_mode=True, **world.requested(SECOND))
    assert IN_RPM in world.keys
    result = world.execute(**world.requested(SECOND))
    assert result["diff"] == predicted["diff"]
    # zypper accepts what any key in rpm has signed.
    assert world.calls == ["rpm --erase", "rpm --import", REFRESH]
    assert sorted(world.keys) == ["gpg-pubkey-00000001-00000002", OTHER_IN_RPM]
    assert not world.execute(**world.requested(SECOND))["changed"]


def test_key_with_the_same_short_name(world: DnfWorld) -> None:
    """rpm names a key by 32 bits of its fingerprint."""
    world.keys[f"{IN_RPM[:-1]}1"] = OTHER
    world.execute(**world.requested())
    assert world.keys[f"{IN_RPM[:-1]}1"] == OTHER
    assert world.keys[IN_RPM] == KEY


def test_full_fingerprints_in_names(world: DnfWorld) -> None:
    """rpm 6 names a key by its fingerprint."""
    name = f"gpg-pubkey-{FIRST.lower()}-65920080"
    world.execute(**world.requested())
    world.keys[name] = world.keys.pop(IN_RPM)
    assert not world.execute(**world.requested())["changed"]
    world.execute(state="absent")
    assert name not in world.keys


def test_without_a_fingerprint(world: DnfWorld) -> None:
    world.write(STAGED[FIRST], OTHER)
    world.execute(**{**world.requested(), "key_fingerprint": None})
    assert world.homes == []
    assert "rpm --import" not in world.calls


@pytest.mark.parametrize("command", ["-qa", "--import", "--erase"])
def test_failure_of_rpm(world: DnfWorld, command: str) -> None:
    world.execute(**world.requested())
    world.write(STAGED[FIRST], RENEWED)
    before = world.state()
    world.broken_rpm.add(command)
    with pytest.raises(HostError, match=rf"rpm {command} failed.*cannot open Packages database"):
        world.execute(**world.requested())
    world.broken_rpm.clear()
    world.write(STAGED[FIRST], RENEWED)
    if command != "--import":
        assert world.state() == before
    assert world.execute(**world.requested())["changed"]
    assert world.keys[IN_RPM] == RENEWED


# -- removal -----------------------------------------------------------------------------------------------------------


def test_removal(world: DnfWorld) -> None:
    world.execute(**world.requested())
    # The removal needs no gpg.
    world.path("/usr/bin/gpg").unlink()
    predicted = world.execute(check_mode=True, state="absent")
    assert IN_RPM in world.keys
    result = world.execute(state="absent")
    assert result["diff"] == predicted["diff"]
    assert result["diff"][-1]["before"] == f"{IN_RPM}\n"
    assert list(world.keys) == ["gpg-pubkey-00000001-00000002"]
    assert not world.path(PATHS[FIRST]).exists()
    assert not world.execute(state="absent")["changed"]


def test_interrupted_removal(world: DnfWorld) -> None:
    world.execute(**world.requested())
    world.broken_rpm.add("--erase")
    with pytest.raises(HostError, match="rpm --erase failed"):
        world.execute(state="absent")
    world.broken_rpm.clear()
    assert world.execute(state="absent")["changed"]
    assert IN_RPM not in world.keys


def test_offline_tree(world: DnfWorld) -> None:
    """The database of rpm belongs to the running host."""
    world.execute(**world.requested())
    world.live = False
    assert world.execute(state="absent", source="existing")["changed"]
    assert IN_RPM in world.keys


# -- real programs -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (shutil.which("gpg") and shutil.which("rpm")), reason="needs gpg and rpm: apt install gpg rpm")
def test_real_programs(world: DnfWorld, tmp_path: Path) -> None:
    database = tmp_path / "rpm"
    database.mkdir()

    def run(argv: list[str]) -> tuple[int, str, str]:
        if argv[2] not in ("gpg", "rpm"):
            return World.run(world, argv)
        # Without chroot, which needs root.
        command = [re.sub("^(--homedir=)?/", rf"\g<1>{world.root}/", argument) for argument in argv[2:]]
        command[1:1] = [f"--dbpath={database}"] if argv[2] == "rpm" else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def keys() -> list[str]:
        """Return the last digits of the fingerprints of all keys."""
        return [name.split("-")[2][-8:].upper() for name in run(["", "", "rpm", "-qa", "gpg-pubkey"])[1].split()]

    world.run = run  # type: ignore[method-assign]
    for content, accepted in ((KEY, True), (RENEWED, True), (OTHER, False), (KEY + OTHER, False), ("", False)):
        assert list_keys(world, content).is_only(FIRST) is accepted
    world.execute(**world.requested())
    assert keys() == [FIRST[-8:]]
    assert not world.execute(**world.requested())["changed"]
    world.write(STAGED[FIRST], RENEWED)
    assert world.execute(**world.requested())["changed"]
    armor = run(["", "", "rpm", "-q", "--qf", "%{DESCRIPTION}", "gpg-pubkey"])[1]
    assert list_keys(world, armor).records == list_keys(world, RENEWED).records
    assert not world.execute(**world.requested())["changed"]
    world.write(STAGED[SECOND], OTHER)
    assert world.execute(**world.requested(SECOND))["changed"]
    assert keys() == [SECOND[-8:]]
    assert world.execute(state="absent")["changed"]
    assert keys() == []
