# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fuzz targets that write: the configuration files of engines and of the toolkit, records, and journal entries.

Each target works on a directory tree, and checks: an error changes no file; ``present`` keeps all foreign entries; a
second run changes nothing; ``absent`` restores each byte.
"""

from __future__ import annotations

import tempfile
import typing as t
from pathlib import Path

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import BACKUP_DIR, STATE_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.json_document import mask_json
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import mask_toml
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.journal import JournalEntry, PreviousFile, joined
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.rollback import Rollback
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config.configure import (
    ConfigOptions,
    ConfigTask,
    SettingsRequest,
)
from ansible_collections.gpufleet.nvidia.tests.fuzz.trees import (
    assert_same,
    contents,
    json_pairs,
    lay,
    pruned,
    snapshot,
    text_of,
    toml_data,
    without_members,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers import containerd_configs, fake_crio
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.docker_files import REAL_FILES
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_configs import PATH, SAMPLES, VARIANTS

if t.TYPE_CHECKING:
    import random

    from ansible_collections.gpufleet.nvidia.tests.fuzz.mutators import Files

    Request = t.Dict[str, t.Any]
    # Returns the data of a file without the entries that a request may change.
    Foreign = t.Callable[[bytes, Request], t.Any]

DAEMON_JSON = "/etc/docker/daemon.json"
_NAMES = ("nvidia", "nvidia-cdi", "nvidia-legacy")
_MASKS = {".json": mask_json, ".toml": mask_toml, ".conf": mask_toml}


def run(_argv: t.Sequence[str]) -> tuple[int, str, str]:
    """Return the result of a missing program, in place of running one."""
    return 127, "", "there is no such program"


def request_of(rng: random.Random, toml: bool) -> Request:
    """Return random options of a task."""
    asked: Request = {
        "runtime_name": rng.choice(("nvidia", "nvidia", "gpu")),
        "extra_modes": rng.choice(((), ("cdi", "legacy"))),
        "set_as_default": rng.choice((None, True, False)),
    }
    if toml:
        asked["config_mode"] = rng.choice(("auto", "auto", "in_place", "drop_in"))
    asked["enable_cdi"] = rng.choice((None, True, False, "auto"))
    return asked


# The table of the CRI in each version of the file format.
_CONTAINERD_ROOTS = tuple(
    ("plugins", name) for name in ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
)


# -- foreign entries -------------------------------------------------------------------------------------------------


def foreign_json(content: bytes, asked: Request) -> t.Any:
    """Return daemon.json without NVIDIA's runtimes, the default runtime and the feature CDI."""
    names = (*_NAMES, asked.get("runtime_name", "nvidia"))
    left = []
    for name, value in json_pairs(content):
        if name == "runtimes":
            value = without_members(value, names)
        elif name == "features":
            value = without_members(value, ("cdi",))
        if name != "default-runtime" and not (name in ("runtimes", "features") and not value):
            left.append((name, value))
    return left


def foreign_containerd(content: bytes, asked: Request) -> t.Any:
    """Return a file of containerd without NVIDIA's runtimes, the default runtime, the settings of CDI and imports."""
    names = (*_NAMES, asked["runtime_name"])
    original = toml_data(asked["before"])
    cut: list[tuple[str, ...]] = [("imports",), ("version",)]
    for root in _CONTAINERD_ROOTS:
        cut += [(*root, "containerd", "runtimes", name) for name in names]
        cut += [(*root, "containerd", "default_runtime_name"), (*root, "enable_cdi"), (*root, "cdi_spec_dirs")]
        if not _at(original, (*root, "containerd", "runtimes", "runc")):
            # The collection defines runc in a file without it, because other runtimes would hide the built-in runc.
            cut.append((*root, "containerd", "runtimes", "runc"))
    return pruned(toml_data(content), cut)


def _at(table: t.Any, path: t.Sequence[str]) -> t.Any:
    for key in path:
        table = table.get(key) if isinstance(table, dict) else None
    return table


def foreign_crio(content: bytes, asked: Request) -> t.Any:
    """Return a file of CRI-O without NVIDIA's runtimes and the default runtime."""
    names = (*_NAMES, asked["runtime_name"])
    cut = [("crio", "runtime", "runtimes", name) for name in names]
    return pruned(toml_data(content), [*cut, ("crio", "runtime", "default_runtime")])


def foreign_settings(content: bytes, asked: Request) -> t.Any:
    """Return config.toml without the requested settings."""
    return pruned(toml_data(content), [tuple(name.split(".")) for name in asked if name != "before"])


# -- targets ---------------------------------------------------------------------------------------------------------


