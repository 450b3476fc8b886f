# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Keys in other spellings, programs that are missing, and files with which CRI-O does not start.

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import digest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio.config import RUNTIMES
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


def test_other_spellings_are_read() -> None:
    other = RUNC.replace("runtime_path", "Runtime_Path").replace("monitor_path", "MONITOR_PATH")
    host = Host({SITE: other + "[Crio.Runtime]\nDefault_Runtime = 'runc'\nCDI_Spec_Dirs = []\n"})
    state = CRIO.configured(host.planner().context)
    assert (state.paths(), state.default_runtime, state.cdi) == ({"runc": "/usr/bin/runc"}, "runc", False)
    host.present()
    assert 'monitor_path = "/usr/bin/conmon"' in host.text(DROP_IN)
    assert host.present().action is Action.NONE
    host.absent()
    assert DROP_IN not in host.files.content


@pytest.mark.parametrize(
    "text",
    [
        RUNC + 'Runtime_Path = "/x"\n',
        "[crio.runtime]\ndefault_runtime = 'runc'\nDefault_Runtime = 'crun'\n",
        table("nvidia", allowed_annotations='["a"]', Allowed_Annotations='["b"]'),
        "[crio.runtime]\ncdi_spec_dirs = []\nCDI_SPEC_DIRS = ['/x']\n",
        RUNC + "[crio.Runtime.runtimes.runc]\nruntime_path = '/x'\n",
        # The entry of one map replaces that of the other one, whatever keys they have.
        RUNC + "[crio.runtime.Runtimes.runc]\nmonitor_cgroup = 'pod'\n",
        RUNC + "[Crio.runtime.runtimes.runc]\nmonitor_cgroup = 'pod'\n",
    ],
)
def test_undefined_order_is_refused(text: str) -> None:
    host = Host({SITE: text})
    for act in (host.present, lambda: CRIO.configured(host.planner().context)):
        with pytest.raises(ConfigurationError, match=rf"^{SITE}, line \d+, column \d+: .* it is undefined"):
            act()
    assert host.absent().action is Action.NONE


def test_files_and_equal_values_are_no_question_of_order() -> None:
    texts = {SITE: default("runc"), f"{FOLDER}/11.conf": default("crun").replace("default", "Default")}
    assert CRIO.configured(Host(texts).planner().context).default_runtime == "crun"
    host = Host({SITE: default("runc") + 'Default_Runtime = "runc"\n'})
    assert CRIO.configured(host.planner().context).default_runtime == "runc"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[crio.runtime]\nDefault_Runtime = 'runc'\n", 2),
        (table("nvidia", Runtime_Path='"/x"'), 2),
        ("[CRIO.runtime]\n", 1),
    ],
)
def test_other_spelling_beside_own_keys_is_refused(text: str, line: int) -> None:
    host = Host({MAIN: text})
    with pytest.raises(ConfigurationError, match=rf"^{MAIN}, line {line}, .* Rename it to"):
        host.present(config_mode="in_place", set_as_default=True)
    # In another file, CRI-O decodes own keys on their own.
    host.present(set_as_default=True)
    assert CRIO.configured(host.planner().context).default_runtime == "nvidia"


@pytest.mark.parametrize("files", [{}, {SITE: RUNC + default("runc")}])
@pytest.mark.parametrize("mode", ["drop_in", "in_place"])
def test_other_spelling_of_an_option(files: dict[str, str], mode: str) -> None:
    host = Host(files)
    options = {"Monitor_Path": "/x", "Default_Annotations": {"A": "b"}}
    asked: dict[str, t.Any] = {"config_mode": mode, "runtime_options": options}
    path = DROP_IN if mode == "drop_in" else MAIN
    for _run in range(2):
        host.present(**asked)
        entries = {"monitor_path": "/x", "default_annotations": {"A": "b"}}
        assert host.runtime(path=path) == {"runtime_path": NVIDIA, "runtime_type": "oci", **entries}
    assert host.present(**asked).action is Action.NONE
    host.absent()
    assert list(host.files.content) == list(files)


@pytest.mark.parametrize("asked", [{}, {"runtime_options": {"monitor_path": "/x"}}])
@pytest.mark.parametrize("spelled", [("monitor_path", "Monitor_Path"), ("Monitor_Path",)])
def test_own_entries_in_another_spelling_are_replaced(spelled: tuple[str, ...], asked: dict[str, t.Any]) -> None:
    """Earlier releases wrote runtime_options in the spelling of the task."""
    host = Host({SITE: RUNC + default("runc")})
    host.present()
    record = host.files.records[DROP_IN]
    lines = "".join(f'{name} = "/{name}"\n' for name in spelled)
    text = host.text().replace('monitor_path = "/usr/bin/conmon"\n', lines)
    keys = {key: value for key, value in (record.keys or {}).items() if key[-1] != "monitor_path"}
    keys.update({(*RUNTIMES, "nvidia", name): f"/{name}" for name in spelled})
    host.files.put(DROP_IN, text)
    host.files.records[DROP_IN] = record._replace(keys=keys, written=(digest(text.encode()),))
    host.present(**asked)
    expected = asked.get("runtime_options", {}).get("monitor_path", "/usr/bin/conmon")
    assert host.runtime() == {"runtime_path": NVIDIA, "runtime_type": "oci", "monitor_path": expected}
    host.absent()
    assert list(host.files.content) == [SITE]


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
