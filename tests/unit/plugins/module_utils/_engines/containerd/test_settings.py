# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The default runtime and CDI, which stand once for all runtimes.

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_configs import of_file
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import (
    CRI_2,
    Host,
    default,
    runtime,
)

V2 = "version = 2\n"
V16, V17, V20, V21, V24 = (1, 6, 20), (1, 7, 24), (2, 0, 0), (2, 1, 9), (2, 4, 0)
RUNC = runtime("runc", SystemdCgroup="true")


# -- the default -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V17, V21])
@pytest.mark.parametrize("mode", ["in_place", "drop_in"])
@pytest.mark.parametrize("former", [None, "runc", "crun"])
class TestDefault:
    def host(self, former: str | None, version: tuple[int, ...]) -> Host:
        text = V2 + RUNC + runtime("crun", "/usr/bin/crun") + (default(former) if former else "")
        return Host(text, version)

    def test_comes_stays_and_goes(self, former: str | None, mode: str, version: tuple[int, ...]) -> None:
        host = self.host(former, version)
        host.present(config_mode=mode)
        assert host.default == former
        host.present(config_mode=mode, set_as_default=True)
        assert host.default == "nvidia"
        host.present(config_mode=mode, extra_modes=("cdi",))
        assert host.default == "nvidia"
        host.present(config_mode=mode, set_as_default=False)
        assert host.default == former
        assert "nvidia" in host.runtimes

    def test_goes_with_its_runtime(self, former: str | None, mode: str, version: tuple[int, ...]) -> None:
        host = self.host(former, version)
        host.present(config_mode=mode, set_as_default=True)
        plan = host.present(config_mode=mode, runtime_name="gpu")
        # A snapshot takes the former one over with all the rest.
        without_warning = mode == "drop_in" and version == V17 and former is not None
        words = f"no longer defined. The default runtime is now {former or 'runc'}."
        assert [words in warning for warning in plan.warnings] == ([] if without_warning else [True])
        assert host.default == former
        assert list(host.runtimes) == ["runc", "crun", "gpu"]

    def test_moves_to_another_name(self, former: str | None, mode: str, version: tuple[int, ...]) -> None:
        host = self.host(former, version)
        host.present(config_mode=mode, set_as_default=True)
        host.present(config_mode=mode, runtime_name="nvidia-cdi", set_as_default=True)
        assert host.default == "nvidia-cdi"
        host.absent()
        assert host.default == former

    def test_of_others_is_left(self, former: str | None, mode: str, version: tuple[int, ...]) -> None:
        host = self.host(former, version)
        host.present(config_mode=mode, set_as_default=False)
        assert host.default == former


def test_a_default_that_its_user_chose_goes_with_the_runtime() -> None:
    host = Host(V2 + RUNC + default("runc"), V17)
    host.present()
    host.edit('name = "runc"', 'name = "nvidia"')
    plan = host.absent()
    assert host.default == "runc"
    assert "no longer defined. The default runtime is now runc" in plan.warnings[0]


@pytest.mark.parametrize("version", [None, V17, V21])
@pytest.mark.parametrize("name", ["missing", ""])
def test_refuses_an_undefined_default(name: str, version: tuple[int, ...] | None) -> None:
    host = Host(V2 + RUNC + default(name), version)
    with pytest.raises(
        NvidiaError, match=rf"config.toml: default_runtime_name is '{name}', but no file defines this runtime"
    ):
        host.present()
    host.present(set_as_default=True)
    assert host.default == "nvidia"
    host.absent()
    assert host.text() == V2 + RUNC + default(name)


@pytest.mark.parametrize("version", [V17, V21])
def test_a_default_that_was_undefined_before_is_so_again(version: tuple[int, ...]) -> None:
    """What a file was comes back to the byte, also where somebody had prepared it for us."""
    host = Host(V2 + RUNC + default("nvidia"), version)
    host.present(config_mode="in_place")
    host.absent()
    assert host.text() == V2 + RUNC + default("nvidia")


