# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.doc_fragments import bundled, toolkit_directory
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import BACKUP_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._module import run_module as finish
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import apt_sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.apt import STATUS_FILE
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import PACKAGES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.detect import FAMILIES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.constants import (
    CONFIG_FILE,
    PACKAGE_CACHE,
    PROGRAMS,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages.packages import (
    check_cache,
    clean_cache,
    remove_sources,
    stale_files,
    track_config,
    untrack_config,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.dummy_module import (
    DummyModule,
    Ended,
    argument_spec_of,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import stanza, write_file

if t.TYPE_CHECKING:
    from pathlib import Path

APT_SOURCE = apt_sources.REPOSITORY.source
pytest.importorskip("ansible.module_utils.basic")
yaml = pytest.importorskip("yaml")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_file(tmp_path, "/etc/os-release", "ID=debian\n")
    status = "".join(stanza(name, "install ok installed", "1.20.0-1") for name in PACKAGES)
    write_file(tmp_path, STATUS_FILE, status)
    for name in (*FAMILIES[0].programs, *PROGRAMS):
        write_file(tmp_path, f"/usr/bin/{name}", "")
        (tmp_path / "usr/bin" / name).chmod(0o755)
    return tmp_path


class Ran(t.NamedTuple):
    """The module and its commands, each with its limit in seconds."""

    module: DummyModule
    commands: list[tuple[int | None, list[str]]]


def run_module(monkeypatch: pytest.MonkeyPatch, root: Path, check_mode: bool = False, **options: t.Any) -> Ran:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import toolkit_install  # noqa: PLC0415
    from ansible_collections.gpufleet.nvidia.plugins.modules import nvidia_toolkit_install  # noqa: PLC0415

    specification = argument_spec_of(monkeypatch, nvidia_toolkit_install)
    arguments: dict[str, t.Any] = {name: option.get("default") for name, option in specification.items()}
    arguments.update({"host_root": str(root), "host_root_live": True, **options})
    ran = Ran(DummyModule(check_mode, **arguments), [])

    def runner(_module: t.Any, limit: int | None = 60) -> t.Callable[[list[str]], tuple[int, str, str]]:
        def run(argv: list[str]) -> tuple[int, str, str]:
            ran.commands.append((limit, argv[2:]))
            return _answer(argv[2:])

        return run

    monkeypatch.setattr(_module, "command_runner", runner)
    with pytest.raises(Ended):
        finish(t.cast("t.Any", ran.module), lambda: toolkit_install.install(t.cast("t.Any", ran.module)))
    return ran


def _answer(argv: list[str]) -> tuple[int, str, str]:
    if argv[:2] == ["apt-cache", "policy"]:
        rows = "  Candidate: 1.20.0-1\n     1.20.0-1 500\n        500 https://x\n     1.19.1-1 500\n        500 https://x\n"
        return 0, "".join(f"{name}:\n{rows}" for name in argv[2:]), ""
    if argv[-1] == "--version":
        return 0, "version 1.20.0\n", ""
    return 0, "", ""


@pytest.mark.parametrize("check_mode", [True, False])
def test_result_matches_documentation(monkeypatch: pytest.MonkeyPatch, root: Path, check_mode: bool) -> None:
    from ansible_collections.gpufleet.nvidia.plugins.modules import nvidia_toolkit_install  # noqa: PLC0415

    ran = run_module(monkeypatch, root, check_mode)
    documented = yaml.safe_load(nvidia_toolkit_install.RETURN)
    returned = ("success", "without O(source=directory)")
    of_packages = [name for name, value in documented.items() if value["returned"] in returned]
    assert set(ran.module.result) == {"changed", *of_packages}
    assert ran.module.result["changed"] is False
    assert {tuple(argv[1:]) for _limit, argv in ran.commands} == {("--version",)}


def test_options_match_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.gpufleet.nvidia.plugins.modules import nvidia_toolkit_install  # noqa: PLC0415

    documented = {
        name: option
        for fragment in (nvidia_toolkit_install, toolkit_directory.ModuleDocFragment, bundled.ModuleDocFragment)
        for name, option in yaml.safe_load(fragment.DOCUMENTATION)["options"].items()
    }
    specification = argument_spec_of(monkeypatch, nvidia_toolkit_install)
    for name in ("host_root", "host_root_live"):
        del specification[name]
    assert specification["proxy"].pop("no_log")
    assert specification["key_fingerprint"].pop("no_log") is False
    assert specification["_bundled"].pop("no_log")
    assert _specification_of(documented) == specification


def _specification_of(documented: dict[str, dict[str, t.Any]]) -> dict[str, dict[str, t.Any]]:
    found: dict[str, dict[str, t.Any]] = {
        name: {key: option[key] for key in ("type", "choices", "default", "elements", "required") if key in option}
        for name, option in documented.items()
    }
    for name, option in documented.items():
        if "suboptions" in option:
            found[name]["options"] = _specification_of(option["suboptions"])
    return found


def test_only_transactions_have_no_time_limit(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    ran = run_module(monkeypatch, root, version="1.19.1", pending=True, lock_timeout=7)
    limits = {tuple(argv[:2]): limit for limit, argv in ran.commands}
    assert limits["apt-get", "update"] == 300
    assert limits["apt-get", "-s"] == limits["apt-cache", "policy"] == 60
    assert [limit for limit, argv in ran.commands if argv[0] == "apt-get" and "-s" not in argv] == [300, None]
    assert any("DPkg::Lock::Timeout=7" in argv for _limit, argv in ran.commands)


def test_base_package_with_apt(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    ran = run_module(monkeypatch, root, packages="base", version="1.19.1", check_mode=True)
    assert (ran.module.result["changed"], set(ran.module.result["packages"])) == (True, {*PACKAGES})
    ran = run_module(monkeypatch, root, packages="base", version="1.19.1")
    (transaction,) = (argv for limit, argv in ran.commands if limit is None)
    assert transaction[transaction.index("install") :] == [
        "install",
        *(f"{name}=1.19.1-1" for name in sorted(PACKAGES, key=lambda name: name != PACKAGES[1])),
    ]


def test_directory_has_no_base_package(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    ran = run_module(monkeypatch, root, source="directory", src="/srv/toolkit", packages="base")
    assert "source: directory does not support these options: packages: base." in ran.module.result["msg"]


def test_unsupported_packages(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    write_file(root, "/etc/os-release", "ID=example\n")
    (root / "usr/bin/apt-mark").unlink()
    ran = run_module(monkeypatch, root)
    assert {"directory,", "existing."} <= set(ran.module.result["msg"].split())
    assert ran.commands == []
    gone = run_module(monkeypatch, root, state="absent")
    assert (gone.module.result.get("msg"), gone.module.result["changed"]) == (None, False)
    there = run_module(monkeypatch, root, source="existing")
    assert (there.module.result["changed"], there.module.result["packages"]) == (False, {})
    assert set(there.module.result["programs"]) == set(PROGRAMS)


def test_debian_without_apt_is_an_error(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    (root / "usr/bin/dpkg").unlink()
    ran = run_module(monkeypatch, root, state="absent")
    assert "lacks dpkg" in ran.module.result["msg"]


def test_writes_repository_files(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    files = [{"path": APT_SOURCE, "content": "URIs: http://@PROXY@/\n", "src": None, "mode": "0600"}]
    ran = run_module(monkeypatch, root, repository_files=files, proxy="me:geheim@x.example")
    assert ran.module.result["written_files"] == [APT_SOURCE]
    assert (root / APT_SOURCE[1:]).read_text() == "URIs: http://me:geheim@x.example/\n"
    assert "geheim" not in str(ran.module.result)


# -- Recorded packages, sources and cache ----------------------------------------------------------------------------


@pytest.fixture
def host(tmp_path: Path) -> HostFS:
    return HostFS(str(tmp_path), live=True)


def test_remove_sources(host: HostFS, tmp_path: Path) -> None:
    (tmp_path / "here.list").write_bytes(b"deb x\xff\n")
    (tmp_path / "here.list").chmod(0o600)
    # A file that was removed meanwhile is ignored.
    (backup,) = remove_sources(host, ["/here.list", "/gone.list"], BACKUP_DIR)
    assert (backup["path"], backup["checksum"]) == ("/here.list", "absent")
    assert host.read(str(backup["backup"])) == b"deb x\xff\n"
    assert not (tmp_path / "here.list").exists()


def test_track_and_untrack_config(host: HostFS, tmp_path: Path) -> None:
    record = track_config(host)
    assert record is not None
    assert track_config(host) is None
    untrack_config(host, None)
    assert any(tmp_path.iterdir())
    untrack_config(host, record)
    assert not (tmp_path / "var/lib/gpufleet-nvidia").exists()
    assert not (tmp_path / CONFIG_FILE[1:]).exists()


def test_dangling_link_is_a_foreign_config_file(host: HostFS, tmp_path: Path) -> None:
    (tmp_path / CONFIG_FILE[1:]).parent.mkdir(parents=True)
    (tmp_path / CONFIG_FILE[1:]).symlink_to("/srv/config.toml")
    assert track_config(host) is None


@pytest.mark.parametrize("path", [PACKAGE_CACHE, PACKAGE_CACHE + "/", "/srv/gpufleet-nvidia/packages"])
def test_accepts_own_cache(host: HostFS, path: str) -> None:
    assert check_cache(host, path) == path.rstrip("/")


@pytest.mark.parametrize(
    "path", ["/", "/srv", "/srv/gpufleet-nvidia", "/srv/my-gpufleet-nvidia/x", PACKAGE_CACHE + "/../.."]
)
def test_rejects_foreign_cache(host: HostFS, path: str) -> None:
    with pytest.raises(NvidiaError, match="is not allowed, because this module deletes"):
        check_cache(host, path)


def test_stale_files(host: HostFS, tmp_path: Path) -> None:
    assert stale_files(host, None, ()) == stale_files(host, "/c", ()) == []
    (tmp_path / "c/folder").mkdir(parents=True)
    for name in ("a.deb", "b.deb"):
        (tmp_path / "c" / name).write_text("")
    (tmp_path / "link").symlink_to("/c")
    assert stale_files(host, "/c", ["/link/a.deb"]) == ["/c/b.deb"]


def test_a_link_in_the_cache_is_removed_itself(host: HostFS, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "mirror.deb").write_text("x")
    (tmp_path / "c/a.deb").symlink_to("/mirror.deb")
    clean_cache(host, "/c", stale_files(host, "/c", ()))
    assert stale_files(host, "/c", ()) == []
    assert (tmp_path / "mirror.deb").read_text() == "x"
