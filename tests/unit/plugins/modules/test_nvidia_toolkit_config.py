# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

if t.TYPE_CHECKING:
    from pathlib import Path

OTHER = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"


def test_warns_of_a_file_that_other_runtimes_read(
    tmp_path: Path, run_module: t.Callable[..., dict[str, t.Any]]
) -> None:
    def warns(**arguments: t.Any) -> bool:
        result = run_module("nvidia_toolkit_config", host_root=str(tmp_path), **arguments)
        assert "failed" not in result
        return f"but {OTHER}." in str(result.get("warnings"))

    settings = {"nvidia-container-runtime.mode": "cdi"}
    assert not warns(settings=settings)
    file = tmp_path / OTHER[1:]
    file.parent.mkdir(parents=True)
    file.touch()
    assert warns(settings=settings)
    assert not warns(settings=settings, path=OTHER)
    assert not warns(state="absent")
