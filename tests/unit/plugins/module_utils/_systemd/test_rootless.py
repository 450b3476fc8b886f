# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.accounts import (
    Account,
    account_of,
    own_account,
    require_own,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import state_dir
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.rootless import (
    own_users,
    running_engines,
    user_process,
    user_unit,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import PID
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.rootless_hosts import (
    EXEC_START,
    GID,
    GROUP,
    HOME,
    RUNTIME,
    UID,
    UNIT,
    Rootless,
    alices_host,
)

ALICE = Account("alice", UID, HOME)


@pytest.fixture
def docker() -> t.Iterator[Rootless]:
    with alices_host() as host:
        yield host


# -- accounts --------------------------------------------------------------------------------------------------------


def test_the_account_comes_from_the_host(docker: Rootless) -> None:
    assert own_account(docker.host) == require_own(docker.host, "alice") == require_own(docker.host, None) == ALICE


def test_root_and_a_number_without_an_account_have_none(docker: Rootless, monkeypatch: pytest.MonkeyPatch) -> None:
    docker.write("/etc/passwd", "root:x:0:0::/root:/bin/sh\n")
    for uid in (0, UID):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        assert (own_account(docker.host), own_users(docker.host)) == (None, [])
        with pytest.raises(NvidiaError, match="become_user: NAME"):
            require_own(docker.host, None)


@pytest.mark.parametrize(
    "line", ["", "x", "bob:x:²:1:::", "bob:x:1:-1:::", "bob:x:99999999999:1:::/bin/sh", ":::::", "#"]
)
def test_invalid_lines_of_passwd(docker: Rootless, line: str) -> None:
    docker.write("/etc/passwd", f"{line}\nalice:x:{UID}:{GID}:Alice:{HOME}:/bin/sh\n")
    assert own_account(docker.host) == ALICE


@pytest.mark.parametrize("fields", [f"../x:x:{UID}:1::{HOME}:", f"al/ice:x:{UID}:1::{HOME}:", f"alice:x:{UID}:1:::"])
def test_names_and_homes_that_cannot_be_parts_of_paths(docker: Rootless, fields: str) -> None:
    docker.write("/etc/passwd", fields + "\n")
    assert own_account(docker.host) is None


def test_a_file_that_is_no_text(docker: Rootless) -> None:
    docker.path("/etc/passwd").write_bytes(b"\xff\xfe\0\n")
    assert own_account(docker.host) is None


def test_the_name_service_is_used_only_for_this_machine(monkeypatch: pytest.MonkeyPatch, docker: Rootless) -> None:
    monkeypatch.setattr(HostFS, "read_text", lambda *_words: "")
    assert account_of(docker.host, 1) is None
    assert account_of(HostFS("/", live=False), 1) is None
    found = account_of(HostFS("/", live=True), 1)
    assert found is not None
    assert found.name == "daemon"


# -- users with an engine --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ([UNIT], ["alice"]),
        ([f"{RUNTIME}/docker.pid"], ["alice"]),
        ([f"{RUNTIME}/docker.sock"], ["alice"]),
        ([f"{HOME}/.local/state/gpufleet-nvidia/state/rootless-alice-daemon.json-0.json"], ["alice"]),
        ([f"{HOME}/.local/state/gpufleet-nvidia/state/rootless-bob-daemon.json-0.json"], []),
        ([f"{RUNTIME}/systemd/private"], []),
        ([], []),
    ],
)
def test_files_that_show_an_engine_of_the_user(docker: Rootless, made: list[str], found: list[str]) -> None:
    docker.path(UNIT).unlink()
    for path in made:
        docker.write(path)
    assert own_users(docker.host) == found


def test_a_broken_link_counts_as_a_unit(docker: Rootless) -> None:
    docker.path(UNIT).unlink()
    docker.link(UNIT, "/nix/store/x/docker.service")
    assert own_users(docker.host) == ["alice"]


