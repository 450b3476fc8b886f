# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rules for the files of all roles: their variables, the length of their files, and what they may decide."""

from __future__ import annotations

import re
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.tests.unit.roles.role_files import Role, yaml

# Variables without a default. If they are not set, the option of the module is omitted.
OMITTED = {
    "nvidia_cdi": {
        "nvidia_cdi_path",
        "nvidia_cdi_dev_root",
    },
    "nvidia_runtime": {
        "nvidia_runtime_set_as_default",
        "nvidia_runtime_enable_cdi",
        "nvidia_runtime_config_path",
        "nvidia_runtime_engine_version",
    },
    "nvidia_toolkit": {
        "nvidia_toolkit_version",
        "nvidia_toolkit_hold",
        "nvidia_toolkit_minimum_version",
        "nvidia_toolkit_profile",
        "nvidia_toolkit_debug",
        "nvidia_toolkit_src",
    },
}
# Other variables without a default.
OTHER_OPTIONAL: dict[str, set[str]] = {
    "nvidia_cdi": set(),
    # The role stores these for its handlers.
    "nvidia_runtime": {
        "nvidia_runtime_before_restart",
        "nvidia_runtime_after_restart",
        "nvidia_runtime_verify_image",
        "nvidia_runtime_verify_command",
    },
    "nvidia_toolkit": {
        "nvidia_toolkit_repository_url",
        "nvidia_toolkit_key",
        "nvidia_toolkit_proxy",
        "nvidia_toolkit_pin_priority",
    },
}
# Variables that a task or a handler passes to an included file.
NOT_SPECIFIED: dict[str, set[str]] = {
    # tasks/main.yml passes these to tasks/refresh.yml.
    "nvidia_cdi": {
        "nvidia_cdi_refresh_units",
        "nvidia_cdi_task",
        "nvidia_cdi_requested_state",
        "nvidia_cdi_no_driver_policy",
    },
    "nvidia_runtime": {"nvidia_runtime_restarts"},
    "nvidia_toolkit": set(),
}
TASK_FOLDERS = ("tasks", "handlers")
INCLUDE = re.compile(r"(?:include_tasks|import_tasks|file): \"?([^\"\n]+)\"?$", re.MULTILINE)
# Variables that only playbooks use.
PLAYBOOK_ONLY: dict[str, set[str]] = {"nvidia_cdi": {"nvidia_cdi_enabled"}}


@pytest.fixture(params=sorted(OMITTED))
def role(request: pytest.FixtureRequest) -> Role:
    name: t.Any = request.param
    return Role(name)


def test_defaults_match_the_specification(role: Role) -> None:
    defaults = role.load("defaults/main.yml")
    options = role.options()
    # The documentation of a boolean cannot have a template as its default.
    templates = {f"{role.name}_host_root_live"}
    specified = {name: option["default"] for name, option in options.items() if "default" in option}
    assert {name: value for name, value in defaults.items() if name not in templates} == specified
    assert set(options) - set(defaults) == OMITTED[role.name] | OTHER_OPTIONAL[role.name]


@pytest.mark.parametrize(
    ("known", "expected"),
    [({}, ["/", "False"]), ({"nvidia_host_root": "/tree", "nvidia_host_root_live": True}, ["/tree", "True"])],
)
def test_host_root_of_all_roles(role: Role, known: dict[str, t.Any], expected: list[str]) -> None:
    jinja2 = pytest.importorskip("jinja2")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    defaults = role.load("defaults/main.yml")
    texts = [str(defaults[f"{role.name}_{name}"]) for name in ("host_root", "host_root_live")]
    assert [environment.from_string(text).render(known) for text in texts] == expected


def test_used_variables_are_specified(role: Role) -> None:
    own = set(role.load("vars/main.yml")) | set(re.findall(r"(?:register|loop_var|index_var): (\w+)", role.tasks()))
    own |= NOT_SPECIFIED[role.name]
    pattern = rf"(?<!\.)\b{role.name}_\w+"
    used = set(re.findall(pattern, role.tasks() + role.variables()))
    defaults = (role.folder / "defaults/main.yml").read_text(encoding="utf-8")
    # A default may contain another variable.
    used |= {name for line in defaults.splitlines() for name in re.findall(pattern, line.partition(": ")[2])}
    assert used - own == set(role.options()) & used
    assert set(role.options()) - used == PLAYBOOK_ONLY.get(role.name, set())


def test_playbooks_use_their_variables() -> None:
    using = set()
    for path in sorted((Role("nvidia_cdi").folder.parents[1] / "playbooks").glob("*.yml")):
        text = path.read_text(encoding="utf-8")
        if re.search(r"name: gpufleet\.nvidia\.nvidia_cdi$", text, re.MULTILINE):
            using.add(path.stem)
            assert all(f"{name} | default(true) | bool" in text for name in PLAYBOOK_ONLY["nvidia_cdi"]), path
    assert {"site", "rolling"} <= using


def test_optional_variables_are_omitted(role: Role) -> None:
    for name in OMITTED[role.name]:
        # An empty value, with which a host undoes that of its group, is omitted too. False is a value.
        value = (
            rf"{name} \| default\(omit, true\) }}}}|omit if {name} \| default\(none\) in \[none, ''\] else {name} }}}}"
        )
        assert re.search(value, role.tasks()), name


def test_order_of_lists_is_stable(role: Role) -> None:
    """The order of these filters depends on hashes, which differ in each run."""
    text = role.tasks() + role.variables()
    assert not re.findall(r"\|\s*(union|difference|intersect|symmetric_difference)\b", text)


