# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t
from hashlib import sha256

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import OriginalFile, record_path
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import detect as packages_detect
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import rpm_sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import PACKAGES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.sources import repository_files
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.constants import (
    CONFIG_FILE,
    DIRECTORY,
    OWN_CONFIG_FILE,
    PROGRAMS,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.manifest import (
    NAME,
    FileDigest,
    Identity,
    Manifest,
    ManifestEntry,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.store import VersionStore
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.info import describe_toolkit

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import Package

REPOSITORY_FILES = repository_files()
LIST = "/etc/apt/sources.list.d/nvidia-docker.list"
MAIN_LIST = "/etc/apt/sources.list"
ADDRESS = "nvidia.github.io/libnvidia-container/stable"
BUNDLE = "/run/containerd/io.containerd.runtime.v2.task/moby/train"
EVERYTHING = {
    "gpu",
    "package_manager",
    "gpg",
    "packages",
    "programs",
    "version",
    "version_mismatches",
    "known_cves",
    "directory",
    "config_path",
    "settings",
    "other_toolkits",
    "unsafe_settings",
    "conflicting_sources",
    "recorded_files",
    "repository_files",
    "gpu_containers",
    "reboot_required",
    "problems",
}


class Tree:
    """A Debian host. Its programs report ``version``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.version = "1.19.0"
        # Other versions of programs, by their directory.
        self.versions: dict[str, str] = {}
        self.ran: list[str] = []
        self.put("/etc/os-release", "ID=debian\n")
        for name in ("apt-get", "apt-cache", "apt-mark", "dpkg", "dpkg-deb"):
            self.put(f"/usr/bin/{name}", "", 0o755)

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def install(
        self, version: str = "1.19.0-1", status: str = "install ok installed", folder: str = "/usr/bin"
    ) -> None:
        stanzas = [f"Package: {name}\nStatus: {status}\nVersion: {version}\n" for name in PACKAGES]
        self.put("/var/lib/dpkg/status", "\n".join(stanzas))
        for name in PROGRAMS:
            self.put(f"{folder}/{name}", "", 0o755)

    def install_into_directory(
        self, version: str | None = "1.20.0", names: t.Sequence[str] = PROGRAMS, folder: str = DIRECTORY
    ) -> str:
        """Install a version like nvidia_toolkit_install with source: directory. Return its name."""
        store = VersionStore(HostFS(str(self.root), live=False), folder)
        store.prepare_build()
        entries = {name: ManifestEntry(0o755, text=f"{version}".encode()) for name in names}
        entries[OWN_CONFIG_FILE] = ManifestEntry(0o644, text=b"disable-require = true\n")
        entries = {name: entry._replace(sha256=sha256(entry.text).hexdigest()) for name, entry in entries.items()}
        for name, entry in entries.items():
            store.write_entry(name, entry)
        sources = {"/srv/toolkit.deb": FileDigest("", Identity(0, 0, 0, 0))}
        components = None if names == PROGRAMS else ("ctk",)
        name = store.new_name(version or "unknown")
        manifest = Manifest(name, version, store.current(), components, (), sources, {})
        store.finish(manifest, entries, lambda _path, _final: None)
        store.switch(name)
        return name

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        assert argv[:2] == ["chroot", str(self.root)]
        self.ran.append(argv[2])
        return 0, f"version {self.versions.get(argv[2].rpartition('/')[0], self.version)}\n", ""

    def describe(self, live: bool = True, directory: str = DIRECTORY, **engines: str) -> dict[str, t.Any]:
        """``engines`` are the directories from which engines run NVIDIA's runtimes."""
        dirs = {folder: [name] for name, folder in engines.items()}
        found = describe_toolkit(HostFS(str(self.root), live), self.run, directory, dirs)
        assert set(found) == EVERYTHING
        json.dumps(found, allow_nan=False)
        return found


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_host_without_toolkit(tree: Tree) -> None:
    tree.put("/sys/bus/pci/devices/0000:00:01.0/vendor", "0x8086\n")
    found = tree.describe()
    assert found.pop("gpu")["present"] is False
    assert found == {
        "package_manager": "apt",
        "gpg": None,
        "packages": {},
        "programs": {},
        "version": None,
        "version_mismatches": [],
        "known_cves": [],
        "directory": None,
        "config_path": CONFIG_FILE,
        "settings": {},
        "other_toolkits": [],
        "unsafe_settings": [],
        "conflicting_sources": [],
        "recorded_files": [],
        "repository_files": [],
        "gpu_containers": [],
        "reboot_required": False,
        "problems": [],
    }
    assert tree.ran == []


def test_former_packages_are_not_the_toolkit(tree: Tree) -> None:
    tree.put("/var/lib/dpkg/status", "Package: nvidia-docker2\nStatus: install ok installed\nVersion: 2.13.0-1\n")
    found = tree.describe()
    assert found["packages"] == {"nvidia-docker2": {"version": "2.13.0-1", "held": False}}
    assert (found["version"], found["version_mismatches"], found["settings"]) == (None, [], {})


def test_complete_host(tree: Tree) -> None:
    tree.install(status="hold ok installed")
    tree.put("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module  580.95.05  Release\n")
    tree.put(
        CONFIG_FILE, '[features]\nallow-ldconfig-from-container = true\n[nvidia-container-runtime]\nmode = "cdi"\n'
    )
    tree.put(LIST, f"deb https://{ADDRESS} /\n")
    tree.put(MAIN_LIST, f"deb http://debian.example.com/debian x main\ndeb https://{ADDRESS} /\n")
    tree.put(REPOSITORY_FILES[1], "")
    tree.put("/run/reboot-required", "")
    tree.put("/usr/bin/gpg", "", 0o755)
    hook = {"hooks": {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}]}}
    tree.put(f"{BUNDLE}/config.json", json.dumps({**hook, "process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}}))
    found = tree.describe()
    assert found["gpu"] == {
        "present": True,
        "kind": "driver",
        "message": "The NVIDIA driver is loaded: /proc/driver/nvidia/version exists.",
    }
    assert found["packages"] == {name: {"version": "1.19.0-1", "held": True} for name in PACKAGES}
    assert found["programs"] == {name: {"path": f"/usr/bin/{name}", "version": "1.19.0"} for name in PROGRAMS}
    assert (found["version"], found["version_mismatches"], found["gpg"]) == ("1.19.0", [], "/usr/bin/gpg")
    (vulnerability,) = found["known_cves"]
    assert vulnerability["name"] == "CVE-2026-24260"
    assert set(vulnerability) == {"floor", "name", "about"}
    assert found["settings"]["nvidia-container-runtime.mode"] == "cdi"
    assert found["settings"]["nvidia-container-runtime.log-level"] == "info"
    (message,) = found["unsafe_settings"]
    assert message.startswith("features.allow-ldconfig-from-container is true: ")
    assert found["conflicting_sources"] == [
        {"path": LIST, "line": None, "address": None},
        {"path": MAIN_LIST, "line": 2, "address": ADDRESS},
    ]
    assert found["repository_files"] == [REPOSITORY_FILES[1]]
    assert found["gpu_containers"] == ["docker/train"]
    assert found["reboot_required"] is True
    assert found["problems"] == []


def test_only_the_base_package(tree: Tree) -> None:
    tree.install()
    text = (tree.root / "var/lib/dpkg/status").read_text()
    base = next(stanza for stanza in text.split("\n\n") if f"Package: {PACKAGES[1]}\n" in stanza)
    tree.put("/var/lib/dpkg/status", f"{base}\n\n")
    for name in ("nvidia-container-runtime-hook", "nvidia-container-cli"):
        (tree.root / "usr/bin" / name).unlink()
    found = tree.describe()
    assert (set(found["packages"]), found["version"]) == ({PACKAGES[1]}, "1.19.0")
    assert (found["version_mismatches"], found["problems"]) == ([], [])


def test_parts_of_several_versions(tree: Tree) -> None:
    tree.install("1.18.2-1")
    (tree.root / "usr/bin/nvidia-ctk").unlink()
    found = tree.describe()
    assert found["version"] is None
    # The packages are the oldest part.
    assert [entry["name"] for entry in found["known_cves"]] == ["CVE-2026-24260"]
    assert found["version_mismatches"][0] == "The program nvidia-ctk is not installed."
    assert len(found["version_mismatches"]) == len(PROGRAMS)


def test_unknown_version_has_unknown_cves(tree: Tree) -> None:
    tree.install()
    tree.put("/var/lib/dpkg/status", "")
    assert tree.describe(live=False)["known_cves"] is None
    tree.version = "none"
    assert tree.describe()["known_cves"] is None
    tree.version = "1.17.7"
    assert len(tree.describe()["known_cves"]) == 3


def test_secrets_are_hidden(tree: Tree) -> None:
    tree.install()
    tree.put(
        CONFIG_FILE,
        'own-token = "hunter2"\n[nvidia-container-cli]\n'
        'environment = ["API_TOKEN=my hunter2", "HTTPS_PROXY=http://bob:hunter2@proxy", "A=1"]\n',
    )
    found = tree.describe()
    assert "hunter2" not in json.dumps(found)
    assert found["settings"]["nvidia-container-cli.environment"] == [
        "API_TOKEN=********",
        "HTTPS_PROXY=http://********@proxy",
        "A=1",
    ]


def test_reports_invalid_settings(tree: Tree) -> None:
    tree.install()
    tree.put(CONFIG_FILE, 'nvidia-container-cli = ""\n[nvidia-container-runtime]\nmode = "cdii"\nlog-level = "loud"\n')
    found = tree.describe()
    assert [(one["code"], one["message"].partition(", but")[0]) for one in found["problems"]] == [
        ("setting-refused", f"{CONFIG_FILE}, line 1, column 1: nvidia-container-cli is ''"),
        ("setting-invalid", f"{CONFIG_FILE}, line 4, column 1: nvidia-container-runtime.log-level is 'loud'"),
        ("setting-refused", f"{CONFIG_FILE}, line 3, column 1: nvidia-container-runtime.mode is 'cdii'"),
    ]
    assert found["settings"]["nvidia-container-runtime.mode"] == "cdii"


@pytest.mark.parametrize(("version", "refused"), [("1.17.2", False), ("1.17.3", True)])
def test_the_version_decides_whether_a_value_is_refused(tree: Tree, version: str, refused: bool) -> None:
    tree.version = version
    tree.install(f"{version}-1")
    tree.put(CONFIG_FILE, '[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"\n')
    found = tree.describe()
    assert [problem["code"] for problem in found["problems"]] == ["setting-refused"] * refused
    assert len(found["unsafe_settings"]) == (not refused)


def test_reports_recorded_files(tree: Tree) -> None:
    for owner in ("toolkit", "toolkit-2", "docker"):
        record = OriginalFile(owner, f"/etc/{owner}", b"", 0, 0, 0o644, keys={})
        tree.put(record_path(owner, record.path), record.to_bytes().decode())
    assert tree.describe()["recorded_files"] == ["/etc/toolkit"]
    tree.put(record_path("toolkit", "/etc/toolkit"), "damaged")
    found = tree.describe()
    assert found["recorded_files"] == []
    assert "is damaged" in found["problems"][0]["message"]


def test_offline_tree(tree: Tree) -> None:
    tree.install()
    tree.put("/run/reboot-required", "")
    found = tree.describe(live=False)
    assert tree.ran == []
    assert found["gpu"]["present"] is None
    assert found["version"] == "1.19.0"
    assert found["programs"]["nvidia-ctk"] == {"path": "/usr/bin/nvidia-ctk", "version": None}
    assert found["version_mismatches"] == []
    assert found["reboot_required"] is None


def test_defaults_without_config_file(tree: Tree) -> None:
    tree.install()
    (tree.root / "sbin").mkdir()
    tree.put("/sbin/ldconfig.real", "")
    found = tree.describe()
    assert found["settings"]["nvidia-container-runtime.mode"] == "auto"
    assert found["settings"]["nvidia-container-cli.ldconfig"] == "@/sbin/ldconfig.real"
    assert found["unsafe_settings"] == []


def test_directory_has_its_own_config_file(tree: Tree) -> None:
    tree.install(folder="/usr/local/bin")
    own = "/usr/local/bin/.config/nvidia-container-runtime/config.toml"
    tree.put(own, "disable-require = true\n")
    found = tree.describe()
    assert found["config_path"] == own
    assert found["settings"]["disable-require"] is True
    assert found["programs"]["nvidia-ctk"] == {"path": "/usr/local/bin/nvidia-ctk", "version": "1.19.0"}
    assert found["version_mismatches"] == []


# -- a toolkit in a directory ------------------------------------------------------------------------------------------


def test_directory_reports_its_version(tree: Tree) -> None:
    first = tree.install_into_directory("1.19.1")
    assert tree.describe()["directory"] == f"{DIRECTORY}.versions/{first}"
    second = tree.install_into_directory("1.20.0")
    found = tree.describe()
    assert found["directory"] == f"{DIRECTORY}.versions/{second}"
    assert found["programs"] == {name: {"path": f"{DIRECTORY}/{name}", "version": "1.20.0"} for name in PROGRAMS}
    assert (found["version"], found["known_cves"]) == ("1.20.0", [])
    assert (found["version_mismatches"], found["problems"]) == ([], [])
    assert found["config_path"] == f"{DIRECTORY}/{OWN_CONFIG_FILE}"
    assert found["settings"]["disable-require"] is True
    # Programs are not run.
    assert tree.ran == []


def test_runs_programs_without_recorded_version(tree: Tree) -> None:
    tree.install_into_directory(None)
    assert tree.describe()["version"] == "1.19.0"
    assert f"{DIRECTORY}/nvidia-ctk" in tree.ran
    assert tree.describe(live=False)["version"] is None


def test_other_directory(tree: Tree) -> None:
    name = tree.install_into_directory(folder="/opt/toolkit")
    assert tree.describe()["directory"] is None
    found = tree.describe(directory="/opt/toolkit/")
    assert found["directory"] == f"/opt/toolkit.versions/{name}"
    assert found["programs"]["nvidia-ctk"]["path"] == "/opt/toolkit/nvidia-ctk"
    with pytest.raises(NvidiaError, match="toolkit_dir 'opt' is not an absolute path"):
        tree.describe(directory="opt")


def test_unrequested_components_are_not_missing(tree: Tree) -> None:
    tree.install_into_directory(names=("nvidia-ctk",))
    found = tree.describe()
    assert list(found["programs"]) == ["nvidia-ctk"]
    assert found["version_mismatches"] == []
    assert found["config_path"] == f"{DIRECTORY}/{OWN_CONFIG_FILE}"


def test_reports_damage(tree: Tree) -> None:
    name = tree.install_into_directory()
    (tree.root / f"{DIRECTORY[1:]}.versions/{name}/nvidia-ctk").unlink()
    found = tree.describe()
    assert found["version_mismatches"] == [f"{DIRECTORY}/nvidia-ctk is missing or was modified."]
    assert "nvidia-ctk" not in found["programs"]


def test_reports_incomplete_version(tree: Tree) -> None:
    name = tree.install_into_directory()
    (tree.root / f"{DIRECTORY[1:]}.versions/{name}/{NAME}").unlink()
    found = tree.describe()
    path = f"{DIRECTORY}.versions/{name}"
    (mismatch,) = found["version_mismatches"]
    assert f" {path}, to which {DIRECTORY} links, " in mismatch
    assert found["version"] == "1.19.0"


def test_packages_have_precedence_over_directory(tree: Tree) -> None:
    tree.install()
    name = tree.install_into_directory()
    found = tree.describe()
    assert found["version"] == "1.19.0"
    assert found["programs"]["nvidia-ctk"]["path"] == "/usr/bin/nvidia-ctk"
    assert found["directory"] == f"{DIRECTORY}.versions/{name}"
    assert found["config_path"] == CONFIG_FILE


def test_foreign_directory_has_precedence_over_path(tree: Tree) -> None:
    tree.install(folder="/usr/local/bin")
    tree.install(folder=DIRECTORY)
    found = tree.describe()
    assert found["directory"] is None
    assert found["programs"]["nvidia-ctk"] == {"path": f"{DIRECTORY}/nvidia-ctk", "version": "1.19.0"}


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        (CONFIG_FILE, "mode = \n", f"{CONFIG_FILE}, line 1"),
        (f"{CONFIG_FILE}/x", "", f"{CONFIG_FILE} is not a regular file"),
        ("/etc/os-release", "ID=opensuse\n", "but lacks zypper, rpm"),
    ],
)
def test_unreadable_parts_hide_nothing_else(tree: Tree, path: str, text: str, message: str) -> None:
    tree.install()
    tree.put(path, text)
    found = tree.describe()
    (problem,) = found["problems"]
    assert message in problem["message"]
    assert (problem["code"] == "file-invalid") is text.startswith("mode")
    assert found["version"] == "1.19.0"
    assert bool(found["settings"]) == (CONFIG_FILE not in path)
    assert bool(found["packages"]) == (CONFIG_FILE in path)


def test_unknown_distribution_is_no_problem(tree: Tree) -> None:
    tree.install()
    tree.put("/etc/os-release", "ID=nixos\n")
    tree.put(LIST, f"deb https://{ADDRESS} /\n")
    found = tree.describe()
    assert (found["package_manager"], found["packages"], found["problems"]) == (None, {}, [])
    assert found["version"] == "1.19.0"
    assert found["conflicting_sources"] == []
    assert found["reboot_required"] is None


def test_reports_half_installed_packages(tree: Tree) -> None:
    tree.install(status="install ok half-configured")
    found = tree.describe()
    assert found["packages"]["libnvidia-container1"]["version"] == "1.19.0-1"
    (half,) = [one["message"] for one in found["problems"] if one["code"] == "toolkit-inconsistent"]
    assert all(name in half for name in PACKAGES)


class _Silent:
    """A package manager that cannot list packages."""

    name = "dnf"
    repository = rpm_sources.DNF
    records_reboot = False

    def __init__(self, readable: bool) -> None:
        self.readable = readable

    def installed(self, _names: t.Iterable[str]) -> dict[str, Package]:
        raise HostError("rpm failed. Repair it.")


@pytest.mark.parametrize(
    ("readable", "problem"),
    [
        (True, "rpm failed. Repair it."),
        (False, "dnf cannot list those of an offline tree"),
    ],
)
def test_reports_unreadable_packages(tree: Tree, monkeypatch: pytest.MonkeyPatch, readable: bool, problem: str) -> None:
    monkeypatch.setattr(packages_detect, "detect_package_manager", lambda *_host: _Silent(readable))
    tree.install()
    tree.put("/etc/yum.repos.d/nvidia-docker.repo", f"[x]\nbaseurl=https://{ADDRESS}\n")
    found = tree.describe()
    (message,) = [one["message"] for one in found["problems"]]
    assert problem in message
    assert found["packages"] == {}
    assert found["version"] == "1.19.0"
    assert found["conflicting_sources"][0]["path"] == "/etc/yum.repos.d/nvidia-docker.repo"
    assert found["reboot_required"] is None


# -- toolkits that engines run from other directories ------------------------------------------------------------------


def test_the_toolkit_of_another_tool(tree: Tree) -> None:
    tree.install()
    for name in PROGRAMS:
        tree.put(f"{DIRECTORY}/{name}", "", 0o755)
    tree.versions[DIRECTORY] = "1.17.2"
    tree.put(f"{DIRECTORY}/{OWN_CONFIG_FILE}", '[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"\nload-kmods = 1\n')
    tree.put(CONFIG_FILE, "disable-require = true\n")
    found = tree.describe(docker="/usr/bin", containerd=DIRECTORY)
    assert (found["version"], found["problems"], found["unsafe_settings"]) == ("1.19.0", [], [])
    (other,) = found["other_toolkits"]
    assert (other["path"], other["engines"], other["version"]) == (DIRECTORY, ["containerd"], "1.17.2")
    assert other["programs"] == {name: {"path": f"{DIRECTORY}/{name}", "version": "1.17.2"} for name in PROGRAMS}
    assert [one["floor"] for one in other["known_cves"]] == ["1.17.4", "1.17.8", "1.17.8", "1.19.1"]
    assert other["config_path"] == f"{DIRECTORY}/{OWN_CONFIG_FILE}"
    assert other["settings"]["disable-require"] is False
    # This version of the runtime accepts such an ldconfig.
    assert [message.partition(" ")[0] for message in other["unsafe_settings"]] == ["nvidia-container-cli.ldconfig"]
    assert [one["code"] for one in other["problems"]] == ["setting-refused"]
    assert "load-kmods" in other["problems"][0]["message"]


def test_one_directory_is_reported_once(tree: Tree) -> None:
    tree.install()
    (tree.root / "bin").symlink_to("usr/bin")
    assert tree.describe(docker="/usr/bin", containerd="/bin")["other_toolkits"] == []


def test_links_to_the_toolkit_of_the_host(tree: Tree) -> None:
    tree.install()
    folder = tree.root / "usr/local/bin"
    folder.mkdir(parents=True)
    (folder / "nvidia-container-runtime").symlink_to("/usr/bin/nvidia-container-runtime")
    assert tree.describe(docker="/usr/local/bin")["other_toolkits"] == []
    tree.put("/opt/nvidia/nvidia-container-runtime", "", 0o755)
    (folder / "nvidia-container-runtime.cdi").symlink_to("/opt/nvidia/nvidia-container-runtime")
    assert [one["path"] for one in tree.describe(docker="/usr/local/bin")["other_toolkits"]] == ["/usr/local/bin"]


def test_problems_of_one_file_are_reported_once(tree: Tree) -> None:
    tree.install()
    tree.put("/opt/nvidia/nvidia-container-runtime", "", 0o755)
    tree.put(CONFIG_FILE, "disable-require = 1\n[nvidia-container-cli]\nno-cgroups = true\n")
    found = tree.describe(docker="/opt/nvidia")
    assert (len(found["problems"]), len(found["unsafe_settings"])) == (1, 1)
    (other,) = found["other_toolkits"]
    assert (other["problems"], other["unsafe_settings"]) == ([], [])
    # They decide about the severity of its vulnerabilities.
    assert other["settings"] == found["settings"]


def test_programs_of_the_directory_only(tree: Tree) -> None:
    tree.install()
    tree.put("/opt/nvidia/nvidia-container-runtime", "", 0o755)
    (other,) = tree.describe(crio="/opt/nvidia")["other_toolkits"]
    assert list(other["programs"]) == ["nvidia-container-runtime"]
    # Without a file of its own, such a runtime reads the one in /etc.
    assert other["config_path"] == CONFIG_FILE


def test_no_program_that_another_user_can_replace_is_run(tree: Tree) -> None:
    tree.install()
    tree.put("/home/alice/nvidia-container-runtime", "", 0o755)
    tree.versions["/home/alice"] = "1.17.2"
    (other,) = tree.describe(docker="/home/alice")["other_toolkits"]
    assert other["version"] == "1.17.2"
    (tree.root / "home/alice").chmod(0o777)
    tree.ran.clear()
    (other,) = tree.describe(docker="/home/alice")["other_toolkits"]
    assert (other["version"], other["known_cves"]) == (None, None)
    assert not any(path.startswith("/home") for path in tree.ran)


def test_the_own_directory_beside_packages(tree: Tree) -> None:
    tree.install()
    tree.install_into_directory("1.18.0")
    (other,) = tree.describe(docker=DIRECTORY)["other_toolkits"]
    assert (other["version"], len(other["known_cves"])) == ("1.18.0", 1)
    assert not any(path.startswith(DIRECTORY) for path in tree.ran)
