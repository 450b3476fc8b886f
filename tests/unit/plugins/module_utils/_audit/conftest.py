# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""All tests of the audit check the texts of all findings that they get."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.report import Finding
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.finding_texts import problems_of


@pytest.fixture(autouse=True)
def _check_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    returned = Finding.row

    def row(finding: Finding) -> dict[str, str]:
        assert problems_of(finding.text, finding.advice) == []
        return returned(finding)

    monkeypatch.setattr(Finding, "row", row)
