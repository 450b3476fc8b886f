# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tests of the checks of names and values of variables."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

pytest.importorskip("ansible.plugins.action", reason="the checks run on the controller only")

import yaml

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._settings import (
    known_variables,
    name_problems,
    refused_options,
    shape_problems,
    tag_problems,
    value_problems,
)

COLLECTION = Path(__file__).resolve().parents[4]
KNOWN = known_variables(COLLECTION)
FILES = "nvidia_toolkit_files"
# Variables of the role nvidia.nvidia_driver (defaults/main.yml) and of NVIDIA DeepOps, and short names.
OTHERS = [
    "nvidia_driver_package_version",
    "nvidia_driver_persistence_mode_on",
    "nvidia_driver_module_file",
    "nvidia_driver_branch",
    "nvidia_driver_ubuntu_cuda_repo_baseurl",
    "nvidia_docker_wrapper_url",
    "nvidia_docker_repo_base_url",
    "nvidia_k8s_device_plugin_url",
    "nvidia_gpu_enabled",
    "nvidia_driver_version",
    "nvidia_driver_skip_reboot",
    "nvidia_driver_ubuntu_install_from_cuda_repo",
    "nvidia_docker_version",
    "nvidia_container_runtime_version",
    # One word is too general.
    "nvidia_version",
    "nvidia_state",
    "nvidia_runtimes",
    "nvidia_cdi",
]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("nvidia_toolkit_verison", "nvidia_toolkit_version"),
        ("nvidia_runtime_set_default", "nvidia_runtime_set_as_default"),
        ("nvidia_cdi_enable", "nvidia_cdi_enabled"),
        # A module, not a variable.
        ("nvidia_toolkit_install", None),
    ],
)
def test_unknown_variable_of_a_role(name: str, nearest: str | None) -> None:
    [error], warnings = name_problems([name, "ansible_host"], KNOWN, ())
    assert error.startswith(f"{name} is not a variable of gpufleet.nvidia.")
    assert nearest is None or f" Did you mean {nearest}? " in error
    assert warnings == []
    assert name_problems([name], KNOWN, [name]) == ([], [])


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("nvidia_host", "nvidia_hosts"), ("nvidia_seriall", "nvidia_serial"), ("nvidia_hostroot", "nvidia_host_root"),
     ("nvidia_tolkit_version", "nvidia_toolkit_version"), ("nvidia_adit_dri", None), ("nvidia_serials_of", None)],
)  # fmt: skip
def test_warns_about_similar_names(name: str, nearest: str | None) -> None:
    errors, warnings = name_problems([name], KNOWN, ())
    assert errors == []
    assert [f"Did you mean {nearest}?" in warning for warning in warnings] == [True] * (nearest is not None)
    assert name_problems([name], KNOWN, [name]) == ([], [])


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        # The names of other roles.
        ("nvidia_container_toolkit_version", "nvidia_toolkit_version"),
        ("nvidia_container_toolkit_state", "nvidia_toolkit_state"),
        ("nvidia_container_runtime_engines", "nvidia_runtime_engines"),
        ("nvidia_set_as_default", "nvidia_runtime_set_as_default"),
        ("nvidia_allow_disruption", "nvidia_runtime_allow_disruption"),
        ("nvidia_audits_fail_on", None),
    ],
)
def test_refuses_names_one_word_away(name: str, nearest: str | None) -> None:
    errors, _warnings = name_problems([name], KNOWN, ())
    assert [f" Did you mean {nearest}? List a variable of your own" in error for error in errors] == (
        [True] * (nearest is not None)
    )
    assert name_problems([name], KNOWN, [name]) == ([], [])


@pytest.mark.parametrize("name", ["nvidia_runtime_entry", "nvidia_runtime_hook"])
def test_variables_of_loops_are_unknown_outside_of_them(name: str) -> None:
    [error], _warnings = name_problems([name], KNOWN, ())
    assert error.startswith(f"{name} is not a variable of gpufleet.nvidia.")
    assert name_problems([name], KNOWN, [name]) == ([], [])


def test_ignores_variables_of_other_roles() -> None:
    assert name_problems(OTHERS, KNOWN, ()) == ([], [])


