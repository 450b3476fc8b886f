# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import (
    ConfigurationError,
    HostError,
    NvidiaError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.podman.config import DROP_IN, MAIN
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.podman.engine import PODMAN
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.toml_plan import HEADER
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_files import FakeFiles
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.hook_hosts import (
    FIRST,
    FOREIGN,
    GENERATED,
    HOOK,
    OVERRIDE,
    OVERRIDING,
    PACKAGED,
    STRANGE,
    USUAL,
    HookHost,
)

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import EnginePlan

PACKAGED_MAIN = "/usr/share/containers/containers.conf"
FOLDER = "/etc/containers/containers.conf.d"
PACKAGED_FOLDER = "/usr/share/containers/containers.conf.d"
ROOTFUL = "/etc/containers/containers.rootful.conf.d"
SPECIFICATION = "/etc/cdi/nvidia.yaml"
CRIO = "usr/bin/crio"
BOTH = ["/etc/cdi", "/var/run/cdi"]
WITH_A, WITH_B = ["/etc/cdi", "/a", "/var/run/cdi"], ["/etc/cdi", "/b", "/var/run/cdi"]

# The file of a distribution, with comments only.
STOCK = """\
# The containers configuration file specifies all of the available configuration
[containers]
#annotations = []

log_driver = "journald"
[engine]
#cdi_spec_dirs = [
#  "/etc/cdi",
#]
runtime = "crun"
[engine.runtimes]
"""


def dirs(*folders: str, append: bool | None = None) -> str:
    entries = [f'"{folder}"' for folder in folders]
    entries += [] if append is None else [f"{{append={str(append).lower()}}}"]
    return f"[engine]\ncdi_spec_dirs = [{', '.join(entries)}]\n"


class Host:
    """Podman's files in memory."""

    def __init__(self, content: t.Mapping[str, str | bytes | None], version: tuple[int, ...] | None = (5, 8)) -> None:
        self.files = FakeFiles({SPECIFICATION: "", **content}, "podman")
        self.version = version

    def present(self, **asked: t.Any) -> EnginePlan:
        plan = PODMAN.present(RuntimeRequest(**asked), self.files.context(MAIN, self.version))
        assert plan.action is Action.NONE
        return self.files.apply(plan, MAIN)

    def absent(self) -> EnginePlan:
        plan = PODMAN.absent(self.files.context(MAIN, self.version))
        assert plan.action is Action.NONE
        return self.files.apply(plan, MAIN, removal=True)

    def written(self) -> t.Any:
        content = self.files.content.get(DROP_IN)
        return None if content is None else TomlDocument.from_bytes(DROP_IN, content).value("engine", "cdi_spec_dirs")


# -- directories of specifications ------------------------------------------------------------------------------------

