# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the role nvidia_toolkit does on a host, and the files of the repository."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.tests.unit.roles.role_files import Role

pytest.importorskip("ansible.plugins.action", reason="the plan is made on the controller only")

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _toolkit_plan

VALUES: dict[str, t.Any] = {
    "state": "present", "inspect_engines": True, "source": "repository", "when_no_gpu": "skip",
    "base_url": "https://b", "channel": "stable", "repository_url": "", "key": "",
    "key_fingerprint": "c95b321b61e88c1809c4f759 ddcae044f796ecb0",
    "key_refresh": False, "repository_gpgcheck": True, "pin_priority": "", "proxy": "", "files": [],
    "files_on": "controller", "host_root": "/", "runtime_state": "present", "check_mode": False, "run_tags": ["all"],
    "skip_tags": [],
}  # fmt: skip
STAGED = "/var/cache/gpufleet-nvidia-key-ddcae044f796ecb0.asc"
NO_GPU: dict[str, t.Any] = {"gpu": {"present": False, "message": "found none."}}
FROM_FILES = {"source": "files", "files": ["/a/x.deb", "y z.deb"]}
HEADER = "# Written by Ansible, gpufleet.nvidia.nvidia_toolkit. What is changed here by hand does not last.\n"
ROLE = Role("nvidia_toolkit")


def info(**toolkit: t.Any) -> dict[str, t.Any]:
    """Return the inspection of a host that has the key, and a GPU."""
    known = {"package_manager": "apt", "gpg": "/usr/bin/gpg", "gpu": {"present": True}, "repository_files": [STAGED]}
    return {"toolkit": {**known, **toolkit}}


def plan(toolkit: dict[str, t.Any] | None = None, **settings: t.Any) -> dict[str, t.Any]:
    known = {"nvidia_toolkit_info": info(**(toolkit or {}))}
    return _toolkit_plan.plan_of(known, {**VALUES, **settings})


def test_settings_are_those_of_the_role() -> None:
    assert set(ROLE.load("vars/main.yml")[_toolkit_plan.SETTINGS]) == set(VALUES)


@pytest.mark.parametrize(
    ("toolkit", "settings", "steps"),
    [
        # A host that is up to date.
        ({}, {}, []),
        ({"repository_files": []}, {}, ["key"]),
        ({}, FROM_FILES, ["send"]),
        ({}, {**FROM_FILES, "files_on": "node"}, []),
        ({**NO_GPU, "repository_files": []}, {}, ["no_gpu"]),
        (NO_GPU, {**FROM_FILES, "when_no_gpu": "install_only"}, ["no_gpu", "send"]),
        # Packages are installed in / only.
        ({"repository_files": []}, {"host_root": "/tree"}, ["refuse_packages"]),
        (NO_GPU, {"host_root": "/tree"}, ["no_gpu"]),
        ({}, {"host_root": "/tree", "source": "directory"}, []),
        ({}, {"host_root": "/tree", "source": "existing"}, []),
        ({}, {"host_root": "/tree", "state": "absent"}, ["remove_packages"]),
        (NO_GPU, {"state": "absent"}, ["remove_packages"]),
        ({}, {"state": "absent", "source": "directory"}, ["remove_directory"]),
    ],
)
def test_steps_that_only_some_hosts_need(
    toolkit: dict[str, t.Any], settings: dict[str, t.Any], steps: list[str]
) -> None:
    found = plan(toolkit, **settings)
    assert found["steps"] == steps
    assert not steps or (ROLE.folder / "tasks" / found["file"]).is_file()
    assert len(steps) < 2 or all(f"'{step}' in nvidia_toolkit_plan.steps" in ROLE.tasks() for step in steps)