class Configuration(t.NamedTuple):
    """The test of one kind of configuration.

    ``choose`` returns a random request, ``execute`` applies it (None: state absent), and ``foreign`` returns the data
    that must not change.
    """

    choose: t.Callable[[random.Random], Request]
    execute: t.Callable[[HostFS, Request | None], t.Any]
    foreign: Foreign

    def check(self, folder: Path, files: Files, rng: random.Random) -> None:
        lay(folder, files)
        before = snapshot(folder)
        host, asked = HostFS.of(str(folder), live=False), self.choose(rng)
        try:
            first = self.execute(host, asked)
        except NvidiaError:
            assert_same(before, snapshot(folder), "a task that failed changed files")
            raise
        self.check_foreign(before, folder, asked)
        again = self.execute(host, asked)
        if again.changed:
            raise AssertionError(f"the second run changes {[file.path for file in again.files]}")
        if first.changed:
            # Without a record, absent removes the entries of NVIDIA's own tools.
            self.execute(host, None)
            assert_same(before, snapshot(folder), "absent does not restore everything")

    def check_foreign(self, before: t.Any, folder: Path, asked: Request) -> None:
        old, new = contents(before), contents(snapshot(folder))
        for path, content in old.items():
            if new.get(path) != content:
                request = {**asked, "before": content}
                expected, found = self.foreign(content, request), self.foreign(new.get(path, b""), request)
                if text_of(expected) != text_of(found):
                    raise AssertionError(f"{path} lost a foreign entry: {content!r} became {new.get(path)!r}"[-6_000:])
                mask = _MASKS.get(Path(path).suffix, mask_toml)
                mask(content.decode("utf-8", "replace"))
                mask(new.get(path, b"").decode("utf-8", "replace"))


def engine(name: str, version: str | None = None, **options: t.Any) -> t.Callable[[HostFS, Request | None], t.Any]:
    """Return a function that runs a request as nvidia_runtime_config does."""

    def execute(host: HostFS, asked: Request | None) -> t.Any:
        request = None if asked is None else RuntimeRequest(**asked)
        chosen = Options(name, request, engine_version=version, **options)
        return ConfigureEngine(chosen, host, run).execute(check_mode=False)

    return execute


def _settings(host: HostFS, asked: Request | None) -> t.Any:
    request = None if asked is None else SettingsRequest(asked)
    return ConfigTask(ConfigOptions(request), host).execute(check_mode=False)


def _choose_settings(rng: random.Random) -> Request:
    return {name: rng.choice(SAMPLES[name]) for name in rng.sample(sorted(SAMPLES), rng.choice((1, 2, 5)))}


def _choose_json(rng: random.Random) -> Request:
    return request_of(rng, toml=False)


def _choose_toml(rng: random.Random) -> Request:
    return request_of(rng, toml=True)


def _choose_crio(rng: random.Random) -> Request:
    return {**request_of(rng, toml=True), "enable_cdi": None}


docker = Configuration(_choose_json, engine("docker"), foreign_json)
crio = Configuration(_choose_crio, engine("crio"), foreign_crio)
toolkit_config = Configuration(_choose_settings, _settings, foreign_settings)
_CONTAINERD = {
    version: Configuration(_choose_toml, engine("containerd", version), foreign_containerd)
    for version in (None, "1.6.20", "1.7.24", "2.1.0")
}


def containerd(folder: Path, files: Files, rng: random.Random) -> None:
    """Test a random version of containerd, with files of any version."""
    _CONTAINERD[rng.choice((None, "1.6.20", "1.7.24", "2.1.0"))].check(folder, files, rng)


def records(folder: Path, files: Files, rng: random.Random) -> None:
    """Test damaged records. An error must change no file, and no run may change a foreign entry or another file."""
    lay(folder, files)
    before = snapshot(folder)
    host = HostFS.of(str(folder), live=False)
    asked = rng.choice((None, None, {"runtime_name": "nvidia"}, {"set_as_default": True}))
    try:
        docker.execute(host, asked)
    except NvidiaError:
        assert_same(before, snapshot(folder), "a task that failed changed files")
        raise
    after = snapshot(folder)
    main = contents(before)[DAEMON_JSON]
    if after.get(DAEMON_JSON) != before[DAEMON_JSON] and contents(after).get(DAEMON_JSON) != files["original"]:
        rest = foreign_json(contents(after).get(DAEMON_JSON, b""), {})
        if text_of(rest) != text_of(foreign_json(main, {})):
            raise AssertionError(f"a wrong restore: {main!r} became {contents(after).get(DAEMON_JSON)!r}")
    for entries in (before, after):
        entries.pop(DAEMON_JSON, None)
    assert_same(before, after, "a file of others changed")


def journal(folder: Path, files: Files, _rng: random.Random) -> None:
    """Use journal entries of a restart. A damaged one may raise only errors of this collection."""
    lay(folder, files)
    host = HostFS.of(str(folder), live=False)
    for entry in (JournalEntry.pending_changes(host, "docker"), JournalEntry.restart_in_progress(host, "docker")):
        previous = joined(entry.previous_files(), entry.previous_files())
        rollback = Rollback(host, "docker", previous, BACKUP_DIR)
        if rollback.has_changes:
            rollback.edited_since()
            rollback.stage()
            rollback.restore()
            rollback.discard()