# The version, the files, and the directories in the drop-in of this collection (None: no drop-in).
READ: list[tuple[tuple[int, ...], dict[str, str], list[str] | None]] = [
    # The defaults.
    ((4, 1), {}, None),
    ((5, 4, 2), {MAIN: STOCK}, None),
    ((5, 5), {}, BOTH),
    ((5, 5, 2), {PACKAGED_MAIN: STOCK}, BOTH),
    ((5, 6), {}, None),
    ((6, 0), {PACKAGED_MAIN: STOCK}, None),
    # Versions that ignore the setting, even if it is invalid.
    ((5, 4, 9), {MAIN: dirs("/etc/cdi")}, None),
    ((5, 4, 9), {MAIN: "[engine"}, None),
    # A file lacks a directory.
    ((5, 8), {MAIN: dirs("/etc/cdi")}, BOTH),
    ((5, 8), {PACKAGED_MAIN: dirs("/etc/cdi")}, BOTH),
    ((5, 8), {MAIN: dirs("/var/run/cdi")}, BOTH),
    ((5, 8), {MAIN: dirs("/opt/cdi")}, ["/etc/cdi", "/opt/cdi", "/var/run/cdi"]),
    ((5, 8), {MAIN: dirs("/b", "/var/run/cdi", "/a")}, ["/etc/cdi", "/b", "/var/run/cdi", "/a"]),
    ((5, 8), {MAIN: dirs()}, BOTH),
    ((5, 5), {MAIN: dirs("/a")}, WITH_A),
    # No directory is missing.
    ((5, 8), {MAIN: dirs("/var/run/cdi", "/etc/cdi")}, None),
    ((5, 5), {MAIN: dirs("/a", *BOTH)}, None),
    ((5, 8), {MAIN: dirs("/a", append=True)}, None),
    # A later file replaces the setting.
    ((5, 8), {PACKAGED_MAIN: dirs("/a"), MAIN: dirs("/b")}, WITH_B),
    ((5, 8), {PACKAGED_MAIN: dirs("/a"), MAIN: dirs(*BOTH)}, None),
    ((5, 8), {MAIN: dirs(*BOTH), f"{FOLDER}/10.conf": dirs("/a")}, WITH_A),
    ((5, 8), {f"{FOLDER}/20.conf": dirs("/b"), f"{FOLDER}/10.conf": dirs("/a")}, WITH_B),
    ((5, 8), {MAIN: dirs("/a"), f"{FOLDER}/10.conf": dirs(*BOTH)}, None),
    ((5, 8), {MAIN: dirs("/a"), f"{FOLDER}/zz.conf": dirs(*BOTH)}, None),
    # A file appends to the setting, and so do later ones.
    ((5, 8), {PACKAGED_MAIN: dirs("/a"), MAIN: dirs("/b", append=True)}, BOTH),
    ((5, 8), {MAIN: dirs("/etc/cdi", append=True), f"{FOLDER}/10.conf": dirs("/b")}, None),
    ((5, 5), {MAIN: dirs("/etc/cdi", append=True), f"{FOLDER}/10.conf": dirs("/b")}, ["/var/run/cdi"]),
    ((5, 5), {MAIN: dirs("/a", append=True)}, ["/var/run/cdi"]),
    ((5, 8), {MAIN: dirs("/a", append=True), f"{FOLDER}/10.conf": dirs("/b", append=False)}, WITH_B),
    ((5, 5), {f"{FOLDER}/zz.conf": dirs("/z", append=True)}, BOTH),
    # Files that Podman does not read.
    ((5, 8), {f"{FOLDER}/10.toml": dirs("/a"), f"{FOLDER}/sub/10.conf": dirs("/a")}, None),
    ((5, 8), {f"{PACKAGED_FOLDER}/10.conf": dirs("/a"), f"{ROOTFUL}/10.conf": dirs("/a")}, None),
    ((5, 8), {"/etc/containers/containers.rootless.conf.d/10.conf": dirs("/a")}, None),
    # Podman 6: one main file, and all drop-ins by name.
    ((6,), {PACKAGED_MAIN: dirs("/a"), MAIN: STOCK}, None),
    ((6,), {PACKAGED_MAIN: dirs("/a")}, WITH_A),
    ((6,), {f"{PACKAGED_FOLDER}/10.conf": dirs("/a")}, WITH_A),
    ((6,), {f"{PACKAGED_FOLDER}/20.conf": dirs("/a"), f"{FOLDER}/10.conf": dirs(*BOTH)}, WITH_A),
    ((6,), {f"{PACKAGED_FOLDER}/10.conf": dirs("/a"), f"{FOLDER}/10.conf": STOCK}, None),
    ((6,), {f"{FOLDER}/10.conf": dirs(*BOTH), f"{ROOTFUL}/10.conf": dirs("/a")}, WITH_A),
    ((6,), {f"{PACKAGED_FOLDER}/{os.path.basename(DROP_IN)}": dirs("/a")}, None),
    ((6,), {"/etc/containers/containers.rootless.conf.d/10.conf": dirs("/a")}, None),
]  # fmt: skip


