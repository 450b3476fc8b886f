# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import sys
import time
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate.generate import (
    find_program,
    generate_all_with,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import NO_GIDS, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._module import pinned_runner

if t.TYPE_CHECKING:
    from pathlib import Path

PROGRAM = "/usr/bin/nvidia-ctk"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOST = HostFS()
OFFLINE = HostFS("/", False)
DOCUMENT: dict[str, t.Any] = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
    "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
}
# The flags for the default request.
PINNED = [
    *("--output", ""),
    "--format=json",
    "--mode=nvml",
    "--vendor=nvidia.com",
    "--class=gpu",
    "--driver-root=/",
    "--dev-root=/",
    "--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook",
    *("--ldconfig-path", ""),
]
NAMES = ["--device-name-strategy=index", "--device-name-strategy=uuid"]
NO_SOCKETS = "--feature-flag=disable-ipc-discoverer"


class Generator:
    """A runner that returns the output of nvidia-ctk, and records its calls."""

    def __init__(
        self, output: str = json.dumps(DOCUMENT), errors: str = "", status: int = 0, version: str = "1.20.0"
    ) -> None:
        self.calls: list[list[str]] = []
        self._version = f"NVIDIA Container Toolkit CLI version {version}\ncommit: 5505e2f1b2.3\n"
        self._answer = (status, output, errors)

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        self.calls.append(argv)
        return (0, self._version, "") if "--version" in argv else self._answer

    @property
    def flags(self) -> list[str]:
        """The flags of the last call."""
        argv = self.calls[-1]
        return argv[argv.index("generate") + 1 :]


def flags_of(request: Request | None = None, mode: str = "nvml", version: str = "1.20.0") -> list[str]:
    run = Generator(version=version)
    assert generate_all_with(PROGRAM, mode, request or Request(), run, HOST) == {"": DOCUMENT}
    return run.flags


def refusal(run: Generator, mode: str = "nvml", request: Request | None = None) -> str:
    with pytest.raises(HostError) as caught:
        generate_all_with(PROGRAM, mode, request or Request(), run, HOST)
    return str(caught.value)


# -- the call ----------------------------------------------------------------------------------------------------------


def test_arguments() -> None:
    run = Generator()
    generate_all_with(PROGRAM, "nvml", Request(), run, HOST)
    version, argv = run.calls
    assert version == [PROGRAM, "--version"]
    assert argv == [PROGRAM, "--quiet", "cdi", "generate", *PINNED, *NAMES, NO_SOCKETS]


@pytest.mark.parametrize(
    ("request_", "flags"),
    [
        (Request(vendor="example.com"), ["--vendor=example.com"]),
        (Request(class_="x"), ["--class=x"]),
        (
            Request(driver_root="/run/nvidia/driver"),
            ["--driver-root=/run/nvidia/driver", "--dev-root=/run/nvidia/driver"],
        ),
        (Request(driver_root="/drv/", dev_root="/"), ["--driver-root=/drv", "--dev-root=/"]),
        (Request(cdi_hook_path="/opt/t/nvidia-ctk"), ["--nvidia-cdi-hook-path=/opt/t/nvidia-ctk"]),
        (Request(ldconfig_path="/sbin/ldconfig.real"), ["--ldconfig-path=/sbin/ldconfig.real"]),
        (Request(device_name_strategies=("type-index",)), ["--device-name-strategy=type-index"]),
        (Request(library_search_paths=("/a", "/b")), ["--library-search-path=/a", "--library-search-path=/b"]),
        (Request(config_search_paths=("/c",)), ["--config-search-path=/c"]),
        (Request(csv_files=("/a.csv", "/b.csv")), ["--csv.file=/a.csv", "--csv.file=/b.csv"]),
        (Request(csv_ignore_patterns=("*.so", "/x")), ["--csv.ignore-pattern=*.so", "--csv.ignore-pattern=/x"]),
        (Request(csv_compat_container_root="/opt/compat/"), ["--csv.compat-container-root=/opt/compat"]),
        (Request(disabled_hooks=("chmod", "all")), ["--disable-hook=chmod", "--disable-hook=all"]),
        (Request(enabled_hooks=("chmod",)), ["--enable-hook=chmod"]),
        (Request(hooks="none", enabled_hooks=("chmod",), disabled_hooks=("chmod",)), ["--disable-hook=all"]),
        (
            Request(feature_flags=(NO_GIDS, "disable-nvsandboxutils")),
            [f"--feature-flag={NO_GIDS}", "--feature-flag=disable-nvsandboxutils"],
        ),
        (Request(all_device=False), ["--no-all-device"]),
        (Request(device_ids=("0", "1:0")), ["--device-id=0", "--device-id=1:0"]),
        (Request(device_ids=("none",)), ["--device-id=none"]),
        (Request(device_ids=("all",)), []),
    ],
)
def test_flags_of_options(request_: Request, flags: list[str]) -> None:
    changed = {flag.partition("=")[0] for flag in flags}
    expected = [flag for flag in [*PINNED, *NAMES] if flag.partition("=")[0] not in changed]
    found = flags_of(request_)
    if "--ldconfig-path" in changed:
        expected.remove("")
    assert sorted(found) == sorted([*expected, *flags, NO_SOCKETS])


