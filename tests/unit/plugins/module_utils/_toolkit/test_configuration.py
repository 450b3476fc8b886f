# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import hashlib
import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock as core_lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.apply import PACKAGES, TOOLKIT
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import (
    ConfigurationError,
    HostError,
    NvidiaError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import OriginalFile, record_path
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.configure import (
    ConfigOptions,
    ConfigTask,
    SettingsRequest,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_configs import BY_HAND, DEFAULT, PATH
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils._engines.test_configure import Tree

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.configure import ConfigResult

OWN = "/var/lib/gpufleet-nvidia"
MODE = "nvidia-container-runtime.mode"


class Toolkit(Tree):
    """A host's directory tree, and the module's work on it."""

    def toolkit(
        self, settings: dict[str, t.Any] | None = None, check_mode: bool = False, **options: t.Any
    ) -> ConfigResult:
        """``settings`` None: take everything back."""
        request = None if settings is None else SettingsRequest(settings)
        host = HostFS.of(str(self.root), live=False)
        return ConfigTask(ConfigOptions(request, **options), host).execute(check_mode)


@pytest.fixture
def tree(tmp_path: Path) -> Toolkit:
    return Toolkit(tmp_path)


@pytest.mark.parametrize("content", [None, "", DEFAULT, BY_HAND], ids=["no file", "empty", "packages", "by hand"])
def test_there_and_back(tree: Toolkit, content: str | None) -> None:
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


def test_no_secret_is_told(tree: Toolkit) -> None:
    key = "nvidia-container-cli.environment"
    asked = {key: ["PASSWORD=my hunter2", "HTTP_PROXY=http://bob:hunter2@proxy"]}
    told = tree.toolkit(asked).settings[key]
    assert told == ["PASSWORD=********", "HTTP_PROXY=http://********@proxy"]
    assert tree.toolkit({}).settings[key] == told
    assert not tree.toolkit(asked).changed


def test_an_unchanged_host_pays_for_no_lock(tree: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write(PATH, DEFAULT)

    def lock(_host: HostFS) -> t.Any:
        raise AssertionError

    monkeypatch.setattr(core_lock, "host_lock", lock)
    assert not tree.toolkit({MODE: "auto"}).changed
    assert tree.toolkit({MODE: "cdi"}, check_mode=True).changed


def test_a_link_stays_a_link(tree: Toolkit) -> None:
    tree.write("/data/config.toml", DEFAULT)
    tree.path(PATH).parent.mkdir(parents=True)
    tree.path(PATH).symlink_to("/data/config.toml")
    done = tree.toolkit({MODE: "cdi"})
    assert tree.path(PATH).is_symlink()
    assert (done.path, done.files[0].path) == (PATH, "/data/config.toml")
    tree.toolkit(purge_backups=True)
    assert tree.path("/data/config.toml").read_text() == DEFAULT


def test_the_host_says_which_ldconfig_is_the_default(tree: Toolkit) -> None:
    assert tree.toolkit({}).settings["nvidia-container-cli.ldconfig"] == "@/sbin/ldconfig"
    tree.write("/sbin/ldconfig.real")
    assert tree.toolkit({}).settings["nvidia-container-cli.ldconfig"] == "@/sbin/ldconfig.real"


def test_another_file_is_another_configuration(tree: Toolkit) -> None:
    other = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
    tree.toolkit({MODE: "cdi"})
    tree.toolkit({MODE: "legacy"}, path=other)
    tree.toolkit()
    assert not tree.path(PATH).exists()
    assert 'mode = "legacy"' in tree.path(other).read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": "etc/config.toml"}, "path 'etc/config.toml' is not an absolute path"),
        ({"backup_dir": "/etc/cdi/old"}, "backup_dir '/etc/cdi/old' lies in /etc/cdi"),
    ],
)
def test_paths_are_looked_at_first(tree: Toolkit, options: dict[str, t.Any], words: str) -> None:
    with pytest.raises(NvidiaError) as raised:
        tree.toolkit({MODE: "cdi"}, **options)
    assert words in str(raised.value)
    assert tree.snapshot() == {}


def test_a_broken_file_is_named_with_its_place_and_left_alone(tree: Toolkit) -> None:
    tree.write(PATH, DEFAULT + "mode = \n")
    before = tree.snapshot()
    for settings in ({MODE: "cdi"}, {}, None):
        with pytest.raises(ConfigurationError) as raised:
            tree.toolkit(settings)
        assert (raised.value.path, raised.value.line) == (PATH, DEFAULT.count("\n") + 1)
    assert tree.snapshot() == before


def test_what_another_run_did_meanwhile_counts(tree: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write(PATH, DEFAULT)
    lock = core_lock.host_lock

    def late(host: HostFS) -> t.Any:
        monkeypatch.setattr(core_lock, "host_lock", lock)
        tree.toolkit({MODE: "cdi"})
        return lock(host)

    monkeypatch.setattr(core_lock, "host_lock", late)
    result = tree.toolkit({MODE: "cdi"})
    assert (result.changed, result.files, result.backup_files) == (False, [], [])


def test_a_damaged_record_is_named_and_nothing_is_touched(tree: Toolkit) -> None:
    tree.write(PATH, DEFAULT)
    tree.toolkit({MODE: "cdi"})
    tree.path(record_path(TOOLKIT, PATH)).write_text("{")
    before = tree.snapshot()
    for settings in ({MODE: "auto"}, None):
        with pytest.raises(HostError, match="is damaged"):
            tree.toolkit(settings)
    assert tree.snapshot() == before


# -- several owners of records ---------------------------------------------------------------------------------------


def test_the_last_owner_takes_the_folders_along(tree: Toolkit) -> None:
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


def test_folders_that_packages_brought_are_known_too(tree: Toolkit) -> None:
    """What is recorded in the packages' name counts for the folders that others use."""
    folder = os.path.dirname(PATH)
    tree.write(PATH, DEFAULT)
    brought = OriginalFile(PACKAGES, PATH, None, 0, 0, 0o644, created_directories=(folder,), main=PATH)
    tree.write(record_path(PACKAGES, PATH), brought.to_bytes())
    tree.toolkit({MODE: "cdi"})
    content = tree.path(record_path(TOOLKIT, PATH)).read_bytes()
    assert folder in OriginalFile.from_bytes("record", content).created_directories


# -- killed ----------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


def _killed(tree: Toolkit, settings: dict[str, t.Any] | None, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Die just before the given write to the disk, counted over replacements and removals."""
    count = 0

    def counting(function: t.Callable[..., None]) -> t.Callable[..., None]:
        def wrapped(*args: t.Any, **more: t.Any) -> None:
            nonlocal count
            # The same functions write the backups, which come first.
            count += "/backups/" not in str(args[1])
            if count == step and "/backups/" not in str(args[1]):
                raise Killed
            function(*args, **more)

        return wrapped

    with monkeypatch.context() as patched, contextlib.suppress(Killed):
        for name in ("replace_file", "remove_file"):
            patched.setattr(atomic_write, name, counting(getattr(atomic_write, name)))
        tree.toolkit(settings)


def test_a_record_that_a_killed_run_has_left_goes(tree: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write(PATH, DEFAULT)
    tree.toolkit({MODE: "cdi"})
    _killed(tree, None, monkeypatch, 2)
    assert tree.path(PATH).read_text() == DEFAULT
    assert tree.path(record_path(TOOLKIT, PATH)).exists()
    assert tree.toolkit().changed
    assert not tree.path(record_path(TOOLKIT, PATH)).exists()


@pytest.mark.parametrize("content", [None, DEFAULT], ids=["no file", "packages"])
@pytest.mark.parametrize("step", range(1, 4))
@pytest.mark.parametrize("killed", ["present", "absent"])
def test_a_killed_run_heals(
    tree: Toolkit, monkeypatch: pytest.MonkeyPatch, content: str | None, step: int, killed: str
) -> None:
    tree.path("/var/lib").mkdir(parents=True)
    tree.path("/etc/nvidia-container-runtime").mkdir(parents=True)
    if content is not None:
        tree.write(PATH, content)
    before = tree.bytes_and_modes()
    if killed == "present":
        _killed(tree, {MODE: "cdi"}, monkeypatch, step)
        tree.toolkit({MODE: "cdi"})
        assert 'mode = "cdi"' in tree.path(PATH).read_text()
    else:
        tree.toolkit({MODE: "cdi"})
        _killed(tree, None, monkeypatch, step)
    tree.toolkit(purge_backups=True)
    assert tree.bytes_and_modes() == before
