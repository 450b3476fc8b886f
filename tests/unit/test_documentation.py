# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The documentation has all findings and runtimes of the code, its links are right, and the README is short.

Only for troubleshooting.md a test checks that it has no other findings.
"""

from __future__ import annotations

import ast
import re
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import inventory, procfs

COLLECTION = Path(__file__).resolve().parents[2]
SOURCES = (
    *sorted((COLLECTION / "plugins/module_utils/_audit").glob("*.py")),
    COLLECTION / "plugins/plugin_utils/_audit/report.py",
)
PAGES = (
    *(COLLECTION / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted(COLLECTION.glob("docs/*.md")),
    *sorted(COLLECTION.glob("roles/*/README.md")),
)
BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
ID = r"[a-z0-9]+(?:-[a-z0-9]+)+"
# The variable with the settings of dockerd.
SETTINGS = "_SHORT_FLAGS"
# A part of a temporary path, and a program.
NOT_IDS = {"ansible-tmp", "nvidia-smi"}
# The code of an error or of a problem is the id of its finding.
PERMISSION_DENIED = "permission-denied"
PROBLEMS = [COLLECTION / "plugins/module_utils" / path for path in ("_gpu/services.py", "_cdi/generate/graphics.py")]


def finding_ids() -> set[str]:
    """The ids of all findings: texts of the audit's code that have the form of an id, and the codes of problems."""
    found = {PERMISSION_DENIED, *procfs.WITHOUT_DRIVER, inventory.ABSENT}
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        skipped: set[ast.AST] = set()
        for node in ast.walk(tree):
            targets: list[t.Any] = getattr(node, "targets", [getattr(node, "target", None)])
            if any(getattr(target, "id", "") == SETTINGS for target in targets):
                skipped.update(ast.walk(node))
        constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in skipped]
        found |= {str(node.value) for node in constants if re.fullmatch(ID, str(node.value))}
    problems = "".join(path.read_text(encoding="utf-8") for path in PROBLEMS)
    return (found - NOT_IDS) | set(re.findall(r'Problem\("([a-z-]+)"', problems))


def documented(page: str) -> set[str]:
    """The ids in the first cells of the tables below "Findings"."""
    text = (COLLECTION / "docs" / page).read_text(encoding="utf-8").partition("\n## Findings\n")[2]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(f"`({ID})`", cell)}


def test_troubleshooting_has_every_finding_and_no_other() -> None:
    assert 60 < len(finding_ids()) <= 75
    assert documented("troubleshooting.md") == finding_ids()


@pytest.mark.parametrize("name", sorted(finding_ids()))
def test_the_page_of_the_audit_has_every_finding(name: str) -> None:
    assert f"`{name}`" in (COLLECTION / "docs/audit.md").read_text(encoding="utf-8")


def prose(path: Path) -> str:
    """The text of a page without code."""
    return BLOCK.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(COLLECTION)))
def test_links_lead_to_files_and_headings(path: Path) -> None:
    for link in LINK.findall(prose(path)):
        name, _hash, anchor = link.partition("#")
        if "://" not in link:
            target = path.parent / name if name else path
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_the_readme_is_short() -> None:
    assert len((COLLECTION / "README.md").read_text(encoding="utf-8").split()) <= 700


def test_the_page_for_docsites_links_all_guides() -> None:
    galaxy = (COLLECTION / "galaxy.yml").read_text(encoding="utf-8")
    address = {name: re.findall(rf"^{name}: (\S+)$", galaxy, re.MULTILINE)[0] for name in ("homepage", "documentation")}
    guide = (COLLECTION / "docs/docsite/rst/guide.rst").read_text(encoding="utf-8")
    # Pages for developers.
    pages = {path.name for path in COLLECTION.glob("docs/*.md")} - {"architecture.md", "inclusion.md"}
    links = {f"{address['documentation']}/{page}" for page in pages} | {address["homepage"]}
    assert set(re.findall(r"<(https://[^>]+)>`__", guide)) == links


def test_the_manifest_has_a_runtime_class_for_each_runtime() -> None:
    yaml = pytest.importorskip("yaml")
    manifest = COLLECTION / "docs/examples/kubernetes/runtime-classes.yml"
    classes = yaml.safe_load(manifest.read_text(encoding="utf-8"))["items"]
    assert classes == [
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": name}
        for name in (request.MAIN_NAME, *request.MODE_NAMES.values())
    ]