@pytest.mark.parametrize("version", ["1.17.8", "1.18.0", "1.19.1", "1.20.0"])
def test_empty_options_are_arguments_of_their_own(version: str) -> None:
    """nvidia-ctk 1.18 and 1.19 refuse ``--output=``, and nvidia-ctk must not read the variable of an option."""
    flags = flags_of(version=version)
    assert [flag for flag in flags if flag.endswith("=")] == []
    assert [flags[index - 1] for index, flag in enumerate(flags) if not flag] == ["--output", "--ldconfig-path"]


def test_chroot_for_live_host_root(tmp_path: Path) -> None:
    run = Generator()
    generate_all_with(PROGRAM, "nvml", Request(), run, HostFS(str(tmp_path), True))
    assert [argv[:3] for argv in run.calls] == [["chroot", str(tmp_path), PROGRAM]] * 2


def test_offline_tree_is_refused() -> None:
    run = Generator()
    with pytest.raises(HostError, match=r"offline host_root.*backend: native.*host_root_live: true"):
        generate_all_with(PROGRAM, "nvml", Request(), run, OFFLINE)
    assert run.calls == []


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(device_name_strategies=()), "device_name_strategies is empty"),
        (Request(driver_root="run"), "driver_root 'run' is not an absolute path"),
        (Request(library_search_paths=("/a,b",)), "library_search_paths: .*'/a,b' contains a comma"),
        (Request(device_ids=("0,1",)), "device_ids: "),
    ],
)
def test_ambiguous_values_are_refused(request_: Request, message: str) -> None:
    run = Generator()
    with pytest.raises(NvidiaError, match=message):
        generate_all_with(PROGRAM, "nvml", request_, run, HOST)
    assert all("generate" not in argv for argv in run.calls)


# -- versions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "since", "parameter", "flag"),
    [
        (Request(disabled_hooks=("update-ldcache",)), "1.18", "disabled_hooks", "disable-hook"),
        (Request(enabled_hooks=("chmod",)), "1.18", "enabled_hooks", "enable-hook"),
        (Request(hooks="none"), "1.18", "hooks: none", "disable-hook"),
        (Request(feature_flags=("disable-ipc-discoverer",)), "1.18", "feature_flags", "feature-flag"),
        (Request(all_device=False), "1.19", "all_device: false", "no-all-device"),
        (Request(device_ids=("0",)), "1.19", "device_ids", "device-id"),
        (
            Request(csv_compat_container_root="/x"),
            "1.19",
            "csv_compat_container_root",
            "csv.compat-container-root",
        ),
    ],
)
def test_flags_need_versions(request_: Request, since: str, parameter: str, flag: str) -> None:
    run = Generator(version="1.17.8")
    with pytest.raises(NvidiaError) as caught:
        generate_all_with(PROGRAM, "nvml", request_, run, HOST)
    message = str(caught.value)
    assert message.startswith(f"{parameter} needs nvidia-ctk {since} (--{flag})")
    assert "1.17.8" in message
    assert len(run.calls) == 1
    assert any(argument.startswith(f"--{flag}") for argument in flags_of(request_, version=f"{since}.0"))


