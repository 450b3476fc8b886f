# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import CdiOptions, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh.plan import RefreshOptions, Runners
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh.refresh import CdiRefresh
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.write import SpecWriter
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import record_path
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import load_unit
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.refresh_hosts import (
    DROP_IN,
    ENVIRONMENT,
    GENERATOR,
    LOCAL,
    OWN_ENVIRONMENT,
    OWN_PATH,
    OWN_SERVICE,
    PACKAGED,
    PATH,
    SERVICE,
    VENDOR,
    WANTS,
    RefreshTree,
)

if t.TYPE_CHECKING:
    from pathlib import Path

ENGINES = ("docker.service", "containerd.service", "crio.service")
DISABLED_HOOK = "enable-cuda-compat"
DISABLED = Request(disabled_hooks=(DISABLED_HOOK,))
MANAGEMENT: dict[str, t.Any] = {"cdi": {"mode": "management"}, "request": Request(vendor="management.nvidia.com")}


@pytest.fixture
def tree(tmp_path: Path) -> RefreshTree:
    return RefreshTree(tmp_path)


def test_toolkit_service_writes_only_gpus(tree: RefreshTree) -> None:
    tree.toolkit()
    done = tree.refresh(**MANAGEMENT)
    assert (done["owner"], done["specification"]) == ("collection", "/etc/cdi/management.nvidia.com-gpu.yaml")
    with pytest.raises(NvidiaError, match="which is the specification of the GPUs"):
        tree.refresh(owner="toolkit", **MANAGEMENT)
    elsewhere = {**MANAGEMENT, "cdi": {**MANAGEMENT["cdi"], "path": "/etc/cdi/management.yaml"}}
    assert tree.refresh(owner="toolkit", **elsewhere)["specification"] == "/etc/cdi/management.yaml"


def test_own_service_supports_one_kind(tree: RefreshTree) -> None:
    tree.generator()
    tree.refresh()
    before = tree.contents()
    with pytest.raises(NvidiaError, match="supports only one kind"):
        tree.refresh(**MANAGEMENT)
    assert tree.contents() == before
    tree.refresh(state="absent")
    assert tree.refresh(**MANAGEMENT)["changed"]


def test_path_is_normalized(tree: RefreshTree) -> None:
    tree.toolkit()
    done = tree.refresh(owner="toolkit", cdi={"path": "/var/run/cdi/../../../etc/cdi/x.yaml"})
    assert done["specification"] == "/etc/cdi/x.yaml"


@pytest.mark.parametrize(
    ("cdi", "message"),
    [
        ({"format": "json"}, r"^format is json, but nvidia-cdi-refresh\.service writes /var/run/cdi/nvidia\.yaml"),
        ({"format": "json", "path": "/etc/cdi/x.yaml"}, r"^path has the suffix \.yaml, but format is json"),
    ],
)
def test_format_differs_from_the_file(tree: RefreshTree, cdi: dict[str, str], message: str) -> None:
    tree.toolkit()
    with pytest.raises(NvidiaError, match=message):
        tree.refresh(owner="toolkit", cdi=cdi)


@pytest.mark.parametrize(
    ("engine", "flagged"), [("podman:4.9.3", True), ("podman:5.4", False), ("docker:20.10", False)]
)
def test_old_engine_gets_no_groups(tree: RefreshTree, engine: str, flagged: bool) -> None:
    tree.toolkit()
    result = tree.refresh(cdi={"for_engines": (engine,)})
    flags = result["variables"].get("NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS")
    assert flags == ("no-additional-gids-for-device-nodes," if flagged else "") + "disable-ipc-discoverer"


def test_before_engines_false(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.refresh()
    assert tree.has(DROP_IN)
    assert "Before=" in tree.text(DROP_IN)
    tree.refresh(before_engines=False)
    assert "Before=" not in tree.text(DROP_IN)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cdi": {"backend": "native"}}, "backend is native"),
        ({"cdi": {"path": "/etc/cdi/nvidia.yml"}}, "engines read only files that end in .json or .yaml"),
        ({"cdi": {"path": "/srv/cdi/spec"}}, "does not end in .json or .yaml"),
        ({"cdi": {"path": "nvidia.yaml"}}, "is not an absolute path"),
        ({"request": Request(disabled_hooks=("nothing",))}, "disabled_hooks: unknown value 'nothing'"),
    ],
)
def test_invalid_options(tree: RefreshTree, options: dict[str, t.Any], message: str) -> None:
    tree.toolkit()
    before = tree.contents()
    with pytest.raises(NvidiaError, match=message):
        tree.refresh(owner="toolkit", **options)
    assert tree.contents() == before