def test_task_files_are_short(role: Role) -> None:
    paths = [*role.folder.glob("tasks/*.yml"), *role.folder.glob("handlers/*.yml")]
    long = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert {name: lines for name, lines in long.items() if lines > 60} == {}


def test_a_name_of_a_file_is_in_tasks_or_in_handlers(role: Role) -> None:
    """Ansible would take one of two files of the same name, depending on where the include was reached from."""
    names = [{path.name for path in role.folder.glob(f"{folder}/*.yml")} - {"main.yml"} for folder in TASK_FOLDERS]
    assert set.intersection(*names) == set()


def test_files_of_the_other_folder_are_included_by_their_full_path(role: Role) -> None:
    """Ansible searches for a relative path in tasks/ or in handlers/, depending on where the file was included."""
    for folder, other in zip(TASK_FOLDERS, reversed(TASK_FOLDERS)):
        reached = {path.rpartition("/")[2] for path in _included(role, other) if path.startswith("{{ role_path }}")}
        pairs = [(file, path) for file in _names(role, folder) for path in _included(role, folder, file)]
        for name, path in pairs:
            if path.startswith("{{ role_path }}"):
                assert path in {f"{{{{ role_path }}}}/{other}/{file}" for file in _names(role, other)}, name
            elif "{{" not in path:
                assert path in _names(role, folder), name
                assert name not in reached, f"{name} includes {path}, and is also reached from {other}"


def _names(role: Role, folder: str) -> set[str]:
    return {path.name for path in role.folder.glob(f"{folder}/*.yml")}


def _included(role: Role, folder: str, name: str = "*.yml") -> list[str]:
    texts = [path.read_text(encoding="utf-8") for path in role.folder.glob(f"{folder}/{name}")]
    return [path for text in texts for path in INCLUDE.findall(text)]


def test_loops_have_variables_of_their_own(role: Role) -> None:
    """With the name "item", Ansible prints a warning if a play includes the role in a loop."""
    for path in [*role.folder.glob("tasks/*.yml"), *role.folder.glob("handlers/*.yml")]:
        text = path.read_text(encoding="utf-8")
        assert text.count("  loop: ") == len(re.findall(rf"loop_var: {role.name}_\w+", text)), path


def test_no_role_ignores_errors(role: Role) -> None:
    """An ignored error is printed like one that nothing handles. A role reads the key ``error`` of a result instead."""
    assert "ignore_errors" not in role.tasks()


def test_no_task_sets_environment_variables(role: Role) -> None:
    """They would be on a command line, where every user of the host can read them; a proxy's hold a password."""
    assert "environment:" not in role.tasks()


def test_no_expression_reads_the_variables_of_other_hosts(role: Role) -> None:
    """Releases with CVE-2024-11079 evaluate templates in what hosts have answered, if it comes from ``hostvars``."""
    paths = [*(role.folder.parents[1] / "playbooks").glob("*.yml"), *role.folder.rglob("*.yml")]
    assert [path for path in paths if "hostvars" in path.read_text(encoding="utf-8")] == []


# -- decisions are made in Python --------------------------------------------------------------------------------------

# The most templates and conditions of all roles that decide something: with a filter, a test or an operator. Lower it
# if one is removed. A new decision is a function in plugin_utils.
MAX_DECISIONS = 125
MAX_LINES_OF_VARIABLES = 120
MAX_LINE = 120
FILES = ("defaults", "handlers", "tasks", "vars")
CONDITIONS = ("when", "failed_when", "changed_when", "until")


def expressions(value: t.Any, key: str = "") -> t.Iterator[str]:
    """Yield the templates in a value of a YAML file. A condition is a template without braces."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from expressions(name)
            yield from expressions(entry, name)
    elif isinstance(value, list):
        for entry in value:
            yield from expressions(entry, key)
    elif isinstance(value, str) and (key in CONDITIONS or "{{" in value):
        yield f"{{{{ {value} }}}}" if key in CONDITIONS else value


def decides(expression: str) -> bool:
    jinja2 = pytest.importorskip("jinja2")
    nodes = jinja2.nodes
    kinds = (nodes.Filter, nodes.Test, nodes.CondExpr, nodes.Compare, nodes.BinExpr, nodes.UnaryExpr, nodes.Concat)
    return next(jinja2.Environment().parse(expression).find_all(kinds), None) is not None


def test_roles_decide_little() -> None:
    roles = [Role(name) for name in OMITTED]
    files = [path for role in roles for folder in FILES for path in sorted((role.folder / folder).rglob("*.yml"))]
    found = [text for path in files for text in expressions(yaml.safe_load(path.read_text(encoding="utf-8")))]
    assert len([text for text in found if decides(text)]) <= MAX_DECISIONS
    assert sum(len(role.variables().splitlines()) for role in roles) <= MAX_LINES_OF_VARIABLES


def test_expressions_of_variables_are_short(role: Role) -> None:
    """An expression has at most 240 characters, and none edits a text."""
    found = list(expressions(role.load("vars/main.yml")))
    assert [text for text in found if len(text) > 2 * MAX_LINE] == []
    assert not re.search(r"\.split\(|regex_|\| *(replace|basename|urlsplit|trim)\b|\[-?\d*:|~", role.variables())


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("{{ name }}", False), ("{{ plan.name }}", False), ("{{ query('name', 'term') }}", False), ("text", False),
     ("{{ name | default(omit) }}", True), ("{{ 'a' if name else 'b' }}", True), ("{{ name is changed }}", True),
     ("{{ not name }}", True), ("{{ one + two }}", True), ("{{ one == two }}", True), ("{{ one ~ two }}", True)],
)  # fmt: skip
def test_which_templates_decide(expression: str, expected: bool) -> None:
    assert decides(expression) is expected
