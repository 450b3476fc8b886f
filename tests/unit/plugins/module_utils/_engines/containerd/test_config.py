# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import (
    ConfigurationError,
    HostError,
    NvidiaError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import DROP_INS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.config import (
    ContainerdFiles,
    check_version,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.imports import check_versions
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_configs import MAIN
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import (
    CRI_2,
    LinkedFiles,
    default,
    document,
    runtime,
)

V17, V20, V21, V23, V24 = (1, 7, 24), (2, 0, 0), (2, 1, 9), (2, 3, 4), (2, 4, 0)
V2, V3, V4 = "version = 2\n", "version = 3\n", "version = 4\n"
CRI_3 = '[plugins."io.containerd.cri.v1.runtime"]\n'
HERE = "/etc/containerd/"


def read(
    files: str | t.Mapping[str, str],
    version: tuple[int, ...] | None = None,
    links: t.Mapping[str, str] | None = None,
    overlay: t.Mapping[str, str | None] | None = None,
) -> ContainerdFiles:
    """Return the configuration. Relative paths are below /etc/containerd, and "main" is config.toml."""
    given = {"main": files} if isinstance(files, str) else files
    full = {path(name): text for name, text in given.items()}
    fake = LinkedFiles(full, "containerd")
    fake.links = links or {}
    documents = {path(name): None if text is None else document(text) for name, text in (overlay or {}).items()}
    return ContainerdFiles(fake, MAIN, version, documents)


def path(name: str) -> str:
    return MAIN if name == "main" else name if name.startswith("/") else HERE + name


def imports(*patterns: str) -> str:
    return f"imports = {list(patterns)}\n"


# -- which files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "order", "missing"),
    [
        ({"main": ""}, ["main"], []),
        ({"main": imports("b", "a"), "a": "", "b": ""}, ["main", "b", "a"], []),
        ({"main": imports("/x/*.toml"), "/x/b.toml": "", "/x/a.toml": "", "/x/c.conf": ""}, None, []),
        # Nested imports come after all imports of the level above.
        ({"main": imports("a", "b"), "a": imports("c"), "b": "", "c": ""}, ["main", "a", "b", "c"], []),
        ({"main": imports("a", "b", "a"), "a": "", "b": ""}, ["main", "a", "b"], []),
        ({"main": imports("a"), "a": imports("config.toml", "b"), "b": imports("a")}, ["main", "a", "b"], []),
        ({"main": imports("*.toml"), "a.toml": "", "z.toml": ""}, ["main", "a.toml", "z.toml"], []),
        ({"main": imports("./sub/../a"), "a": ""}, ["main", "a"], []),
        ({"main": imports("/x/a"), "/x/a": imports("b"), "/x/b": "", "b": ""}, ["main", "/x/a", "/x/b"], []),
        # Only * makes an entry a pattern.
        ({"main": imports("a?", "a[x]"), "a?": "", "ab": "", "ax": ""}, ["main", "a?"], [HERE + "a[x]"]),
        ({"main": imports("gone", "/none/*")}, ["main"], [HERE + "gone"]),
        # A wildcard does not match a slash.
        ({"main": imports("/x/*"), "/x/a/b": "", "/x/c": ""}, ["main", "/x/c"], []),
        ({"main": imports("/x/*/a"), "/x/1/a": "", "/x/2/a": "", "/x/a": ""}, ["main", "/x/1/a", "/x/2/a"], []),
        ({"a": ""}, ["main"], []),
    ],
)
def test_reading_order(files: dict[str, str], order: list[str] | None, missing: list[str]) -> None:
    found = read(files)
    expected = ["main", "/x/a.toml", "/x/b.toml"] if order is None else order
    assert [file.path for file in found.files] == [path(name) for name in expected]
    assert found.missing == missing


def test_too_many_imports() -> None:
    files = {f"/data/{number}.toml": "" for number in range(DROP_INS)}
    assert len(read({"main": imports("/data/*.toml"), **files}).files) == DROP_INS + 1
    with pytest.raises(HostError, match=rf"^{MAIN} imports more than 100 files"):
        read({"main": imports("/data/*.toml", "/more.toml"), **files, "/more.toml": ""})