# -- units that the Debian packages of the toolkit leave in /etc -------------------------------------------------------

TOOLKIT_PROGRAM = "/usr/local/nvidia/toolkit/nvidia-ctk"


def removed(tree: RefreshTree) -> None:
    tree.toolkit(folder=LOCAL)
    tree.path.joinpath(GENERATOR.lstrip("/")).unlink()
    tree.generator(TOOLKIT_PROGRAM)


def downgraded(tree: RefreshTree) -> None:
    tree.toolkit(folder=LOCAL)
    tree.version = "1.17.8"
    tree.file(GENERATOR, binary(), 0o755)


def binary(*variables: str) -> bytes:
    """Return a compiled program that contains these names."""
    return "\0".join(["\x7fELF", *variables]).encode()


@pytest.mark.parametrize(("change", "reason"), [(removed, "not an executable file"), (downgraded, "older than 1.18")])
def test_units_that_cannot_write_are_not_used(
    tree: RefreshTree, change: t.Callable[[RefreshTree], None], reason: str
) -> None:
    change(tree)
    for name in (SERVICE, PATH):
        tree.link(f"{WANTS}/{name}", f"{LOCAL}/{name}")
    tree.live = True
    request = Request(cdi_hook_path=f"{TOOLKIT_PROGRAM[:-3]}cdi-hook")
    with pytest.raises(HostError, match=f"{SERVICE}.*{reason}.*Install the NVIDIA Container Toolkit 1.18 or newer"):
        tree.refresh(owner="toolkit", request=request)
    done = tree.refresh(request=request)
    assert (done["owner"], done["toolkit_enabled"]) == ("collection", False)
    assert (done["specification"], [text for text in done["warnings"] if SERVICE in text]) == (SPECIFICATION, [])
    # nvidia_cdi_spec takes the same path and service.
    writer = SpecWriter(CdiOptions(), tree.host(), tree.run, tree.run_pinned)
    location, service = writer._location()
    assert (location.path, service) == (SPECIFICATION, OWN_SERVICE)
    assert remove_specification(tree)["path"] == SPECIFICATION


@pytest.mark.parametrize(
    ("content", "folder", "command"),
    [
        (binary("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"), LOCAL, ""),
        (b"#!/bin/sh\n", LOCAL, ""),
        # dpkg leaves no units there.
        (binary(), VENDOR, ""),
        (binary(), LOCAL, " --output=/var/run/cdi/nvidia.yaml"),
    ],
)
def test_units_that_may_write_are_used(tree: RefreshTree, content: bytes, folder: str, command: str) -> None:
    tree.toolkit(folder=folder)
    tree.file(GENERATOR, content, 0o755)
    unit = f"{folder}/{SERVICE}"
    tree.write(unit, tree.text(unit).replace("cdi generate", f"cdi generate{command}"))
    tree.live = True
    assert tree.refresh()["owner"] == "toolkit"


@pytest.mark.parametrize("live", [True, False])
def test_check_mode_of_a_downgrade_agrees_with_the_run(tree: RefreshTree, live: bool) -> None:
    tree.toolkit(folder=LOCAL)
    tree.live = live
    host = tree.host().with_programs("1.17.8", (GENERATOR,), packages=True)
    predicted = CdiRefresh(RefreshOptions(), host, Runners(tree.run, tree.run_pinned)).execute(check_mode=True)
    downgraded(tree)
    done = tree.refresh()
    assert (done["owner"], done["specification"]) == (predicted["owner"], predicted["specification"])


# -- own units ---------------------------------------------------------------------------------------------------------


def command_of(tree: RefreshTree) -> list[str]:
    unit = load_unit(tree.host(), OWN_SERVICE)
    assert unit is not None
    return list(unit.arguments)


