# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""No module writes, loads or runs as root what an option names in a directory that another user can change."""

from __future__ import annotations

import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs, trusted_paths
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import rollback
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.argument_specs import specs

if t.TYPE_CHECKING:
    from pathlib import Path

RunModule = t.Callable[..., t.Dict[str, t.Any]]
# Options with texts that may be paths.
NAMES_OR_PATHS = {"default_runtime_executable", "low_level_runtimes"}
# Options with paths that require_trusted_options() does not check: the module does, or root uses no file there.
CHECKED_BY_THE_MODULE = {"backup_dir", "files", "host_root"}
NOT_USED = {
    "csv_compat_container_root": "a path in containers",
    "socket": "root connects to it, and does not trust the answer",
    "src": "the source of a copy, whose content the task asks for",
}
USER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def is_path(option: t.Mapping[str, t.Any]) -> bool:
    return "path" in (option.get("type"), option.get("elements"))


def test_each_option_with_a_path_is_checked_or_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    found = specs(monkeypatch)
    assert len(found) >= 9
    paths = {name for spec in found.values() for name, option in spec.items() if is_path(option)}
    checked = trusted_paths.WRITTEN_FILES | trusted_paths.WRITTEN_FOLDERS | trusted_paths.USED
    assert paths | NAMES_OR_PATHS == checked | CHECKED_BY_THE_MODULE | set(NOT_USED)


# Each option with a module that has it, and the other options of the task.
CDI = ("nvidia_cdi_spec", "nvidia_cdi_refresh")
CDI_OPTIONS = sorted(trusted_paths.USED - NAMES_OR_PATHS - {"runtime_dir", "toolkit_dir"})
DIRECTORY = {"source": "directory", "src": "/x"}
ENGINE = {"engine": "docker"}
TASKS: list[tuple[str, str, dict[str, t.Any]]] = [
    *((module, name, {}) for module in CDI for name in CDI_OPTIONS),
    *((module, "path", {}) for module in (*CDI, "nvidia_toolkit_config")),
    *(("nvidia_container_info", name, {}) for name in ("driver_root", "library_search_paths", "toolkit_dir")),
    *(("nvidia_runtime_config", name, ENGINE) for name in ("config_path", "drop_in_path", "runtime_dir")),
    ("nvidia_runtime_verify", "config_path", ENGINE),
    *(("nvidia_toolkit_install", name, DIRECTORY) for name in ("dest", "driver_root", *sorted(NAMES_OR_PATHS))),
    ("nvidia_toolkit_install", "files", {"source": "files"}),
    ("nvidia_toolkit_install", "package_cache", {"source": "files"}),
]
LISTS = {"config_search_paths", "csv_files", "files", "library_search_paths", "low_level_runtimes"}


@needs_root
@pytest.mark.parametrize("way", ["owner", "mode", "link", "sticky"])
@pytest.mark.parametrize("task", TASKS, ids=[f"{task[0]}-{task[1]}" for task in TASKS])
def test_a_directory_of_a_user_is_refused(
    run_module: RunModule, tmp_path: Path, task: tuple[str, str, dict[str, t.Any]], way: str
) -> None:
    module, option, others = task
    folder = tmp_path / "srv/folder"
    folder.mkdir(parents=True)
    if way == "owner":
        os.chown(folder, USER, USER)
    elif way == "mode":
        folder.chmod(0o777)
    elif way == "sticky":
        # The user can create what is missing.
        folder.chmod(0o1777)
    else:
        folder.rmdir()
        (tmp_path / "home").mkdir()
        os.chown(tmp_path / "home", USER, USER)
        folder.symlink_to("/home")
    before = sorted(tmp_path.rglob("*"))
    path = "/srv/folder/gpufleet-nvidia/x"
    arguments = {"host_root": str(tmp_path), "host_root_live": False, **others}
    result = run_module(module, **arguments, **{option: [path] if option in LISTS else path})
    assert result.get("failed"), result
    assert option in result["msg"]
    assert f"{path!r} is not safe: {tmp_path}/" in result["msg"]
    assert sorted(tmp_path.rglob("*")) == before


@needs_root
@pytest.mark.parametrize("state", ["present", "absent"])
def test_a_removal_only_needs_what_is_written(run_module: RunModule, tmp_path: Path, state: str) -> None:
    (tmp_path / "driver").mkdir()
    os.chown(tmp_path / "driver", USER, USER)
    arguments = {"host_root": str(tmp_path), "host_root_live": False, "state": state, "driver_root": "/driver"}
    result = run_module("nvidia_cdi_spec", **arguments)
    assert ("is not safe" in str(result.get("msg"))) is (state == "present")
    assert "is not safe" in run_module("nvidia_cdi_spec", **arguments, path="/driver/nvidia.yaml")["msg"]


@needs_root
def test_the_key_of_the_repository(run_module: RunModule, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("key")
    os.chown(tmp_path, USER, USER)
    result = run_module("nvidia_toolkit_key", url=f"file://{tmp_path}/key", dest=f"{tmp_path}/copy")
    assert "is not safe" in result["msg"]
    assert not (tmp_path / "copy").exists()


@needs_root
def test_a_backup_of_a_user_is_not_restored(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/backup").write_text("{}")
    os.chown(tmp_path / "home", USER, USER)
    host = hostfs.HostFS(str(tmp_path), live=False)
    with pytest.raises(errors.HostError, match=r"^rollback\.backup '/home/backup' is not safe"):
        rollback.previous_files(host, [rollback.ChangedFile("/etc/docker/daemon.json", "/home/backup")])
