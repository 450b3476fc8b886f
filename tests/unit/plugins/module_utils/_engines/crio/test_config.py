# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import ConfiguredState, HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio.config import (
    CDI_DIRS,
    DEFAULT,
    CrioFiles,
    builtin_runtimes,
    config_dir,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio.engine import CRIO
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import Unit
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import EngineTree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_crio import FOLDER, MAIN
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_files import FakeFiles

if t.TYPE_CHECKING:
    from pathlib import Path


def unit(*flags: str) -> Unit:
    return Unit("crio.service", "/lib/crio.service", arguments=("/usr/bin/crio", *flags))


def loaded(content: t.Mapping[str, str], **overlay: str | None) -> CrioFiles:
    """Return the files. ``overlay`` maps names in the drop-in directory to new texts, or None for removed files."""
    documents = {
        f"{FOLDER}/{name}": None if text is None else TomlDocument.from_bytes(name, text.encode())
        for name, text in overlay.items()
    }
    return CrioFiles(FakeFiles(content, "crio"), MAIN, FOLDER, documents)


def runtime(name: str, **entries: str) -> str:
    lines = [f"[crio.runtime.runtimes.{name}]", *(f'{key} = "{value}"' for key, value in entries.items())]
    return "\n".join(lines) + "\n"


def default(name: str) -> str:
    return f'[crio.runtime]\ndefault_runtime = "{name}"\n'


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), FOLDER),
        (("--config-dir", "/opt/crio.d"), "/opt/crio.d"),
        (("--config-dir=/opt/crio.d/",), "/opt/crio.d"),
        (("-d", "/opt/crio.d"), "/opt/crio.d"),
        (("-d", "/a", "--config-dir=/b"), "/b"),
        (("--default-runtime", "runc", "-c", "/x"), FOLDER),
        (("--config-dir=",), ""),
        (("-d", ""), ""),
    ],
)
def test_config_dir(flags: tuple[str, ...], expected: str) -> None:
    assert config_dir(unit(*flags)) == expected


def test_without_a_unit_the_directory_is_crio_s_own() -> None:
    assert config_dir(None) == FOLDER


def test_reads_every_file_in_order() -> None:
    names = ["10-crio.conf", "10-crio.conf.rpmsave", "20/a/z.bak", "20/b", "20.conf", ".hidden", "99-x.toml~", "README"]
    files = loaded({f"{FOLDER}/{name}": default(name) for name in names})
    # Capital letters come first, and a directory is sorted by its own name.
    order = ".hidden 10-crio.conf 10-crio.conf.rpmsave 20/a/z.bak 20/b 20.conf 99-x.toml~ README"
    assert [file.name[len(FOLDER) + 1 :] for file in files.files[1:]] == order.split()
    assert files.default_runtime() == "README"


def test_a_report_may_have_the_runtimes_of_flags() -> None:
    files = loaded({f"{FOLDER}/10": default("crun")})
    files.flagged_runtimes = ("kata",)
    for name, matches in (("kata", True), ("other", False)):
        runtimes: dict[str, t.Any] = {**files.runtimes(), name: {"runtime_path": "/opt/x"}}
        assert files.matches_report({"crio": {"runtime": {"default_runtime": "crun", "runtimes": runtimes}}}) is matches


def test_order_equals_that_of_the_host(tmp_path: Path) -> None:
    """Planned files and links to files are included, linked directories are not."""
    folder = tmp_path / FOLDER[1:]
    (folder / "20").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    for name in ("10-a", "20/z", "20.conf", "../crio.conf", "../../../elsewhere/linked"):
        (folder / name).write_text("# nothing\n")
    (folder / "15-link").symlink_to("/elsewhere/linked")
    (folder / "30-nowhere").symlink_to("/elsewhere/none")
    host = HostFiles(HostFS(str(tmp_path), live=False), "crio")
    overlay = {f"{FOLDER}/{name}": TomlDocument.from_bytes(name, b"") for name in ("20/a", "05-new", "10-a")}
    files = CrioFiles(host, MAIN, FOLDER, {**overlay, f"{FOLDER}/20.conf": None})
    expected = ["05-new", "10-a", "15-link", "20/a", "20/z"]
    assert [file.name for file in files.files] == [MAIN, *(f"{FOLDER}/{name}" for name in expected)]
    assert files.files[3].path == "/elsewhere/linked"
    assert files.missing == [f"{FOLDER}/30-nowhere"]


