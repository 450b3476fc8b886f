# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Import Python packages that the action plugin sends with the task, such as tomlkit, from memory.

The counterpart on the controller is `plugin_utils/_bundled.py`.
"""

from __future__ import annotations

import base64
import importlib
import sys
import typing as t
import zlib
from importlib.machinery import ModuleSpec, SourceFileLoader

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

if t.TYPE_CHECKING:
    import types


class BundledPackage(t.NamedTuple):
    """A package that can be sent with a task: pure Python, or usable without its compiled modules.

    ``distribution`` is its name for pip. ``minimum`` is the oldest version that works. ``last_for`` gives the last
    release series for a Python version that newer releases no longer support.
    """

    distribution: str
    minimum: tuple[int, ...]
    last_for: t.Mapping[tuple[int, int], str]

    def accepts(self, version: str) -> bool:
        return (core_text.parse_version(version) or ()) >= self.minimum

    def __str__(self) -> str:
        return f"{self.distribution} {core_text.dotted(self.minimum)} or newer"


# Packages by the name under which they are imported.
PACKAGES: dict[str, BundledPackage] = {
    "tomlkit": BundledPackage("tomlkit", (0, 12), {(3, 8): "0.13"}),
    # The last release for Python 3.8 is also the latest release.
    "yaml": BundledPackage("PyYAML", (5, 1), {(3, 8): "6.0"}),
}

_registered: dict[str, str] = {}


def register(packages: t.Mapping[str, str]) -> None:
    """Register the packages that the controller sent, by name. Only import_bundled() decodes them."""
    _registered.update(packages)


def import_bundled(name: str) -> types.ModuleType:
    """Import the package ``name``: from this host if it is recent enough, else from the controller, in memory.

    Raises NvidiaError if neither works. Raises MissingPackageError, whose details contain the name in ``needed``, if
    the controller sent no package.
    """
    package = PACKAGES[name]
    installed = _import(name)
    version = str(getattr(installed, "__version__", ""))
    if installed is not None and package.accepts(version):
        return installed
    found = f"has only {version}" if version else "has none"
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    problem = f"The Python package {package} is needed. This host's Python {python} {found}, and the controller"
    if name not in _registered:
        advice = (
            f"Install {package.distribution} for the controller's Ansible (python3 -m pip install"
            f" {package.distribution}). Then each task sends it, and the hosts need no installation."
        )
        missing = errors.with_advice(errors.MissingPackageError, f"{problem} sent none.", advice)
        # An action plugin that sends packages on demand reads this.
        missing.details = {"needed": name}
        raise missing
    packed = _unpack(name)
    if sys.version_info[:2] < tuple(packed["python"]):
        series = package.last_for.get(sys.version_info[:2])
        release = f"a release for Python {python}" if series is None else f"the last release for Python {python}"
        pinned = package.distribution if series is None else f"'{package.distribution}=={series}.*'"
        raise errors.NvidiaError(
            f"{problem} sent {packed['version']}, which needs Python {core_text.dotted(packed['python'])} or newer."
            f" Install {release} on the controller (python3 -m pip install {pinned}) or on this host."
        )
    imported = _import_from_memory(name, packed["sources"])
    if imported is None:
        raise errors.NvidiaError(
            f"{problem} sent {packed['version']}, which this Python cannot import. Install {package} on this host, or"
            " repair the standard library of its Python."
        )
    return imported


def _import(name: str) -> types.ModuleType | None:
    try:
        return importlib.import_module(name)
    except (ImportError, SyntaxError):  # SyntaxError: the package was installed for another Python.
        return None


def _unpack(name: str) -> dict[str, t.Any]:
    try:
        return json_data.check(json_data.load(zlib.decompress(base64.b64decode(_registered[name]))), dict)
    except (TypeError, ValueError, zlib.error) as error:
        raise errors.NvidiaError(
            f"The option _bundled contains no valid package {name}. Remove this option from the task: the action plugin"
            " sets it."
        ) from error


def _import_from_memory(name: str, sources: dict[str, str]) -> types.ModuleType | None:
    for loaded in [module for module in sys.modules if module == name or module.startswith(name + ".")]:
        del sys.modules[loaded]
    importer = _MemoryImporter(sources)
    sys.meta_path.insert(0, importer)
    try:
        return _import(name)
    finally:
        sys.meta_path.remove(importer)


class _MemoryImporter:
    """Finds only the modules in ``sources`` (path to source text)."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.sources = sources

    def find_spec(self, name: str, *_context: object) -> ModuleSpec | None:
        base = name.replace(".", "/")
        for path, is_package in ((f"{base}/__init__.py", True), (f"{base}.py", False)):
            if path in self.sources:
                loader = _MemoryLoader(name, f"<controller>/{path}", self.sources[path])
                return ModuleSpec(name, loader, origin=loader.path, is_package=is_package)
        return None


class _MemoryLoader(SourceFileLoader):
    """Loads one module from ``source`` as if it were the file ``path``. It reads and writes no file."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self.source = source

    def get_data(self, _path: str) -> bytes:
        return self.source.encode("utf-8")

    def path_stats(self, path: str) -> t.Mapping[str, t.Any]:
        raise OSError(path)  # the documented error for a path without a time; Python then keeps no byte code