def _process_of(docker: Rootless, pid: int, name: str, uid: int) -> None:
    docker.write(f"/proc/{pid}/comm", f"{name}\n")
    docker.write(f"/proc/{pid}/status", f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")


def test_running_engines(docker: Rootless) -> None:
    docker.write("/proc/version")
    docker.write("/etc/passwd", f"alice:x:{UID}:1::{HOME}:/bin/sh\nbob:x:54321:1::/home/bob:/bin/sh\n")
    for pid, name, uid in ((10, "rootlesskit", UID), (11, "dockerd", UID), (12, "rootlesskit", 54321)):
        _process_of(docker, pid, name, uid)
    # Processes of the system, of a container's user without an account, and of other programs are ignored.
    for pid, name, uid in ((20, "dockerd", 0), (21, "dockerd", 165536), (22, "sh", UID)):
        _process_of(docker, pid, name, uid)
    docker.write("/proc/23/comm", "dockerd\n")
    assert sorted(running_engines(docker.host)) == ["alice", "bob"]
    assert running_engines(docker.host._replace(live=False)) == []


# -- records ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "folder"),
    [
        ("rootless-alice", f"{HOME}/.local/state/gpufleet-nvidia/state"),
        ("docker", "/var/lib/gpufleet-nvidia/state"),
        ("unit-rootless-x", "/var/lib/gpufleet-nvidia/state"),
    ],
)
def test_where_records_are_kept(docker: Rootless, key: str, folder: str) -> None:
    assert state_dir(docker.host, key) == folder


def test_the_records_of_a_user_are_never_read_by_root(docker: Rootless, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert state_dir(docker.host, "rootless-alice") == "/var/lib/gpufleet-nvidia/state"


# -- units and processes ---------------------------------------------------------------------------------------------


def test_specifiers_of_a_users_unit(docker: Rootless) -> None:
    docker.unit(
        "%h/bin/dockerd-rootless.sh --config-file %E/d/%u.json -H unix://%t/d.sock", "Environment=PATH=%h/bin:/sbin"
    )
    unit = user_unit(docker.host, ALICE, "docker.service")
    assert unit is not None
    assert unit.arguments[0] == f"{HOME}/bin/dockerd-rootless.sh"
    assert unit.flag_values("--config-file") == [f"{HOME}/.config/d/alice.json"]
    assert unit.flag_values("-H") == [f"unix://{RUNTIME}/d.sock"]
    assert unit.environment["PATH"] == f"{HOME}/bin:/sbin"


def test_two_percent_signs_are_one(docker: Rootless) -> None:
    docker.unit(EXEC_START, "Environment=A=%%h/%h", "Environment=B=%%%h%%%%t")
    unit = user_unit(docker.host, ALICE, "docker.service")
    assert unit is not None
    assert dict(unit.environment) == {"A": f"%h/{HOME}", "B": f"%{HOME}%%t"}


@pytest.mark.parametrize(
    "place", ["/etc/systemd/user", "/usr/lib/systemd/user", f"{HOME}/.local/share/systemd/user", "/run/systemd/user"]
)
def test_directories_of_a_users_unit(docker: Rootless, place: str) -> None:
    docker.path(UNIT).unlink()
    assert user_unit(docker.host, ALICE, "docker.service") is None
    docker.write(f"{place}/docker.service", "[Service]\nExecStart=/usr/bin/dockerd-rootless.sh --debug\n")
    docker.write(f"{HOME}/.config/systemd/user/docker.service.d/o.conf", "[Service]\nEnvironment=A=b\n")
    unit = user_unit(docker.host, ALICE, "docker.service")
    assert unit is not None
    assert (unit.path, unit.arguments[1:], dict(unit.environment)) == (
        f"{place}/docker.service",
        ("--debug",),
        {"A": "b"},
    )


def test_the_systems_unit_is_not_the_users(docker: Rootless) -> None:
    docker.path(UNIT).unlink()
    docker.write("/etc/systemd/system/docker.service", "[Service]\nExecStart=/usr/bin/dockerd-rootless.sh\n")
    assert user_unit(docker.host, ALICE, "docker.service") is None


def _process(docker: Rootless, unit: bool = True) -> int | None:
    found = user_unit(docker.host, ALICE, "docker.service") if unit else None
    return user_process(docker.host, ALICE, found, "dockerd", [f"{RUNTIME}/docker.pid"])


@pytest.mark.parametrize("place", [GROUP, GROUP.replace("app.slice/", ""), f"{RUNTIME}/docker.pid"])
def test_the_process_of_a_user(docker: Rootless, place: str) -> None:
    assert _process(docker) is None
    docker.runs(place)
    assert _process(docker) == PID
    assert _process(docker, unit=False) == (PID if place.endswith(".pid") else None)
    assert user_process(docker.host._replace(live=False), ALICE, None, "dockerd", [f"{RUNTIME}/docker.pid"]) is None


@pytest.mark.parametrize("text", ["", "x", "²", "-1", "9" * 5000, "1\n2"])
def test_an_invalid_pid_file(docker: Rootless, text: str) -> None:
    docker.write(f"{RUNTIME}/docker.pid", text)
    assert _process(docker) is None


def test_a_pid_file_that_names_the_systems_daemon(docker: Rootless) -> None:
    docker.runs(f"{RUNTIME}/docker.pid", uid=0)
    assert _process(docker) is None