def test_own_units(tree: RefreshTree) -> None:
    tree.generator()
    result = tree.refresh(request=DISABLED)
    assert result["changed"]
    assert (result["owner"], result["service"], result["path_unit"]) == ("collection", OWN_SERVICE, OWN_PATH)
    assert result["links_created"] == [f"{WANTS}/{OWN_SERVICE}", f"{WANTS}/{OWN_PATH}"]
    assert command_of(tree) == [
        *(GENERATOR, "--quiet", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml", "--format=yaml", "--mode=auto"),
        *("--vendor=nvidia.com", "--class=gpu", "--driver-root=/", "--dev-root=/"),
        *("--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook", "--ldconfig-path", ""),
        *("--device-name-strategy=index", "--device-name-strategy=uuid", f"--disable-hook={DISABLED_HOOK}"),
        "--feature-flag=disable-ipc-discoverer",
    ]
    unit = tree.text(f"{LOCAL}/{OWN_SERVICE}")
    assert '--ldconfig-path "" ' in unit
    (before,) = (line for line in unit.splitlines() if line.startswith("Before="))
    assert set(ENGINES) <= set(before.partition("=")[2].split())
    assert "RemainAfterExit" not in unit
    assert "Environment=PATH=/usr/local/sbin:" in unit
    assert f"ConditionPathExists={GENERATOR}\nConditionPathExists=/usr/bin/nvidia-smi\n" in unit
    assert "ExecCondition=/usr/bin/nvidia-smi -L\n" in unit
    assert f"ExecStartPre=-{GENERATOR} system create-device-nodes --control-devices" in unit
    assert result["specification"] == "/etc/cdi/nvidia.yaml"
    assert not tree.refresh(request=DISABLED)["changed"]


def test_own_units_for_directory_toolkit(tree: RefreshTree) -> None:
    folder = "/opt/nvidia 100% $toolkit"
    tree.generator(f"{folder}/nvidia-ctk")
    tree.refresh(request=Request(cdi_hook_path=f"{folder}/nvidia-cdi-hook"), before_engines=False)
    command = command_of(tree)
    assert command[0] == f"{folder}/nvidia-ctk"
    assert f"--nvidia-cdi-hook-path={folder}/nvidia-cdi-hook" in command
    unit = tree.text(f"{LOCAL}/{OWN_SERVICE}")
    assert "ConditionPathExists=/opt/nvidia 100%% $toolkit/nvidia-ctk\n" in unit
    assert "Before=" not in unit


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"cdi": {"mode": "mofed"}, "request": Request(class_="mofed")}, (False, False, False)),
        ({"request": Request(driver_root="/run/nvidia/driver")}, (False, True, False)),
        ({}, (True, False, True)),
    ],
)
def test_driver_conditions(tree: RefreshTree, options: dict[str, t.Any], expected: tuple[bool, bool, bool]) -> None:
    tree.generator()
    tree.refresh(**options)
    unit = tree.text(f"{LOCAL}/{OWN_SERVICE}")
    settings = (
        "ExecCondition=/usr/bin/nvidia-smi",
        "ConditionPathExists=/proc/driver/nvidia/version",
        "create-device-nodes",
    )
    assert tuple(setting in unit for setting in settings) == expected


def test_driver_without_nvidia_smi(tree: RefreshTree) -> None:
    """On Tegra, and if only the driver's libraries are installed, nvidia-smi may be missing."""
    tree.generator()
    tree.live = True
    tree.refresh()
    assert "nvidia-smi" in tree.text(f"{LOCAL}/{OWN_SERVICE}")
    tree.write("/proc/driver/nvidia/version", "550.163.01\n")
    tree.refresh()
    assert "nvidia-smi" not in tree.text(f"{LOCAL}/{OWN_SERVICE}")


