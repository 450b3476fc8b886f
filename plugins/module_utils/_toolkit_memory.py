# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the answer of a task that found nothing to do, kept until the next boot, and given again
# as long as nothing has changed that the task looked at.  So an unchanged host needs only this, and not what makes a
# version, or that knows engines and settings.

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_data import load
from ansible_collections.gpufleet.nvidia.plugins.module_utils._scratch import abandoned
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_manifest import Identity
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_observations import still_hold
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_version_reading import VersionReader
from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (
    make_directories,
    remove_file,
    replace_file,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_observations import Answers

# Not on a disk: nothing is written to one by a run that has nothing to do.
_RUN = "/run"


class Nodes(t.NamedTuple):
    """Device nodes that were looked for: of a driver below ``driver_root``, and what was said about them."""

    driver_root: str
    warnings: t.Sequence[str]


class Memory(t.NamedTuple):
    """An answer, and what it depends on.

    ``task`` is the controller's word for what was asked and for the code that answered, ``manifest`` the SHA-256 of the
    version's manifest, ``seen`` what was seen of the host, ``files`` the files of the source, by paths for this
    process.  ``nodes`` is None where nobody asked for device nodes.  ``answer`` is the module's whole result.
    """

    task: str
    manifest: str
    seen: Answers
    files: t.Mapping[str, Identity]
    nodes: Nodes | None
    answer: t.Mapping[str, t.Any]

    def to_bytes(self) -> bytes:
        return json.dumps(self._asdict()).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Memory | None:
        """None for what is none, or that of another version of this collection."""
        try:
            fields = load(content)
            found = cls(**fields)
            files = {path: Identity(*identity) for path, identity in found.files.items()}
            return found._replace(files=files, nodes=None if found.nodes is None else Nodes(*found.nodes))
        except (AttributeError, TypeError, ValueError):
            return None


def digest(content: bytes) -> str:
    """The SHA-256 of a manifest."""
    return hashlib.sha256(content).hexdigest()


def keep(host: HostRoot, dest: str, memory: Memory) -> None:
    """Keep the answer of the toolkit at ``dest``, for this user's eyes only, where that is possible."""
    keeper, path = _place(host, dest)
    with contextlib.suppress(HostError):
        make_directories(keeper, os.path.dirname(path), 0o700)
        replace_file(keeper, path, memory.to_bytes(), 0o600)


def forget(host: HostRoot, dest: str) -> None:
    """Keep nothing any more."""
    keeper, path = _place(host, dest)
    with contextlib.suppress(HostError):
        remove_file(keeper, path)


def _place(host: HostRoot, dest: str) -> tuple[HostRoot, str]:
    """Who keeps an answer (the host if it runs, else the machine that works on its tree), and the path there."""
    folder = os.environ.get("XDG_RUNTIME_DIR", "") if os.geteuid() else ""
    word = hashlib.sha256(f"{host.root}\n{dest}".encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return host if host.live else HostRoot(), f"{folder or _RUN}/gpufleet-nvidia/toolkit-{word}.json"


def remembered_answer(host: HostRoot, dest: str, task: str) -> dict[str, t.Any] | None:
    """What ``task`` has answered, if it would answer the same today; None if it has to be carried out to know that."""
    try:
        store = VersionReader(host, host.check_path("dest", dest))
        name = store.current()
        memory = None if name is None else _memory(*_place(host, store.dest))
        if name is None or memory is None or memory.task != task or not _is_whole(store, name, memory):
            return None
        if not _same_files(memory.files) or not still_hold(memory.seen) or not _same_nodes(host, memory.nodes):
            return None
        # A run that was killed may have left something that is cleared away by the next one.
        return None if abandoned(tempfile.gettempdir()) else dict(memory.answer)
    except (GpufleetError, OSError, AttributeError, KeyError, TypeError):
        # The task knows how to say what is wrong.
        return None


def _memory(host: HostRoot, path: str) -> Memory | None:
    content = host.read(path)
    return None if content is None else Memory.from_bytes(content)


def _is_whole(store: VersionReader, name: str, memory: Memory) -> bool:
    """Whether the version is as it was installed, and nothing is beside it that has to go or to be explained."""
    content = store.manifest_bytes(name)
    manifest = store.manifest(name)
    if content is None or manifest is None or digest(content) != memory.manifest:
        return False
    if set(store.names()) - {name, manifest.replaces} or store.leftovers():
        return False
    damage = store.damage(manifest, thorough=False)
    return not damage.something and not damage.fresh


def _same_files(files: t.Mapping[str, Identity]) -> bool:
    return all(Identity.of(os.stat(path)) == identity for path, identity in files.items())


def _same_nodes(host: HostRoot, nodes: Nodes | None) -> bool:
    if nodes is None:
        return True
    # Most hosts have their nodes from the driver.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._device_nodes import missing_nodes  # noqa: PLC0415

    missing, warnings = missing_nodes(host, nodes.driver_root)
    return not missing and warnings == list(nodes.warnings)
