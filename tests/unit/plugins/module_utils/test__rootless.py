# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _rootless
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import FileRecord, record_path
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rootless import (
    Account,
    account_behind,
    account_of,
    check_own,
    rootless_users,
    trusted_program,
    user_process,
    user_unit,
)
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.fake_docker import PID
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.rootless_hosts import (
    EXEC_START,
    FILE,
    GID,
    GROUP,
    HOME,
    RUNTIME,
    UID,
    UNIT,
    Rootless,
)

if t.TYPE_CHECKING:
    from pathlib import Path

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
ALICE = Account("alice", UID, GID, HOME)


@pytest.fixture
def docker(tmp_path: Path) -> Rootless:
    return Rootless(tmp_path)


# -- accounts --------------------------------------------------------------------------------------------------------


def test_the_account_comes_from_the_host(docker: Rootless) -> None:
    assert account_of(docker.host, "alice") == ALICE


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("bob", "no user bob"),
        ("root", "it is root"),
        ("homeless", "has no home"),
        ("", "not the name of a user"),
        ("../alice", "not the name of a user"),
        ("a/b", "not the name of a user"),
        ("-u", "not the name of a user"),
        ("alice\n", "not the name of a user"),
    ],
)
def test_no_such_user(docker: Rootless, user: str, words: str) -> None:
    with docker.path("/etc/passwd").open("a", encoding="utf-8") as stream:
        stream.write("homeless:x:1300:1300:::/bin/sh\n")
    with pytest.raises(GpufleetError, match=words):
        account_of(docker.host, user)


@pytest.mark.parametrize(
    "line", ["", "x", "bob:x:²:1:::", "bob:x:1:-1:::", "bob:x:99999999999:1:::/bin/sh", ":::::", "#"]
)
def test_lines_that_are_no_accounts(docker: Rootless, line: str) -> None:
    docker.write("/etc/passwd", f"{line}\nalice:x:{UID}:{GID}:Alice:{HOME}:/bin/sh\n")
    assert account_of(docker.host, "alice") == ALICE
    assert rootless_users(docker.host) == ["alice"]


def test_a_file_that_is_no_text(docker: Rootless) -> None:
    docker.path("/etc/passwd").write_bytes(b"\xff\xfe\0\n")
    assert rootless_users(docker.host) == []


def test_the_systems_own_lookup_is_only_for_the_machine_itself(
    monkeypatch: pytest.MonkeyPatch, docker: Rootless
) -> None:
    monkeypatch.setattr(HostRoot, "read_text", lambda *_words: "")
    with pytest.raises(GpufleetError, match="no user daemon"):
        account_of(docker.host, "daemon")
    with pytest.raises(GpufleetError, match="no user daemon"):
        account_of(HostRoot("/", live=False), "daemon")
    assert account_of(HostRoot("/", live=True), "daemon").name == "daemon"


# -- who has one -----------------------------------------------------------------------------------------------------


def _only_with(docker: Rootless, *made: str) -> list[str]:
    docker.path(UNIT).unlink()
    for path in made:
        docker.write(path)
    return rootless_users(docker.host)


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ([UNIT], ["alice"]),
        ([f"{RUNTIME}/docker.pid"], ["alice"]),
        ([f"{RUNTIME}/docker.sock"], ["alice"]),
        ([f"{RUNTIME}/systemd/private"], []),
        ([], []),
    ],
)
def test_who_has_one(docker: Rootless, made: list[str], found: list[str]) -> None:
    assert _only_with(docker, *made) == found


def _record(docker: Rootless, engine: str, user: str = "alice") -> None:
    path = f"/home/{user}/.config/docker/daemon.json"
    record = FileRecord(engine, path, None, UID, GID, 0o644)
    docker.write(record_path(engine, path), record.to_bytes().decode())


def test_whose_files_are_still_to_be_given_back(docker: Rootless) -> None:
    _record(docker, "docker")
    assert _only_with(docker) == []
    for user in ("alice", "gone", "root"):
        _record(docker, f"rootless-{user}", user)
    docker.write("/var/lib/gpufleet-nvidia/state/rootless-damaged.json", "{")
    assert rootless_users(docker.host) == ["alice"]
    docker.unit()
    assert rootless_users(docker.host) == ["alice"]


def test_records_are_only_read_where_there_may_be_a_users(docker: Rootless, monkeypatch: pytest.MonkeyPatch) -> None:
    _record(docker, "docker")
    monkeypatch.setattr(_rootless, "load_readable_records", lambda _host: pytest.fail("there is none of a user's"))
    assert _only_with(docker) == []


@pytest.mark.parametrize(("key", "account"), [("rootless-alice", ALICE), ("docker", None), ("unit-rootless-x", None)])
def test_in_whose_name_records_are_kept(docker: Rootless, key: str, account: Account | None) -> None:
    assert account_behind(docker.host, key) == account


def test_a_link_to_nowhere_is_a_unit(docker: Rootless) -> None:
    docker.path(UNIT).unlink()
    docker.link(UNIT, "/nix/store/x/docker.service")
    assert rootless_users(docker.host) == ["alice"]