@pytest.mark.parametrize(
    ("toolkit", "settings", "expected"),
    [
        ({}, {}, True), ({"package_manager": "dnf"}, {}, True),
        # The installation refuses these hosts, so nothing is written before.
        ({"package_manager": "dnf", "gpg": None}, {}, False), ({"package_manager": None}, {}, False),
        ({"package_manager": "pkg"}, {}, False), ({"package_manager": "zypper"}, {}, True),
        ({}, {"host_root": "/tree"}, False),
        ({}, {"key": "KEY"}, False), ({}, {"source": "existing"}, False),
        ({"repository_files": [STAGED]}, {}, False), ({"repository_files": [STAGED]}, {"key_refresh": "yes"}, True),
        ({"repository_files": [STAGED]}, {"key_refresh": True, "check_mode": True}, False),
    ],
)  # fmt: skip
def test_key_is_fetched_only_for_a_host_that_can_use_it(
    toolkit: dict[str, t.Any], settings: dict[str, t.Any], expected: bool
) -> None:
    assert ("key" in plan({"repository_files": [], **toolkit}, **settings)["steps"]) is expected


@pytest.mark.parametrize(
    ("policy", "install", "engines"),
    [("fail", False, False), ("skip", False, False), ("install_only", True, False), ("configure", True, True)],
)
def test_a_host_without_a_gpu(policy: str, install: bool, engines: bool) -> None:
    found = plan(NO_GPU, when_no_gpu=policy)
    assert (found["install"], found["engines_enabled"]) == (install, engines)
    assert found["no_gpu"].startswith("No GPU was found on this host: found none. ")
    assert f"nvidia_toolkit_when_no_gpu is {policy}" in found["no_gpu"]
    # The GPU of an image is not known, and a host may not have been inspected.
    assert plan({"gpu": {"present": None}}, when_no_gpu=policy)["engines_enabled"]
    assert _toolkit_plan.plan_of({}, {**VALUES, "when_no_gpu": policy})["engines_enabled"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, True),
        ({"inspect_engines": False}, False),
        ({"state": "absent"}, False),
        ({"runtime_state": "absent"}, False),
        ({"run_tags": ["toolkit", "cdi", "always"]}, False),
        ({"run_tags": ["toolkit", "mine"]}, True),
        ({"skip_tags": ["runtime"]}, False),
    ],
)
def test_engines_are_required_if_they_are_configured(settings: dict[str, t.Any], expected: bool) -> None:
    assert plan(**settings)["requires_engines"] is expected


# -- the task that installs the toolkit --------------------------------------------------------------------------------


def options(toolkit: dict[str, t.Any] | None = None, sent: bool = False, **settings: t.Any) -> dict[str, t.Any]:
    known = {"nvidia_toolkit_info": info(**(toolkit or {})), "nvidia_toolkit_send_result": {"changed": sent}}
    given = {"proxy": "p", "hold": True, "src": "/s", "components": ["c"], "checksum": "stat"}
    return _toolkit_plan.options_of_task(known, {**VALUES, **settings}, given)


@pytest.mark.parametrize(
    ("settings", "files", "remote", "pending"),
    [
        ({}, [], True, False),
        (FROM_FILES, [f"{toolkit_constants.PACKAGE_CACHE}/{name}" for name in ("x.deb", "y z.deb")], True, True),
        ({**FROM_FILES, "files_on": "node"}, ["/a/x.deb", "y z.deb"], True, False),
        ({"source": "directory", "files": ["a.deb"]}, ["a.deb"], False, False),
        ({"source": "directory", "files": ["/a.deb"], "files_on": "node"}, ["/a.deb"], True, False),
        ({"source": "existing", "files": ["a.deb"]}, [], True, False),
    ],
)
def test_packages(settings: dict[str, t.Any], files: list[str], remote: bool, pending: bool) -> None:
    found = options(sent=True, **settings)
    assert (found["files"], found["remote_src"], found["pending"]) == (files, remote, pending)
    assert not options(**settings)["pending"]
    others = ("src", "components") if settings.get("source") != "directory" else ("proxy", "hold", "package_cache")
    assert found["checksum"] == "stat"
    assert not set(others) & set(found)


def contents(manager: str, **settings: t.Any) -> dict[str, dict[str, str]]:
    files = options({"package_manager": manager}, **settings)["repository_files"]
    found = {file["path"]: {name: value for name, value in file.items() if name != "path"} for file in files}
    known = {*sources.repository_files(), *(path for path in found if "ddcae044f796ecb0" in path)}
    assert len(found) == len(files)
    assert set(found) <= known
    return found


