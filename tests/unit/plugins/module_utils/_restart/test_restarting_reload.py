# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_systemd import FILE, FakeSystemd
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.restarts import (
    NVIDIA,
    OLD,
    Signalled,
    configure,
    failure,
    only,
    restart,
)

# -- a reload --------------------------------------------------------------------------------------------------------


def test_a_reload_without_effect_is_tried_again_and_then_taken_back(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.ends = only("nvidia", "deaf")
    message, done = failure(systemd, action="reload", rollback=changes, retries=2)
    assert len(systemd.done("systemctl reload")) == 4
    assert not systemd.done("systemctl restart")
    assert done.state == "rolled_back"
    assert "it runs with something else" in message


def test_a_reload_that_has_done_what_the_files_say_is_not_waited_for(systemd: FakeSystemd) -> None:
    """Others have changed the file meanwhile, so that it will never be what was expected."""
    changes = configure(systemd)
    systemd.docker.write(FILE, OLD)
    _message, done = failure(systemd, action="reload", expect=NVIDIA, rollback=changes, retries=3)
    assert done.attempts == 1


def half(systemd: FakeSystemd) -> t.Callable[[str], str]:
    """A reload that takes the runtime, but not the default."""

    def end(text: str) -> str:
        if "nvidia" in text and not systemd.done("systemctl restart"):
            systemd.docker.info["Runtimes"] = {"runc": {"path": "runc"}, "nvidia": {"path": "/usr/bin/x"}}
            return "deaf"
        return "active"

    return end


def test_what_a_reload_cannot_take_back_a_restart_does_if_it_disturbs_nobody(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.ends = half(systemd)
    _message, done = failure(systemd, action="reload", rollback=changes)
    assert systemd.done("systemctl restart")
    assert done.state == "rolled_back"


def test_what_a_reload_cannot_take_back_stays_if_a_restart_would_stop_containers(systemd: FakeSystemd) -> None:
    systemd.docker.info["LiveRestoreEnabled"] = False
    systemd.docker.containers.append({"Names": ["/web"]})
    changes = configure(systemd)
    systemd.ends = half(systemd)
    message, done = failure(systemd, action="reload", rollback=changes)
    assert not systemd.done("systemctl restart")
    assert done.state == "unknown"
    assert "The health of docker cannot be determined: it runs with something else" in message
    assert systemd.text == OLD


def test_a_signal_goes_to_the_main_process_of_the_unit(systemd: FakeSystemd, signalled: Signalled) -> None:
    changes = configure(systemd)
    signalled.answering[:] = [5]
    done = restart(systemd, action="reload", mode="signal", rollback=changes, expect=NVIDIA)
    assert (done.state, done.mode, signalled.got) == ("applied", "signal", [4711])


def test_behind_a_wrapper_it_goes_to_the_one_that_answers(systemd: FakeSystemd, signalled: Signalled) -> None:
    changes = configure(systemd)
    signalled.daemons[:], signalled.answering[:] = [5, 6], [6]
    assert restart(systemd, action="reload", mode="signal", rollback=changes).state == "applied"
    assert signalled.got == [6]


def test_without_systemd_a_reload_is_a_signal(systemd: FakeSystemd, signalled: Signalled) -> None:
    systemd.docker.path("/run/systemd/system").rmdir()
    configure(systemd)
    assert restart(systemd, action="reload").mode == "signal"
    assert signalled.got == [4711]
    with pytest.raises(NvidiaError, match="cannot be restarted"):
        restart(systemd)
    with pytest.raises(NvidiaError, match="cannot be restarted"):
        restart(systemd, action="reload", mode="systemd")


def test_nobody_that_is_not_the_engine_gets_a_signal(systemd: FakeSystemd, signalled: Signalled) -> None:
    changes = configure(systemd)
    signalled.daemons.clear()
    message, done = failure(systemd, action="reload", mode="signal", rollback=changes)
    assert "so none gets a signal" in message
    assert not signalled.got
    assert systemd.text == OLD
    # It was never told of the other file.
    assert (done.state, done.attempts) == ("rolled_back", 0)