def test_overlay_replaces_files() -> None:
    files = {"main": imports("d/*.toml", "a.toml"), "a.toml": V2, "d/b.toml": V2}
    found = read(files, overlay={"a.toml": "root = '/new'\n", "d/b.toml": None, "d/c.toml": V3, "e/f.toml": V3})
    assert [file.path for file in found.files] == [MAIN, HERE + "d/c.toml", HERE + "a.toml"]
    assert found.files[2].document.value("root") == "/new"
    assert read(files, overlay={"a.toml": None}).missing == [HERE + "a.toml"]


def test_linked_directory_is_read_once() -> None:
    files = {"main": imports("d/*.toml", "/data/a.toml"), "/data/a.toml": "", "/data/b.toml": ""}
    found = read(files, links={HERE + "d": "/data"})
    assert [file.path for file in found.files] == [MAIN, "/data/a.toml", "/data/b.toml"]
    assert found.imports_path("/data/new.toml")
    gone = ContainerdFiles(found._files, MAIN, None, {"/data/a.toml": None, "/data/c.toml": document("")})
    assert [file.path for file in gone.files] == [MAIN, "/data/b.toml", "/data/c.toml"]


@pytest.mark.parametrize(
    ("patterns", "covered"),
    [
        (["/etc/containerd/conf.d/*.toml"], True),
        (["conf.d/*"], True),
        (["conf.d/99-nvidia.toml"], True),
        (["conf.*/9*"], True),
        (["conf.d/[^a]*"], True),
        (["conf.d/[^9]*"], False),
        (["conf.d/*.conf", "conf.d/99-nvidia.tom"], False),
        (["conf.d/99-nvidia.tom?"], False),
        (["*"], False),
        ([], False),
    ],
)
def test_imports_path(patterns: list[str], covered: bool) -> None:
    assert read(imports(*patterns)).imports_path(HERE + "conf.d/99-nvidia.toml") is covered


@pytest.mark.parametrize(
    ("engine", "of_daemon"),
    [((1, 6, 28), True), ((1, 6, 29), False), ((1, 7, 15), True), (V17, False), (V21, False), (None, False)],
)
def test_relative_patterns_of_old_releases_belong_to_the_daemon(engine: t.Any, of_daemon: bool) -> None:
    files = {"main": imports("conf.d/*.toml", "a.toml"), "a.toml": "", "conf.d/b.toml": "", "/conf.d/c.toml": ""}
    found = read(files, engine)
    expected = "/conf.d/c.toml" if of_daemon else HERE + "conf.d/b.toml"
    assert [file.path for file in found.files] == [MAIN, expected, HERE + "a.toml"]
    assert found.imports_path(HERE + "conf.d/99-nvidia.toml") is not of_daemon


# -- versions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "engine", "version"),
    [
        ("", None, 2),
        ("", V17, 2),
        ("", V20, 3),
        ("", V21, 3),
        ("root = '/x'\n", V21, 3),
        ("disabled_plugins = []\n[plugins]\n", V21, 3),
        ("disabled_plugins = []\n", V21, 3),
        ("disabled_plugins = ['cri']\n", V21, 1),
        ("required_plugins = ['x']\n", None, 1),
        ("[plugins.cri]\n", None, 1),
        ("[plugins]\nx.y = 1\n", None, 1),
        *((f"version = {number}\n", None, number) for number in (1, 2, 3, 4)),
        ({"main": imports("a"), "a": V2}, V21, 2),
        ({"main": imports("a"), "a": V3}, None, 3),
        ({"main": imports("a", "b"), "a": V2, "b": ""}, V21, 2),
        ({"main": imports("a", "b"), "a": V2, "b": V3}, V21, 3),
        ({"main": imports("a", "b"), "a": V2, "b": V3}, None, 1),
        ({"main": imports("a"), "a": "[plugins.cri]\n"}, V21, 1),
        ({"main": imports("a", "b"), "a": V2, "b": "[plugins.cri]\n"}, V21, 2),
        ({"main": imports("a"), "a": "version = 9\n"}, None, 2),
        # Printed by containerd 1.6.20, 1.7.24 and 2.1.9 (config dump): the last file with a version counts for all.
        ({"main": V2 + imports("a"), "a": V3}, V21, 3),
        ({"main": V2 + imports("a", "b"), "a": V3, "b": "root = '/x'\n"}, V21, 3),
        ({"main": V3 + imports("a"), "a": V2}, V21, 2),
        ({"main": V2 + imports("a"), "a": "version = 1\n"}, V17, 1),
        ({"main": V2 + imports("a"), "a": "version = 1\n"}, V21, 2),
        ({"main": V2 + imports("a"), "a": V3}, V23, 2),
        ({"main": V2 + imports("a"), "a": V3}, None, 2),
    ],
)
def test_version_that_counts(files: t.Any, engine: tuple[int, ...] | None, version: int) -> None:
    assert read(files, engine).version == version


