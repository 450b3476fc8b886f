# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import os
import re
import typing as t

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock as core_lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import (
    ConfigurationError,
    HostError,
    NvidiaError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import (
    PACKAGES,
    TOOLKIT,
    OriginalFile,
    record_path,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_parser import equal
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config.configure import (
    ConfigOptions,
    ConfigTask,
    SettingsRequest,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config.settings import BY_PATH
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.docker_trees import Tree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_configs import (
    BY_HAND,
    DEFAULT,
    PATH,
    SAMPLES,
    VARIANTS,
    Config,
)

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config.configure import ConfigResult


OWN = "/var/lib/gpufleet-nvidia"
MODE = "nvidia-container-runtime.mode"


class Toolkit(Tree):
    """A host's directory tree, and tasks on it."""

    def toolkit(
        self, settings: dict[str, t.Any] | None = None, check_mode: bool = False, **options: t.Any
    ) -> ConfigResult:
        """``settings`` None: remove all settings."""
        request = None if settings is None else SettingsRequest(settings)
        host = HostFS.of(str(self.root), live=False)
        return ConfigTask(ConfigOptions(request, **options), host).execute(check_mode)


@pytest.fixture
def tree(tmp_path: Path) -> Toolkit:
    return Toolkit(tmp_path)


@pytest.mark.parametrize("content", [None, "", DEFAULT, BY_HAND], ids=["no file", "empty", "packages", "by hand"])
def test_present_then_absent(tree: Toolkit, content: str | None) -> None:
    if content is not None:
        tree.write(PATH, content, 0o640)
    before = tree.bytes_and_modes()

    predicted = tree.toolkit({MODE: "cdi"}, check_mode=True)
    assert tree.bytes_and_modes() == before
    done = tree.toolkit({MODE: "cdi"})
    assert (done.changed, done.files, done.settings) == (True, predicted.files, predicted.settings)
    assert (predicted.backup_files, done.changed_keys, done.path) == ([], [MODE], PATH)
    assert done.settings[MODE] == "cdi"
    written = tree.path(PATH).read_bytes()
    assert done.files[0].after == written
    assert tree.path(PATH).stat().st_mode & 0o7777 == (0o644 if content is None else 0o640)
    (backup,) = done.backup_files
    assert backup["checksum"] == hashlib.sha256(written).hexdigest()
    if content is None:
        assert backup["backup"] is None
    else:
        assert tree.path(str(backup["backup"])).read_text() == content

    there = tree.snapshot()
    again = tree.toolkit({MODE: "cdi"})
    assert (again.changed, again.files, again.backup_files, again.changed_keys) == (False, [], [], [])
    assert tree.snapshot() == there

    gone = tree.toolkit(purge_backups=True)
    assert (gone.changed, gone.changed_keys) == (True, [MODE])
    assert tree.bytes_and_modes() == before
    assert not tree.toolkit().changed


def test_masks_secrets(tree: Toolkit) -> None:
    key = "nvidia-container-cli.environment"
    requested = {key: ["PASSWORD=my hunter2", "HTTP_PROXY=http://bob:hunter2@proxy"]}
    shown = tree.toolkit(requested).settings[key]
    assert shown == ["PASSWORD=********", "HTTP_PROXY=http://********@proxy"]
    assert tree.toolkit({}).settings[key] == shown
    assert not tree.toolkit(requested).changed


def test_unchanged_host_needs_no_lock(tree: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write(PATH, DEFAULT)

    def lock(_host: HostFS) -> t.Any:
        raise AssertionError

    monkeypatch.setattr(core_lock, "host_lock", lock)
    assert not tree.toolkit({MODE: "auto"}).changed
    assert tree.toolkit({MODE: "cdi"}, check_mode=True).changed


def test_writes_through_links(tree: Toolkit) -> None:
    tree.write("/data/config.toml", DEFAULT)
    tree.path(PATH).parent.mkdir(parents=True)
    tree.path(PATH).symlink_to("/data/config.toml")
    done = tree.toolkit({MODE: "cdi"})
    assert tree.path(PATH).is_symlink()
    assert (done.path, done.files[0].path) == (PATH, "/data/config.toml")
    tree.toolkit(purge_backups=True)
    assert tree.path("/data/config.toml").read_text() == DEFAULT


def test_default_ldconfig_depends_on_the_host(tree: Toolkit) -> None:
    assert tree.toolkit({}).settings["nvidia-container-cli.ldconfig"] == "@/sbin/ldconfig"
    tree.write("/sbin/ldconfig.real")
    assert tree.toolkit({}).settings["nvidia-container-cli.ldconfig"] == "@/sbin/ldconfig.real"


def test_the_user_of_suse_is_a_default(tree: Toolkit) -> None:
    tree.write("/etc/os-release", 'ID="debian"\nID_LIKE=""\n')
    assert tree.toolkit({}).settings["nvidia-container-cli.user"] is None
    tree.write("/etc/os-release", 'ID="sles"\nID_LIKE="suse"\n')
    assert tree.toolkit({}).settings["nvidia-container-cli.user"] == "root:video"


def test_other_path(tree: Toolkit) -> None:
    other = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
    tree.toolkit({MODE: "cdi"})
    tree.toolkit({MODE: "legacy"}, path=other)
    tree.toolkit()
    assert not tree.path(PATH).exists()
    assert 'mode = "legacy"' in tree.path(other).read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "etc/config.toml"}, "path 'etc/config.toml' is not an absolute path"),
        ({"backup_dir": "/etc/cdi/old"}, "backup_dir '/etc/cdi/old' is below /etc/cdi"),
    ],
)
def test_rejects_invalid_paths(tree: Toolkit, options: dict[str, t.Any], message: str) -> None:
    before = tree.snapshot()
    with pytest.raises(NvidiaError) as raised:
        tree.toolkit({MODE: "cdi"}, **options)
    assert message in str(raised.value)
    assert tree.snapshot() == before


