# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Describe a toolkit on the controller and pack its files into one archive for hosts that lack them.

Private to this collection. module_utils/_toolkit/directory/source.py reads the result on the host. Ansible forks for
every host and task. Results that take long are therefore stored in a directory for the whole run, under a digest of
their inputs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import tarfile
import tempfile
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs, json_data, remove_tree
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import manifest as toolkit_manifest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import source as toolkit_source
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import unpack as toolkit_unpack

if t.TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# The level of gzip. Go programs shrink to less than half with it; a better level needs three times as long to save a
# tenth more.
_COMPRESSION = 1


class Toolkit(t.NamedTuple):
    """A toolkit on the controller: its ``parts``, and an archive that has each part under its name.

    ``archive`` returns the archive's path. The first call creates it for the whole run, and may raise NvidiaError.
    """

    parts: tuple[toolkit_manifest.PartDigest, ...]
    archive: Callable[[], str]


def toolkit_in_directory(folder: str, components: Sequence[str] | None, cache: str) -> Toolkit:
    """Return the toolkit in a directory. Raises NvidiaError if it is incomplete or cannot be read."""
    with _controller_errors():
        # isdir() also returns False if a directory above may not be searched, for which stat() raises the right error.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.stat(folder)
        if not os.path.isdir(folder):
            raise errors.HostError(
                f"{errors.option:src} {folder} on the controller is not a directory. Set a directory that"
                " contains usr/bin and usr/lib of the toolkit."
            )
        return _read(folder, components, cache, f"{errors.option:src} {folder} on the controller")


def toolkit_in_packages(packages: Sequence[str], components: Sequence[str] | None, cache: str) -> Toolkit:
    """Return the toolkit in ``packages``, which are unpacked. Raises NvidiaError as toolkit_in_directory()."""
    with _controller_errors():
        key = [[path, *toolkit_manifest.Identity.of(os.stat(path))] for path in packages]
        folder = _once(cache, "unpacked", key, lambda new: _unpack(packages, new))
        return _read(folder, components, cache, "The toolkit in the packages on the controller")


def _read(folder: str, components: Sequence[str] | None, cache: str, label: str) -> Toolkit:
    parts = toolkit_source.find_parts(hostfs.HostFS.of(folder, live=False), components, label)
    key = [[*part, *toolkit_manifest.Identity.of(os.stat(part.path))] for part in parts]
    digests = _once(cache, "digests", key, lambda new: _write_digests(parts, new))
    with open(digests, encoding="utf-8") as stream:
        found = tuple(toolkit_manifest.PartDigest(*fields) for fields in json_data.load(stream.read()))

    def archive() -> str:
        with _controller_errors():
            return _once(cache, "archive", key, lambda new: _pack(parts, new))

    return Toolkit(found, archive)


def _once(cache: str, kind: str, key: object, make: Callable[[str], None]) -> str:
    """Return the path of the result of ``make`` for ``key``, which is created once for all processes.

    ``make`` gets the path at which it creates the result.
    """
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    path = os.path.join(cache, f"gpufleet-toolkit-{kind}-{digest[:32]}")
    if not os.path.exists(path):
        # The forks of several hosts arrive at the same time: one creates the result, and the others wait for it.
        with open(os.path.join(cache, "gpufleet-toolkit.lock"), "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(path):
                folder = tempfile.mkdtemp(prefix="gpufleet-toolkit-", dir=cache)
                try:
                    new = os.path.join(folder, kind)
                    make(new)
                    os.rename(new, path)
                finally:
                    remove_tree.remove_tree_if_possible(folder)
    return path


def _write_digests(parts: Sequence[toolkit_source.Part], path: str) -> None:
    digests = [
        toolkit_manifest.PartDigest(
            part.name, toolkit_manifest.sha256_of(part.path), part.mode, part.size, part.machine, part.soname
        )
        for part in parts
    ]
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(digests, stream)


def _pack(parts: Sequence[toolkit_source.Part], path: str) -> None:
    with tarfile.open(path, "w:gz", compresslevel=_COMPRESSION) as tar:
        for part in parts:
            member = tarfile.TarInfo(part.name)
            member.size = part.size
            with open(part.path, "rb") as stream:
                tar.addfile(member, stream)


def _unpack(packages: Sequence[str], folder: str) -> None:
    os.mkdir(folder)
    toolkit_unpack.unpack(packages, folder, on_controller=True)


@contextlib.contextmanager
def _controller_errors() -> Iterator[None]:
    """Raise errors of the controller with the controller's advice, because become has no effect there."""
    try:
        yield
    except errors.HostError as error:
        if not isinstance(error.__cause__, PermissionError):
            raise
        raise _controller_error(error.__cause__) from error
    except OSError as error:
        raise _controller_error(error) from error


def _controller_error(error: OSError) -> errors.HostError:
    advice = "Check its file system."
    if isinstance(error, PermissionError):
        advice = "Give the user that runs Ansible access to it. become has no effect on the controller."
    elif error.errno == errno.ENOSPC:
        advice = "Free space there, or set local_tmp in ansible.cfg to a directory with enough space."
    return errors.HostError(f"{error.filename or 'A file'} on the controller: {error.strerror or error}. {advice}")
