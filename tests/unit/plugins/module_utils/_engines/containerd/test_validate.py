# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.plan import PlannedFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.engine import CONTAINERD
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_configs import DROP_IN, MAIN
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import CRI_2, NVIDIA, Host

V2 = "version = 2\n"
BINARY, FOLDER = "/usr/bin/containerd", "/tmp/scratch"


def staged(host: Host, **asked: t.Any) -> t.Any:
    return CONTAINERD.validation_command(BINARY, FOLDER, host.plan(**asked).files, host.context())


# -- what is tried ---------------------------------------------------------------------------------------------------


def test_one_file() -> None:
    host = Host(V2)
    found = staged(host)
    ((name, content),) = found.files.items()
    assert found.argv == [BINARY, "--config", f"{FOLDER}/{name}", "config", "dump"]
    assert found.compare == [BINARY, "--config", MAIN, "config", "dump"]
    assert content == host.plan().files[0].after


def test_all_files_in_their_order() -> None:
    files = {
        MAIN: V2 + 'imports = ["/x/b.toml", "/x/a.toml"] # why\n',
        "/x/a.toml": V2 + 'imports = ["c.toml"]\n',
        "/x/b.toml": V2,
        "/x/c.toml": V2,
    }
    host = Host(files, (2, 1, 9))
    found = staged(host)
    names = [f"after{name}" for name in ("0-config.toml", "1-b.toml", "2-a.toml", "3-99-nvidia.toml", "4-c.toml")]
    assert list(found.files) == names
    imports = ", ".join(f'"{FOLDER}/{name}"' for name in names[1:])
    assert f"imports = [{imports}]".encode() in found.files["after0-config.toml"]
    # Each import of an import stands in the main file's list already.
    assert found.files["after2-a.toml"] == V2.encode()
    assert found.files["after1-b.toml"] == V2.encode()
    assert found.files["after3-99-nvidia.toml"] == host.plan().files[0].after
    assert host.plan().files[0].path == DROP_IN


def test_comments_inside_the_array_of_imports_do_not_matter() -> None:
    main = V2 + 'imports = [\n  # ours\n  "/x/*", # all of it\n]\n[debug]\nlevel = "info"\n'
    found = staged(Host({MAIN: main, "/x/a": V2}))
    assert b'"/tmp/scratch/after1-a"' in found.files["after0-config.toml"]
    assert b'level = "info"' in found.files["after0-config.toml"]


@pytest.mark.parametrize("text", [V2, V2 + 'imports = ["conf.d/*"]\n'])
def test_a_file_that_goes_is_not_among_them(text: str) -> None:
    host = Host(text, (2, 1, 9))
    host.present()
    found = staged(host, config_mode="in_place")
    assert list(found.files) == ["after0-config.toml"]
    assert b"conf.d" not in found.files["after0-config.toml"]


def test_without_a_main_file_what_is_built_in_is_compared() -> None:
    found = staged(Host(None))
    assert found.files["before0-config.toml"] == b""
    assert found.compare == [BINARY, "--config", f"{FOLDER}/before0-config.toml", "config", "dump"]


@pytest.mark.parametrize("asked", [{"config_mode": "drop_in"}, {}])
def test_a_snapshot_is_not_compared_with_what_it_holds_back(asked: dict[str, t.Any]) -> None:
    host = Host({MAIN: V2 + f'imports = ["/x/*"]\n{CRI_2}sandbox_image = "old"\n', "/x/a": V2}, (1, 7, 24))
    host.present(config_mode="drop_in")
    host.edit('"old"', '"new"')
    found = staged(host, **asked)
    assert found.compare == [BINARY, "--config", f"{FOLDER}/before0-config.toml", "config", "dump"]
    before = {name: content for name, content in found.files.items() if name.startswith("before")}
    assert list(before) == ["before0-config.toml", "before1-a"]
    assert b'sandbox_image = "new"' in before["before0-config.toml"]
    assert f'imports = ["{FOLDER}/before1-a"]'.encode() in before["before0-config.toml"]


@pytest.mark.parametrize("asked", [{"config_mode": "drop_in"}, {}])
def test_what_a_snapshot_held_back_may_change_but_nothing_else(asked: dict[str, t.Any]) -> None:
    host = Host({MAIN: V2 + CRI_2 + 'sandbox_image = "old"\n'}, (1, 7, 24))
    host.present(config_mode="drop_in")
    host.edit('"old"', '"new"')
    files = host.plan(**asked).files
    # Ours is not in the dump of what stands without the snapshot, and in the other it is.
    before, after = DUMP.replace('"pause"', '"new"'), NEW.replace('"pause"', '"new"')
    assert not CONTAINERD.compare_dumps(before, after, files)
    assert "sandbox_image" in CONTAINERD.compare_dumps(before, NEW, files)


