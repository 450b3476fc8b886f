# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: where the parts of a toolkit come from that goes into a directory, and what they are.
# What was read once is not read again while it is unchanged.

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
from ansible_collections.gpufleet.nvidia.plugins.module_utils._scratch import PREFIX, abandoned
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_artifacts import find_parts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_directory_plan import content_digest, version_in
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_manifest import PartDigest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._tree_files import create, known
from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import explain

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_directory_plan import Design
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_manifest import Known, Manifest


class Source(t.NamedTuple):
    """The parts, the files that they are made of, and how to get their contents.

    ``sources`` are the files by their paths, for the manifest.  ``fetch`` returns the paths of the parts by their
    names, for this process.
    """

    parts: tuple[PartDigest, ...]
    sources: t.Mapping[str, Known]
    fetch: t.Callable[[], t.Mapping[str, str]]


class Sent(t.NamedTuple):
    """What the controller offers: the parts, and an archive with their contents once it was asked for it."""

    parts: tuple[PartDigest, ...]
    archive: str | None = None


class NotSentError(GpufleetError):
    """The contents of parts are needed, and the controller still has them."""


class SourceReader:
    """Reads one source; close() removes what was unpacked for it.

    ``before`` is the current installation.  With ``thorough`` every file is read, whatever its status says.
    """

    def __init__(self, host: HostRoot, before: Manifest | None, *, thorough: bool) -> None:
        self._host = host
        self._known: t.Mapping[str, Known] = {} if before is None else before.sources
        self._before = before
        self._thorough = thorough
        self._stack = contextlib.ExitStack()
        with contextlib.suppress(OSError):
            for path in abandoned(tempfile.gettempdir()):
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Remove what was unpacked."""
        self._stack.close()

    def root(self, src: str, components: t.Sequence[str] | None) -> Source:
        """A directory tree on the host.  Raises GpufleetError."""
        outer = self._host.outer(src)
        if not os.path.isdir(outer):
            raise HostError(f"src {src} is not a directory on the host. Give the one that holds usr/bin and usr/lib.")
        return self._tree(HostRoot.of(outer, live=False), components, src)

    def packages(
        self, files: t.Sequence[str], components: t.Sequence[str] | None, unpack: t.Callable[[list[str], str], None]
    ) -> Source:
        """Packages on the host, which ``unpack`` puts into a folder; both by paths for this process."""
        sources: dict[str, Known] = {}
        outers = {path: self._host.outer(path) for path in files}
        for path, outer in outers.items():
            try:
                sources[path] = known(outer, self._known.get(path), self._thorough)
            except OSError as error:
                raise explain(path, "read", error) from error

        def unpacked() -> Source:
            folder = self._folder()
            unpack([outers[path] for path in files], folder)
            return self._tree(HostRoot.of(folder, live=False), components, "What the packages hold")

        before = self._before
        if before is not None and before.components == components and _digests(before.sources) == _digests(sources):
            return Source(before.parts, sources, lambda: unpacked().fetch())
        return unpacked()._replace(sources=sources)

    def sent(self, sent: Sent) -> Source:
        """What the controller has.  Raises NotSentError from ``fetch`` unless it was sent."""

        def fetch() -> dict[str, str]:
            if sent.archive is None:
                raise NotSentError("The controller has not sent the toolkit.")
            return _extract(sent.archive, [part.name for part in sent.parts], self._folder())

        return Source(sent.parts, {}, fetch)

    def _folder(self) -> str:
        """An empty one of this machine, which goes with this reader; a tree may have none for such purposes."""
        try:
            return self._stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-"))
        except OSError as error:
            raise explain(f"A directory for the toolkit in {tempfile.gettempdir()}", "made", error) from error

    def _tree(self, root: HostRoot, components: t.Sequence[str] | None, label: str) -> Source:
        parts, sources, paths = [], {}, {}
        for part in find_parts(root, components, label):
            try:
                content = known(part.path, self._known.get(part.path), self._thorough)
            except OSError as error:
                raise explain(part.path, "read", error) from error
            parts.append(PartDigest(part.name, content.sha256, part.mode, part.size, part.machine, part.soname))
            sources[part.path] = content
            paths[part.name] = part.path
        return Source(tuple(parts), sources, lambda: paths)


def _digests(sources: t.Mapping[str, Known]) -> dict[str, str]:
    return {path: known.sha256 for path, known in sources.items()}


def _extract(archive: str, names: t.Sequence[str], folder: str) -> dict[str, str]:
    """The members ``names`` of a tar archive, each a plain file."""
    # Only what the controller sends comes in one.
    import tarfile  # noqa: PLC0415

    paths = {}
    try:
        with tarfile.open(archive) as tar:
            for name in names:
                stream = tar.extractfile(name)
                if stream is None:
                    raise HostError(f"{name} in what the controller sent is no file.")
                paths[name] = os.path.join(folder, name)
                with stream:
                    create(paths[name], 0o600, iter(functools.partial(stream.read, 1 << 20), b""))
    except (tarfile.TarError, KeyError) as error:
        raise HostError(f"What the controller sent cannot be read: {error}. Run this again.") from error
    except OSError as error:
        raise explain(folder, "written", error) from error
    return paths


def version_of(source: Source) -> str | None:
    """The version as far as it is known without running anything."""
    return version_in(source.parts)


def name_of(source: Source, design: Design, version: str | None = None) -> str:
    """How the directory of a version is called: after the version, and after all that makes it what it is."""
    return f"{version or version_of(source) or 'unknown'}-{content_digest(source.parts, design)[:12]}"
