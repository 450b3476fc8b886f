# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import CdiOptions, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh.units import toolkit_refresh
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.write import SpecWriter
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import record_path
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import load_unit
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.refresh_hosts import (
    DROP_IN,
    ENVIRONMENT,
    GENERATOR,
    LOCAL,
    OUTPUT,
    OWN_LINKS,
    OWN_PATH,
    OWN_SERVICE,
    PATH,
    SERVICE,
    SPECIFICATION,
    VENDOR,
    WANTS,
    RefreshTree,
)

if t.TYPE_CHECKING:
    from pathlib import Path

DISABLED_HOOK = "enable-cuda-compat"
DISABLED = Request(disabled_hooks=(DISABLED_HOOK,))
MANAGEMENT: dict[str, t.Any] = {"cdi": {"mode": "management"}, "request": Request(vendor="management.nvidia.com")}


@pytest.fixture
def tree(tmp_path: Path) -> RefreshTree:
    return RefreshTree(tmp_path)


def test_own_service_supports_one_kind(tree: RefreshTree) -> None:
    tree.generator()
    tree.refresh()
    before = tree.contents()
    with pytest.raises(NvidiaError, match="supports only one kind"):
        tree.refresh(**MANAGEMENT)
    assert tree.contents() == before
    tree.refresh(state="absent")
    assert tree.refresh(**MANAGEMENT)["changed"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cdi": {"backend": "native"}}, "backend is native"),
        ({"cdi": {"path": "/etc/cdi/nvidia.yml"}}, "engines read only files that end in .json or .yaml"),
        ({"cdi": {"path": "nvidia.yaml"}}, "is not an absolute path"),
    ],
)
def test_invalid_options(tree: RefreshTree, options: dict[str, t.Any], message: str) -> None:
    tree.toolkit()
    before = tree.contents()
    with pytest.raises(NvidiaError, match=message):
        tree.refresh(**options)
    assert tree.contents() == before


# -- own units ---------------------------------------------------------------------------------------------------------


def command_of(tree: RefreshTree) -> list[str]:
    unit = load_unit(tree.host(), OWN_SERVICE)
    assert unit is not None
    return list(unit.arguments)


