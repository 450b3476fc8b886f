# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The variables to which a template refers."""

from __future__ import annotations

import typing as t

import pytest

pytest.importorskip("jinja2", reason="templates are evaluated on the controller only")

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._templates import missing_names

KNOWN = {"a": "{{ b }}", "b": ["{{ missing }}", {"{{ key }}": 1}], "loop": "{{ loop }}", "text": "plain {"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain", set()),
        (3, set()),
        ("{{ text }}", set()),
        ("{{ x.y | default('z') }}-{{ 'w' }}", {"x"}),
        # These need not be defined.
        ("{{ x | default(y.z) }}{{ 'v' if w is defined else u }}", {"y", "u"}),
        ("{% for i in x %}{{ i.y }}{{ '' if loop.last else ',' }}{% endfor %}", {"x"}),
        ("{% if x %}{{ y }}{% endif %}", {"x", "y"}),
        ("{% for i in x %}{% break %}{{ i }}{% endfor %}", {"x"}),
        # Through other variables, and in all parts of a value.
        ("{{ a }}", {"missing", "key"}),
        ({"k": ["{{ x }}", ("{{ y }}",)]}, {"x", "y"}),
        ("{{ loop }}", set()),
        # What Ansible defines.
        ("{{ omit }}{{ lookup('env', 'x') }}{{ hostvars.y }}{{ range(3) }}{{ query('z') }}", set()),
        ("{{ x", set()),
        ("{{ x | no_such_filter }}", {"x"}),
    ],
)
def test_missing_names(value: t.Any, expected: set[str]) -> None:
    assert missing_names(value, KNOWN) == expected