def test_refuses_a_named_file_that_is_missing() -> None:
    host = Host(V2 + 'imports = ["/x/a.toml", "/x/*.none", "b.toml"]\n')
    with pytest.raises(NvidiaError, match=r"imports /x/a.toml, /etc/containerd/b.toml, which does not exist"):
        staged(host)


# -- what the dumps say ----------------------------------------------------------------------------------------------

DUMP = """\
disabled_plugins = []
imports = ["/etc/containerd/config.toml"]
oom_score = 0
version = 2
[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    enable_cdi = false
    sandbox_image = "pause"
    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "runc"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        sandbox_mode = "podsandbox"
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
          BinaryName = ""
          SystemdCgroup = false
          CriuPath = ""
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]
        runtime_type = "kata"
"""
NEW = DUMP + (
    f'      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\n        BinaryName = "{NVIDIA}"\n'
)
SPELLED_3 = NEW.replace("version = 2", "version = 3").replace("grpc.v1.cri", "cri.v1.runtime")


def changed(old: str, new: str, text: str = NEW) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("after", "complaint"),
    [
        (DUMP, ""),
        (NEW, ""),
        (changed('name = "runc"', 'name = "nvidia"'), ""),
        (changed("enable_cdi = false", "enable_cdi = true"), ""),
        (changed('"/etc/containerd/config.toml"', '"/tmp/x", "/tmp/y"'), ""),
        # Ours, for the plan writes it.
        (changed('sandbox_mode = "podsandbox"', 'sandbox_mode = ""'), ""),
        # Zero values are as good as none.
        (changed("oom_score = 0\n", ""), ""),
        (changed("disabled_plugins = []\n", ""), ""),
        (changed("oom_score = 0", "oom_score = 0\nroot = ''"), ""),
        (changed("oom_score = 0", "oom_score = 1"), "oom_score"),
        (changed("oom_score = 0", "oom_score = 0\nroot = '/x'"), "root"),
        (changed('    sandbox_image = "pause"\n', ""), "plugins.io.containerd.grpc.v1.cri.sandbox_image"),
        (changed('"kata"\n', '"kata2"\n'), "plugins.io.containerd.grpc.v1.cri.containerd.runtimes.kata.runtime_"),
        (
            changed("oom_score = 0", 'oom_score = 3\na = 1\nb = 1\nc = 1\nroot = "/x"'),
            "a, b, c, oom_score, root",
        ),
        ("not toml", ""),
        ("", "plugins.io.containerd.grpc.v1.cri"),
    ],
)
def test_verdict(after: str, complaint: str) -> None:
    host = Host(V2 + CRI_2 + 'sandbox_image = "pause"\n', (1, 7, 24))
    said = CONTAINERD.compare_dumps(DUMP, after, host.plan().files)
    assert said.startswith(complaint)
    assert bool(said) is bool(complaint)
    assert CONTAINERD.compare_dumps(DUMP, after, host.plan().files) == said


def test_verdict_on_a_dump_in_another_version_of_the_format() -> None:
    """containerd 2.1 prints version 3, whatever it read."""
    files = Host(V2, (2, 1, 9)).plan().files
    before = SPELLED_3.replace(NEW[len(DUMP) :].replace("grpc.v1.cri", "cri.v1.runtime"), "")
    assert before != SPELLED_3
    assert CONTAINERD.compare_dumps(before, SPELLED_3, files) == ""
    assert "kata" in CONTAINERD.compare_dumps(before, SPELLED_3.replace('"kata"', '"kata2"'), files)


def test_verdict_on_unreadable_dumps() -> None:
    files = Host(V2).plan().files
    assert CONTAINERD.compare_dumps("= broken", NEW, files) == ""
    assert CONTAINERD.compare_dumps(NEW, "= broken", files) == ""


def test_a_runtime_that_goes_is_ours_too() -> None:
    before = (V2 + '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\nx = 1\n').encode()
    assert CONTAINERD.compare_dumps(NEW, DUMP, [PlannedFile(MAIN, before, V2.encode())]) == ""
    assert "runtimes.nvidia.options.BinaryName" in CONTAINERD.compare_dumps(
        NEW, DUMP, [PlannedFile(MAIN, before, before)]
    )