def test_knows_variables_that_tasks_set() -> None:
    """All variables in their tasks are known, also those that they set as facts."""
    names = {"nvidia_hosts", "nvidia_serial", "nvidia_audit_results", "nvidia_own_variables", "nvidia_host_root_live"}
    for path in COLLECTION.glob("roles/*/[dhtv]*/*.yml"):
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        for part in found if isinstance(found, list) else [found]:
            names |= set(part) | set(part.get("ansible.builtin.set_fact") or ()) | {part.get("register", "")}
    assert "nvidia_runtime_settings" in names
    assert "nvidia_toolkit_info" in names
    assert name_problems(names, KNOWN, ()) == ([], [])


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"nvidia_toolkit_host_root": "/tree"}, "nvidia_toolkit_host_root is /tree, nvidia_runtime_host_root is /,"),
        ({"nvidia_host_root": "/tree", "nvidia_cdi_host_root": "/"}, "nvidia_cdi_host_root is /."),
        ({"nvidia_runtime_engines": ["docker", "contanerd"]}, "Did you mean containerd?"),
        ({"nvidia_runtime_engines": "dokcer"}, "Use one of docker, containerd, crio, podman. Did you mean docker?"),
        ({"nvidia_runtime_engines": ["containerd/k3"]}, "containerd has no such flavor. Use one of system, k3s,"),
        ({"nvidia_runtime_engines": ["docker/"]}, "docker has no such flavor. Use one of system, snap, rootless."),
        ({"nvidia_runtime_engines": [{"docker": None}]}, "nvidia_runtime_engines has {'docker': None}."),
        ({"nvidia_toolkit_source": "files"}, "nvidia_toolkit_files is empty. Set it to the paths of the packages."),
        (
            {
                "nvidia_toolkit_packages": "base",
                "nvidia_toolkit_source": "directory",
                "nvidia_toolkit_src": "/x",
                "nvidia_runtime_config_mode": "hook",
            },
            "directory, which installs no packages. Set nvidia_toolkit_module_options.components to [runtime, ctk,",
        ),
        (
            {"nvidia_toolkit_packages": "base", "nvidia_toolkit_settings": {"nvidia-container-runtime.mode": "legacy"}},
            "but the mode in nvidia_toolkit_settings is legacy, which needs NVIDIA's hook.",
        ),
        (
            {
                "nvidia_toolkit_packages": "base",
                "nvidia_toolkit_settings": {"nvidia-container-runtime": {"mode": "legacy"}},
                "nvidia_runtime_extra_modes": ["cdi", "legacy"],
            },
            "settings is legacy and nvidia_runtime_extra_modes has legacy, which needs NVIDIA's hook.",
        ),
        (
            {"nvidia_toolkit_packages": "base", "nvidia_runtime_config_mode": "hook"},
            "but nvidia_runtime_config_mode is hook, which needs NVIDIA's hook.",
        ),
        ({"nvidia_runtime_engines": {"docker": True}}, "Use one of docker,"),
        ({"nvidia_runtime_engines": [["docker"]]}, "nvidia_runtime_engines has ['docker']. Use one of docker,"),
        ({"nvidia_runtime_engines": "docker,containerd"}, "nvidia_runtime_engines has 'docker,containerd'."),
        ({"nvidia_runtime_engines": ["auto", "docker"]}, "nvidia_runtime_engines has 'auto'. Use one of docker,"),
        ({"nvidia_cdi_for_engines": ["docker:x"]}, "without a version after the colon."),
        ({"nvidia_cdi_for_engines": ["podmn:4.9"]}, "Did you mean podman?"),
        ({"nvidia_runtime_config_path": "/x"}, "nvidia_runtime_config_path is for one engine."),
        ({"nvidia_runtime_config_path": "/x", "nvidia_runtime_engines": ["docker", "crio"]}, "is for one engine."),
        ({"nvidia_toolkit_version": "1.19"}, "nvidia_toolkit_version '1.19' is not a version. Use one such as 1.19.1"),
        ({"nvidia_toolkit_version": "v1.19.1"}, "is not a version"),
        ({"nvidia_toolkit_version": "newest"}, "is not a version"),
        ({"nvidia_toolkit_minimum_version": "latest"}, "nvidia_toolkit_minimum_version 'latest' is not a version."),
        ({"nvidia_runtime_engine_version": "two"}, "nvidia_runtime_engine_version 'two' is not a version."),
        ({"nvidia_toolkit_key_fingerprint": "C95B 321B"}, "40 hexadecimal digits and nothing else. 'C95B321B' has 8."),
        ({"nvidia_toolkit_key_fingerprint": "C95B321B61E88C1809C4F759DDCAE044F796ECBX"}, "ECBX' has 39."),
        ({"nvidia_toolkit_key_url": "https://me:x@mirror/key"}, "password. Remove it from nvidia_toolkit_key_url;"),
        ({"nvidia_toolkit_base_url": "me:x@mirror"}, "password. Remove it from nvidia_toolkit_base_url;"),
        ({"nvidia_runtime_before_restart": "/none.yml"}, "/none.yml is not a file on the controller."),
        ({"nvidia_serial": "abc"}, "nvidia_serial is 'abc'. Use a number of hosts"),
        ({"nvidia_serial": "1,x%"}, "nvidia_serial is '1,x%'."),
        ({"nvidia_serial": []}, "nvidia_serial is []."),
        ({"nvidia_serial": [1, None]}, "nvidia_serial is [1, None]."),
        ({"nvidia_serial": -1}, "nvidia_serial is -1."),
        ({"nvidia_serial": 0}, "nvidia_serial is 0. Use a number of hosts above 0"),
        ({"nvidia_serial": "0%"}, "nvidia_serial is '0%'."),
        ({"nvidia_serial": "1, 00"}, "nvidia_serial is '1, 00'."),
        ({"nvidia_serial": [1, 0]}, "nvidia_serial is [1, 0]."),
    ],
)
def test_refuses_values(values: dict[str, t.Any], problem: str) -> None:
    [found] = value_problems(values, lambda _path: False)
    assert problem in found


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"nvidia_host_root": "/tree", "nvidia_runtime_host_root": "/tree/"},
        {"nvidia_cdi_host_root": "/tree", "nvidia_cdi_enabled": False},
        {"nvidia_runtime_engines": ["docker/rootless/alice", "containerd/system/gpu.service", "crio", "podman"]},
        {"nvidia_runtime_engines": "docker", "nvidia_runtime_config_path": "/x"},
        {"nvidia_runtime_engines": ["auto"], "nvidia_toolkit_source": "files", "nvidia_toolkit_state": "absent"},
        {"nvidia_runtime_engines": "auto", "nvidia_cdi_for_engines": ["auto", "podman:4.9.3"]},
        {"nvidia_toolkit_version": "latest", "nvidia_toolkit_minimum_version": "1.17"},
        {"nvidia_toolkit_version": "1.20.0~rc.2-1", "nvidia_runtime_engine_version": "2.1.9"},
        {"nvidia_toolkit_version": "1.20.0-rc.2"},
        {"nvidia_runtime_before_restart": "/hook.yml"},
        {"nvidia_runtime_verify": "gpu"},
        {"nvidia_serial": "1, 5,50%"},
        {"nvidia_serial": [1, "25%"]},
        {"nvidia_serial": 3},
        {"nvidia_serial": [10, "100%"]},
        {"nvidia_toolkit_key_fingerprint": "c95b 321b 61e8 8c18 09c4 f759 ddca e044 f796 ecb0"},
        {"nvidia_toolkit_base_url": "https://mirror/repository@1/"},
        {"nvidia_toolkit_key_url": "https://me:x@mirror/key", "nvidia_toolkit_source": "existing"},
        {"nvidia_toolkit_key_url": "https://me:x@mirror/key", "nvidia_toolkit_state": "absent"},
    ],
)
def test_accepts_values(values: dict[str, t.Any]) -> None:
    assert value_problems(values, lambda path: path == "/hook.yml") == []


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"nvidia_toolkit_source": "directory"}, "either nvidia_toolkit_src (src) or nvidia_toolkit_files (files)."),
        ({"nvidia_toolkit_source": "directory", "nvidia_toolkit_src": ""}, "either nvidia_toolkit_src (src) or"),
        (
            {"nvidia_toolkit_source": "directory", "nvidia_toolkit_src": "/x", "nvidia_toolkit_files": ["/x.deb"]},
            "either nvidia_toolkit_src (src) or nvidia_toolkit_files (files). Set one of them.",
        ),
        (
            {"nvidia_toolkit_settings": {"nvidia-container-runtime.modee": "cdi"}},
            "nvidia_toolkit_settings (settings): nvidia-container-runtime.modee is not a known setting",
        ),
        ({"nvidia_toolkit_settings": {"debug": "/x"}, "nvidia_toolkit_source": "existing"}, "is not a known setting"),
        ({"nvidia_runtime_name": "runc"}, "nvidia_runtime_name (runtime_name) 'runc' is the name of a low-level"),
        (
            {"nvidia_runtime_register": False, "nvidia_runtime_set_as_default": True},
            "nvidia_runtime_register (register): false registers no runtime",
        ),
    ],
)
def test_refuses_what_the_modules_refuse(values: dict[str, t.Any], problem: str) -> None:
    [found] = refused_options(values, ())
    assert problem in found


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"nvidia_toolkit_source": "directory", "nvidia_toolkit_src": "/x", "nvidia_toolkit_files": []},
        {"nvidia_toolkit_source": "directory", "nvidia_toolkit_src": "", "nvidia_toolkit_files": ["/x.deb"]},
        {"nvidia_toolkit_source": "directory", "nvidia_toolkit_state": "absent"},
        {"nvidia_toolkit_settings": {"nvidia-container-runtime": {"mode": "cdi"}}, "nvidia_runtime_name": "gpu"},
        {"nvidia_toolkit_settings": {"later.key": "x"}, "nvidia_toolkit_allow_unknown": True},
        {"nvidia_runtime_register": False, "nvidia_runtime_state": "absent", "nvidia_runtime_set_as_default": True},
        {"nvidia_runtime_register": False, "nvidia_runtime_extra_modes": []},
    ],
)
def test_accepts_what_the_modules_accept(values: dict[str, t.Any]) -> None:
    assert list(refused_options(values, ())) == []