def test_system_accounts_count_only_while_they_are_there(docker: Rootless) -> None:
    docker.write("/etc/passwd", "svc:x:900:900::/srv/svc:/bin/sh\nsvc:x:900:900::/srv/svc:/bin/sh\n")
    docker.write("/srv/svc/.config/systemd/user/docker.service")
    assert rootless_users(docker.host) == []
    docker.write("/run/user/900/bus")
    assert rootless_users(docker.host) == ["svc"]


def test_names_that_cannot_be_asked_for_are_left_out(docker: Rootless) -> None:
    docker.write("/etc/passwd", f"../x:x:{UID}:{GID}::{HOME}:/bin/sh\nroot2:x:0:0::{HOME}:/bin/sh\n")
    docker.write("/run/user/0/docker.pid")
    docker.write("/run/user/not-a-number")
    assert rootless_users(docker.host) == []


def test_a_loop_of_links_hides_nobody_else(docker: Rootless) -> None:
    docker.write("/etc/passwd", f"eve:x:1500:1500::/home/eve:/bin/sh\nalice:x:{UID}:{GID}::{HOME}:/bin/sh\n")
    docker.path("/home/eve").symlink_to("eve")
    assert rootless_users(docker.host) == ["alice"]


def test_nothing_is_looked_at_in_homes_of_system_accounts(docker: Rootless, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"s{uid}:x:{uid}:{uid}::/var/lib/s{uid}:/bin/false" for uid in range(100, 400)]
    docker.write("/etc/passwd", "\n".join(lines))
    looked: list[str] = []
    monkeypatch.setattr(HostRoot, "is_there", lambda _host, path: looked.append(path))
    assert (rootless_users(docker.host), looked) == ([], [])


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
def test_where_a_users_unit_may_stand(docker: Rootless, place: str) -> None:
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
def test_a_pid_file_that_is_none(docker: Rootless, text: str) -> None:
    docker.write(f"{RUNTIME}/docker.pid", text)
    assert _process(docker) is None


def test_a_pid_file_that_names_the_systems_daemon(docker: Rootless) -> None:
    docker.runs(f"{RUNTIME}/docker.pid", uid=0)
    assert _process(docker) is None


# -- whose files -----------------------------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize(
    ("made", "target"),
    [
        (FILE, "/etc/docker/daemon.json"),
        (f"{HOME}/.config/docker", "/etc/docker"),
        (f"{HOME}/.config/docker", "/etc/not-there-yet"),
        (FILE, "/etc/not-there-yet/daemon.json"),
        (FILE, "../../../../etc/docker/daemon.json"),
    ],
)
def test_a_link_to_roots_files(docker: Rootless, made: str, target: str) -> None:
    docker.write("/etc/docker/daemon.json", "{}")
    docker.link(made, target)
    with pytest.raises(GpufleetError, match=r"not changed for alice: /etc.* number 0"):
        check_own(docker.host, ALICE, FILE)


@needs_root
@pytest.mark.parametrize("theirs", [FILE, f"{HOME}/.config/docker", HOME])
def test_files_of_others_in_the_home(docker: Rootless, theirs: str) -> None:
    docker.write(FILE)
    check_own(docker.host, ALICE, FILE)
    for path in (FILE, f"{HOME}/.config/docker") if theirs == HOME else (theirs,):
        os.chown(docker.path(path), 1, 1)
    with pytest.raises(GpufleetError, match="the number 1, not to alice"):
        check_own(docker.host, ALICE, FILE)


def test_what_is_the_users_own(docker: Rootless) -> None:
    check_own(docker.host, ALICE, FILE)
    docker.write(f"{HOME}/dotfiles/docker/daemon.json", "{}")
    docker.link(f"{HOME}/.config/docker", "../dotfiles/docker")
    check_own(docker.host, ALICE, FILE)


@needs_root
def test_a_program_that_a_user_can_exchange_is_not_run(docker: Rootless) -> None:
    assert trusted_program(docker.host, "dockerd") == "/usr/bin/dockerd"
    docker.write(f"{HOME}/bin/dockerd", mode=0o755)
    docker.path("/usr/bin/dockerd").unlink()
    docker.link("/usr/bin/dockerd", f"{HOME}/bin/dockerd")
    assert trusted_program(docker.host, "dockerd") is None
    docker.write("/usr/libexec/docker/dockerd", mode=0o755)
    docker.link("/usr/sbin/dockerd", "../libexec/docker/dockerd")
    assert trusted_program(docker.host, "dockerd") == "/usr/libexec/docker/dockerd"
    os.chown(docker.path("/usr/libexec"), 1, 1)
    assert trusted_program(docker.host, "dockerd") is None


def test_a_link_to_another_program_is_not_run(docker: Rootless) -> None:
    docker.write("/usr/sbin/wipe-node.sh", mode=0o755)
    docker.link("/usr/sbin/dockerd", "wipe-node.sh")
    assert trusted_program(docker.host, "dockerd") is None


def test_a_program_that_is_not_there(docker: Rootless) -> None:
    assert trusted_program(docker.host, "dockerd-ce") is None


@pytest.mark.parametrize("place", ["/usr/bin/dockerd", "/usr/bin", "/usr"])
def test_a_program_that_many_can_write_is_not_run(docker: Rootless, place: str) -> None:
    assert trusted_program(docker.host, "dockerd") is not None
    docker.path(place).chmod(0o775)
    assert trusted_program(docker.host, "dockerd") is None