@pytest.mark.parametrize(
    ("text", "engine", "problem"),
    [
        (
            V3,
            V17,
            "line 1, column 1: containerd 1.7.24 does not support configuration version 3. Use",
        ),
        ("\nversion = 4\n", V21, "line 2, column 1: containerd 2.1.9 does not support configuration version 4. Use"),
        ("version = 1\n", V20, "containerd 2.0.0 ignores the CRI settings of a file in configuration version 1"),
        (V3, V20, None),
        ("version = 1\n", V23, None),
        (V3, None, None),
        ("version = 4\n", (2, 3), None),
        ("version = 1\n", V17, None),
        ("version = 1\n", None, None),
    ],
)
def test_supported_versions(text: str, engine: tuple[int, ...] | None, problem: str | None) -> None:
    files = read(text, engine)
    if problem is None:
        check_version(files)
    else:
        with pytest.raises(NvidiaError) as caught:
            check_version(files)
        assert MAIN in str(caught.value)
        assert problem in str(caught.value)


# -- the settings of the CRI -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "selinux", "runtimes", "source"),
    [
        (None, None, ["b"], "b"),
        (V17, None, ["b"], "b"),
        (V20, True, ["a", "b"], "main"),
        (V21, True, ["a", "b"], "main"),
    ],
)
def test_later_table_replaces_or_merges(
    engine: tuple[int, ...] | None, selinux: bool | None, runtimes: list[str], source: str
) -> None:
    main = V2 + imports("b", "c") + CRI_2 + "enable_selinux = true\nlist = [1]\n" + runtime("a") + default("a")
    later = V2 + CRI_2 + "list = [2]\n" + runtime("b") + default("b")
    files = read({"main": main, "b": later, "c": V2 + "[debug]\nlevel = 'info'\n"}, engine)
    assert files.cri().get("enable_selinux") is selinux
    assert files.cri()["list"] == [2]
    assert list(files.runtimes()) == runtimes
    assert files.default_runtime() == "b"
    assert files.target_path() == path(source)
    assert files.defining_path(("containerd", "default_runtime_name")) == path("b")
    assert files.defining_path(("enable_cdi",)) == path(source)


@pytest.mark.parametrize(
    ("main", "later", "cri", "mismatched"),
    [
        (V2, V2 + CRI_2 + "x = 1\n", {"x": 1}, False),
        (V2, CRI_2 + "x = 1\n", {"x": 1}, False),
        (V3, CRI_3 + "x = 1\n", {"x": 1}, False),
        (V2, V3 + CRI_3 + "x = 1\n", {}, True),
        (V3, V2 + CRI_2 + "x = 1\n", {}, True),
        (V2, V3 + CRI_2 + "x = 1\n", {}, True),
        (V2, V3 + "[debug]\nlevel = 'info'\n", {}, False),
        (V3, CRI_2 + "x = 1\n", {}, False),
        ("[plugins.cri]\nx = 1\n", CRI_2 + "x = 2\n", {"x": 1}, False),
        (V2, V2 + "[plugins.cri]\nx = 1\n", {}, False),
    ],
)
def test_tables_of_other_versions_have_no_effect(main: str, later: str, cri: dict[str, int], mismatched: bool) -> None:
    files = read({"main": imports("a") + main, "a": later})
    assert files.cri() == cri
    assert files.mismatched_versions() == ([path("a")] if mismatched else [])


