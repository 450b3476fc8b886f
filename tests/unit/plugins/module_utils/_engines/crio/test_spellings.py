# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Keys in another case, programs that are missing, and files with which CRI-O does not start.

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio.engine import CRIO
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_crio import (
    DROP_IN,
    FOLDER,
    MAIN,
    NVIDIA,
    Host,
    default,
    table,
)

SITE = f"{FOLDER}/10-site.conf"
LATER = f"{FOLDER}/zz.conf"
RUNC = table("runc", runtime_path='"/usr/bin/runc"', monitor_path='"/usr/bin/conmon"')


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[crio.runtime]\nDefault_Runtime = 'runc'\n", 2),
        ("[crio.runtime]\ndefault_runtime = 'runc'\nDefault_Runtime = 'crun'\n", 3),
        ("[CRIO.runtime]\n", 1),
        ("[crio.runtime]\nCDI_Spec_Dirs = []\n", 2),
        (RUNC.replace("runtime_path", "Runtime_Path"), 2),
        (RUNC + "[crio.runtime.Runtimes.runc]\nmonitor_cgroup = 'pod'\n", 4),
    ],
)
@pytest.mark.parametrize("path", [MAIN, SITE, LATER])
def test_key_in_another_case_is_refused(path: str, text: str, line: int) -> None:
    host = Host({path: text})
    for act in (host.present, lambda: CRIO.configured(host.planner().context)):
        with pytest.raises(ConfigurationError, match=rf"^{path}, line {line}, .* in case only, .* Rename it to"):
            act()
    assert host.absent().action is Action.NONE


def test_option_in_another_case_is_refused() -> None:
    with pytest.raises(NvidiaError, match=r"^runtime_options: Monitor_Path differs from monitor_path in case only"):
        Host({}).present(runtime_options={"Monitor_Path": "/x"})


def test_names_of_runtimes_are_exact() -> None:
    host = Host({SITE: table("NVIDIA", runtime_path='"/x"')})
    host.present()
    assert CRIO.configured(host.planner().context).paths() == {"NVIDIA": "/x", "nvidia": NVIDIA}


@pytest.mark.parametrize(
    ("version", "programs", "refused"),
    [
        ((1, 18, 0), (), True),
        ((1, 20, 0), (), True),
        ((1, 20, 0), (NVIDIA,), False),
        ((1, 21, 0), (), False),
        (None, (), False),
    ],
)
def test_missing_program(version: t.Any, programs: tuple[str, ...], refused: bool) -> None:
    main = '[crio.runtime]\ndefault_runtime = "runc"\n[crio.runtime.runtimes.runc]\nruntime_path = "/usr/bin/runc"\n'
    host = Host({MAIN: main, **dict.fromkeys(programs, "")})
    host.version = version
    before = dict(host.files.content)
    if refused:
        with pytest.raises(
            NvidiaError,
            match=rf"^{DROP_IN} was not changed, because CRI-O 1\.\d+\.0 does not start .*{NVIDIA}.* to 1\.21 or newer",
        ):
            host.present()
        assert host.files.content == before
    else:
        host.present()
        assert DROP_IN in host.files.content
        host.absent()
    assert host.files.content == before


def test_empty_default_runtime_in_a_later_file() -> None:
    host = Host({LATER: default("")})
    with pytest.raises(
        ConfigurationError, match=rf"^{LATER}, line 2, column 1: CRI-O reads this default_runtime = '' "
    ):
        host.present(set_as_default=True)


@pytest.mark.parametrize("version", [(1, 20, 9), (1, 25, 0), (1, 25, 1), (1, 36, 3), None])
@pytest.mark.parametrize("texts", [{}, {SITE: RUNC}, {SITE: RUNC + default("runc")}])
def test_another_default_removes_runc(texts: dict[str, str], version: tuple[int, ...] | None) -> None:
    host = Host({**texts, NVIDIA: ""}, version=version)
    before = dict(host.files.content)
    if version is not None and version < (1, 25, 1):
        with pytest.raises(NvidiaError, match=r"^CRI-O 1\.2.* removes the runtime runc .* upgrade CRI-O to 1\.25\.1"):
            host.present(set_as_default=True)
        assert host.files.content == before
        # A file that CRI-O reads later defines it again.
        host.files.put(LATER, RUNC)
    host.present(set_as_default=True)
    state = CRIO.configured(host.planner().context)
    assert state.default_runtime == "nvidia"
    assert state.paths().get("runc") == ("/usr/bin/runc" if LATER in host.files.content or texts else None)


def test_runtimes_that_another_default_removed() -> None:
    # The answers of `crio config` of 1.20.9.
    texts = {SITE: RUNC + default("crun") + table("crun", runtime_path='"/usr/bin/crun"')}
    assert CRIO.configured(Host(texts, version=(1, 20, 9)).planner().context).paths() == {"crun": "/usr/bin/crun"}
    host = Host({**texts, LATER: default("runc"), NVIDIA: ""}, version=(1, 20, 9))
    with pytest.raises(ConfigurationError, match=rf"^{LATER}, line 2, .*the default runtime 'runc' has no table"):
        host.present()