def test_own_units_with_older_nvidia_ctk(tree: RefreshTree) -> None:
    tree.generator()
    tree.live, tree.version = True, "1.17.8"
    with pytest.raises(NvidiaError, match=r"disabled_hooks needs nvidia-ctk 1\.18 .* without a refresh unit"):
        tree.refresh(request=DISABLED)
    # This nvidia-ctk adds no groups, so it needs no flag.
    tree.refresh(cdi={"for_engines": ("podman:4.9.3",)})
    assert "--feature-flag" not in " ".join(command_of(tree))
    tree.version = "1.20.0"
    tree.refresh(cdi={"for_engines": ("podman:4.9.3",)})
    assert command_of(tree)[-2:] == [
        "--feature-flag=no-additional-gids-for-device-nodes",
        "--feature-flag=disable-ipc-discoverer",
    ]
    tree.version = "1.15.0"
    with pytest.raises(HostError, match="Install a newer NVIDIA Container Toolkit"):
        tree.refresh()


_FLAGS = "NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS"


@pytest.mark.parametrize("owner", ["toolkit", "collection"])
@pytest.mark.parametrize(("version", "is_safe"), [("1.17.9", False), ("1.19.0", False), ("1.19.1", True)])
def test_a_version_that_mounts_what_any_user_creates_is_a_warning(
    tree: RefreshTree, owner: str, version: str, is_safe: bool
) -> None:
    tree.toolkit()
    tree.live, tree.version = True, version
    warnings = tree.refresh(owner=owner, start=False)["warnings"]
    assert any("/tmp/nvidia-mps" in each and "1.19.1 or newer" in each for each in warnings) is not is_safe
    # Modes other than those of the driver mount no sockets.
    cdi = {"mode": "mofed", "path": "/etc/cdi/mofed.yaml"}
    assert not any("nvidia-mps" in each for each in tree.refresh(owner=owner, start=False, cdi=cdi)["warnings"])
    if owner == "toolkit":
        command = "ExecStart=\nExecStart=/usr/bin/nvidia-ctk cdi generate --feature-flag=disable-nvsandboxutils"
        tree.write(f"{LOCAL}/{SERVICE}.d/10-site.conf", f"[Service]\n{command}\n")
        assert not any("nvidia-mps" in each for each in tree.refresh(owner=owner, start=False, cdi=cdi)["warnings"])