@pytest.mark.parametrize("version", ["1.16.0", "1.17.8", "1.18.2"])
def test_older_versions_get_known_flags(version: str) -> None:
    # These versions add no groups and have no --device-id.
    assert flags_of(Request(feature_flags=(NO_GIDS,), device_ids=("all",)), version=version) == [
        *PINNED,
        *NAMES,
        *([NO_SOCKETS] if version == "1.18.2" else []),
    ]


@pytest.mark.parametrize("version", ["1.15.0", "1.14.3", "1.12.0-rc.4"])
def test_too_old_version(version: str) -> None:
    message = refusal(Generator(version=version))
    assert message.startswith(f"{PROGRAM} has version {version.partition('-')[0]}, but")
    assert "1.16" in message


@pytest.mark.parametrize("version", ["v1.20.0", "1.20.0-rc.2", "1.20.1~dev", "2.0"])
def test_version_formats(version: str) -> None:
    assert flags_of(version=version) == [*PINNED, *NAMES, NO_SOCKETS]


@pytest.mark.parametrize(
    ("version", "passed"), [("1.17.9", False), ("1.18.0", True), ("1.19.0", True), ("1.19.1", True)]
)
def test_nvidia_ctk_leaves_sockets_out(version: str, passed: bool) -> None:
    """The flag is known since 1.19.1. 1.18.0 to 1.19.0 accept any feature flag, and earlier ones have none."""
    assert flags_of(version=version).count(NO_SOCKETS) == passed
    if passed:
        assert flags_of(Request(feature_flags=("disable-ipc-discoverer",)), version=version).count(NO_SOCKETS) == 1


def test_unknown_version() -> None:
    message = refusal(Generator(version="unknown", output=""))
    # The number in the commit is not a version.
    assert message.startswith(f"{PROGRAM} failed to report its version: its output has no version. ")


def test_program_that_cannot_be_run() -> None:
    def run(argv: list[str]) -> tuple[int, str, str]:
        return 127, "", f"{argv[0]} cannot be run: Exec format error"

    with pytest.raises(HostError, match=r"failed to report its version: .*Exec format error\. Reinstall"):
        generate_all_with(PROGRAM, "nvml", Request(), run, HOST)


# -- failures ----------------------------------------------------------------------------------------------------------

LOG = """\
time="2026-01-02T03:04:05Z" level=info msg="Auto-detected mode as \\"nvml\\""
time="2026-01-02T03:04:05Z" level=warning msg="Could not locate libcuda.so"
time="2026-01-02T03:04:05Z" level=error msg="failed to generate CDI spec: no \\"libnvidia-ml.so.1\\"\\n: not found"
"""


@pytest.mark.parametrize(
    ("errors", "output", "expected"),
    [
        (LOG, "", 'failed to generate CDI spec: no "libnvidia-ml.so.1" : not found'),
        ('time="x" level=fatal msg=boom\n', "", "boom"),
        ('time="x" level=error msg="odd \\x1b escape"\n', "", "odd \\x1b escape"),
        (
            "panic: runtime error: index out of range\n\ngoroutine 1 [running]:\nmain.main()\n",
            "",
            "panic: runtime error",
        ),
        ("first\nno driver\n\n", "", "no driver"),
        (
            "",
            "Incorrect Usage: flag provided but not defined: -x\n",
            "Incorrect Usage: flag provided but not defined: -x",
        ),
        ("", "", "exit status 1"),
    ],
)
def test_error_contains_its_log(errors: str, output: str, expected: str) -> None:
    message = refusal(Generator(output, errors, status=1))
    assert message.startswith(f"{PROGRAM} failed to generate mode nvml: {expected}")
    assert "\n" not in message
    assert "Auto-detected" not in message
    assert "goroutine" not in message


