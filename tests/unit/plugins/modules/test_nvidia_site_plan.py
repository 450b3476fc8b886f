# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the results of tasks that run ahead with those of the tasks themselves, on equal trees in many states.

A task has a result ahead only if it changes nothing, has no warning and no error, and needs no restart. The result is
then the same. Nothing changes while tasks run ahead.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import types
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write, changes, lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import systemctl
from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import ahead
from ansible_collections.gpufleet.nvidia.tests.unit.helpers import docker_trees

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which creates device nodes")

FIXTURES = Path(__file__).parents[3] / "hosts/fixtures"
INSTALL, CDI, RUNTIME = MODULES = ("nvidia_toolkit_install", "nvidia_cdi_spec", "nvidia_runtime_config")
OPTIONS: dict[str, dict[str, t.Any]] = {
    INSTALL: {
        "source": "existing",
        "settings": {"nvidia-container-runtime.log-level": "debug"},
        "minimum_version": "1.17.8",
    },
    CDI: {"mode": "nvml", "for_engines": [], "use_nvml": False},
    RUNTIME: {"targets": ["docker", "containerd", "crio"], "require_runtime": True, "set_as_default": False},
}
DAEMON = "etc/docker/daemon.json"
CONFIG, TOOLKIT = "etc/containerd/config.toml", "etc/nvidia-container-runtime/config.toml"
SPEC = "etc/cdi/nvidia.yaml"
Change = t.Callable[[Path], object]
Run = t.Callable[..., t.Dict[str, t.Any]]


class Case(t.NamedTuple):
    """A change of the configured tree, other options of the tasks, and the tasks that have a result ahead."""

    expected: tuple[str, ...]
    change: Change = lambda _root: None
    options: t.Mapping[str, dict[str, t.Any]] = types.MappingProxyType({})
    inspection: t.Mapping[str, t.Any] = types.MappingProxyType({})


def text_of(path: str, old: str, new: str) -> Change:
    """Return a change of a file, which must have the old text."""

    def change(root: Path) -> None:
        text = (root / path).read_text(encoding="utf-8")
        assert re.search(old, text), text
        (root / path).write_text(re.sub(old, new, text), encoding="utf-8")

    return change