def test_rejects_a_broken_file_with_position(tree: Toolkit) -> None:
    tree.write(PATH, DEFAULT + "mode = \n")
    before = tree.snapshot()
    for settings in ({MODE: "cdi"}, {}, None):
        with pytest.raises(ConfigurationError) as raised:
            tree.toolkit(settings)
        assert (raised.value.path, raised.value.line) == (PATH, DEFAULT.count("\n") + 1)
    assert tree.snapshot() == before


def test_plans_again_under_the_lock(tree: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write(PATH, DEFAULT)
    lock = core_lock.host_lock

    def late(host: HostFS) -> t.Any:
        monkeypatch.setattr(core_lock, "host_lock", lock)
        tree.toolkit({MODE: "cdi"})
        return lock(host)

    monkeypatch.setattr(core_lock, "host_lock", late)
    result = tree.toolkit({MODE: "cdi"})
    assert (result.changed, result.files, result.backup_files) == (False, [], [])


def test_rejects_a_damaged_record(tree: Toolkit) -> None:
    tree.write(PATH, DEFAULT)
    tree.toolkit({MODE: "cdi"})
    tree.path(record_path(TOOLKIT, PATH)).write_text("{")
    before = tree.snapshot()
    for settings in ({MODE: "auto"}, None):
        with pytest.raises(HostError, match="is damaged"):
            tree.toolkit(settings)
    assert tree.snapshot() == before


# -- several owners of records ---------------------------------------------------------------------------------------


def test_last_owner_removes_the_directories(tree: Toolkit) -> None:
    tree.path("/var/lib").mkdir(parents=True)
    before = tree.bytes_and_modes()
    tree.toolkit({MODE: "cdi"})
    tree.present()
    tree.toolkit(purge_backups=True)
    assert tree.path(OWN).is_dir()
    tree.absent(purge_backups=True)
    assert tree.bytes_and_modes() == before

    tree.present()
    tree.toolkit({MODE: "cdi"})
    tree.absent(purge_backups=True)
    tree.toolkit(purge_backups=True)
    assert tree.bytes_and_modes() == before


def test_records_directories_that_packages_created(tree: Toolkit) -> None:
    """Records of the packages apply to directories that other tasks use too."""
    folder = os.path.dirname(PATH)
    tree.write(PATH, DEFAULT)
    brought = OriginalFile(PACKAGES, PATH, None, 0, 0, 0o644, created_directories=(folder,), main=PATH)
    tree.write(record_path(PACKAGES, PATH), brought.to_bytes())
    tree.toolkit({MODE: "cdi"})
    content = tree.path(record_path(TOOLKIT, PATH)).read_bytes()
    assert folder in OriginalFile.from_bytes("record", content).created_directories


# -- Properties of every config.toml ---------------------------------------------------------------------------------

contents = st.sampled_from(list(VARIANTS.values()))
names = st.lists(st.sampled_from(list(SAMPLES)), unique=True, max_size=6)
FOREIGN_LINE = "# a line of the administrator\n"


@st.composite
def request(draw: t.Any, nulls: bool = True) -> dict[str, t.Any]:
    """Return some settings, flat or nested."""
    flat = {}
    for name in draw(names):
        value = draw(st.sampled_from([*SAMPLES[name], *([None] if nulls else [])]))
        flat[name] = list(value) if isinstance(value, list) else value
    if draw(st.booleans()):
        return flat
    nested: dict[str, t.Any] = {}
    for name, value in flat.items():
        *outer, last = name.split(".")
        table = nested
        for part in outer:
            table = table.setdefault(part, {})
        table[last] = value
    return nested


def flat(requested: dict[str, t.Any], outer: str = "") -> dict[str, t.Any]:
    found: dict[str, t.Any] = {}
    for name, value in requested.items():
        found.update(flat(value, f"{outer}{name}.") if isinstance(value, dict) else {outer + name: value})
    return found


def words_of(config: Config) -> list[str]:
    return sorted(re.findall(r"[^\s,{}]+", config.text))


def implied(key: str) -> t.Any:
    return BY_PATH[tuple(key.split("."))].implied


@given(contents, request())
def test_changes_only_requested_settings(content: bytes | None, requested: dict[str, t.Any]) -> None:
    config = Config(content)
    before = config.settings
    config.present(requested)
    wanted = {key: implied(key) if value is None else value for key, value in flat(requested).items()}
    assert config.settings == {**before, **wanted}


@given(contents, request())
def test_second_run_changes_nothing(content: bytes | None, requested: dict[str, t.Any]) -> None:
    config = Config(content)
    config.present(requested)
    assert not config.file.present(SettingsRequest(requested)).file.changed


@given(contents, request())
def test_keeps_the_order_of_foreign_lines(content: bytes | None, requested: dict[str, t.Any]) -> None:
    config = Config(content)
    config.present(requested)
    names = [key.rpartition(".")[2] for key in flat(requested)]
    lines = [line for line in (content or b"").decode().splitlines() if line.strip()]
    # Arrays, inline tables and commented headers have their own tests.
    foreign = [line for line in lines if not any(f"{name} =" in line for name in names)]
    foreign = [line for line in foreign if "= {" not in line and not re.match(r" *#[ #]*\[| +\"| *\]", line)]
    remaining = iter(config.text.splitlines())
    assert [line for line in foreign if line not in remaining] == []


@given(contents, request())
def test_null_restores_settings_that_were_not_set(content: bytes | None, requested: dict[str, t.Any]) -> None:
    config = Config(content)
    there = TomlDocument.from_bytes(PATH, content or b"")
    keys = list(flat(requested))
    for key in keys:
        path = tuple(key.split("."))
        standard = not BY_PATH[path].commented and equal(there.value(*path), implied(key))
        assume(not there.has(*path) or standard)
    config.present(requested)
    config.present(dict.fromkeys(keys))
    assert config.content == content


@given(contents, st.lists(st.tuples(request(), st.booleans()), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_removal_restores_all_bytes(
    content: bytes | None, runs: list[tuple[dict[str, t.Any], bool]], debug: bool, removal: bool
) -> None:
    config = Config(content)
    for requested, exclusive in runs:
        config.present(requested, debug=debug, exclusive=exclusive)
        # The record exists while the file differs from the original.
        assert config.record is not None or config.content == content
    if removal:
        config.absent()
    else:
        config.present({}, exclusive=True)
    assert (config.content, config.record) == (content, None)


@given(contents, st.lists(request(), min_size=1, max_size=2))
def test_removal_keeps_foreign_lines(content: bytes | None, runs: list[dict[str, t.Any]]) -> None:
    assume(content)
    config = Config(content)
    for requested in runs:
        config.present(requested)
    bom = b"\xef\xbb\xbf" if (content or b"").startswith(b"\xef") else b""

    def disturbed(text: bytes) -> bytes:
        return bom + FOREIGN_LINE.encode() + text[len(bom) :]

    config.content = disturbed(config.content or b"")
    before = Config(content).settings
    config.absent()
    assert config.settings == before
    # A removed line is restored at another position.
    if all(value is not None for requested in runs for value in flat(requested).values()):
        assert config.content == disturbed(content or b"")


@given(contents, request(), request())
def test_exclusive_result_is_independent_of_earlier_runs(
    content: bytes | None, former: dict[str, t.Any], requested: dict[str, t.Any]
) -> None:
    config, fresh = Config(content), Config(content)
    config.present(former, exclusive=True)
    config.present(requested, exclusive=True)
    fresh.present(requested, exclusive=True)
    assert config.settings == fresh.settings
    # In the layout of the packages the lines are equal too, in any order.
    set_only = all(value is not None for request in (former, requested) for value in flat(request).values())
    if set_only and content in (VARIANTS["packages"], VARIANTS["packages, with values"]):
        assert words_of(config) == words_of(fresh)


@given(request(nulls=False), st.booleans())
def test_writes_settings_again_after_package_scripts(requested: dict[str, t.Any], faulty: bool) -> None:
    config = Config()
    before = config.settings
    config.present(requested)
    config.rewrite(faulty)
    config.present(requested)
    assert config.settings == {**before, **flat(requested)}
    config.rewrite()
    config.absent()
    assert config.settings == before


@pytest.mark.parametrize("content", list(VARIANTS.values()), ids=list(VARIANTS))
def test_every_setting(content: bytes | None) -> None:
    config = Config(content)
    requested = {key: values[0] for key, values in SAMPLES.items() if key != "nvidia-container-cli.environment"}
    config.present(requested)
    assert {key: config.settings[key] for key in requested} == requested
    assert not config.file.present(SettingsRequest(requested)).file.changed
    config.absent()
    assert config.content == content
