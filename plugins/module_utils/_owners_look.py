# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the files of a host's engines, each read once, for those who look for other owners.  What
# cannot be read is passed over: the engines' own descriptions complain of it.

from __future__ import annotations

import functools
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_files import ContainerdFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._crio_files import CrioFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import parse_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, MissingPackageError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._findings_words import Described, rows, text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_document import JsonDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import load_readable_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._targets import Target

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Context
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

_Read = t.TypeVar("_Read")

# Nobody's configuration is longer.
_MOST = 4 << 20


class Look:
    """One look at a host; ``described`` is what else is known of it."""

    def __init__(self, host: HostRoot, described: Described | None = None) -> None:
        self.host = host
        self.described = described or Described({})

    @functools.cached_property
    def containerd(self) -> ContainerdFiles | None:
        """The files of the system's own containerd."""
        return attempt(lambda: ContainerdFiles.of(self._context("containerd")))

    @functools.cached_property
    def crio(self) -> CrioFiles | None:
        return attempt(lambda: CrioFiles.of(self._context("crio")))

    @functools.cached_property
    def docker(self) -> Context | None:
        """The file of the system's own Docker, and the unit that names it."""
        return attempt(lambda: self._context("docker"))

    @functools.cached_property
    def daemon_json(self) -> JsonDocument | None:
        context = self.docker
        if context is None:
            return None
        return attempt(lambda: JsonDocument.from_bytes(context.path, context.content or b""))

    @functools.cached_property
    def recorded(self) -> frozenset[str]:
        """The files that this collection has changed, links resolved."""
        found = attempt(lambda: load_readable_records(self.host))
        return frozenset(record.path for record in found or ())

    def real(self, path: str) -> str:
        """The path with all links resolved, as far as that is possible."""
        return attempt(lambda: self.host.resolve(path)) or path

    def is_ours(self, path: str) -> bool:
        return self.real(path) in self.recorded

    def content(self, path: str) -> bytes | None:
        """The content of a file that matters only where it can be read."""
        return attempt(lambda: self.host.read(path, _MOST))

    def version(self, engine: str) -> tuple[int, ...] | None:
        """That of the system's own engine, if it is known."""
        own = (entry for entry in rows(self.described.engines) if entry.get("flavor") in (None, "system"))
        return next((parse_version(text(one.get("version"))) for one in own if one.get("engine") == engine), None)

    def _context(self, name: str) -> Context:
        engine = Target(name).load()
        files = HostFiles(self.host, engine.key)
        version = self.version(name)
        written = None if version is None else ".".join(map(str, version))
        return files.as_configured(engine.inspect(self.host), written)


def attempt(read: t.Callable[[], _Read]) -> _Read | None:
    """What ``read`` gives, None where it fails; raises MissingPackageError where nothing can read such files."""
    try:
        return read()
    except MissingPackageError:
        raise
    except (GpufleetError, OSError, ValueError, RecursionError):
        # A path in a file may hold what is none, such as a null byte.
        return None
