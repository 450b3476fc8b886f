# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the program that keeps a CDI specification fresh without Ansible, in one file: a zip of
# the very rooms that make specifications for the module, as they came to this host, and of PyYAML.

from __future__ import annotations

import ast
import importlib.util
import io
import os
import posixpath
import re
import sys
import typing as t
import zipfile

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

_ROOMS = "ansible_collections.gpufleet.nvidia.plugins.module_utils"
_START = f"{_ROOMS}._cdi_refresh_main"
_MAIN = "__main__.py"
_STARTER = f"import sys\n\nfrom {_START} import main\n\nsys.exit(main(sys.argv[1:]))\n"
# The same sources give the same bytes, whenever and by whichever Python: no times, and nothing compressed, for which
# libraries differ.  1980 is where the format's time begins.
_NO_TIME = (1980, 1, 1, 0, 0, 0)
_REGULAR_FILE = 0o100644 << 16
# Nothing from the caller's environment or a user's folders (python(1)).
ISOLATED = "-I"
OLDEST_PYTHON = (3, 8)
# Names that stay when a distribution brings another Python; the second is that of RHEL 8 for its own tools.
_LASTING = ("/usr/bin/python3", "/usr/libexec/platform-python")
_NUMBERED = re.compile(r"python3\.([0-9]+)")

Sources = t.Dict[str, bytes]


def interpreter(host: HostRoot) -> str:
    """The Python that is to run the program on ``host``: of a live one the one that runs this, under a name that lasts.

    Raises HostError where an offline tree has none that is new enough.
    """
    if host.root == "/":
        real = os.path.realpath(sys.executable)
        return next((path for path in _LASTING if os.path.realpath(path) == real), sys.executable)
    numbered = sorted(host.glob("/usr/bin/python3.*"), key=_minor, reverse=True)
    for path in [*_LASTING, *numbered]:
        if host.is_executable(path) and (3, _minor(host.resolve(path))) >= OLDEST_PYTHON:
            return path
    wanted = ".".join(map(str, OLDEST_PYTHON))
    raise HostError(
        f"{host.root} has no Python {wanted} or newer in /usr/bin, which keeps the specification fresh there. Install"
        " one, or use owner: toolkit."
    )


def _minor(path: str) -> int:
    match = _NUMBERED.fullmatch(posixpath.basename(path))
    return int(match.group(1)) if match is not None else -1


def build(python: str, yaml: Sources) -> bytes:
    """The program for the interpreter ``python``, with the package ``yaml`` in it unless that is empty."""
    return _packed(python, {**_closure(), **yaml})


def is_current(program: bytes, python: str, yaml: Sources | None) -> bool:
    """Whether ``program`` is what build() would make.

    It is enough to compare what is in it: what belongs into it follows from that.  ``yaml`` None: any will do.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(program)) as archive:
            held = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, ValueError, OSError):
        return False
    theirs = {name: text for name, text in held.items() if name.startswith("yaml/")}
    if yaml is not None and theirs != yaml:
        return False
    rooms = [name for name in held if posixpath.basename(name) not in ("__init__.py", _MAIN) and name not in theirs]
    try:
        sources = {name: _source(name[: -len(".py")].replace("/", ".")) for name in rooms}
    except GpufleetError:
        # It has a room that this version has no more.
        return False
    return _packed(python, {**_framed(sources), **theirs}) == program


def yaml_sources(shipped: t.Mapping[str, str] | None) -> Sources | None:
    """PyYAML's sources as the program needs them; None where nobody has any.

    They always come along: what this process imports its own may not (a virtual environment's, a user's, one on
    PYTHONPATH), and a distribution's goes when its package does.  shipped: what the controller sent, by paths; without
    that they are those of the Python that runs this.
    """
    if shipped is not None:
        return {path: text.encode("utf-8") for path, text in shipped.items()}
    spec = importlib.util.find_spec("yaml")
    if spec is None or spec.origin is None:
        return None
    folder = os.path.dirname(spec.origin)
    found = {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if name.endswith(".py"):
            with open(os.path.join(folder, name), "rb") as stream:
                found[f"yaml/{name}"] = stream.read()
    return found or None


# -- the rooms ---------------------------------------------------------------------------------------------------------


def _closure() -> Sources:
    """All that the program's start imports, directly or not, by the paths that they have in the zip."""
    # Said as an import so that it, and what it needs, comes to the host with the module.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils import _cdi_refresh_main  # noqa: PLC0415

    found: Sources = {}
    pending = [_cdi_refresh_main.__name__]
    while pending:
        name = pending.pop()
        path = name.replace(".", "/") + ".py"
        if path not in found:
            found[path] = _source(name)
            pending += _imported(found[path])
    return _framed(found)


def _framed(rooms: Sources) -> Sources:
    """The rooms with what makes packages of their folders, and the start."""
    parts = _ROOMS.split(".")
    packages = ["/".join(parts[: depth + 1]) + "/__init__.py" for depth in range(len(parts))]
    return {**dict.fromkeys(packages, b""), **rooms, _MAIN: _STARTER.encode("utf-8")}


def _source(name: str) -> bytes:
    """The source of a room, from wherever Ansible has put it; raises HostError if it is not there."""
    try:
        spec = importlib.util.find_spec(name)
        text = spec.loader.get_source(name) if spec is not None and hasattr(spec.loader, "get_source") else None  # type: ignore[union-attr]
    except ImportError:
        text = None
    if text is None:
        raise HostError(f"The source of {name} did not come to this host. Report this as a fault of gpufleet.nvidia.")
    return str(text).encode("utf-8")


def _imported(source: bytes) -> t.Iterator[str]:
    """The rooms that a source imports when it runs: what is only for type checkers is left out."""
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending += node.orelse
            continue
        if isinstance(node, ast.ImportFrom) and node.module == _ROOMS:
            yield from (f"{_ROOMS}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_ROOMS + "."):
            yield node.module or ""
        pending += ast.iter_child_nodes(node)


def _packed(python: str, sources: Sources) -> bytes:
    content = io.BytesIO()
    content.write(f"#!{python} {ISOLATED}\n".encode())
    with zipfile.ZipFile(content, "a", zipfile.ZIP_STORED) as archive:
        for path in sorted(sources):
            entry = zipfile.ZipInfo(path, _NO_TIME)
            entry.external_attr = _REGULAR_FILE
            # Else the system's own.
            entry.create_system = 3
            archive.writestr(entry, sources[path])
    return content.getvalue()