@pytest.mark.parametrize(
    ("main", "later", "cri", "ignored"),
    [
        # Printed by containerd 2.1.9 for the same files (config dump).
        (V2 + CRI_2 + "x = 1\n", V3 + CRI_3 + "y = 1\n", {"y": 1}, "main"),
        (V2 + CRI_2 + "x = 1\n", V3, {}, "main"),
        (V2 + CRI_3 + "x = 1\n", V3 + CRI_3 + "y = 1\n", {"x": 1, "y": 1}, None),
        (V3 + CRI_3 + "x = 1\n", V2 + CRI_2 + "y = 1\n", {"x": 1, "y": 1}, None),
        (V3 + CRI_3 + "x = 1\n", V2 + CRI_3 + "x = 2\n", {"x": 2}, None),
        (V2 + CRI_2 + "x = 1\n", "[plugins.cri]\nx = 2\n", {"x": 2}, None),
        (V2 + CRI_2 + "x = 1\n", "version = 1\n[plugins.cri]\ny = 2\n", {"x": 1, "y": 2}, None),
    ],
)
def test_one_version_counts_for_all_files(main: str, later: str, cri: dict[str, int], ignored: str | None) -> None:
    files = read({"main": imports("a") + main, "a": later}, V21)
    assert files.cri() == cri
    assert files.mismatched_versions() == ([path(ignored)] if ignored else [])


@pytest.mark.parametrize("engine", [V23, V24])
@pytest.mark.parametrize(
    ("main", "later", "cri"),
    [
        # Printed by containerd 2.3.4 for the same files (config dump).
        (V3, V2 + CRI_2 + "x = 1\n", {"x": 1}),
        (V4, V2 + CRI_2 + "x = 1\n", {"x": 1}),
        (V4, V3 + CRI_3 + "x = 1\n", {"x": 1}),
        (V4, "[plugins.cri]\nx = 1\n", {"x": 1}),
        (V4, CRI_2 + "x = 1\n", {"x": 1}),
        (V4, V4 + CRI_2 + "x = 1\n", {}),
        (V3, V3 + CRI_2 + "x = 1\n", {"x": 1}),
        (V3, V2 + "[plugins.cri]\nx = 1\n", {}),
        ("[plugins.cri]\nx = 1\n", "y = 1\n" + CRI_2 + "x = 2\n", {"x": 2}),
        (V3 + CRI_3 + "x = 1\ny = 1\n", V2 + CRI_2 + "x = 2\n", {"x": 2, "y": 1}),
        # In one file the newer name has precedence, and runtimes of two names are not merged.
        (V2 + CRI_2 + "x = 1\ny = 1\n" + CRI_3 + "x = 2\n", "", {"x": 2, "y": 1}),
        (
            V2 + runtime("a") + default("a") + CRI_3.replace("]", ".containerd.runtimes.b]") + "x = 1\n",
            "",
            {"containerd": {"runtimes": {"b": {"x": 1}}, "default_runtime_name": "a"}},
        ),
    ],
)
def test_tables_of_all_versions(main: str, later: str, cri: dict[str, t.Any], engine: tuple[int, ...]) -> None:
    files = read({"main": imports("a") + main, "a": later}, engine)
    assert files.cri() == cri
    assert files.mismatched_versions() == []


