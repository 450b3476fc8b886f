# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The configuration files that the ownership rules read. Each file is read once, and nothing is written."""

from __future__ import annotations

import functools
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import finding as audit_finding
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import json_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import config as crio_config

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


_Read = t.TypeVar("_Read")

# The largest file that is read, in bytes. Real configuration files are smaller.
_MOST = 4 << 20


class HostConfigs:
    """The configuration files of one host; ``described`` is its report as far as it is known."""

    def __init__(self, host: hostfs.HostFS, described: audit_finding.Described | None = None) -> None:
        self.host = host
        self.described = described or audit_finding.Described({})

    @functools.cached_property
    def containerd(self) -> containerd_config.ContainerdFiles | None:
        """The files of the system's own containerd."""
        return attempt(lambda: containerd_config.ContainerdFiles.of(self._context("containerd")))

    @functools.cached_property
    def crio(self) -> crio_config.CrioFiles | None:
        return attempt(lambda: crio_config.CrioFiles.of(self._context("crio")))

    @functools.cached_property
    def docker(self) -> engines_base.Context | None:
        """The file of the system's own Docker, with the unit that names it."""
        return attempt(lambda: self._context("docker"))

    @functools.cached_property
    def daemon_json(self) -> json_document.JsonDocument | None:
        context = self.docker
        if context is None:
            return None
        return attempt(lambda: json_document.JsonDocument.from_bytes(context.path, context.content or b""))

    @functools.cached_property
    def recorded(self) -> frozenset[str]:
        """The files that this collection has changed, with links resolved."""
        found = attempt(lambda: core_records.load_readable_records(self.host))
        return frozenset(record.path for record in found or ())

    def real(self, path: str) -> str:
        """Return the path with links resolved as far as possible."""
        return attempt(lambda: self.host.resolve(path)) or path

    def is_ours(self, path: str) -> bool:
        return self.real(path) in self.recorded

    def content(self, path: str) -> bytes | None:
        """Return the content of a file; None if it cannot be read."""
        return attempt(lambda: self.host.read(path, _MOST))

    def version(self, engine: str) -> tuple[int, ...] | None:
        """Return the version of the system's own engine, if it is known."""
        own = (entry for entry in audit_finding.rows(self.described.engines) if entry.get("flavor") in (None, "system"))
        return next(
            (
                core_text.parse_version(audit_finding.text(one.get("version")))
                for one in own
                if one.get("engine") == engine
            ),
            None,
        )

    def _context(self, name: str) -> engines_base.Context:
        engine = engines_registry.Target(name).load()
        files = engines_base.HostFiles(self.host, engine.key)
        version = self.version(name)
        written = None if version is None else ".".join(map(str, version))
        return files.as_configured(engine.inspect(self.host), written)


def attempt(read: t.Callable[[], _Read]) -> _Read | None:
    """Return the result of ``read``, or None if it fails. Raises MissingPackageError if a parser is missing."""
    try:
        return read()
    except errors.MissingPackageError:
        raise
    except (errors.NvidiaError, OSError, ValueError, RecursionError):
        # A path in a file may be invalid, for example contain a null byte.
        return None