def test_leaves_options_to_the_module_that_a_later_task_sets() -> None:
    values = {"nvidia_toolkit_source": "directory"}
    assert list(refused_options(values, {"nvidia_toolkit_src"})) == []
    assert len(list(refused_options(values, {"nvidia_runtime_name"}))) == 1


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"nvidia_runtime_name": ["nvidia"]}, "nvidia_runtime_name is a list or a dictionary. Write one text."),
        ({"nvidia_host_root": {"a": 1}}, "nvidia_host_root is a list or a dictionary. Write one path."),
        ({FILES: "/a.deb,/b.deb"}, "nvidia_toolkit_files is a text. Write a list such as [/srv/a.deb, /srv/b.deb]."),
        ({"nvidia_runtime_verify_command": "nvidia-smi -L"}, "Write a list such as [nvidia-smi, -L]."),
        ({"nvidia_runtime_restart_retries": "-1"}, "nvidia_runtime_restart_retries is -1. Use 0 or more."),
        ({"nvidia_runtime_engines": None}, "nvidia_runtime_engines is empty. Remove it to use all engines."),
        ({"nvidia_cdi_path": "nvidia.yaml"}, "nvidia_cdi_path has the relative path 'nvidia.yaml'."),
        ({"nvidia_cdi_library_search_paths": ["/a", "b"]}, "has the relative path 'b'."),
        ({FILES: ["a.deb"], "nvidia_toolkit_files_on": "node"}, "nvidia_toolkit_files has the relative path 'a.deb'."),
        ({"nvidia_toolkit_base_url": "mirror/x"}, "Write an address that begins with https://."),
        ({"nvidia_toolkit_key_url": "ftp://mirror/x"}, "nvidia_toolkit_key_url is 'ftp://mirror/x'."),
        ({"nvidia_toolkit_base_url": None}, "nvidia_toolkit_base_url is empty."),
    ],
)
def test_refuses_shapes(given: dict[str, t.Any], problem: str) -> None:
    [found] = shape_problems(given, KNOWN.options)
    assert problem in found


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"nvidia_runtime_engines": "docker"},
        {"nvidia_runtime_engines": []},
        {"nvidia_runtime_extra_modes": "cdi,legacy", "nvidia_toolkit_version": 1.19},
        {FILES: ["a.deb"], "nvidia_toolkit_files_on": "controller"},
        {FILES: ["packages/a.deb"], "nvidia_runtime_before_restart": "hooks/drain.yml"},
        {"nvidia_cdi_path": None, "nvidia_runtime_config_path": "", "nvidia_host_root": "~/tree"},
        {"nvidia_toolkit_key_url": "file:///srv/key", "nvidia_toolkit_repository_url": None},
    ],
)
def test_accepts_shapes(given: dict[str, t.Any]) -> None:
    assert shape_problems(given, KNOWN.options) == []


@pytest.mark.parametrize(
    ("tag", "nearest"),
    [
        ("runtimes", "runtime"), ("Runtime", "runtime"), ("tolkit", "toolkit"), ("tool_kit", "toolkit"),
        ("cid", "cdi"), ("CDI", "cdi"), ("ci", "cdi"), ("runtim3s", "runtime"),
        # Those of the collection and of Ansible, and tags of other plays.
        ("cdi", None), ("all", None), ("always", None), ("never", None), ("tagged", None), ("untagged", None),
        ("docker", None), ("gpu", None), ("run", None), ("toolkits-old", None),
    ],
)  # fmt: skip
def test_misspelt_tags(tag: str, nearest: str | None) -> None:
    problems = tag_problems([tag, "toolkit"], ())
    assert [f"The tag {tag} is not" in text and f"Did you mean {nearest}?" in text for text in problems] == [True] * (
        nearest is not None
    )
    assert tag_problems([tag], [tag]) == []