def test_later_key_has_effect() -> None:
    files = loaded({MAIN: default("main"), f"{FOLDER}/10": default("ten"), f"{FOLDER}/20": "[crio.runtime]\n"})
    assert files.default_runtime() == "ten"
    found = files.defining_file(DEFAULT)
    assert found is not None
    assert found.path == f"{FOLDER}/10"


@pytest.mark.parametrize("text", ["", default("")])
def test_no_default(text: str) -> None:
    assert loaded({MAIN: default("runc"), f"{FOLDER}/10": text}).default_runtime() == (None if text else "runc")


def test_later_table_replaces_earlier_one() -> None:
    files = loaded(
        {
            MAIN: runtime("runc", runtime_path="/runc", monitor_path="/conmon") + runtime("crun", runtime_path="/crun"),
            f"{FOLDER}/10": runtime("runc", runtime_root="/run/runc"),
            f"{FOLDER}/20": runtime("kata", runtime_path="/kata"),
        }
    )
    assert files.runtimes() == {
        "runc": {"runtime_root": "/run/runc"},
        "crun": {"runtime_path": "/crun"},
        "kata": {"runtime_path": "/kata"},
    }


def test_overridden_table() -> None:
    texts = {
        MAIN: runtime("x", runtime_path="/main"),
        f"{FOLDER}/10": runtime("x", runtime_path="/10"),
        f"{FOLDER}/50": runtime("x", runtime_path="/50"),
        f"{FOLDER}/90": runtime("x", runtime_path="/90"),
    }
    files = loaded(texts)
    assert files.overridden_table(f"{FOLDER}/50", "x") == {"runtime_path": "/10"}
    assert files.overridden_table(f"{FOLDER}/10", "x") == {"runtime_path": "/main"}
    assert files.overridden_table(MAIN, "x") == files.overridden_table(f"{FOLDER}/50", "y") == {}


def test_overlay_replaces_files() -> None:
    files = loaded({f"{FOLDER}/10": default("ten")}, **{"10": None, "05": default("five")})
    assert files.default_runtime() == "five"
    assert files.missing == []


def test_flags_override_files() -> None:
    fake = FakeFiles({MAIN: default("runc")}, "crio")
    flags = unit("--default-runtime", "kata", "--runtimes", "kata:/kata:/run:vm,other:/o", "--runtimes=third:/t")
    files = CrioFiles.of(fake.context(MAIN)._replace(unit=flags))
    assert files.default_runtime() == "kata"
    assert files.flagged_runtimes == ("kata", "other", "third")
    assert files.defines("third", None)


@pytest.mark.parametrize(
    ("version", "expected"),
    [(None, ("crun", "runc")), ((1, 30, 9), ("runc",)), ((1, 31), ("crun",)), ((1, 37, 0), ("crun",))],
)
def test_builtin_runtimes(version: tuple[int, ...] | None, expected: tuple[str, ...]) -> None:
    assert builtin_runtimes(version) == expected
    assert [name for name in ("crun", "runc") if loaded({}).defines(name, version)] == sorted(expected)


@pytest.mark.parametrize(
    ("text", "line", "column", "problem"),
    [
        ("crio = 1\n", 1, 1, "crio is not a table"),
        ("[crio]\nruntime = 1\n", 2, 1, "crio.runtime is not a table"),
        ("[crio.runtime]\n\n  default_runtime = true\n", 3, 3, "not a string"),
        ("[crio.runtime]\nruntimes = []\n", 2, 1, "not a table"),
        ("[crio.runtime.runtimes]\nx = 1\n", 2, 1, "crio.runtime.runtimes.x is not a table"),
        ("[crio.runtime.runtimes.x]\nruntime_path = 1\n", 2, 1, "not a string"),
        ("[crio.runtime.runtimes.x]\nruntime_type = 1\n", 2, 1, "not a string"),
        ("[crio.runtime.runtimes.x]\nallowed_annotations = 'a'\n", 2, 1, "not an array"),
        ("[crio.runtime.runtimes.x]\nallowed_annotations = [['a']]\n", 2, 1, "an entry that is not a string"),
        ("[crio.runtime.runtimes.x]\ninherit_default_runtime = 'a'\n", 2, 1, "not true or false"),
    ],
)
@pytest.mark.parametrize("path", [MAIN, f"{FOLDER}/10-crio.conf"])
def test_wrong_types(path: str, text: str, line: int, column: int, problem: str) -> None:
    files = CrioFiles(FakeFiles({path: text}, "crio"), MAIN, FOLDER)
    with pytest.raises(ConfigurationError, match=problem) as caught:
        files.check()
    assert (caught.value.path, caught.value.line, caught.value.column) == (path, line, column)
    # Reading and removing work nevertheless.
    assert (files.runtimes().get("y"), files.value(CDI_DIRS)) == (None, None)
    assert files.default_runtime() is None


