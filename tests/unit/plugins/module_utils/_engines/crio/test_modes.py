# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_crio import (
    BUNDLED,
    DISTRIBUTION,
    DROP_IN,
    FOLDER,
    MAIN,
    NVIDIA,
    PACKAGED,
    Host,
    default,
    named,
    table,
)

# -- files -----------------------------------------------------------------------------------------------------------


def test_the_drop_in_is_below_the_directory_that_crio_reads() -> None:
    for path in (
        "/etc/crio/99.toml",
        f"{FOLDER}/../99.toml",
        f"{FOLDER}-old/99.toml",
        "/etc/crio/conf.d/99-nvidia.toml",
    ):
        with pytest.raises(NvidiaError, match=rf"is not below {FOLDER}, the only directory that CRI-O reads"):
            Host({}).present(drop_in_path=path)
    with pytest.raises(NvidiaError, match="is not below /opt/crio"):
        Host({}, "--config-dir", "/opt/crio").present(drop_in_path=DROP_IN)


def test_another_directory() -> None:
    host = Host({PACKAGED: named("crun"), "/opt/crio/10": default("kata") + named("kata")}, "-d", "/opt/crio")
    plan = host.present()
    assert plan.drop_in_path == "/opt/crio/99-nvidia.toml"
    assert host.runtime(path=plan.drop_in_path)["monitor_path"] == "kata"
    host.absent()
    assert sorted(host.files.content) == [PACKAGED, "/opt/crio/10"]


def test_no_directory() -> None:
    host = Host({DROP_IN: default("x")}, "--config-dir=")
    with pytest.raises(NvidiaError, match="Use config_mode: in_place"):
        host.present()
    host.present(config_mode="in_place")
    assert host.runtime(path=MAIN)["runtime_path"] == NVIDIA
    host.absent()
    assert list(host.files.content) == [DROP_IN]


def test_modes_change_places() -> None:
    host = Host({MAIN: DISTRIBUTION, PACKAGED: "# nothing\n"})
    before = dict(host.files.content)
    host.present(set_as_default=True)
    first = dict(host.files.content)
    plan = host.present(config_mode="in_place")
    assert DROP_IN not in host.files.content
    assert host.default(MAIN) == "nvidia"
    assert host.runtime(path=MAIN)["monitor_cgroup"] == "system.slice"
    # What stays is written before what goes, so that at no moment there is none.
    assert [file.path for file in plan.files] == [MAIN, DROP_IN]
    plan = host.present()
    assert [file.path for file in plan.files] == [DROP_IN, MAIN]
    assert host.files.content == first
    other = f"{FOLDER}/98-gpu"
    host.present(drop_in_path=other)
    assert DROP_IN not in host.files.content
    assert host.default(other) == "nvidia"
    host.absent()
    assert host.files.content == before


def test_an_entry_that_moves_leaves_what_others_put_into_it() -> None:
    """It would come with the first run and go with the second."""
    host = Host({MAIN: DISTRIBUTION})
    host.present(config_mode="in_place")
    host.edit(MAIN, f'runtime_path = "{NVIDIA}"', f'runtime_path = "{NVIDIA}"\nof_mine = 1')
    host.present()
    assert "of_mine" not in host.runtime()
    assert host.runtime(path=MAIN) is None
    assert host.present().action is Action.NONE


def test_a_wrong_type_stops_what_writes_but_not_what_takes_out() -> None:
    host = Host({PACKAGED: BUNDLED})
    host.present()
    host.files.put(PACKAGED, "[crio.runtime.runtimes.x]\nruntime_path = 1\n")
    with pytest.raises(ConfigurationError, match=rf"^{PACKAGED}, line 2, column 1: .* Write the path in quotes\."):
        host.present()
    host.absent()
    assert DROP_IN not in host.files.content


@pytest.mark.parametrize("folder", [FOLDER, f"{FOLDER}/99-site.d"])
@pytest.mark.parametrize("mode", ["drop_in", "in_place"])
def test_a_later_table_of_the_same_name_is_refused(mode: str, folder: str) -> None:
    later = f"{folder}/99-other.conf"
    host = Host({later: "# theirs\n" + table("nvidia-cdi", runtime_path=f'"{NVIDIA}.cdi"')})
    host.present(config_mode=mode)
    with pytest.raises(ConfigurationError, match=f"{later}, line 2, column 1: .* Remove this table, or ") as caught:
        host.present(config_mode=mode, extra_modes=("cdi",))
    advice = {
        "drop_in": f"set drop_in_path to a file in {folder} whose name sorts after 99-other.conf",
        "in_place": "remove config_mode",
    }
    assert advice[mode] in str(caught.value)
    host.present(drop_in_path=f"{folder}/99-z.conf", extra_modes=("cdi",))


def test_an_unrecorded_drop_in_hides_what_is_in_place() -> None:
    with pytest.raises(ConfigurationError, match=f"{DROP_IN}, line 1"):
        Host({DROP_IN: table("nvidia", runtime_path='"/x"')}).present(config_mode="in_place")


@pytest.mark.parametrize("mode", ["drop_in", "in_place"])
def test_a_later_default_is_refused(mode: str) -> None:
    later = f"{FOLDER}/99-other.conf"
    host = Host({MAIN: BUNDLED, later: default("runc")})
    with pytest.raises(ConfigurationError, match=f"{later}, line 2, column 1: CRI-O reads this default_runtime"):
        host.present(config_mode=mode, set_as_default=True)
    # Nobody asked for it here.
    assert host.present(config_mode=mode).state.default_runtime == "runc"
    host.files.put(later, default("nvidia"))
    assert host.present(config_mode=mode, set_as_default=True).state.default_runtime == "nvidia"


def test_flags_that_take_precedence_are_refused() -> None:
    host = Host({MAIN: BUNDLED}, "--default-runtime", "runc", "--runtimes", "nvidia-cdi:/x")
    with pytest.raises(NvidiaError, match=r"/lib/crio\.service: the flag --default-runtime=runc overrides all files"):
        host.present(set_as_default=True)
    with pytest.raises(NvidiaError, match="the flag --runtimes defines nvidia-cdi"):
        host.present(extra_modes=("cdi",))
    assert host.present().state.default_runtime == "runc"
    host = Host({MAIN: BUNDLED}, "--default-runtime=nvidia")
    host.present(set_as_default=True)
    with pytest.raises(NvidiaError, match=r"/lib/crio\.service: the default runtime is nvidia"):
        host.absent()