@pytest.mark.parametrize(
    ("files", "refused_by"),
    [
        ({"main": V2 + imports("a"), "a": V3}, "version 3 is higher than version 2 of /etc/containerd/config.toml"),
        ({"main": imports("a", "b"), "a": V2, "b": V3}, "version 3 is higher than version 2 of /etc/containerd/a"),
        ({"main": imports("a", "b"), "a": V3, "b": V2}, None),
        ({"main": V4 + imports("a", "b"), "a": V3, "b": ""}, None),
    ],
)
def test_2_3_0_to_2_3_4_refuse_imports_of_a_higher_version(files: t.Any, refused_by: str | None) -> None:
    for engine in (None, V17, V21, (2, 3, 5), V24):
        check_versions(read(files, engine))
    if refused_by is None:
        check_versions(read(files, V23))
    else:
        with pytest.raises(ConfigurationError, match=refused_by):
            check_versions(read(files, V23))


def test_ignores_values_of_wrong_types() -> None:
    files = read(V2 + CRI_2 + "containerd.runtimes = 1\ncontainerd.default_runtime_name = 2\n")
    assert files.runtimes() == {}
    assert files.default_runtime() is None


# -- disabled CRI ------------------------------------------------------------------------------------------------------

GRPC, RUNTIME = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"


@pytest.mark.parametrize(
    ("version", "engine", "off"),
    [
        (1, V17, ["cri"]),
        (2, V17, ["cri", GRPC]),
        (1, V20, ["cri", GRPC, RUNTIME]),
        (2, V21, ["cri", GRPC, RUNTIME]),
        (3, V21, ["cri", GRPC, RUNTIME]),
        # An unknown version: all names that any version uses.
        (1, None, ["cri", GRPC, RUNTIME]),
        (2, None, ["cri", GRPC, RUNTIME]),
    ],
)
def test_disabled_plugins(version: int, engine: tuple[int, ...] | None, off: list[str]) -> None:
    main = f"version = {version}\n" + imports("a")
    for name in ("cri", GRPC, RUNTIME, "io.containerd.snapshotter.v1.btrfs"):
        entry = f'disabled_plugins = ["aufs", "{name}"]\n'
        expected = name in off
        assert read({"main": main + entry, "a": ""}, engine).cri_disabled_in() == (MAIN if expected else None)
        assert read({"main": main, "a": entry}, engine).cri_disabled_in() == (path("a") if expected else None)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ("a = 1\na = = 2\n", f"{MAIN}, line 2"),
        ("imports = 'x'\n", f"{MAIN}, line 1, column 1: imports is not an array"),
        (
            "root = ''\nimports = ['x', 1]\n",
            f"{MAIN}, line 2, column 1: imports contains an entry that is not",
        ),
        ("version = '2'\n", f"{MAIN}, line 1, column 1: version is not a number"),
        ("version = [2]\n", f"{MAIN}, line 1, column 1: version is not a number"),
        ("version = 7\n", f"{MAIN}, line 1, column 1: unsupported configuration version 7"),
        ("version = true\n", f"{MAIN}, line 1, column 1: version is not"),
        ({"main": imports("a"), "a": "\n[x\n"}, f"{path('a')}, line 2"),
        ({"main": imports("a"), "a": "imports = 1\n"}, f"{path('a')}, line 1, column 1: imports is not"),
        ({"main": imports("a"), "a": "version = [2]\n"}, f"{path('a')}, line 1, column 1: version is not"),
        ({"main": V2 + imports("a"), "a": "x = 1\nplugins = 5\n"}, f"{path('a')}, line 2, column 1: plugins is no"),
        (V2 + CRI_2[:-2] + ".x]\n[plugins.y]\n[plugins.z.w]\nb = 1\n[disabled_plugins]\n", "disabled_plugins is not"),
        (V2 + "disabled_plugins = [{ cri = 1 }]\n", None),
    ],
)
def test_errors_name_the_position(files: t.Any, problem: str | None) -> None:
    if problem is None:
        assert read(files).cri_disabled_in() is None
        return
    with pytest.raises(ConfigurationError) as caught:
        read_settings(files)
    assert problem in str(caught.value)


def read_settings(files: t.Any) -> None:
    found = read(files)
    found.cri()
    found.cri_disabled_in()
