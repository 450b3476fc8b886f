# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import (
    PACKAGES,
    Candidate,
    Package,
    PackageFile,
    Preview,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages.versions import (
    NotOfferedError,
    Target,
    choose,
    common_version,
    is_version,
    refuse_unrelated_changes,
    satisfies,
    version_of_files,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import BASE


@pytest.mark.parametrize(
    ("full", "wanted", "same"),
    [
        ("1.19.1-1", "1.19.1", True),
        ("1.19.1-1", "1.19.1-1", True),
        ("1.19.1", "1.19.1", True),
        ("1.19.10-1", "1.19.1", False),
        ("1.19.1-10", "1.19.1-1", False),
        ("1.19.1-1", "1.19", False),
        ("1.19.1~rc.1-1", "1.19.1", False),
        ("1.19.1~rc.1-1", "1.19.1~rc.1", True),
        ("1.19.1~rc.1-1", "1.19.1~rc.1-1", True),
        ("1.19.1-0.1.rc.1", "1.19.1", False),
        ("1.19.1-0.1.rc.1", "1.19.1-0.1.rc.1", True),
        ("1.19.1-rc.1-1", "1.19.1-rc.1", True),
        ("1.19.1-1.el9", "1.19.1", True),
        ("unknown-1", "unknown", True),
        ("1.19.1-1", "", False),
    ],
)
def test_is_version(full: str, wanted: str, same: bool) -> None:
    assert is_version(full, wanted) is same


def installed(version: str) -> dict[str, Package]:
    return {name: Package(version) for name in PACKAGES}


def test_common_version() -> None:
    assert common_version(installed("1.19.1-1"), PACKAGES) == "1.19.1-1"
    assert common_version({}, PACKAGES) is None
    for name in PACKAGES:
        others = installed("1.19.1-1")
        assert common_version({**others, name: Package("1.19.1-2")}, PACKAGES) is None
        assert common_version({**others, name: Package("1.19.1-1", complete=False)}, PACKAGES) is None
        del others[name]
        assert common_version(others, PACKAGES) is None
    assert satisfies(installed("1.19.1-1"), "1.19.1", PACKAGES)
    assert satisfies(installed("1.19.1-1"), None, PACKAGES)
    assert not satisfies(installed("1.19.1-1"), "1.19.2", PACKAGES)
    base = {BASE: Package("1.19.1-1"), PACKAGES[0]: Package("1.18.2-1")}
    assert satisfies(base, "1.19.1", (BASE,))
    assert not satisfies(base, "1.19.1", (BASE, PACKAGES[0]))


def offers(*versions: str, preferred: str = "") -> list[Candidate]:
    return [Candidate(version, "x", version == preferred) for version in versions]


def test_rejects_version_that_some_packages_lack() -> None:
    every = {name: offers("1.20.0-1", "1.19.1-1", preferred="1.20.0-1") for name in PACKAGES}
    for name in PACKAGES:
        offered = {**every, name: offers("1.19.1-1", preferred="1.19.1-1")}
        assert choose(offered, None, {}, PACKAGES) == Target("1.19.1-1", "x")
        with pytest.raises(NotOfferedError, match=f"version 1.20.0 of all 4 packages .*Available: .*{name} 1.19.1-1 "):
            choose(offered, "1.20.0", {}, PACKAGES)
        with pytest.raises(NotOfferedError, match=f"a version of all 4 packages .*{name} none"):
            choose({**every, name: []}, "latest", {}, PACKAGES)
    with pytest.raises(NotOfferedError, match="Available: none"):
        choose({}, None, {}, PACKAGES)


def test_does_not_downgrade_some_of_the_packages() -> None:
    """The newer ones are from a source that does not count."""
    offers = {name: [Candidate("1.20.0-1", "own", name != PACKAGES[1])] for name in PACKAGES}
    installed = {PACKAGES[1]: Package("1.21.0-1")}
    with pytest.raises(
        HostError, match=rf"^{PACKAGES[1]} 1\.21\.0-1 would be downgraded, because /own offers only 1\.20"
    ):
        choose(offers, None, installed, PACKAGES, "/own")
    assert choose(offers, "1.20.0", installed, PACKAGES, "/own").version == "1.20.0-1"


def test_base_package_needs_no_other() -> None:
    offered = {BASE: offers("1.20.0-1", "1.19.1-1", preferred="1.20.0-1"), PACKAGES[0]: offers("1.19.1-1")}
    assert choose(offered, None, {}, (BASE,)) == Target("1.20.0-1", "x")
    with pytest.raises(NotOfferedError, match=rf"version 1\.21\.0 of {BASE}\. Available: 1\.20\.0-1"):
        choose(offered, "1.21.0", {}, (BASE,))


def test_pin_decides_without_requested_version() -> None:
    pinned = {name: offers("1.20.0-1", "1.19.1-1", "1.18.2-1", preferred="1.19.1-1") for name in PACKAGES}
    assert choose(pinned, "latest", {}, PACKAGES).version == "1.19.1-1"
    assert choose(pinned, "1.20.0", {}, PACKAGES).version == "1.20.0-1"
    forbidden = {name: offers("1.20.0-1") for name in PACKAGES}
    with pytest.raises(NotOfferedError, match=r"prefers\. Available: 1\.20\.0-1 .*Set version"):
        choose(forbidden, None, {}, PACKAGES)


@pytest.mark.parametrize(
    ("present", "chosen"),
    [
        ("1.20.0-1", "1.20.0-1"),
        ("1.18.2-1", "1.19.1-2"),
        ("1.19.1-1", "1.19.1-2"),
        ("1.19.1-10", "1.19.1-10"),
        ("1.19.1-2.el9", "1.19.1-2"),
    ],
)
def test_latest_does_not_downgrade(present: str, chosen: str) -> None:
    offered = {name: offers("1.19.1-2", preferred="1.19.1-2") for name in PACKAGES}
    assert choose(offered, "latest", installed(present), PACKAGES).version == chosen


@pytest.mark.parametrize("candidate", ["1.20.0-0.1.rc.1", "1.20.0~rc.1-1"])
def test_release_candidate_is_not_the_release(candidate: str) -> None:
    assert not satisfies(installed(candidate), "1.20.0", PACKAGES)
    assert satisfies(installed(candidate), candidate, PACKAGES)
    offered = {name: offers(candidate, "1.19.1-1") for name in PACKAGES}
    assert choose(offered, candidate, {}, PACKAGES).version == candidate
    with pytest.raises(NotOfferedError, match=r"offers version 1\.20\.0 of all"):
        choose(offered, "1.20.0", {}, PACKAGES)
    assert version_of_files(files(candidate), "amd64", candidate, PACKAGES) == candidate
    with pytest.raises(NvidiaError, match=r"but version is 1\.20\.0"):
        version_of_files(files(candidate), "amd64", "1.20.0", PACKAGES)


def files(version: str = "1.19.1-1", architecture: str = "amd64") -> list[PackageFile]:
    return [PackageFile(f"/srv/{name}.deb", name, version, architecture) for name in PACKAGES]


def test_version_of_files() -> None:
    assert version_of_files(files(), "amd64", None, PACKAGES) == "1.19.1-1"
    assert version_of_files(files(architecture="all"), "amd64", "1.19.1", PACKAGES) == "1.19.1-1"
    assert version_of_files(files(architecture="noarch"), "x86_64", "1.19.1-1", PACKAGES) == "1.19.1-1"


@pytest.mark.parametrize(
    ("given", "wanted", "message"),
    [
        (files()[:2], None, "^files does not contain libnvidia-container-tools, libnvidia-container1"),
        ([*files(), files()[0]], None, f"both contain the package {PACKAGES[0]}"),
        ([*files(), PackageFile("/srv/x.deb", "bash", "5", "amd64")], None, "^/srv/x.deb is the package bash"),
        ([*files()[:3], files("1.19.2-1")[3]], None, "several versions: .*/srv/libnvidia-container1.deb 1.19.2-1"),
        (files(architecture="arm64"), None, "is for arm64, but this host is amd64"),
        (files(), "1.19.2", "files contains version 1.19.1-1, but version is 1.19.2"),
    ],
)
def test_rejects_wrong_files(given: list[PackageFile], wanted: str | None, message: str) -> None:
    with pytest.raises(NvidiaError, match=message):
        version_of_files(given, "amd64", wanted, PACKAGES)


def test_file_of_the_base_package() -> None:
    assert version_of_files(files()[1:2], "amd64", None, (BASE,)) == "1.19.1-1"
    with pytest.raises(NvidiaError, match=rf"packages: base accepts only {BASE}\. Remove it, or set packages: full"):
        version_of_files(files(), "amd64", None, (BASE,))


# -- unrelated changes -------------------------------------------------------------------------------------------------

COMING = dict.fromkeys(PACKAGES, "1.19.1-1")


@pytest.mark.parametrize(
    ("preview", "message"),
    [
        (Preview(COMING, ("bystander",)), r"would also remove bystander\. Remove these packages first.*\.$"),
        (
            Preview(COMING, ("nvidia-docker2:amd64", "bystander")),
            r"also remove nvidia-docker2:amd64, bystander\..* Set remove_conflicts: true to remove former packages",
        ),
        # A removal has no such option, and other packages of NVIDIA are not former packages.
        (Preview({}, ("nvidia-docker2",)), r"remove nvidia-docker2\. Remove these packages first"),
        (Preview(COMING, ("nvidia-driver",)), r"remove nvidia-driver\. Remove these packages first.*\.$"),
        (Preview(COMING, (), ("libseccomp2",)), "also downgrade libseccomp2"),
        (
            Preview({**COMING, "libc6:i386": "2"}, (), (), ("libc6:i386", PACKAGES[0])),
            r"also change or remove held packages: libc6:i386\. Release them",
        ),
        (Preview({}, (*PACKAGES, "bystander"), (), ("bystander",)), "also change or remove held packages: bystander"),
    ],
)
def test_refuses_unrelated_changes(preview: Preview, message: str) -> None:
    with pytest.raises(HostError, match=message):
        refuse_unrelated_changes(preview, PACKAGES, PACKAGES)


def test_accepts_requested_changes() -> None:
    former = ("nvidia-docker2",)
    refuse_unrelated_changes(Preview(COMING, former, PACKAGES, (*PACKAGES, *former)), PACKAGES, former)
    refuse_unrelated_changes(Preview({}, (f"{PACKAGES[0]}:amd64",), (), PACKAGES), PACKAGES, PACKAGES)