def test_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hangs in the driver cannot be killed and keeps its pipes open."""
    basic = pytest.importorskip("ansible.module_utils.basic")
    monkeypatch.setattr(basic, "_ANSIBLE_ARGS", b'{"ANSIBLE_MODULE_ARGS": {}}')
    # ansible-core needs this from 2.19 on.
    monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
    program = tmp_path / "nvidia-ctk"
    program.write_text("#!/bin/sh\n[ $1 = --version ] && echo version 1.20.0 && exit\nsetsid sleep 20\n")
    program.chmod(0o755)
    run = pinned_runner(basic.AnsibleModule(argument_spec={}), limit=1)
    begun = time.monotonic()
    with pytest.raises(HostError, match="nvidia-ctk failed to generate mode nvml: it did not end within 1 sec"):
        generate_all_with(str(program), "nvml", Request(), run, HOST)
    assert time.monotonic() - begun < 10


def test_long_log_is_cut() -> None:
    message = refusal(Generator(errors=f'level=error msg="{"x" * 100000}"\n', status=1))
    assert len(message) < 700
    assert "x…" in message


@pytest.mark.parametrize(("mode", "advice"), [("nvml", "backend: native"), ("csv", "mode csv is right for this host")])
def test_advice_for_mode(mode: str, advice: str) -> None:
    message = refusal(Generator(errors="no\n", status=1), mode)
    assert advice in message
    assert message.count("native") == (1 if mode == "nvml" else 0)


@pytest.mark.parametrize("output", ["", " \n"])
def test_empty_output(output: str) -> None:
    assert "is empty" in refusal(Generator(output))


@pytest.mark.parametrize(
    "output",
    [
        "[]",
        "{}",
        '{"kind": "a/b"',
        "Usage: nvidia-ctk",
        "\x00",
        '{"a": ' * 100000,
        '{"\udcff": }',
    ],
)
def test_invalid_output(output: str) -> None:
    message = refusal(Generator(output))
    assert "is not a specification" in message
    assert len(message) < 300


def test_variants_follow_the_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    # The output is not one JSON document. It is read without PyYAML.
    monkeypatch.setitem(sys.modules, "yaml", None)
    coherent = {**DOCUMENT, "kind": "nvidia.com/gpu.coherent"}
    run = Generator(json.dumps(DOCUMENT) + json.dumps(coherent))
    request = Request(feature_flags=("enable-coherent-annotations",))
    found = generate_all_with(PROGRAM, "nvml", request, run, HOST)
    assert found == {"": DOCUMENT, "coherent": coherent}


# -- the program -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("programs", "hook", "found"),
    [
        ((), "/usr/bin/nvidia-cdi-hook", None),
        (("usr/bin",), "/usr/bin/nvidia-cdi-hook", "/usr/bin/nvidia-ctk"),
        (("usr/local/bin", "usr/bin"), "/usr/bin/nvidia-cdi-hook", "/usr/bin/nvidia-ctk"),
        (("usr/bin", "opt/t"), "/opt/t/nvidia-cdi-hook", "/opt/t/nvidia-ctk"),
        (("usr/bin", "opt/t"), "/opt/t/nvidia-ctk", "/opt/t/nvidia-ctk"),
        (("usr/bin",), "/opt/t/nvidia-cdi-hook", "/usr/bin/nvidia-ctk"),
    ],
)
def test_find_program(programs: tuple[str, ...], hook: str, found: str | None, tmp_path: Path) -> None:
    for folder in programs:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "nvidia-ctk").touch(0o755)
    assert find_program(HostFS(str(tmp_path), False), hook) == found