def test_error_names_the_position() -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded({f"{FOLDER}/10": "[crio]\na = \n"})
    assert (caught.value.path, caught.value.line) == (f"{FOLDER}/10", 2)


# -- variables and links, measured on CRI-O 1.28.11 and 1.36.3 ---------------------------------------------------------

SERVICE = "/etc/systemd/system/crio.service"


def tree_of(tmp_path: Path, command: str, environment: str, **files: str) -> EngineTree:
    text = f"[Service]\nEnvironmentFile=-/etc/sysconfig/crio\nExecStart=/usr/bin/crio {command}\n"
    texts = {SERVICE: text, "/etc/sysconfig/crio": environment, "/usr/bin/crio": ""}
    return EngineTree(tmp_path, "crio", files={**texts, **files}, live=False)


def state_of(tree: EngineTree) -> ConfiguredState:
    found = CRIO.inspect(tree.host)
    return CRIO.configured(HostFiles(tree.host, "crio").as_configured(found, None))


@pytest.mark.parametrize(
    ("command", "environment", "default_runtime", "cdi"),
    [
        ("", "CONTAINER_DEFAULT_RUNTIME=kata\n", "kata", True),
        ("--default-runtime crun", "CONTAINER_DEFAULT_RUNTIME=kata\n", "crun", True),
        ("", "CONTAINER_DEFAULT_RUNTIME=\n", "crun", True),
        ("-default-runtime=kata", "", "kata", True),
        ("-cdi-spec-dirs /x,/y", "", "runc", True),
        ("", "CONTAINER_CDI_SPEC_DIRS=\n", "runc", False),
        ("", "CONTAINER_CONFIG=/opt/crio.conf\n", "kata", True),
        ("", "CONTAINER_CONFIG_DIR=/opt/d\n", "kata", False),
        ("--config-dir=/etc/crio/crio.conf.d", "CONTAINER_CONFIG_DIR=/opt/d\n", "runc", True),
    ],
)
def test_variables_override_files(
    tmp_path: Path, command: str, environment: str, default_runtime: str, cdi: bool
) -> None:
    files = {
        MAIN: default("runc"),
        "/opt/crio.conf": default("kata"),
        "/opt/d/10": default("kata") + "cdi_spec_dirs = []\n",
    }
    state = state_of(tree_of(tmp_path, command, environment, **files))
    assert (state.default_runtime, state.cdi) == (default_runtime, cdi)


def test_variable_that_overrides_the_request_is_refused(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, "", "CONTAINER_RUNTIMES=nvidia:/x:/y\nCONTAINER_LISTEN=/run/x.sock\n")
    assert state_of(tree).flagged_runtimes == ("nvidia",)
    assert CRIO.inspect(tree.host).socket == "/run/x.sock"
    with pytest.raises(NvidiaError, match=rf"^{SERVICE}: the flag --runtimes, or the variable CONTAINER_RUNTIMES,"):
        tree.present()
    tree.write("/etc/sysconfig/crio", "CONTAINER_DEFAULT_RUNTIME=runc\n")
    with pytest.raises(NvidiaError, match="or the variable CONTAINER_DEFAULT_RUNTIME, overrides all files"):
        tree.present(set_as_default=True)


@pytest.mark.parametrize(("flag", "refused"), [("", True), ("--config-dir=/etc/crio/crio.conf.d/", False)])
def test_linked_directory_is_refused(tmp_path: Path, flag: str, refused: bool) -> None:
    tree = tree_of(tmp_path, flag, "", **{"/srv/crio/10": default("runc")})
    tree.path("/etc/crio").mkdir(parents=True)
    tree.path(FOLDER).symlink_to("/srv/crio")
    before = tree.files()
    if refused:
        with pytest.raises(NvidiaError, match=rf"^{FOLDER} is a link to /srv/crio, and CRI-O would not start"):
            tree.present()
        assert tree.files() == before
    else:
        assert tree.present().changed
    assert tree.absent().changed is not refused
    assert tree.files() == before