@pytest.mark.parametrize("version", [None, V16, V17])
def test_refuses_to_set_the_default_beside_the_legacy_table(version: tuple[int, ...] | None) -> None:
    table = CRI_2.replace("]", ".containerd.default_runtime]") + 'runtime_type = "io.containerd.runc.v2"\n'
    host = Host(V2 + table, version)
    with pytest.raises(NvidiaError, match=r"config.toml: in containerd 1.x the table default_runtime has precedence"):
        host.present(set_as_default=True)
    host.present()
    # As `containerd config default` prints it, it is empty and means nothing.
    empty = Host(of_file("1.7"), version)
    empty.present(set_as_default=True)
    assert empty.default == "nvidia"
    newer = Host(V2 + table, V21)
    newer.present(set_as_default=True)
    assert newer.default == "nvidia"


# -- CDI -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["in_place", "drop_in"])
@pytest.mark.parametrize(
    ("version", "text", "asked", "expected"),
    [
        # What stands in the files, what containerd makes of it, and what is said about it.
        (None, "", True, (True, None, None)),
        (None, "", False, (False, None, None)),
        (V16, "", True, (None, None, "containerd 1.6.20 does not support CDI")),
        (V17, "", None, (None, False, None)),
        (V17, "", True, (True, True, None)),
        (V17, "", False, (False, False, None)),
        (V20, "", True, (None, True, None)),
        (V21, "", True, (None, True, None)),
        (V21, "", False, (False, False, None)),
        (V21, "enable_cdi = false\n", True, (True, True, None)),
        (V21, "enable_cdi = false\n", None, (False, False, None)),
        (V24, "", True, (None, True, None)),
        (V24, "", False, (False, False, None)),
        (V24, "enable_cdi = false\n", None, (False, False, None)),
        (None, "", "auto", (None, None, None)),
        (V16, "", "auto", (None, None, None)),
        (V17, "", "auto", (True, True, None)),
        # As `containerd config default` of 1.7 prints it.
        (V17, "enable_cdi = false\n", "auto", (True, True, None)),
        (V20, "", "auto", (None, True, None)),
        (V24, "", "auto", (None, True, None)),
        (V24, "enable_cdi = false\n", "auto", (False, False, None)),
    ],
)
def test_cdi(
    version: tuple[int, ...] | None,
    text: str,
    asked: bool | str | None,
    expected: tuple[bool | None, bool | None, str | None],
    mode: str,
) -> None:
    written, state, words = expected
    host = Host(V2 + CRI_2 + text, version)
    plan = host.present(config_mode=mode, enable_cdi=asked)
    assert host.effect.cri().get("enable_cdi") is written
    assert plan.state.cdi is state
    assert [words in warning for warning in plan.warnings if words] == ([True] if words else [])
    assert words or not plan.warnings
    assert host.present(config_mode=mode, enable_cdi=asked).action is Action.NONE


@pytest.mark.parametrize("mode", ["in_place", "drop_in"])
@pytest.mark.parametrize("version", [V17, V21])
def test_cdi_goes_back_and_forth(version: tuple[int, ...], mode: str) -> None:
    host = Host(V2, version)
    asked: bool | str | None
    for asked, effective in (
        (False, False), (True, True), (True, True), (None, True), (False, False), (None, False), ("auto", True),
        (None, True),
    ):  # fmt: skip
        host.present(config_mode=mode, enable_cdi=asked)
        assert host.plan(config_mode=mode).state.cdi is effective
        assert host.plan(config_mode=mode, enable_cdi=asked).action is Action.NONE
    host.absent()
    assert host.text() == V2


def test_cdi_in_version_1_stands_where_containerd_1_7_reads_it() -> None:
    host = Host("[plugins.cri]\n", V17)
    host.present(enable_cdi=True)
    assert host.effect.main.value("plugins", "cri", "enable_cdi") is True