def test_own_units(tree: RefreshTree) -> None:
    tree.generator()
    result = tree.refresh(request=DISABLED)
    assert result["changed"]
    assert (result["service"], result["path_unit"]) == (OWN_SERVICE, OWN_PATH)
    assert result["links_created"] == [*OWN_LINKS]
    assert command_of(tree) == [
        *(GENERATOR, "--quiet", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml", "--format=yaml", "--mode=auto"),
        *("--vendor=nvidia.com", "--class=gpu", "--driver-root=/", "--dev-root=/"),
        *("--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook", "--ldconfig-path", ""),
        *("--device-name-strategy=index", "--device-name-strategy=uuid", f"--disable-hook={DISABLED_HOOK}"),
        "--feature-flag=disable-ipc-discoverer",
    ]
    unit = tree.text(f"{LOCAL}/{OWN_SERVICE}")
    assert '--ldconfig-path "" ' in unit
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


@pytest.mark.parametrize(("engine", "flagged"), [("podman:4.9.3", True), ("podman:5.4", False)])
def test_old_engine_gets_no_groups(tree: RefreshTree, engine: str, flagged: bool) -> None:
    tree.generator()
    tree.refresh(cdi={"for_engines": (engine,)})
    assert ("--feature-flag=no-additional-gids-for-device-nodes" in command_of(tree)) is flagged


def test_other_drivers_have_other_nodes(tree: RefreshTree) -> None:
    tree.generator()
    tree.write("/dev/dxg", "")
    tree.live = True
    tree.refresh()
    assert "create-device-nodes" not in tree.text(f"{LOCAL}/{OWN_SERVICE}")


def test_control_character_in_an_option(tree: RefreshTree) -> None:
    tree.generator()
    with pytest.raises(NvidiaError, match="An option contains a control character"):
        tree.refresh(request=Request(csv_ignore_patterns=("a\nb",)))


def test_purge_backups(tree: RefreshTree) -> None:
    tree.toolkit()
    (tree.path / "var/lib").mkdir(parents=True)
    before = tree.contents()
    tree.refresh(request=DISABLED)
    tree.refresh(before_engines=False)
    tree.refresh(request=DISABLED)
    tree.refresh(state="absent")
    assert tree.has("/var/lib/gpufleet-nvidia/backups")
    purged: dict[str, t.Any] = {"state": "absent", "cdi": {"purge_backups": True}}
    assert tree.refresh(check_mode=True, **purged)["changed"]
    assert tree.refresh(**purged)["changed"]
    assert tree.contents() == before
    assert not tree.refresh(**purged)["changed"]


def test_edited_own_unit_is_replaced(tree: RefreshTree) -> None:
    tree.generator()
    tree.refresh()
    before = tree.contents()
    tree.write(f"{LOCAL}/{OWN_SERVICE}", "[Unit]\n")
    result = tree.refresh()
    assert result["changed_files"] == [f"{LOCAL}/{OWN_SERVICE}"]
    assert tree.text(f"{LOCAL}/{OWN_SERVICE}").encode() == before[f"{LOCAL}/{OWN_SERVICE}".lstrip("/")][-1]


# -- the toolkit's service ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [VENDOR, LOCAL], ids=["since 1.20.0", "1.18 and 1.19 of Debian"])
def test_the_service_of_the_toolkit_is_stopped(tree: RefreshTree, folder: str) -> None:
    tree.toolkit(folder=folder)
    for name in (SERVICE, PATH):
        tree.link(f"{WANTS}/{name}", f"{folder}/{name}")
    before = tree.contents()
    assert tree.refresh()["specification"] == SPECIFICATION
    assert f"ConditionPathExists=!{LOCAL}/{OWN_SERVICE}\n" in tree.text(DROP_IN)
    found = toolkit_refresh(tree.host())
    assert found is not None
    assert not found.enabled
    assert not tree.refresh()["changed"]
    tree.refresh(state="absent", cdi={"purge_backups": True})
    assert tree.contents() == before


def test_a_later_service_of_the_toolkit_is_stopped_too(tree: RefreshTree) -> None:
    tree.generator()
    tree.refresh()
    tree.toolkit()
    tree.link(f"{WANTS}/{SERVICE}", f"{VENDOR}/{SERVICE}")
    result = tree.refresh()
    assert (result["changed"], result["specification"], result["warnings"]) == (False, SPECIFICATION, [])


def test_a_service_for_another_kind_is_not_stopped(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.refresh(**MANAGEMENT)
    assert not tree.has(DROP_IN)
    tree.refresh(state="absent")
    tree.write(ENVIRONMENT, "NVIDIA_CTK_CDI_GENERATE_VENDOR=management.nvidia.com\n")
    tree.refresh(**MANAGEMENT)
    assert tree.has(DROP_IN)


def test_settings_of_the_administrator_are_a_warning(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.write(ENVIRONMENT, "NVIDIA_CTK_CDI_GENERATE_MODE=nvml\nNVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/cdi/x.yaml\n")
    (warning,) = tree.refresh()["warnings"]
    assert warning.startswith(f"NVIDIA_CTK_CDI_GENERATE_MODE in the environment of {SERVICE} has no effect")


@pytest.mark.parametrize("output", [OUTPUT, "/etc/cdi/other.yaml"])
def test_the_file_of_the_toolkit_is_replaced(tree: RefreshTree, output: str) -> None:
    """Engines read /var/run/cdi last, so an old file there would have precedence."""
    tree.toolkit()
    tree.write(ENVIRONMENT, f"NVIDIA_CTK_CDI_OUTPUT_FILE_PATH={output}\n")
    tree.write(output, WRITTEN)
    # It stays until there is another one.
    tree.refresh()
    assert tree.has(output)
    tree.write(SPECIFICATION, WRITTEN)
    predicted, done = tree.refresh(check_mode=True), tree.refresh()
    assert not tree.has(output)
    assert predicted["changed_files"] == done["changed_files"] == [tree.host().resolve(output)]
    assert (predicted["changed"], tree.refresh()["changed"]) == (True, False)
    tree.refresh(state="absent")
    remove_specification(tree)
    assert (tree.text(output), tree.has(SPECIFICATION)) == (WRITTEN, False)


def test_the_file_of_the_toolkit_at_the_same_path(tree: RefreshTree) -> None:
    tree.toolkit()
    tree.write(OUTPUT, WRITTEN)
    cdi = {"path": OUTPUT}
    tree.refresh(cdi=cdi)
    assert not tree.refresh(cdi=cdi)["changed"]
    tree.write(OUTPUT, WRITTEN.replace("A=1", "A=2"))
    tree.refresh(state="absent")
    remove_specification(tree)
    assert tree.text(OUTPUT) == WRITTEN


# -- the specification of an own unit ----------------------------------------------------------------------------------

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
