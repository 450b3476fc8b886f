# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the files of a role, and render its templates as Ansible does."""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")


class Role:
    """The files of one role."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = Path(__file__).resolve().parents[3] / "roles" / name

    def load(self, name: str) -> t.Any:
        return yaml.safe_load((self.folder / name).read_text(encoding="utf-8"))

    def options(self) -> dict[str, dict[str, t.Any]]:
        found: dict[str, dict[str, t.Any]] = self.load("meta/argument_specs.yml")["argument_specs"]["main"]["options"]
        return found

    def tasks(self) -> str:
        """Return all tasks and handlers as one text."""
        folders = ("tasks", "handlers")
        paths = [path for folder in folders for path in sorted((self.folder / folder).glob("*.yml"))]
        return "".join(path.read_text(encoding="utf-8") for path in paths)

    def variables(self) -> str:
        return (self.folder / "vars/main.yml").read_text(encoding="utf-8")


def render(text: t.Any, known: t.Mapping[str, t.Any]) -> str:
    """Return the result of a template with the variables ``known``."""
    jinja2 = pytest.importorskip("jinja2")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    environment.filters["bool"] = lambda value: str(value).strip().lower() in ("true", "1", "yes")
    environment.tests["changed"] = lambda result: result.get("changed", False)
    environment.tests["skipped"] = lambda result: result.get("skipped", False)
    environment.tests["match"] = lambda value, pattern: re.match(pattern, value) is not None
    rendered: str = environment.from_string(str(text)).render(known)
    return rendered.strip()
