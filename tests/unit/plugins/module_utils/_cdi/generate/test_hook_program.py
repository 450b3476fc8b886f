# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The native generator writes only hooks that the host's hook program has."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate.hook_program import commands_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import CHMOD, HOOKS, CdiOptions, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.write import SpecWriter
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.cdi_hosts import HOOK, CdiHost
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import needs_root

if t.TYPE_CHECKING:
    from pathlib import Path

# The hooks of nvidia-cdi-hook 1.17.8, 1.18.0 and 1.20.0, in the order of their help.
IN_1_17 = ("update-ldcache", "create-symlinks", "chmod", "enable-cuda-compat")
IN_1_18 = (*IN_1_17, "disable-device-node-modification")
IN_1_20 = (*IN_1_18, "update-application-profile")
# The flags of hooks in nvidia-cdi-hook 1.16.0 or in the first release of the hook.
OLD_FLAGS = {
    "update-ldcache": {"--folder", "--ldconfig-path"},
    "create-symlinks": {"--link"},
    "chmod": {"--mode", "--path"},
    "enable-cuda-compat": {"--host-driver-version"},
}


def help_of(names: t.Sequence[str], title: str = "COMMANDS", last: str = "GLOBAL OPTIONS") -> str:
    """Return a help in the layout of urfave/cli 2.27.5 and 3.10.1."""
    width = max(map(len, [*names, "help, h"])) + 2
    commands = "".join(f"   {name:{width}}Does its part: {name}, and more.\n" for name in [*names, "help, h"])
    start = "NAME:\n   CDI - Runs hooks\n\nUSAGE:\n   CDI [options] command\n\nVERSION:\n   1.17.8\n   commit: 0a1\n"
    return f"{start}\n{title}:\n{commands}\n{last}:\n   --debug, -d    More messages\n   --help, -h     Help\n"


CATEGORIES = """\
COMMANDS:

   first:
     create-symlinks\tLinks
     update-ldcache\tThe cache

   second:
     chmod, c\tModes
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (help_of(IN_1_17), [*IN_1_17, "help"]),
        (help_of(IN_1_20, last="OPTIONS"), [*IN_1_20, "help"]),
        (CATEGORIES, ["create-symlinks", "update-ldcache", "chmod"]),
        (help_of(IN_1_17).replace("\n", "\r\n"), [*IN_1_17, "help"]),
        (help_of(IN_1_17, title="TOPICS"), []),
        ("COMMANDS:\n          a description that goes on\n", []),
        ("", []),
    ],
)
def test_commands_of_a_help(text: str, names: list[str]) -> None:
    assert commands_of(text) == names


@pytest.fixture
def host(tmp_path: Path) -> CdiHost:
    host = CdiHost(tmp_path / "host")
    host.live = True
    return host


def written(host: CdiHost, **request: t.Any) -> tuple[set[str], list[str]]:
    """Write the specification, and return the names of its hooks and the limits of the result."""
    result = host.cdi(request=Request(**request), use_nvml=False)
    document = host.document()
    parts = [document, *document["devices"]]
    found = [hook for part in parts for hook in part["containerEdits"].get("hooks", ())]
    at = 2 if found[0]["path"].endswith("ctk") else 1
    assert {hook["args"][at - 1] for hook in found} == {"hook" if at == 2 else "nvidia-cdi-hook"}
    return {hook["args"][at] for hook in found}, result["limits"]


@needs_root
@pytest.mark.parametrize("program", [HOOK, "/opt/toolkit/nvidia-ctk"])
@pytest.mark.parametrize(("known", "lacks"), [(IN_1_17, IN_1_20[4:]), (IN_1_18, IN_1_20[5:]), (IN_1_20, ())])
def test_only_known_hooks(host: CdiHost, program: str, known: tuple[str, ...], lacks: tuple[str, ...]) -> None:
    host.program(program)
    host.commands[program] = (0, help_of(known), "")
    hooks, limits = written(host, cdi_hook_path=program)
    assert hooks == {*known} - {CHMOD}
    assert [all(name in limit for name in lacks) for limit in limits] == [True] * bool(lacks)
    assert [program, *(["hook"] if program != HOOK else []), "--help"] in host.ran


@needs_root
def test_the_message_comes_once(host: CdiHost) -> None:
    host.commands[HOOK] = (0, help_of(IN_1_17), "")
    first = host.cdi(use_nvml=False)
    assert any("is without the hook" in warning for warning in first["warnings"])
    second = host.cdi(use_nvml=False)
    assert not second["changed"]
    assert second["warnings"] == []
    # A newer toolkit is installed.
    host.commands[HOOK] = (0, help_of(IN_1_20), "")
    third = host.cdi(use_nvml=False)
    assert third["changed"]
    assert third["limits"] == []


@needs_root
@pytest.mark.parametrize(
    ("known", "request_", "named"),
    [
        (("chmod",), {}, "create-symlinks.*update-ldcache"),
        (("create-symlinks",), {}, "update-ldcache"),
        (IN_1_17, {"enabled_hooks": (IN_1_20[5],)}, IN_1_20[5]),
    ],
)
def test_a_needed_hook_is_unknown(
    host: CdiHost, known: tuple[str, ...], request_: dict[str, t.Any], named: str
) -> None:
    host.commands[HOOK] = (0, help_of(known), "")
    with pytest.raises(HostError, match=f"does not have the hook {named}"):
        host.cdi(request=Request(**request_), use_nvml=False)
    assert not host.has("/etc/cdi/nvidia.yaml")


@needs_root
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((0, "", ""), "exit status 0"),
        ((1, help_of(IN_1_17), "no memory\n"), "no memory"),
        ((126, "", "cannot be run: Exec format error"), "Exec format error"),
        (None, "offline"),
    ],
)
def test_a_program_that_cannot_be_asked(host: CdiHost, answer: tuple[int, str, str] | None, reason: str) -> None:
    host.live = answer is not None
    host.commands = {HOOK: answer} if answer else {}
    hooks, (limit,) = written(host)
    assert hooks == {*HOOKS} - {CHMOD}
    assert reason in limit
    assert "--help" in limit


@needs_root
def test_a_program_that_is_not_asked(host: CdiHost) -> None:
    host.cdi(request=Request(hooks="none"), use_nvml=False)
    # No other user may decide what root runs.
    program = host.path / HOOK[1:]
    program.chmod(0o777)
    with pytest.raises(HostError, match="could replace"):
        host.cdi(use_nvml=False)
    assert host.ran == []
    # Check mode does not run a program that an earlier task would install.
    program.unlink()
    predicted = host.host().with_programs("1.20.0", [HOOK])
    options = CdiOptions(state="present", use_nvml=False)
    assert SpecWriter(options, predicted, host.run, host.pinned).execute(check_mode=True)["limits"] == []
    assert host.ran == []


@needs_root
def test_flags_that_every_release_of_a_hook_has(host: CdiHost) -> None:
    host.program("/sbin/ldconfig")
    host.cdi(request=Request(ldconfig_path="/sbin/ldconfig", enabled_hooks=(CHMOD,)), use_nvml=False)
    document = host.document()
    for part in (document, *document["devices"]):
        for hook in part["containerEdits"].get("hooks", ()):
            name, *arguments = hook["args"][1:]
            flags = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
            assert flags <= OLD_FLAGS.get(name, set()), name
