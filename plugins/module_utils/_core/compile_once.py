# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Make Python compile each file of a task's archive only once.

zipimport of Python 3.8 to 3.13 compiles each file twice: in get_filename() and again to run it.
"""

from __future__ import annotations

import os
import sys
import typing as t
import zipimport
from importlib.machinery import SourceFileLoader

if t.TYPE_CHECKING:
    import types
    from importlib.machinery import ModuleSpec


class _Importer(zipimport.zipimporter):
    """Finds and loads what ``zipimporter`` does, and keeps the compiled code until it runs."""

    # The loading code of Python 3.8 and 3.9 would compile each file again.
    exec_module = SourceFileLoader.exec_module

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._compiled: dict[str, types.CodeType] = {}

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, so that Python creates the module as usual."""

    def get_filename(self, fullname: str) -> str:
        if fullname not in self._compiled:
            self._compiled[fullname] = super().get_code(fullname)
        return self._compiled[fullname].co_filename

    def get_code(self, fullname: str) -> types.CodeType:
        return self._compiled.pop(fullname, None) or super().get_code(fullname)


def compile_once(loader: object) -> None:
    """Make all later imports from the archive that ``loader`` loads from compile each file once.

    It does nothing if ``loader`` does not load from an archive, as in tests and on the controller.
    """
    if not isinstance(loader, zipimport.zipimporter):
        return
    archive = loader.archive

    def importer(path: str) -> _Importer:
        if path != archive and not path.startswith(archive + os.sep):
            raise ImportError(f"{path} does not lie in {archive}")
        return _Importer(path)

    sys.path_hooks.insert(0, importer)
    for path, known in list(sys.path_importer_cache.items()):
        if isinstance(known, zipimport.zipimporter) and known.archive == archive:
            del sys.path_importer_cache[path]
