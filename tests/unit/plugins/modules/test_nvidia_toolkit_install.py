# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module nvidia_toolkit_install with settings for config.toml, on a host that has the toolkit's programs."""

from __future__ import annotations

import functools
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import configure
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import (
    install as install_packages,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import (
    remove as remove_packages,
)

if t.TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = ("nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-container-cli", "nvidia-ctk")
MODE = {"nvidia-container-runtime.mode": "cdi"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "usr/bin"
    folder.mkdir(parents=True)
    for name in PROGRAMS:
        (folder / name).touch(mode=0o755)
    config = tmp_path / "etc/nvidia-container-runtime/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("# by the administrator\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def run(tree: Path, run_module: t.Callable[..., dict[str, t.Any]]) -> t.Callable[..., dict[str, t.Any]]:
    return functools.partial(run_module, "nvidia_toolkit_install", source="existing", host_root=str(tree))


@pytest.fixture
def unchangeable_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for task in (install_packages.Installation, remove_packages.Removal):
        monkeypatch.setattr(task, "execute", lambda *_arguments: pytest.fail("The packages were changed."))


def config_of(tree: Path) -> str:
    return (tree / "etc/nvidia-container-runtime/config.toml").read_text(encoding="utf-8")


def test_settings_are_written_and_restored(tree: Path, run: t.Callable[..., dict[str, t.Any]]) -> None:
    before = config_of(tree)
    predicted = run(settings=MODE, _ansible_check_mode=True)
    assert (predicted["changed"], config_of(tree)) == (True, before)
    first = run(settings=MODE)
    assert first["changed"]
    assert first["settings"]["nvidia-container-runtime.mode"] == "cdi"
    assert [entry["path"] for entry in first["backup_files"]] == ["/etc/nvidia-container-runtime/config.toml"]
    assert 'mode = "cdi"' in first["diff"][-1]["after"]
    assert config_of(tree).startswith(before)
    assert not run(settings=MODE)["changed"]
    # Without the options the file stays as it is.
    unrelated = run()
    assert (unrelated["changed"], "settings" in unrelated) == (False, False)
    assert 'mode = "cdi"' in config_of(tree)
    # A setting that is no longer named is restored.
    assert run(settings={})["changed"]
    assert config_of(tree) == before


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("# empty\n", {"settings": {"mode": "cdi"}}, "mode is not a known setting"),
        ("[broken\n", {"debug": True}, "config.toml, line 1, column 8"),
        ("# empty\n", {"state": "absent", "settings": MODE}, "absent does not support these options: settings"),
    ],
)
@pytest.mark.usefixtures("unchangeable_packages")
def test_errors_precede_changes_of_packages(
    tree: Path, run: t.Callable[..., dict[str, t.Any]], text: str, arguments: dict[str, t.Any], message: str
) -> None:
    (tree / "etc/nvidia-container-runtime/config.toml").write_text(text, encoding="utf-8")
    failed = run(**arguments)
    assert failed["failed"]
    assert message in failed["msg"]
    assert config_of(tree) == text


@pytest.mark.parametrize("check_mode", [False, True])
def test_failure_after_the_packages_changed(
    run: t.Callable[..., dict[str, t.Any]], monkeypatch: pytest.MonkeyPatch, check_mode: bool
) -> None:
    def fail(_task: object, _check_mode: bool) -> t.NoReturn:
        raise errors.HostError("config.toml cannot be written.")

    result_of = install_packages.Installation.module_result
    monkeypatch.setattr(
        install_packages.Installation, "module_result", lambda *given: {**result_of(*given), "changed": True}
    )
    monkeypatch.setattr(configure.ConfigTask, "execute", fail)
    failed = run(settings=MODE, _ansible_check_mode=check_mode)
    assert (failed["failed"], failed["changed"]) == (True, not check_mode)