@pytest.mark.parametrize(("version", "content", "written"), READ)
def test_directories(version: tuple[int, ...], content: dict[str, str], written: list[str] | None) -> None:
    host = Host(content, version)
    before = dict(host.files.content)
    plan = host.present()
    assert host.written() == written
    assert plan.drop_in_path == (None if written is None else DROP_IN)
    assert plan.warnings == ()
    after = dict(host.files.content)
    assert after == {**before, **({} if written is None else {DROP_IN: after[DROP_IN]})}
    again = host.present(enable_cdi=True, set_as_default=False)
    assert not any(file.changed for file in again.files)
    assert again.drop_in_path == plan.drop_in_path
    host.absent()
    assert host.files.content == before
    assert host.files.records == {}


def test_content_of_drop_in() -> None:
    host = Host({}, (5, 5, 1))
    (file,) = host.present().files
    assert file.after == HEADER + b'\n[engine]\ncdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]\n'
    # Rootless users must be able to read it.
    assert (file.like, file.mode) == ((), None)


def test_drop_in_follows_other_files() -> None:
    host = Host({MAIN: dirs("/a")})
    host.present()
    host.files.put(MAIN, dirs("/b", "/c"))
    host.present()
    assert host.written() == ["/etc/cdi", "/b", "/c", "/var/run/cdi"]
    host.files.put(MAIN, dirs(*BOTH))
    host.present()
    assert host.written() is None
    assert host.files.records == {}


@pytest.mark.parametrize("version", [(5, 4), (5, 6)])
def test_drop_in_is_removed_after_upgrade(version: tuple[int, ...]) -> None:
    host = Host({}, (5, 5))
    host.present()
    assert host.written() == BOTH
    host.version = version
    host.present()
    assert host.written() is None
    assert host.files.records == {}


def test_absent_keeps_foreign_entries() -> None:
    host = Host({MAIN: dirs("/a")})
    host.present()
    host.files.put(DROP_IN, (host.files.content[DROP_IN].decode() + 'runtime = "crun"\n'))
    host.absent()
    assert TomlDocument.from_bytes(DROP_IN, host.files.content[DROP_IN]).data == {"engine": {"runtime": "crun"}}


def test_foreign_file_with_name_of_drop_in() -> None:
    foreign = '# mine\n[engine]\ncdi_spec_dirs = ["/a"] # here\n'
    host = Host({DROP_IN: foreign})
    host.present()
    assert host.written() == ["/etc/cdi", "/var/run/cdi"]
    host.absent()
    assert host.files.content[DROP_IN].decode() == foreign


