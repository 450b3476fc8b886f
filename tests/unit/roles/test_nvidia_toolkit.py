# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The variables and tasks of the role nvidia_toolkit, and the default of nvidia_runtime that depends on them."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.constants import DIRECTORY
from ansible_collections.gpufleet.nvidia.tests.unit.roles.role_files import Role

TOOLKIT, RUNTIME = Role("nvidia_toolkit"), Role("nvidia_runtime")
INSTALL = "gpufleet.nvidia.nvidia_toolkit_install"


def render(text: str, known: dict[str, t.Any]) -> str:
    jinja2 = pytest.importorskip("jinja2")
    environment = jinja2.Environment()
    environment.filters["bool"] = bool
    environment.tests["changed"] = lambda result: result.get("changed", False)
    rendered: str = environment.from_string(text).render(known)
    return rendered.strip()


@pytest.mark.parametrize(
    ("source", "state", "expected"),
    [
        ("directory", "present", "directory"),
        ("directory", "absent", "directory_absent"),
        ("repository", "present", "repository"),
        ("files", "present", "files"),
        ("existing", "present", "existing"),
        ("existing", "absent", "absent"),
    ],
)
def test_task_file(source: str, state: str, expected: str) -> None:
    variables = {"nvidia_toolkit_source": source, "nvidia_toolkit_state": state}
    assert render(TOOLKIT.load("vars/main.yml")["nvidia_toolkit_file"], variables) == f"{expected}.yml"
    assert (TOOLKIT.folder / "tasks" / f"{expected}.yml").is_file()


@pytest.mark.parametrize("file", ["directory.yml", "directory_absent.yml"])
def test_directory_is_one_task(file: str) -> None:
    (task,) = TOOLKIT.load(f"tasks/{file}")
    assert task[INSTALL]["source"] == "directory"
    assert task["register"] == "nvidia_toolkit_installation"


def test_default_directory() -> None:
    assert TOOLKIT.load("defaults/main.yml")["nvidia_toolkit_dest"] == DIRECTORY
    (inspection, *_tasks) = TOOLKIT.load("tasks/main.yml")
    assert inspection["gpufleet.nvidia.nvidia_container_info"]["toolkit_dir"] == "{{ nvidia_toolkit_dest }}"


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, "/usr/bin"),
        ({"nvidia_toolkit_source": "repository", "nvidia_toolkit_dest": "/opt/toolkit"}, "/usr/bin"),
        ({"nvidia_toolkit_source": "directory", "nvidia_toolkit_dest": "/opt/toolkit"}, "/opt/toolkit"),
        # Without the role nvidia_toolkit in the play, its defaults are unknown.
        ({"nvidia_toolkit_source": "directory"}, DIRECTORY),
    ],
)
def test_directory_of_runtimes(known: dict[str, str], expected: str) -> None:
    assert render(RUNTIME.load("defaults/main.yml")["nvidia_runtime_dir"], known) == expected


@pytest.mark.parametrize(
    ("manager", "gpg", "refused"),
    [("dnf", None, True), ("dnf", "/usr/bin/gpg", False), ("apt", None, False)],
)
def test_missing_gpg(manager: str, gpg: str | None, refused: bool) -> None:
    known = {"nvidia_toolkit_manager": manager, "nvidia_toolkit_info": {"toolkit": {"gpg": gpg}}}
    message = render(TOOLKIT.load("vars/main.yml")["nvidia_toolkit_gpg_missing"], known)
    assert ("gnupg2" in message) is bool(message) is refused
    assert "[nvidia_toolkit_gpg_missing]" in TOOLKIT.load("vars/main.yml")["nvidia_toolkit_errors_repository"]