# -- seeds -----------------------------------------------------------------------------------------------------------

_UNIT = b"[Service]\nExecStart=/usr/bin/dockerd -H fd://\n"
_SECRET = (
    b'{"proxies": {"http-proxy": "http://u:hunter2@p/"}, "runtimes": {"x": {"path": "/x"}}, "log-opts": {"a": "1"}}'
)


def docker_seeds() -> list[Files]:
    """Return hosts with various daemon.json files, and one without."""
    found = [content.encode() for content in REAL_FILES.values() if content is not None]
    files: list[Files] = [{DAEMON_JSON: content} for content in (*found, _SECRET)]
    return [*files, {"/usr/lib/systemd/system/docker.service": _UNIT}]


def containerd_seeds() -> list[Files]:
    """Return configurations of containerd of all file versions and of several distributions."""
    folder = containerd_configs.FOLDER
    files: list[Files] = [
        {containerd_configs.MAIN: path.read_bytes()}
        for path in sorted(folder.glob("containerd-*.toml"))
        if path.stat().st_size < 12_000
    ]
    texts = (containerd_configs.EKS, containerd_configs.EKS_GPU, containerd_configs.GKE, "", "version = 1\n", "# x\n")
    files += [{containerd_configs.MAIN: text.encode()} for text in texts]
    imported = b'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n'
    files.append(
        {
            containerd_configs.MAIN: b'version = 3\nimports = ["/etc/containerd/conf.d/*.toml", "/x/a.toml"]\n[grpc]\n',
            "/etc/containerd/conf.d/10-cdi.toml": imported,
            "/x/a.toml": b"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dir = '/opt'\n",
        }
    )
    return files


def crio_seeds() -> list[Files]:
    """Return main files and drop-ins of packages of CRI-O."""
    texts = (fake_crio.STOCK, fake_crio.BUNDLED, fake_crio.DISTRIBUTION, fake_crio.OLD, fake_crio.PROFILES)
    files: list[Files] = [{fake_crio.MAIN: text.encode()} for text in texts]
    main = (containerd_configs.FOLDER / "crio.conf").read_bytes()
    return [*files, {fake_crio.MAIN: main, fake_crio.PACKAGED: fake_crio.BUNDLED.encode()}]


def toolkit_config_seeds() -> list[Files]:
    """Return config.toml files of packages and of manual edits."""
    return [{PATH: content} for content in VARIANTS.values() if content is not None]


def _state_after(original: bytes, asked: Request) -> Files:
    """Return the files of a host after a change: daemon.json and its record. The key "original" has the old content."""
    with tempfile.TemporaryDirectory(prefix="gpf-") as name:
        folder = Path(name)
        lay(folder, {DAEMON_JSON: original, "/etc/other": b"x"})
        docker.execute(HostFS.of(name, live=False), asked)
        state = sorted((folder / STATE_DIR.lstrip("/")).glob("*.json"))
        found: Files = {f"{STATE_DIR}/{path.name}": path.read_bytes() for path in state}
        found[DAEMON_JSON] = (folder / DAEMON_JSON.lstrip("/")).read_bytes()
    return {**found, "/etc/other": b"x", "original": original}


def record_seeds() -> list[Files]:
    """Return hosts with records: of a changed default runtime, of changed CDI settings, and of an empty file."""
    asked: tuple[Request, ...] = ({"set_as_default": True}, {"extra_modes": ("cdi",), "enable_cdi": True}, {})
    return [_state_after(original, request) for original, request in zip((_SECRET, b"{}", b""), asked)]


def journal_seeds() -> list[Files]:
    """Return journal entries with a changed file, a new file, and a file with a record."""
    previous = [
        PreviousFile(DAEMON_JSON, _SECRET, None, None),
        PreviousFile("/etc/docker/new.json", None, None, "absent"),
        PreviousFile("/etc/docker/other.json", b"{}", record_seeds()[0][_first_record()], "0" * 64),  # type: ignore[arg-type]
    ]
    with tempfile.TemporaryDirectory(prefix="gpf-") as name:
        entry = JournalEntry.pending_changes(HostFS.of(name, live=False), "docker")
        entry.write(previous)
        content = Path(name, entry.path.lstrip("/")).read_bytes()
    files: Files = {DAEMON_JSON: b"{}", "/etc/docker/new.json": b"{}"}
    return [{**files, f"{STATE_DIR}/{kind}-docker.json": content} for kind in ("changes", "restart")]


def _first_record() -> str:
    return next(path for path in record_seeds()[0] if path.startswith(STATE_DIR))