@pytest.mark.parametrize(
    ("version", "content", "problem"),
    [
        ((5, 8), {f"{FOLDER}/zz.conf": dirs("/a")}, r"zz\.conf, line 2.*read /etc/cdi and /var/run/cdi\. Add"),
        ((5, 5), {f"{FOLDER}/zz.conf": dirs("/etc/cdi")}, r"zz\.conf, line 2.*not read /var/run/cdi\. Add /var/run"),
        ((5, 8), {MAIN: dirs("/a"), f"{FOLDER}/zz.conf": dirs("/etc/cdi")}, r"zz\.conf, line 2"),
        (
            (5, 8),
            {f"{FOLDER}/99-h.conf": dirs("/a"), f"{FOLDER}/zz.conf": dirs("/b", append=True)},
            r"/99-h\.conf, line 2",
        ),
        ((6,), {f"{PACKAGED_FOLDER}/zz.conf": dirs("/a")}, r"containers\.conf\.d/zz\.conf, line 2"),
        ((6,), {PACKAGED_MAIN: dirs("/a"), ROOTFUL + DROP_IN[len(FOLDER):]: STOCK}, "the same file name. Rename"),
        ((5, 8), {MAIN: '[engine]\ncdi_spec_dirs = "/etc/cdi"\n'}, "containers.conf, line 2.*is not an array"),
        ((5, 8), {MAIN: "[engine]\ncdi_spec_dirs = [1]\n"}, "containers.conf, line 2.*an entry that is not a path"),
        ((5, 8), {MAIN: "[Engine]\ncdi_spec_dirs = ['/x']\n"}, "containers.conf, line 1.*Rename it to engine"),
        ((5, 8), {MAIN: "[engine]\nCDI_Spec_Dirs = ['/y']\n"}, "containers.conf, line 2.*Rename it to cdi_spec_dirs"),
        ((5, 8), {MAIN: '[engine]\ncdi_spec_dirs = ["/a", {append=1}]\n'}, "an entry that is not a path"),
        ((5, 8), {MAIN: '[engine]\ncdi_spec_dirs = ["/a", {append=true, prepend=true}]\n'}, "entry that is not a path"),
        ((5, 8), {MAIN: "engine = 1\n"}, "engine is not a table"),
        ((5, 8), {f"{FOLDER}/10.conf": "[engine\n"}, "10.conf, line 1"),
        ((5, 8), {f"{FOLDER}/10.conf": b"\xff"}, "10.conf.*UTF-8"),
    ],
)  # fmt: skip
def test_configuration_errors(version: tuple[int, ...], content: dict[str, str | bytes | None], problem: str) -> None:
    host = Host(content, version)
    before = dict(host.files.content)
    with pytest.raises(NvidiaError, match=problem):
        host.present()
    assert host.files.content == before


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (None, "Podman is not configured, because its version is unknown"),
        ((4, 0), "Podman is not configured, because Podman 4.0 does not support CDI"),
    ],
)
def test_no_change_without_cdi(version: tuple[int, ...] | None, message: str) -> None:
    # Without CDI the hook is the only way to a GPU.
    host = Host({MAIN: "[engine", HOOK: PACKAGED}, version)
    before = dict(host.files.content)
    (warning,) = host.present().warnings
    assert warning.startswith(message)
    assert host.files.content == before


# -- unsupported options -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"set_as_default": True}, "Unsupported for podman: set_as_default"),
        ({"extra_modes": ("cdi",), "config_mode": "in_place"}, "Unsupported for podman: extra_modes, config_mode"),
        ({"config_mode": "hook"}, "config_mode"),
        ({"config_mode": "drop_in"}, "Unsupported options for podman: config_mode"),
        ({"enable_cdi": False}, "enable_cdi: false is not supported for podman"),
    ],
)
def test_unsupported_options(asked: dict[str, t.Any], problem: str) -> None:
    host = Host({HOOK: PACKAGED})
    with pytest.raises(NvidiaError, match=problem):
        host.present(**asked)
    assert HOOK in host.files.content


def test_unsupported_config_path() -> None:
    context = FakeFiles().context("/opt/containers.conf", (5, 8))
    with pytest.raises(NvidiaError, match="config_path is not supported for podman"):
        PODMAN.present(RuntimeRequest(), context)


# -- the hook --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [PACKAGED, FIRST, GENERATED])
@pytest.mark.parametrize("paths", [(HOOK,), (OVERRIDING,), (HOOK, OVERRIDING)])
@pytest.mark.parametrize("version", [(4, 1), (5, 5)])
def test_hook_is_removed_and_restored(paths: tuple[str, ...], text: str, version: tuple[int, ...]) -> None:
    host = Host(dict.fromkeys(paths, text), version)
    before = dict(host.files.content)
    plan = host.present()
    assert plan.warnings == ()
    assert not set(paths) & set(host.files.content)
    assert set(paths) <= set(host.files.records)
    assert not any(file.changed for file in host.present().files)
    host.absent()
    assert host.files.content == before
    assert host.files.records == {}


