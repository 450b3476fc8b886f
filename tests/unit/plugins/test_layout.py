# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The layout of plugins/module_utils: which package imports which, without cycles, and modules instead of names.

The table of packages is read from docs/architecture.md. The last test is about the tests: no file imports a test file.
"""

from __future__ import annotations

import ast
import re
import typing as t
from pathlib import Path

import pytest

pytestmark = pytest.mark.one_python

ROOT = Path(__file__).resolve().parents[3]
MODULE_UTILS = ROOT / "plugins/module_utils"
PREFIX = "ansible_collections.gpufleet.nvidia.plugins.module_utils"
PLUGINS = sorted((ROOT / "plugins").rglob("*.py"))
TESTS = sorted(path for folder in ("tests", "molecule", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
_ROW = re.compile(r"^\| `(_\w+)` \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)


def _allowed() -> dict[str, set[str]]:
    """Return what each package may import, from the table in the documentation."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    return {name: set(re.findall(r"_\w+", others)) for name, others in _ROW.findall(text)}


def _name(path: Path) -> str:
    return path.relative_to(MODULE_UTILS).with_suffix("").as_posix().replace("/", ".")


def _imports(path: Path) -> t.Iterator[tuple[str, int]]:
    """Yield each import from module_utils, lazy and type-only ones too: the module's name, and the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{PREFIX}."):
            package = str(node.module)[len(PREFIX) + 1 :]
            for alias in node.names:
                yield f"{package}.{alias.name}".lstrip("."), node.lineno


MODULES = {_name(path): path for path in sorted(MODULE_UTILS.rglob("*.py"))}
TEXTS = {name: path.read_text(encoding="utf-8") for name, path in MODULES.items()}


def test_the_documentation_lists_the_packages() -> None:
    assert set(_allowed()) == {name.split(".")[0] for name in MODULES if "." in name}


def test_modules_are_imported_and_not_names() -> None:
    # ansible-core 2.21 reads the source again for each imported name.
    found = [f"{path}:{line}: {name}" for path in PLUGINS for name, line in _imports(path) if name not in MODULES]
    assert found == []


def test_a_package_imports_only_what_the_documentation_allows() -> None:
    allowed = _allowed()
    found = []
    for name, path in MODULES.items():
        package, dot, _rest = name.partition(".")
        for other, line in _imports(path) if dot else ():
            if other.partition(".")[0] not in {package, *allowed[package]}:
                found.append(f"{path}:{line}: {other}")
    assert found == []


def test_there_are_no_cycles() -> None:
    graph = {name: {other for other, _line in _imports(path)} for name, path in MODULES.items()}
    while True:
        leaves = {name for name, others in graph.items() if not others & set(graph)}
        if not leaves:
            break
        graph = {name: others - leaves for name, others in graph.items() if name not in leaves}
    assert graph == {}


# The imports in functions: the names that each file of plugins imports there. A host compiles all files of a task
# again, about 8 µs a line (docs/performance.md), so a file that an unchanged task does not need stays out of it if that
# saves more than 250 lines. All other imports are at the top of their files.
IN_FUNCTIONS = {
    # A task needs one engine, package manager, source or part of a report.
    "_audit.host_info": {"_gpu.info", "_cdi.info", "_audit.audit"},
    "_audit.host_parts": {"_toolkit.info", "_kubernetes.kubelet"},
    "_engines.registry": {
        *("_engines.docker.engine", "_engines.containerd.engine", "_engines.k3s.engine", "_engines.k0s.engine"),
        *("_engines.microk8s.engine", "_engines.crio.engine", "_engines.podman.engine"),
    },
    "_kubernetes.info": {"_kubernetes.node"},
    "_packages.detect": {"_packages.apt", "_packages.dnf", "_packages.zypper"},
    "_tasks.ahead": {"_tasks.cdi_spec", "_tasks.runtime_config", "_tasks.toolkit_options", "_tasks.toolkit_packages"},
    "_tasks.cdi_spec": {"_cdi.refresh.plan", "_cdi.refresh.refresh"},
    "_tasks.container_info": {"_engines.parameters"},
    "_tasks.toolkit_directory": {"_toolkit.directory.unpack"},
    "_tasks.toolkit_install": {"_tasks.toolkit_directory", "_tasks.toolkit_packages"},
    "nvidia_runtime_verify": {"_explain.explain", "_explain.search"},
    # Only a change, a removal or a restart needs it.
    "_cdi.spec.records": {"_core.record_store"},
    "_cdi.spec.write": {
        *("_cdi.spec.remove", "_core.apply", "_core.atomic_write", "_core.lock", "_core.trusted_paths"),
        "_documents.yaml_document",
    },
    "_documents.toml_document": {"_documents.toml_editor"},
    "_engines.applied": {"_core.record_store"},
    "_engines.configure": {
        *("_core.apply", "_core.lock", "_engines.journal", "_engines.legacy_cleanup", "_engines.validator"),
    },
    "_engines.containerd.engine": {"_rpc.cri"},
    "_engines.containerd.plan": {"_engines.nvidia_files"},
    "_engines.crio.engine": {"_rpc.cri"},
    "_engines.requirements": {"_engines.configure", "_engines.parameters"},
    "_tasks.runtime_config": {"_documents.json_document", "_kubernetes.distributions", "_kubernetes.kubelet"},
    "_toolkit.directory.directory": {"_toolkit.directory.store"},
    # Few hosts have what it reads.
    "_cdi.generate.generate": {"_documents.yaml_document"},
    "_cdi.refresh.refresh": {"_documents.yaml_document"},
    "_cdi.spec.registry": {"_documents.yaml_document"},
    "_engines.cdi_support": {"_rpc.cri"},
    "_engines.k3s.config": {"_documents.yaml_document"},
    "_gpu.inventory": {"_gpu.nvml"},
    "_kubernetes.kubelet": {"_documents.yaml_document"},
    "_toolkit.directory.install": {"_gpu.device_nodes"},
    "_toolkit.directory.source": {"tarfile"},
    "nvidia_toolkit_key": {"ansible.module_utils.urls.fetch_url"},
    # Some builds of Python lack ctypes.
    "_gpu.nvml": {"ctypes"},
    "_gpu.nvml_library": {"ctypes"},
    # The unit tests also run without Ansible.
    "_module": {
        "ansible.module_utils.basic.AnsibleModule",
        "ansible.module_utils.common.arg_spec.ArgumentSpecValidator",
        "ansible.module_utils.common.validation.check_type_dict",
    },
    "_role_state": {"ansible.module_utils.common.validation.check_type_dict"},
}


def _imports_in_functions(path: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = set()
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for node in ast.walk(function) if isinstance(function, functions) else ():
            if isinstance(node, ast.ImportFrom):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
    return {name[len(PREFIX) + 1 :] if name.startswith(f"{PREFIX}.") else name for name in found}


def test_imports_are_at_the_top_of_a_file() -> None:
    found = {path: _imports_in_functions(path) for path in PLUGINS}
    names = {path: _name(path) if path in MODULES.values() else path.stem for path in PLUGINS}
    assert {names[path]: imported for path, imported in found.items() if imported} == IN_FUNCTIONS


def test_a_file_says_what_it_contains() -> None:
    assert [name for name, text in TEXTS.items() if not ast.get_docstring(ast.parse(text))] == []


def test_a_file_is_not_too_long() -> None:
    assert [name for name, text in TEXTS.items() if text.count("\n") > 550] == []


def test_one_file_knows_ansible() -> None:
    pattern = re.compile(r"^\s*(?:from|import) ansible\b(?!_collections)", re.MULTILINE)
    assert [name for name, text in TEXTS.items() if pattern.search(text)] == ["_module"]


def _imports_a_test_file(node: ast.AST) -> bool:
    """Return whether a statement imports a test file, or a name from one, relative imports too."""
    names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
    module = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return any(part.startswith("test_") for name in (*module, *names) for part in name.split("."))


def test_no_file_imports_a_test_file() -> None:
    # What several test files use is in tests/unit/helpers or in a conftest.py.
    texts = {path: path.read_text(encoding="utf-8") for path in TESTS}
    found = [
        f"{path}:{node.lineno}"
        for path, text in texts.items()
        # Parsing all files takes seconds.
        if re.search(r"(?<!def )\btest_", text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and _imports_a_test_file(node)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("from .test_properties import REQUESTS", True),
        ("from . import test_properties", True),
        ("from ansible_collections.gpufleet.nvidia.tests.unit.plugins import test_layout as layout", True),
        ("import tests.unit.plugins.test_layout", True),
        ("from ansible_collections.gpufleet.nvidia.tests.unit.helpers import gpu_hosts", False),
        ("from . import helpers", False),
    ],
)
def test_imports_of_test_files_are_recognized(statement: str, expected: bool) -> None:
    assert _imports_a_test_file(ast.parse(statement).body[0]) is expected
