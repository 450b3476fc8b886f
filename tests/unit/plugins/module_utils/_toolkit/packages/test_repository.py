# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of the repository, alone and together with the packages."""

from __future__ import annotations

import io
import os
import socket
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import REPOSITORY as OWNER
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import STATE_DIR, load_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import apt_sources, rpm_sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import connection as packages_connection
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.sources import own_files, repository_files
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import packages as toolkit_packages
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import repository as toolkit_repository
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages.repository import (
    MARKER,
    RepositoryFile,
    address_of,
    check_files,
    is_own_file,
    plan_files,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import (
    FORMER_ENTRY,
    FORMER_LIST,
    FakePackageManager,
    four,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.kills import Killed

if t.TYPE_CHECKING:
    from pathlib import Path

APT_SOURCE = apt_sources.REPOSITORY.source
DNF_SOURCE = rpm_sources.DNF.source
REPOSITORY_FILES = repository_files()
DIGITS = "ddcae044f796ecb0"
KEY = f"/usr/share/keyrings/gpufleet-nvidia-container-toolkit-{DIGITS}.asc"
STAGED = f"/var/cache/gpufleet-nvidia-key-{DIGITS}.asc"
APT_CONF = REPOSITORY_FILES[2]
PROXY = "http://me:geheim@proxy.example:3128"

SOURCE = RepositoryFile(APT_SOURCE, "URIs: right\n")
WRONG = RepositoryFile(APT_SOURCE, "URIs: wrong\n")
FETCHED = RepositoryFile(KEY, source=STAGED)
FILES = (SOURCE, FETCHED)


@pytest.fixture
def manager(tmp_path: Path) -> FakePackageManager:
    found = FakePackageManager(tmp_path)
    found.published = ["1.20.0-1"]
    found.write(STAGED, "key\n")
    # Directories of every host.
    for folder in ("/etc/apt/sources.list.d", "/etc/apt/apt.conf.d", "/usr/share/keyrings", "/usr/bin", "/run"):
        found.path(folder).mkdir(parents=True, exist_ok=True)
    found.path("/var/lib").mkdir()
    return found


def text(manager: FakePackageManager, path: str) -> str | None:
    return manager.path(path).read_text() if manager.path(path).exists() else None


def mode(manager: FakePackageManager, path: str) -> int:
    return manager.path(path).stat().st_mode & 0o7777


# -- requested files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "own"),
    [
        *((path, True) for path in REPOSITORY_FILES),
        (KEY, True),
        (f"/etc/pki/rpm-gpg/RPM-GPG-KEY-gpufleet-nvidia-container-toolkit-{DIGITS.upper()}", True),
        (KEY.replace(DIGITS, DIGITS[1:]), False),
        (KEY.replace(DIGITS, DIGITS + "0"), False),
        (KEY.replace(DIGITS, "x" * 16), False),
        (STAGED, False),
        ("/etc/apt/sources.list.d/nvidia-container-toolkit.sources", False),
        ("/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg", False),
        ("/etc/passwd", False),
    ],
)
def test_is_own_file(path: str, own: bool) -> None:
    assert is_own_file(path) is own


@pytest.mark.parametrize(
    ("file", "proxy", "message"),
    [
        (RepositoryFile("/etc/apt/sources.list", "x"), None, "Path /etc/apt/sources.list is not allowed"),
        (RepositoryFile(APT_SOURCE + "/../x", "x"), None, "is not allowed"),
        (RepositoryFile(APT_SOURCE), None, "requires either content or src"),
        (RepositoryFile(APT_SOURCE, "x", STAGED), None, "requires either content or src"),
        (RepositoryFile(KEY, source="key.asc"), None, "'key.asc' of .* is not absolute"),
        (RepositoryFile(APT_SOURCE, "x", mode="420"), None, "Invalid mode '420' of "),
        (RepositoryFile(APT_SOURCE, "x", mode="u=rw"), None, "mode 'u=rw'"),
        (RepositoryFile(APT_CONF, "@PROXY@"), None, "but proxy is not set"),
        (RepositoryFile(APT_CONF, "@PROXY@"), 'http://x";Evil "', "proxy contains a space"),
        (RepositoryFile(APT_CONF, "@PROXY@"), "http://x\nevil=1", "proxy contains a space"),
    ],
)
def test_rejects_invalid_files(
    manager: FakePackageManager, file: RepositoryFile, proxy: str | None, message: str
) -> None:
    before = manager.snapshot()
    for check_mode in (True, False):
        with pytest.raises(NvidiaError, match=message) as caught:
            manager.execute(check_mode, repository_files=(file,), proxy=proxy)
        assert "evil" not in str(caught.value).lower()
    assert (manager.calls, manager.snapshot()) == ([], before)


def test_rejects_invalid_combinations(manager: FakePackageManager) -> None:
    with pytest.raises(NvidiaError, match="is listed twice"):
        check_files([SOURCE, WRONG], None)
    with pytest.raises(NvidiaError, match="repository_files requires source: repository"):
        manager.execute(source="files", files=tuple(manager.four_files("1.20.0-1")), repository_files=FILES)


# -- plans -------------------------------------------------------------------------------------------------------------


def test_writes_keys_before_sources(manager: FakePackageManager) -> None:
    plan = plan_files(manager.host, FILES, None, predicted=False)
    assert [(file.path, file.before, file.after) for file in plan.files] == [
        (KEY, None, b"key\n"),
        (APT_SOURCE, None, b"URIs: right\n"),
    ]
    assert plan_files(manager.host, None, None, predicted=False).has_changes is False


def test_key_that_is_not_fetched_yet(manager: FakePackageManager) -> None:
    manager.path(STAGED).unlink()
    before = manager.snapshot()
    predicted = manager.execute(check_mode=True, repository_files=FILES)
    assert predicted["changed"]
    assert "(not fetched yet)" in predicted["diff"][1]["after"]
    with pytest.raises(HostError, match=f"The src {STAGED} of {KEY} does not exist"):
        manager.execute(repository_files=FILES)
    assert (manager.calls, manager.snapshot()) == ([], before)


def test_key_that_is_installed_but_not_fetched(manager: FakePackageManager) -> None:
    """Its file has the fingerprint in its name, so a fetched key would be the same."""
    manager.execute(repository_files=FILES)
    manager.path(STAGED).unlink(missing_ok=True)
    assert not manager.execute(check_mode=True, repository_files=FILES)["changed"]


@pytest.mark.parametrize("repository", [apt_sources.REPOSITORY, rpm_sources.DNF])
def test_own_address(manager: FakePackageManager, repository: packages_base.Repository) -> None:
    path, name = (APT_SOURCE, "URIs: ") if repository is apt_sources.REPOSITORY else (DNF_SOURCE, "[x]\nbaseurl=")
    host = manager.host
    assert address_of(host, None, repository) is None
    manager.write(path, f"{name}http://standing/\n")
    assert address_of(host, None, repository) == "http://standing/"
    assert address_of(host, (RepositoryFile(path, f"{name}http://asked/\n"),), repository) == "http://asked/"
    assert address_of(host, (), repository) is None
    copied = (RepositoryFile(path, source="/srv/source"),)
    # In check mode, an earlier task of the play has not written the source yet.
    assert address_of(host, copied, repository) == "http://standing/"
    manager.write("/srv/source", f"{name}http://copied/\n")
    assert address_of(host, copied, repository) == "http://copied/"


MIRROR = "Types: deb\nURIs: http://mirror.example/toolkit\nSuites: /\n"


@pytest.mark.parametrize(
    "file", [RepositoryFile(APT_SOURCE, MIRROR), RepositoryFile(APT_SOURCE, source="/srv/mirror.sources")]
)
def test_removes_sources_with_the_own_address(manager: FakePackageManager, file: RepositoryFile) -> None:
    manager.write("/etc/apt/sources.list.d/mirror.list", "deb http://mirror.example/toolkit /\n")
    manager.write("/srv/mirror.sources", MIRROR)
    result = manager.execute(version="1.20.0", repository_files=(file,))
    assert result["removed_sources"] == ["/etc/apt/sources.list.d/mirror.list"]


def test_empty_files(manager: FakePackageManager) -> None:
    for path in ("/srv/key.asc", "/srv/empty.conf"):
        manager.write(path)
    files = (SOURCE, RepositoryFile(KEY, source="/srv/key.asc"), RepositoryFile(APT_CONF, source="/srv/empty.conf"))
    manager.execute(version="1.20.0", repository_files=files)
    assert (text(manager, KEY), text(manager, APT_CONF)) == ("", "")
    manager.write("/srv/empty.conf", "Acquire::Retries 3;\n")
    manager.execute(version="1.20.0", repository_files=files)
    manager.write("/srv/empty.conf")
    assert manager.execute(version="1.20.0", repository_files=files)["changed"]
    assert text(manager, APT_CONF) == ""
    manager.path("/srv/empty.conf").unlink()
    # An installed file that is empty exists, too.
    assert not manager.execute(check_mode=True, version="1.20.0", repository_files=files)["changed"]


# -- with the packages -------------------------------------------------------------------------------------------------


def test_installation_and_removal(manager: FakePackageManager) -> None:
    before = manager.snapshot()
    predicted = manager.execute(check_mode=True, version="1.20.0", repository_files=FILES)
    assert (manager.calls, manager.snapshot()) == ([], before)
    result = manager.execute(version="1.20.0", repository_files=FILES)
    assert manager.calls == ["refresh", "candidates", "preview", "apply"]
    assert (text(manager, APT_SOURCE), text(manager, KEY), manager.packages) == (
        "URIs: right\n",
        "key\n",
        four("1.20.0-1"),
    )
    assert result["written_files"] == predicted["written_files"] == [KEY, APT_SOURCE]
    assert result["diff"][1:] == predicted["diff"][1:]
    assert not manager.path(MARKER).exists()
    assert own_files(manager.host) == [APT_SOURCE, KEY, STAGED]
    manager.calls.clear()
    settled = manager.snapshot()
    for check_mode in (True, False):
        assert not manager.execute(check_mode, version="1.20.0", repository_files=FILES)["changed"]
        # Without the option the files stay.
        assert not manager.execute(check_mode, version="1.20.0")["changed"]
    assert (manager.calls, manager.snapshot()) == ([], settled)
    predicted = manager.execute(check_mode=True, state="absent")
    gone = manager.execute(state="absent")
    assert gone["diff"] == predicted["diff"]
    assert gone["restored_files"] == [APT_SOURCE, KEY]
    assert f"{STAGED} (file)" in gone["diff"][0]["before"]
    assert own_files(manager.host) == []
    left = {path: content for path, content in manager.snapshot().items() if "gpufleet-nvidia" not in path}
    was = {path: content for path, content in before.items() if "gpufleet-nvidia" not in path}
    assert left == was
    assert not manager.path(STATE_DIR).exists()
    assert not manager.execute(state="absent")["changed"]


def test_removal_restores_original_files(manager: FakePackageManager) -> None:
    manager.write(APT_SOURCE, "# mine\n").chmod(0o640)
    manager.execute(version="1.20.0", repository_files=(RepositoryFile(APT_SOURCE, "URIs: right\n", mode="0600"),))
    assert (text(manager, APT_SOURCE), mode(manager, APT_SOURCE)) == ("URIs: right\n", 0o600)
    manager.execute(version="1.20.0", repository_files=(SOURCE,))
    assert mode(manager, APT_SOURCE) == 0o644
    result = manager.execute(state="absent", source="existing")
    assert (text(manager, APT_SOURCE), mode(manager, APT_SOURCE)) == ("# mine\n", 0o640)
    assert (result["changed"], manager.packages) == (True, four("1.20.0-1"))


def test_changes_mode_only(manager: FakePackageManager) -> None:
    manager.execute(version="1.20.0", repository_files=FILES)
    manager.path(KEY).chmod(0o600)
    predicted = manager.execute(check_mode=True, version="1.20.0", repository_files=FILES)
    result = manager.execute(version="1.20.0", repository_files=FILES)
    assert result["diff"] == predicted["diff"]
    assert result["diff"][1]["before_header"] == f"{KEY} (mode 0600)"
    assert (mode(manager, KEY), result["changed"]) == (0o644, True)
    assert not manager.execute(version="1.20.0", repository_files=FILES)["changed"]


def test_restores_files_that_are_no_longer_listed(manager: FakePackageManager) -> None:
    proxied = (*FILES, RepositoryFile(APT_CONF, "Acquire::http::Proxy @PROXY@;\n", mode="0600"))
    manager.execute(version="1.20.0", repository_files=proxied, proxy=PROXY)
    assert (text(manager, APT_CONF), mode(manager, APT_CONF)) == (f"Acquire::http::Proxy {PROXY};\n", 0o600)
    manager.calls.clear()
    result = manager.execute(version="1.20.0", repository_files=FILES)
    assert (text(manager, APT_CONF), result["restored_files"], manager.calls) == (None, [APT_CONF], ["refresh"])
    assert "geheim" not in str(result)
    assert "proxy.example" in str(result)
    other = KEY.replace(DIGITS, "0" * 16)
    manager.execute(version="1.20.0", repository_files=(SOURCE, RepositoryFile(other, "other\n")))
    assert own_files(manager.host) == [APT_SOURCE, other]
    files = tuple(manager.four_files("1.20.0-1"))
    assert manager.execute(source="files", files=files, repository_files=())["changed"]
    assert (own_files(manager.host), load_records(manager.host, OWNER)) == ([], [])


def test_no_temporary_files_in_configuration_directories(
    manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    replace = os.replace

    def watched(old: str, new: str) -> None:
        seen.append(str(old))
        replace(old, new)

    monkeypatch.setattr(os, "replace", watched)
    manager.execute(version="1.20.0", repository_files=FILES)
    assert seen
    assert not [path for path in seen if "sources.list.d" in path or "keyrings" in path]


def test_passwords_are_never_readable_for_others(manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_write, "set_access", lambda *_arguments: None)
    files = (RepositoryFile(APT_CONF, "@PROXY@", mode="0600"), RepositoryFile(APT_SOURCE, "@PROXY@", mode="0600"))
    manager.write(APT_SOURCE, "# mine\n").chmod(0o644)
    manager.execute(version="1.20.0", repository_files=files, proxy=PROXY)
    assert (mode(manager, APT_CONF), mode(manager, APT_SOURCE)) == (0o600, 0o600)


def test_restores_mode(manager: FakePackageManager) -> None:
    manager.write(APT_SOURCE, "# mine\n").chmod(0o644)
    with pytest.raises(HostError, match="the source is wrong"):
        manager.execute(version="1.20.0", repository_files=(WRONG._replace(mode="0600"),))
    assert (text(manager, APT_SOURCE), mode(manager, APT_SOURCE)) == ("# mine\n", 0o644)


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", ["refresh", "preview", "apply", "no such version"])
def test_failure_restores_everything(manager: FakePackageManager, failing: str) -> None:
    manager.write(FORMER_LIST, FORMER_ENTRY).chmod(0o640)
    manager.write(APT_SOURCE, "# mine\n").chmod(0o600)
    manager.failures[failing] = "E: no"
    before = manager.snapshot()
    version = "1.21.0" if failing == "no such version" else "1.20.0"
    for _run in range(2):
        manager.write(STAGED, "key\n")
        with pytest.raises(HostError) as caught:
            manager.execute(version=version, repository_files=FILES)
        assert caught.value.details == {"changed": False}
        # The key may be wrong, so it is fetched again.
        del before[STAGED[1:]]
        assert manager.snapshot() == before
        assert (mode(manager, FORMER_LIST), mode(manager, APT_SOURCE)) == (0o640, 0o600)
        before[STAGED[1:]] = "key\n"
    manager.failures.clear()
    manager.write(STAGED, "key\n")
    assert manager.execute(version="1.20.0", repository_files=FILES)["changed"]


def test_failure_on_a_configured_host(manager: FakePackageManager) -> None:
    manager.execute(version="1.20.0", repository_files=FILES)
    before = manager.snapshot()
    for _run in range(2):
        with pytest.raises(HostError, match="the source is wrong"):
            manager.execute(version="1.20.0", repository_files=(WRONG,))
        assert text(manager, APT_SOURCE) == "URIs: right\n"
        assert text(manager, KEY) == "key\n"
    manager.write(STAGED, "key\n")
    assert manager.snapshot() == before
    assert not manager.execute(version="1.20.0", repository_files=FILES)["changed"]


def test_keeps_files_if_packages_changed(manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.break_off(monkeypatch)
    with pytest.raises(HostError) as caught:
        manager.execute(version="1.20.0", repository_files=FILES)
    assert caught.value.details == {"changed": True}
    assert text(manager, APT_SOURCE) == "URIs: right\n"
    assert text(manager, STAGED) == "key\n"
    assert not manager.path(MARKER).exists()


def test_unreachable_repository(manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch) -> None:
    peers: list[tuple[str, int]] = []

    def refuse(peer: tuple[str, int], _timeout: float) -> t.NoReturn:
        peers.append(peer)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    files = (RepositoryFile(APT_SOURCE, "Types: deb\nURIs: https://mirror.example/toolkit\nSuites: /\n"),)
    manager.failures["refresh"] = "Err:1 whatever apt says"
    for proxy, peer, problem in (
        (None, ("mirror.example", 443), "nvidia_toolkit_proxy (proxy) is not set"),
        (PROXY, ("proxy.example", 3128), "nvidia_toolkit_proxy (proxy) is proxy.example:3128"),
    ):
        with pytest.raises(HostError) as caught:
            manager.execute(version="1.20.0", repository_files=files, proxy=proxy)
        message = str(caught.value)
        assert f"This host cannot connect to {peer[0]}:{peer[1]}: Connection refused. " in message
        for text in (
            "on mirror.example",
            problem,
            "nvidia_toolkit_base_url",
            "files, directory or existing",
            "apt says",
        ):
            assert text in message
        assert "geheim" not in message
        assert caught.value.details == {"code": "repository-unreachable", "changed": False}
        assert peers.pop() == peer
    # A host that can connect reports only the original error.
    monkeypatch.setattr(socket, "create_connection", lambda *_peer: io.BytesIO())
    with pytest.raises(HostError, match=r"is on mirror\.example") as caught:
        manager.execute(version="1.20.0", repository_files=files)
    assert caught.value.details == {"changed": False}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://user:geheim@[2001:db8::1]/x", "[2001:db8::1]:443"),
        ("http://a.example:81/", "a.example:81"),
        ("http://a.example", "a.example:80"),
        ("https://a.example:port/", "None"),
        ("https://[", "None"),
        ("file:///srv/mirror", "None"),
        (None, "None"),
    ],
)
def test_connection_target(url: str | None, expected: str) -> None:
    assert str(packages_connection.endpoint(url)) == expected
    if expected == "None":
        assert (packages_connection.connection_error(url, None), packages_connection.access_advice(url, None)) == (
            None,
            "",
        )


@pytest.mark.parametrize("host", ["mirror..example", "m" * 64 + ".example"])
def test_invalid_host_name(host: str) -> None:
    problem = packages_connection.connection_error(f"https://{host}/toolkit", None)
    assert problem is not None
    assert problem.startswith(f"This host cannot connect to {host}:443: ")


@pytest.mark.parametrize("where", ["remove_sources", "write_files", "refresh"])
@pytest.mark.parametrize("works", [True, False])
def test_killed_run(manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch, where: str, works: bool) -> None:
    manager.write(FORMER_LIST, FORMER_ENTRY)
    before = manager.snapshot()
    wanted = FILES if works else (WRONG, FETCHED)

    def killed(*_arguments: t.Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        owner: t.Any = {"remove_sources": toolkit_packages, "write_files": toolkit_repository}
        patch.setattr(owner.get(where, manager), where, killed)
        with pytest.raises(Killed):
            manager.execute(version="1.20.0", repository_files=wanted)
    assert manager.path(MARKER).exists()
    assert mode(manager, MARKER) == 0o600
    # The source is tested even if nothing else changes.
    manager.have(four("1.20.0-1"))
    if works:
        manager.execute(version="1.20.0", repository_files=wanted)
        assert manager.calls == ["refresh"]
        assert text(manager, FORMER_LIST) is None
    else:
        with pytest.raises(HostError, match="the source is wrong"):
            manager.execute(version="1.20.0", repository_files=wanted)
        now = {path: content for path, content in manager.snapshot().items() if "backups" not in path}
        expected = {**before, **{f"usr/bin/{path.name}": "" for path in manager.path("/usr/bin").iterdir()}}
        del expected[STAGED[1:]]
        # A backup of the run that was killed may be left.
        now.pop("var/lib/gpufleet-nvidia", None)
        assert {**now, "packages": {}} == expected
    assert not manager.path(MARKER).exists()
    assert not manager.path(STATE_DIR).exists() or load_records(manager.host, OWNER)


def test_keeps_files_written_after_a_killed_run(manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.write(FORMER_LIST, FORMER_ENTRY)

    def killed(*_arguments: t.Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(manager, "refresh", killed)
        with pytest.raises(Killed):
            manager.execute(version="1.20.0", repository_files=FILES)
    other = FORMER_ENTRY.replace("debian10", "debian11")
    manager.write(FORMER_LIST, other)
    manager.failures["refresh"] = "E: no"
    with pytest.raises(HostError):
        manager.execute(version="1.20.0", repository_files=FILES)
    assert (text(manager, FORMER_LIST), text(manager, APT_SOURCE)) == (other, None)


def test_removal_after_a_killed_run(manager: FakePackageManager) -> None:
    manager.write(MARKER, '{"files": [], "directories": []}')
    assert manager.execute(check_mode=True, state="absent")["changed"]
    manager.execute(state="absent")
    assert not manager.path(STATE_DIR).exists()


def test_rejects_damaged_marker(manager: FakePackageManager) -> None:
    manager.write(MARKER, '{"files": [{}]}')
    with pytest.raises(HostError, match=r"unproven-repository is damaged.*remove this file"):
        manager.execute(version="1.20.0", repository_files=FILES)


def test_failure_of_the_restoration(manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: t.Any) -> None:
        raise HostError("Disk full.")

    monkeypatch.setattr(toolkit_repository.SavedSources, "_restore", full)
    monkeypatch.setattr(packages_connection, "connection_error", lambda *_arguments: "No route.")
    with pytest.raises(HostError, match=r"the source is wrong.*could not be restored: Disk full\.") as caught:
        manager.execute(version="1.20.0", repository_files=(WRONG,))
    assert caught.value.details == {"code": packages_connection.UNREACHABLE, "changed": True}
    assert manager.path(MARKER).exists()


def test_sources_of_apt_and_dnf() -> None:
    assert {APT_SOURCE, DNF_SOURCE} <= set(REPOSITORY_FILES)