@pytest.mark.parametrize("content", STRANGE.values(), ids=STRANGE)
def test_foreign_hook_is_kept(content: bytes) -> None:
    host = Host({HOOK: content})
    (warning,) = host.present().warnings
    assert warning.startswith(f"{HOOK} was kept, because it does not run NVIDIA's hook")
    assert host.files.content[HOOK] == content
    host.absent()
    assert host.files.content[HOOK] == content


def test_hook_with_other_name_is_kept() -> None:
    other = f"{USUAL}/99-gpu.json"
    host = Host({other: PACKAGED, f"{OVERRIDE}/x.json": FOREIGN, HOOK: PACKAGED})
    (warning,) = host.present().warnings
    assert warning.startswith(other)
    assert other in host.files.content


def test_warns_without_specification() -> None:
    (warning,) = Host({SPECIFICATION: None, HOOK: PACKAGED}).present().warnings
    assert "nvidia_cdi_spec" in warning
    assert Host({SPECIFICATION: None, "/var/run/cdi/a.json": "", HOOK: PACKAGED}).present().warnings == ()
    assert Host({SPECIFICATION: None}).present().warnings == ()


@pytest.mark.parametrize("now", [GENERATED, FOREIGN])
def test_absent_keeps_recreated_hook(now: str) -> None:
    host = Host({HOOK: PACKAGED})
    host.present()
    host.files.put(HOOK, now)
    plan = host.absent()
    assert host.files.content[HOOK].decode() == now
    assert any(warning.startswith(HOOK) and "exists again" in warning for warning in plan.warnings)
    assert host.files.records == {}


def test_recreated_hook_is_removed_again() -> None:
    host = Host({HOOK: PACKAGED})
    for _round in range(3):
        host.present()
        assert HOOK not in host.files.content
        host.files.put(HOOK, PACKAGED)
    host.present()
    host.absent()
    assert host.files.content[HOOK].decode() == PACKAGED


RUNTIME = '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ({f"/{CRIO}": ""}, True),
        ({"/usr/local/bin/crio": ""}, True),
        ({"/lib/systemd/system/crio.service": ""}, True),
        ({"/etc/crio/crio.conf": ""}, True),
        ({"/etc/crio/crio.conf.d/10-crio.conf": '[crio.runtime.runtimes.crun]\nruntime_path = "/bin/crun"\n'}, True),
        ({"/etc/crio/crio.conf": f'# nvidia-container-runtime\nhooks_dir = ["{USUAL}"]\n'}, True),
        ({"/etc/crio/crio.conf": "= =", "/etc/crio/crio.conf.d/99-nvidia.toml": RUNTIME}, True),
        ({f"/{CRIO}": "", "/etc/crio/crio.conf": RUNTIME}, False),
        ({"/etc/crio/crio.conf": "", "/etc/crio/crio.conf.d/99-nvidia.toml": RUNTIME}, False),
        ({"/etc/crio/conf.d/99-nvidia.toml": RUNTIME}, False),
    ],
)
def test_hook_that_crio_may_need(content: dict[str, str], kept: bool) -> None:
    host = Host({HOOK: GENERATED, **content})
    plan = host.present()
    assert (HOOK in host.files.content) is kept
    assert len(plan.warnings) == kept
    assert all(warning.startswith(f"{HOOK} was kept, because CRI-O on this host may need") for warning in plan.warnings)
    assert not any(file.changed for file in host.present().files)


# -- on a host -------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> HookHost:
    host = HookHost(tmp_path, "5.5.2")
    host.write(PACKAGED_MAIN, STOCK)
    host.write(SPECIFICATION)
    (tmp_path / CRIO).unlink()
    return host