def test_feature_flags_of_the_administrator_are_kept(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.write(ENVIRONMENT, f"{_FLAGS}=disable-nvsandboxutils\n")
    result = tree.refresh()
    assert result["variables"] == {_FLAGS: "disable-nvsandboxutils,disable-ipc-discoverer"}
    assert result["warnings"] == []
    assert not tree.refresh()["changed"]
    # The option replaces them, with a warning.
    result = tree.refresh(request=Request(feature_flags=("enable-coherent-annotations",)))
    assert result["variables"] == {_FLAGS: "enable-coherent-annotations,disable-ipc-discoverer"}
    assert _FLAGS in result["warnings"][0]


def test_feature_flags_in_the_command_of_the_toolkit_s_unit(tree: RefreshTree) -> None:
    """nvidia-ctk ignores the variable if its command has the flag."""
    tree.toolkit()
    command = "ExecStart=\nExecStart=/usr/bin/nvidia-ctk cdi generate --feature-flag"
    for flags, is_safe in (
        ("=disable-nvsandboxutils", False),
        ("=disable-nvsandboxutils,disable-ipc-discoverer", True),
    ):
        tree.write(f"{LOCAL}/{SERVICE}.d/10-site.conf", f"[Service]\n{command}{flags}\n")
        assert any("without disable-ipc-discoverer" in each for each in tree.refresh()["warnings"]) is not is_safe


def test_control_character_in_an_option(tree: RefreshTree) -> None:
    tree.generator()
    with pytest.raises(NvidiaError, match="An option contains a control character"):
        tree.refresh(request=Request(csv_ignore_patterns=("a\nb",)))


def test_change_of_owner(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.refresh(request=DISABLED)
    result = tree.refresh(owner="collection", request=DISABLED)
    assert result["links_removed"] == [f"{WANTS}/{SERVICE}", f"{WANTS}/{PATH}"]
    assert tree.text(ENVIRONMENT) == PACKAGED
    assert not tree.has(DROP_IN)
    back = tree.refresh(owner="toolkit", request=DISABLED)
    assert back["links_removed"] == [f"{WANTS}/{OWN_SERVICE}", f"{WANTS}/{OWN_PATH}"]
    assert not tree.has(f"{LOCAL}/{OWN_SERVICE}")


def test_purge_backups(tree: RefreshTree) -> None:
    tree.toolkit()
    (tree.path / "var/lib").mkdir(parents=True)
    before = tree.contents()
    tree.refresh(request=DISABLED)
    tree.refresh(owner="collection")
    tree.refresh(owner="collection", request=DISABLED)
    tree.refresh(state="absent")
    assert tree.has("/var/lib/gpufleet-nvidia/backups")
    purged: dict[str, t.Any] = {"state": "absent", "cdi": {"purge_backups": True}}
    assert tree.refresh(check_mode=True, **purged)["changed"]
    assert tree.refresh(**purged)["changed"]
    assert tree.contents() == before
    assert not tree.refresh(**purged)["changed"]


def test_second_writer_is_a_warning(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.link(f"{WANTS}/{SERVICE}", f"{VENDOR}/{SERVICE}")
    for output, path, effect in (
        ("", None, "both units write it"),
        ("", "/etc/cdi/nvidia.yaml", "the one in /var/run/cdi has precedence"),
        ("", "/var/run/cdi/other.yaml", "engines do not find the devices that both files describe"),
        ("/etc/cdi/a.yaml", "/etc/cdi/b.yaml", "engines do not find the devices that both files describe"),
        # nvidia-ctk appends the suffix.
        ("/etc/cdi/./a", "/etc/cdi/a.yaml", "both units write it"),
        ("/etc/cdi/a.yaml", "/var/run/cdi/b.yaml", "the one in /var/run/cdi has precedence"),
        ("/srv/a.yaml", "/etc/cdi/b.yaml", "two files describe the same devices"),
    ):
        tree.write(ENVIRONMENT, f"NVIDIA_CTK_CDI_OUTPUT_FILE_PATH={output}\n" if output else PACKAGED)
        (warning,) = tree.refresh(owner="collection", cdi={"path": path} if path else {})["warnings"]
        assert f"so {'for devices that both files describe, ' * ('precedence' in effect)}{effect}." in warning
        assert f"systemctl disable {SERVICE}" in warning


_OUTPUT = "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"
_GENERATE = "ExecStart=\nExecStart=/usr/bin/nvidia-ctk cdi generate --output=/etc/cdi/site.yaml"


@pytest.mark.parametrize(
    ("name", "settings", "lost"),
    [
        # systemd reads the file of this collection last.
        ("10-site.conf", "EnvironmentFile=-/etc/site/cdi.env", ""),
        ("override.conf", f"Environment={_OUTPUT}=/etc/cdi/site.yaml", ""),
        ("override.conf", "EnvironmentFile=\nEnvironmentFile=-/etc/site/cdi.env", f"DISABLED_HOOKS and {_OUTPUT}"),
        ("override.conf", "EnvironmentFile=-/etc/site/cdi.env", _OUTPUT),
        ("override.conf", f"UnsetEnvironment={_OUTPUT}", _OUTPUT),
        # A flag has precedence over each variable.
        ("10-site.conf", _GENERATE, _OUTPUT),
    ],
)
def test_settings_that_the_service_ignores(tree: RefreshTree, name: str, settings: str, lost: str) -> None:
    tree.toolkit()
    tree.write("/etc/site/cdi.env", f"{_OUTPUT}=/etc/cdi/site.yaml\n")
    tree.write(f"{LOCAL}/{SERVICE}.d/{name}", f"[Service]\n{settings}\n")
    cdi = {"path": "/etc/cdi/own.yaml"}
    if not lost:
        assert tree.refresh(owner="toolkit", request=DISABLED, cdi=cdi)["specification"] == "/etc/cdi/own.yaml"
        return
    before = tree.contents()
    with pytest.raises(NvidiaError, match=rf"would ignore \S*{lost} of this task, because \S+ sets the environment"):
        tree.refresh(owner="toolkit", request=DISABLED, cdi=cdi)
    assert tree.contents() == before


def test_file_of_the_service_without_an_option(tree: RefreshTree) -> None:
    """Settings that this task does not ask for are those of the administrator."""
    tree.toolkit()
    tree.write(f"{LOCAL}/{SERVICE}.d/override.conf", f"[Service]\n{_GENERATE}\n")
    assert tree.refresh(owner="toolkit")["specification"] == "/etc/cdi/site.yaml"
    assert not tree.refresh(owner="toolkit")["changed"]


def test_root_of_the_driver_that_is_a_link(tree: RefreshTree) -> None:
    """Generators do not recognize files below a link as files of the driver."""
    tree.toolkit()
    (tree.path / "run/nvidia").mkdir(parents=True)
    (tree.path / "srv/driver").mkdir(parents=True)
    tree.link("/run/nvidia/driver", "/srv/driver")
    result = tree.refresh(owner="toolkit", request=Request(driver_root="/run/nvidia/driver"))
    assert result["variables"] == {"NVIDIA_CTK_DRIVER_ROOT": "/srv/driver", _FLAGS: "disable-ipc-discoverer"}
    both = Request(driver_root="/run/nvidia/driver", dev_root="/run/nvidia/driver/")
    assert tree.refresh(owner="toolkit", request=both)["variables"]["NVIDIA_CTK_DEV_ROOT"] == "/srv/driver"


def test_edited_own_unit_is_replaced(tree: RefreshTree) -> None:
    tree.generator()
    tree.refresh()
    before = tree.contents()
    tree.write(f"{LOCAL}/{OWN_SERVICE}", "[Unit]\n")
    result = tree.refresh()
    assert result["changed_files"] == [f"{LOCAL}/{OWN_SERVICE}"]
    assert tree.text(f"{LOCAL}/{OWN_SERVICE}").encode() == before[f"{LOCAL}/{OWN_SERVICE}".lstrip("/")][-1]


def test_original_file_is_restored(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.write(OWN_ENVIRONMENT, "mine\n")
    tree.refresh(request=DISABLED)
    assert tree.text(OWN_ENVIRONMENT) != "mine\n"
    tree.refresh(state="absent")
    assert tree.text(OWN_ENVIRONMENT) == "mine\n"


# -- the specification of an own unit ----------------------------------------------------------------------------------

SPECIFICATION = "/etc/cdi/nvidia.yaml"
WRITTEN = (
    '{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0", "containerEdits": {"env": ["A=1"]}}]}'
)


def remove_specification(tree: RefreshTree) -> dict[str, t.Any]:
    return SpecWriter(CdiOptions(state="absent"), tree.host(), tree.run, tree.run_pinned).execute(check_mode=False)


@pytest.mark.parametrize("original", [None, "mine\n"])
def test_specification_of_unit_is_removed(tree: RefreshTree, original: str | None) -> None:
    tree.generator()
    if original is not None:
        tree.write(SPECIFICATION, original)
    tree.refresh()
    tree.write(SPECIFICATION, WRITTEN)
    assert not tree.refresh()["changed"]
    # The record survives a change of the unit.
    tree.refresh(before_engines=False)
    tree.refresh(state="absent")
    assert tree.text(SPECIFICATION) == WRITTEN
    assert remove_specification(tree)["changed"]
    assert (tree.text(SPECIFICATION) if tree.has(SPECIFICATION) else None) == original


def test_variants_of_unit_are_removed(tree: RefreshTree) -> None:
    flag = Request(feature_flags=("enable-coherent-annotations",))
    coherent = SPECIFICATION.replace(".yaml", ".coherent.yaml")
    tree.generator()
    tree.refresh()
    tree.write(coherent, "mine\n")
    tree.refresh(request=flag)
    tree.write(SPECIFICATION, WRITTEN)
    tree.write(coherent, WRITTEN.replace("gpu", "gpu.coherent"))
    assert not tree.refresh(request=flag)["changed"]
    tree.refresh(state="absent")
    remove_specification(tree)
    assert (tree.has(SPECIFICATION), tree.text(coherent)) == (False, "mine\n")


def test_lost_record_is_recreated(tree: RefreshTree) -> None:
    tree.generator()
    tree.refresh()
    tree.write(SPECIFICATION, WRITTEN)
    (tree.path / record_path("cdi", SPECIFICATION).lstrip("/")).unlink()
    assert not tree.refresh()["changed"]
    tree.refresh(state="absent")
    remove_specification(tree)
    assert not tree.has(SPECIFICATION)