def content(path: str, text: str) -> Change:
    """Return the creation of a file, or the replacement of its content."""

    def change(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")

    return change


def without(path: str) -> Change:
    def change(root: Path) -> None:
        target = root / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    return change


def records_of(name: str, text: str) -> Change:
    """Return a replacement of all records of an owner."""

    def change(root: Path) -> None:
        found = list((root / "var/lib/gpufleet-nvidia/state").glob(f"{name}-*.json"))
        assert found
        for path in found:
            path.write_text(text, encoding="utf-8")

    return change


def only_base(root: Path) -> None:
    """Leave only the base package, and its programs."""
    status = root / "var/lib/dpkg/status"
    stanzas = status.read_text(encoding="utf-8").split("\n\n")
    status.write_text(
        "\n\n".join(text for text in stanzas if packages_base.PACKAGE_SETS[packages_base.BASE][0] in text) + "\n\n",
        encoding="utf-8",
    )
    for program in ("nvidia-container-runtime-hook", "nvidia-container-cli"):
        (root / "usr/bin" / program).unlink()


OTHER_SPEC = 'cdiVersion: "0.5.0"\nkind: nvidia.com/gpu\ndevices:\n- name: "0"\n  containerEdits: {env: [A=B]}\n'
CASES: dict[str, Case] = {
    "unchanged": Case(MODULES),
    # The toolkit.
    "config.toml edited": Case((), text_of(TOOLKIT, '"debug"', '"info"')),
    "config.toml missing": Case((), without(TOOLKIT)),
    "config.toml broken": Case((CDI, RUNTIME), content(TOOLKIT, "[broken")),
    "other settings": Case(
        (), options={INSTALL: {"settings": {"features.allow-cuda-compat-libs-from-container": True}}}
    ),
    "unknown setting": Case((CDI, RUNTIME), options={INSTALL: {"settings": {"no.such": True}}}),
    "other version": Case((CDI, RUNTIME), options={INSTALL: {"version": "1.18.0"}}),
    "old version, warned": Case((CDI, RUNTIME), options={INSTALL: {"minimum_version": "2.0"}}),
    "old version, refused": Case(
        (CDI, RUNTIME), options={INSTALL: {"minimum_version": "2.0", "minimum_version_policy": "fail"}}
    ),
    "no toolkit": Case((CDI,), without("usr/bin/nvidia-container-runtime")),
    "only the base package": Case(MODULES, only_base, {INSTALL: {"packages": "base"}}),
    "only the base package, all requested": Case((CDI, RUNTIME), only_base),
    "base package requested": Case(MODULES, options={INSTALL: {"packages": "base"}}),
    # The specification.
    "no specification": Case((INSTALL,), without(SPEC)),
    "specification edited": Case((INSTALL,), text_of(SPEC, "libcuda", "libcute")),
    "specification broken": Case((INSTALL,), content(SPEC, "a: [")),
    "specification not readable": Case((INSTALL,), lambda root: (root / SPEC).chmod(0o600)),
    "conflict": Case((INSTALL, RUNTIME), content("etc/cdi/other.yaml", OTHER_SPEC)),
    "conflict, removed": Case((INSTALL,), content("etc/cdi/other.yaml", OTHER_SPEC), {CDI: {"exclusive": True}}),
    "new driver": Case((INSTALL, RUNTIME), text_of("proc/driver/nvidia/version", "580.95.05", "580.95.06")),
    "fewer GPUs": Case((INSTALL,), without("proc/driver/nvidia/gpus/0000:11:00.0")),
    "no driver": Case((INSTALL, RUNTIME), without("proc/driver")),
    "records of CDI broken": Case((INSTALL, RUNTIME), records_of("cdi", "{")),
    # The engines.
    "daemon.json edited": Case((INSTALL, CDI), text_of(DAEMON, "nvidia-container-runtime", "other")),
    "daemon.json with another setting": Case(
        MODULES, text_of(DAEMON, '"log-driver": "journald"', '"log-driver": "local"')
    ),
    "runtime of containerd missing": Case((INSTALL, CDI), text_of(CONFIG, "runtimes.nvidia", "runtimes.other")),
    "drop-in of CRI-O missing": Case((INSTALL, CDI), without("etc/crio/crio.conf.d/99-nvidia.toml")),
    "default runtime": Case((INSTALL, CDI), options={RUNTIME: {"set_as_default": True}}),
    "CRI disabled": Case((INSTALL, CDI), text_of(CONFIG, r"\A", 'disabled_plugins = ["cri"]\n')),
    "conmon unknown": Case((INSTALL, CDI), text_of("etc/crio/crio.conf", "conmon", "log_dir")),
    "records of docker broken": Case((), records_of("docker", "{")),
    "option refused": Case((INSTALL, CDI), options={RUNTIME: {"runtime_name": "a b"}}),
    "engine missing": Case(MODULES, without("usr/bin/crio"), {RUNTIME: {"targets": ["docker", "containerd"]}}),
    "one engine": Case(MODULES, options={RUNTIME: {"targets": ["docker"]}}, inspection={"names": ["docker"]}),
    "removal": Case((INSTALL, CDI), options={RUNTIME: {"state": "absent"}}),
}


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tree with a driver, the toolkit and three engines, which the first test configures."""
    root = tmp_path_factory.mktemp("host") / "tree"
    for program, *arguments in (
        ("gpu_tree.py", str(root), "580.95.05", "2"),
        ("elf_programs.py", "tree", str(root), "1.19.1"),
    ):
        subprocess.run([sys.executable, "-B", FIXTURES / program, *arguments], check=True)
    for name in ("dockerd", "containerd", "crio"):
        (root / "usr/bin" / name).touch(mode=0o755)
    status = "".join(
        f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.19.1-1\n\n"
        for name in packages_base.PACKAGES
    )
    content("etc/os-release", "ID=debian\n")(root)
    content("var/lib/dpkg/status", status)(root)
    content(TOOLKIT, '[nvidia-container-runtime]\nruntimes = ["runc"]\n')(root)
    content(DAEMON, '{\n  "log-driver": "journald"\n}\n')(root)
    content(CONFIG, 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n')(root)
    content("etc/crio/crio.conf", '[crio.runtime]\nconmon = "/usr/bin/conmon"\n')(root)
    (root / "tmp").mkdir()
    return root


def run_tasks(run_module: Run, root: Path, case: Case, **more: t.Any) -> dict[str, dict[str, t.Any]]:
    """Run the tasks as a play does, and return their results until one fails."""
    results = {}
    for module, options in options_of(root, case).items():
        results[module] = run_module(module, **options, **more)
        if results[module].get("failed"):
            break
    return results


def options_of(root: Path, case: Case) -> dict[str, dict[str, t.Any]]:
    return {module: {**OPTIONS[module], **case.options.get(module, {}), "host_root": str(root)} for module in MODULES}


def run_ahead(run_module: Run, root: Path, case: Case, **more: t.Any) -> dict[str, t.Any]:
    """Run the first task of a play, and return its result."""
    sent = {module: {"options": options, "repository_files": {}} for module, options in options_of(root, case).items()}
    del sent[RUNTIME]["options"]["targets"]
    given = {
        "host_root": str(root),
        "gather_subset": ["toolkit", "engines"],
        "require_engines": {"options": {}, **case.inspection},
    }
    return run_module("nvidia_site_plan", inspection=given, _bundled={"ahead": json.dumps(sent)}, **more)


def is_clean(result: dict[str, t.Any]) -> bool:
    problems = [result.get(name) for name in ("failed", "changed", "warnings")]
    return not any([*problems, *(row.get("restart_required") for row in result.get("engines", ()))])


@pytest.mark.parametrize("check_mode", [False, True], ids=["real", "check"])
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_tasks_ahead(configured: Path, tmp_path: Path, run_module: Run, case: Case, check_mode: bool) -> None:
    trees = ahead_tree, real_tree = tmp_path / "ahead", tmp_path / "tasks"
    if not (configured / SPEC).exists():
        assert len(run_tasks(run_module, configured, Case(MODULES))) == len(MODULES)
    for root in trees:
        subprocess.run(["cp", "-a", configured, root], check=True)
        case.change(root)
    tree = docker_trees.Tree(ahead_tree)
    before = tree.snapshot()
    report = run_ahead(run_module, ahead_tree, case, _ansible_check_mode=check_mode)
    assert tree.snapshot() == before
    results = run_tasks(run_module, real_tree, case, _ansible_check_mode=check_mode)
    found = report.get("ahead", {})
    # If the inspection fails, the play ends.
    for module, result in ({} if report.get("failed") else results).items():
        assert (module in found) == is_clean(result)
        if module in found:
            known = json.dumps(found[module], sort_keys=True).replace(str(ahead_tree), str(real_tree))
            result.pop("invocation", None)
            assert known == json.dumps(result, sort_keys=True)
        if result.get("changed"):
            break
    assert set(found) == set(case.expected)


def test_no_change_is_possible_while_tasks_run_ahead(tmp_path: Path) -> None:
    host, commands = HostFS(str(tmp_path)), []

    def run(argv: list[str]) -> tuple[int, str, str]:
        commands.append(argv)
        return 0, "", ""

    unit = systemctl.Systemctl(host, run, "docker.service")
    attempts: list[t.Callable[[], object]] = [
        lambda: lock.host_lock(host).__enter__(),
        lambda: atomic_write.replace_file(host, "/a", b"", 0o644),
        lambda: atomic_write.make_directories(host, "/b", 0o755),
        lambda: atomic_write.remove_file(host, "/c"),
        unit.restart,
        unit.daemon_reload,
        lambda: changes.refusable(run)(["apt-get", "update"]),
    ]
    with changes.refuse_changes():
        for attempt in attempts:
            with pytest.raises(changes.ChangeRefusedError):
                attempt()
        unit.status()
    assert ["show" in argv for argv in commands] == [True]
    assert list(tmp_path.iterdir()) == []
    changes.refusable(run)(["apt-get", "update"])
    assert len(commands) == 2


def test_an_equal_command_runs_once_if_it_succeeds() -> None:
    calls: list[list[str]] = []

    def run(argv: list[str], **_options: t.Any) -> tuple[int, str, str]:
        calls.append(argv)
        return int(argv == ["busy"]), str(len(calls)), ""

    remembered = ahead._remembered(run)
    found = [remembered(argv, environ_update={}) for argv in (["a", "b"], ["a"], ["a", "b"])]
    assert (calls, found) == ([["a", "b"], ["a"]], [(0, "1", ""), (0, "2", ""), (0, "1", "")])
    assert [remembered(["busy"])[1] for _attempt in range(2)] == ["3", "4"]