def test_absent_restores_bytes_and_modes(tree: HookHost) -> None:
    tree.write(HOOK, PACKAGED, 0o640)
    tree.write(MAIN, dirs("/a"), 0o600)
    before = tree.snapshot()
    predicted = tree.present("podman", check_mode=True)
    assert tree.snapshot() == before
    done = tree.present("podman")
    assert done.files == predicted.files
    assert [file.path for file in done.files] == [DROP_IN, HOOK]
    assert [backup["path"] for backup in done.backup_files] == [DROP_IN, HOOK]
    assert (done.restart_action, done.pending_action) == (Action.NONE, None)
    assert (done.engine_version, done.service, done.socket) == ("5.5.2", "", "")
    assert tree.text(HOOK) is None
    written = tree.root / DROP_IN.lstrip("/")
    assert written.stat().st_mode & 0o777 == 0o644
    assert os.listdir(written.parent) == [written.name]
    assert not tree.present("podman").changed
    assert tree.absent("podman").changed
    assert tree.snapshot() == before
    assert not tree.absent("podman").changed


def test_missing_validator(tree: HookHost) -> None:
    tree.present("podman", options={"validate": "auto"})
    tree.absent("podman")
    with pytest.raises(HostError, match="this version of podman has no validator"):
        tree.present("podman", options={"validate": "true"})
    assert tree.text(DROP_IN) is None


def test_links(tree: HookHost) -> None:
    # A link to the same directory, and a linked drop-in, which Podman 5 reads and Podman 6 ignores.
    (tree.root / "run/cdi").mkdir(parents=True)
    (tree.root / "var").mkdir()
    os.symlink("/run", tree.root / "var/run")
    tree.write(MAIN, dirs("/etc/cdi", "/run/cdi"))
    assert not tree.present("podman").changed
    tree.write("/opt/a.conf", dirs("/a"))
    (tree.root / FOLDER.lstrip("/")).mkdir()
    os.symlink("/opt/a.conf", tree.root / f"{FOLDER}/10.conf".lstrip("/"))
    os.symlink("/nowhere", tree.root / f"{FOLDER}/20.conf".lstrip("/"))
    assert tree.present("podman", check_mode=True).changed
    tree.version = "6.0.0"
    assert not tree.present("podman").changed


@pytest.mark.parametrize("name", ["10.conf", "link.conf"])
def test_directories_among_drop_ins(tree: HookHost, name: str) -> None:
    (tree.root / FOLDER.lstrip("/") / "10.conf").mkdir(parents=True)
    if name != "10.conf":
        os.symlink("10.conf", tree.root / FOLDER.lstrip("/") / name)
        # Podman fails on this, too.
        with pytest.raises(HostError, match=r"link\.conf is not a regular file"):
            tree.present("podman")
    else:
        assert tree.present("podman").changed


def test_hook_of_crio_is_kept(tree: HookHost) -> None:
    tree.write(HOOK, PACKAGED)
    before = tree.snapshot()
    tree.present("podman")
    assert tree.text(HOOK) is None
    tree.write(CRIO, mode=0o755)
    tree.present("crio", config_mode="hook")
    (tree.root / CRIO).unlink()
    assert tree.text(HOOK) == GENERATED
    done = tree.present("podman")
    assert not done.changed
    (warning,) = [warning for warning in done.warnings if HOOK in warning]
    assert "CRI-O is configured with config_mode: hook" in warning
    tree.absent("crio")
    tree.absent("podman")
    assert tree.snapshot() == before


def test_damaged_record_of_crio_is_ignored(tree: HookHost) -> None:
    tree.write(HOOK, PACKAGED)
    tree.present("crio", config_mode="hook")
    (record,) = (tree.root / "var/lib/gpufleet-nvidia/state").glob("crio-*")
    record.write_text("{}")
    tree.present("podman")
    assert tree.text(HOOK) is None


def test_absent_with_invalid_main_file(tree: HookHost) -> None:
    tree.present("podman")
    tree.write(MAIN, "[engine")
    with pytest.raises(ConfigurationError, match=r"containers\.conf, line 1"):
        tree.present("podman")
    tree.absent("podman")
    assert tree.text(DROP_IN) is None