APT_KEY = "/usr/share/keyrings/gpufleet-nvidia-container-toolkit-ddcae044f796ecb0.asc"
DNF_KEY = "/etc/pki/rpm-gpg/RPM-GPG-KEY-gpufleet-nvidia-container-toolkit-ddcae044f796ecb0"
ZYPPER_KEY = "/etc/zypp/RPM-GPG-KEY-gpufleet-nvidia-container-toolkit-ddcae044f796ecb0"
SOURCE, PIN, PROXY, REPO, ZYPPER_REPO = sources.repository_files()


def test_files_for_apt() -> None:
    found = contents("apt", proxy="http://me:secret@p:1", pin_priority=900)
    fingerprint = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"
    source = f"Types: deb\nURIs: https://b/stable/deb/$(ARCH)\nSuites: /\nSigned-By: {APT_KEY} {fingerprint}\n"
    assert found.pop(APT_KEY) == {"src": STAGED}
    assert found.pop(SOURCE) == {"content": f"{HEADER}{source}"}
    pin = found.pop(PIN)["content"].splitlines()
    assert pin[2:] == ['Pin: origin "b"', "Pin-Priority: 900"]
    lines = [f'Acquire::{scheme}::Proxy::b "@PROXY@";\n' for scheme in ("http", "https")]
    assert found.pop(PROXY) == {"content": HEADER + "".join(lines), "mode": "0600"}
    assert not found
    assert set(contents("apt")) == {APT_KEY, SOURCE}
    assert contents("apt", proxy="http://p:1")[PROXY]["mode"] == "0644"


def test_files_for_dnf() -> None:
    found = contents("dnf", proxy="http://me:secret@p:1", pin_priority="5", repository_gpgcheck="no", key=" KEY\n\n")
    assert found[DNF_KEY] == {"content": "KEY\n"}
    lines = found[REPO]["content"].splitlines()
    assert f"{lines[0]}\n" == HEADER
    assert {"baseurl=https://b/stable/rpm/$basearch", f"gpgkey=file://{DNF_KEY}", "repo_gpgcheck=0"} <= set(lines)
    assert lines[-2:] == ["priority=5", "proxy=@PROXY@"]
    assert found[REPO]["mode"] == "0600"
    lines = contents("dnf", repository_url="https://m/r")[REPO]["content"].splitlines()
    assert {"baseurl=https://m/r", "repo_gpgcheck=1", "skip_if_unavailable=0"} <= set(lines)
    assert not [line for line in lines if line.startswith(("priority", "proxy"))]


def test_files_for_zypper() -> None:
    found = contents("zypper", proxy="http://p:1", pin_priority="5", repository_gpgcheck="no", key="KEY")
    assert (set(found), found[ZYPPER_KEY]) == ({ZYPPER_KEY, ZYPPER_REPO}, {"content": "KEY\n"})
    lines = found[ZYPPER_REPO]["content"].splitlines()
    assert {"baseurl=https://b/stable/rpm/$basearch", f"gpgkey=file://{ZYPPER_KEY}", "autorefresh=1"} <= set(lines)
    # The packages of a repository without a signature are checked.
    assert {"gpgcheck=1", "repo_gpgcheck=0", "pkg_gpgcheck=1"} <= set(lines)
    assert lines[-2:] == ["priority=5", "proxy=@PROXY@"]
    assert "skip_if_unavailable=0" not in lines


def test_no_files_without_a_repository() -> None:
    assert contents("pkg") == contents("apt", source="existing") == contents("", key="KEY") == {}


@pytest.mark.parametrize("manager", ["apt", "dnf", "zypper"])
def test_the_plan_has_no_secrets(manager: str) -> None:
    settings: dict[str, t.Any] = {"proxy": "http://me:secret@p:1", "key": "secret"}
    assert "secret" not in str(plan({"package_manager": manager}, **settings))
    files = contents(manager, **settings)
    assert "secret" not in str({path: file for path, file in files.items() if "ddcae044" not in path})
