# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from hypothesis import assume, given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action, RuntimeRequest
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_crio import (
    BUNDLED,
    DISTRIBUTION,
    DROP_IN,
    FOLDER,
    MAIN,
    OLD,
    OPERATOR,
    PACKAGED,
    PROFILES,
    STOCK,
    Host,
    carried_out,
    default,
    table,
)

# -- properties ------------------------------------------------------------------------------------------------------

REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "runtime_name": st.sampled_from(["nvidia", "gpu", "nvidia-cdi"]),
        "runtime_dir": st.sampled_from(["/usr/bin", "/opt/nvidia"]),
        "extra_modes": st.sampled_from([(), ("cdi",), ("cdi", "legacy")]),
        "set_as_default": st.sampled_from([None, True, False]),
        "config_mode": st.sampled_from(["auto", "drop_in", "in_place"]),
        "drop_in_path": st.sampled_from([None, f"{FOLDER}/98", f"{FOLDER}/z/1"]),
        "runtime_type": st.sampled_from([None, "oci", "vm"]),
        "runtime_options": st.sampled_from([{}, {"monitor_path": "/x"}, {"default_annotations": {"a.b/c": "d"}}]),
        "container_annotations": st.sampled_from([(), ("x",), ("x", "y")]),
    },
)
SNIPPETS = [
    "",
    "# nothing\n",
    STOCK,
    BUNDLED,
    DISTRIBUTION,
    OLD,
    OPERATOR,
    PROFILES,
    DISTRIBUTION.replace("\n", "\r\n"),
    default("runc") + table("runc"),
    'crio.runtime.runtimes.runc.runtime_path = "/runc"\ncrio.runtime.default_runtime = "runc"',
    'crio = { runtime = { default_runtime = "crun" } }\n',
    table("nvidia", runtime_path='"/theirs"', of_theirs="1") + table("gpu", monitor_path='"/theirs"'),
    "[[array]]\nx = 1\n[[array]]\n",
]
CONTENTS = st.dictionaries(
    st.sampled_from([MAIN, PACKAGED, f"{FOLDER}/00-default", f"{FOLDER}/y/deep.bak", DROP_IN]),
    st.sampled_from(SNIPPETS),
    max_size=4,
)


@given(CONTENTS, st.lists(REQUESTS, min_size=1, max_size=3))
def test_property_twice_is_once_and_there_is_a_way_back(content: dict[str, str], calls: list[dict[str, t.Any]]) -> None:
    host = Host(content)
    before = dict(host.files.content)
    accepted = [asked for asked in calls if carried_out(host, asked)]
    assume(accepted)
    after = dict(host.files.content)
    assert host.present(**accepted[-1]).action is Action.NONE
    assert host.files.content == after
    host.absent()
    assert host.files.content == before
    assert host.files.records == {}


def foreign(host: Host, names: t.Collection[str]) -> dict[str, t.Any]:
    """What CRI-O makes of all files, without the runtimes ``names`` and without the default."""
    merged: dict[str, t.Any] = {}
    order = [MAIN, *host.files.walk(FOLDER)]
    for path in order:
        found = dict(host.data(path))
        crio = dict(found.get("crio", {}))
        runtime = dict(crio.get("runtime", {}))
        merged.setdefault("runtimes", {}).update(runtime.pop("runtimes", {}))
        runtime.pop("default_runtime", None)
        merged[path] = {**found, "crio": {**crio, "runtime": runtime}}
        if merged[path] == {"crio": {"runtime": {}}}:
            del merged[path]
    merged["runtimes"] = {name: entry for name, entry in merged.get("runtimes", {}).items() if name not in names}
    return merged


@given(CONTENTS, REQUESTS, REQUESTS)
def test_property_what_is_foreign_never_changes(
    content: dict[str, str], first: dict[str, t.Any], second: dict[str, t.Any]
) -> None:
    host = Host(content)
    names = {"nvidia", "gpu", "nvidia-cdi", "nvidia-legacy"}
    before = foreign(host, names)
    assume(any([carried_out(host, first), carried_out(host, second)]))
    assert foreign(host, names) == before
    host.files.put(PACKAGED, host.files.content.get(PACKAGED, b"") + b"\n[added.since]\nx = 1\n")
    added = foreign(host, names)
    host.absent()
    assert foreign(host, names) == added


@given(CONTENTS, REQUESTS)
def test_property_crio_would_start(content: dict[str, str], asked: dict[str, t.Any]) -> None:
    host = Host(content)
    assume(carried_out(host, asked))
    request = RuntimeRequest(**asked)
    plan = host.planner().present(request)
    runtimes = {**dict.fromkeys(("crun", "runc")), **plan.state.paths(), **plan.state.runtimes}
    assert plan.state.default_runtime in runtimes
    assert {name: plan.state.paths()[name] for name in request.runtimes()} == request.runtimes()
    if request.set_as_default:
        assert plan.state.default_runtime == request.runtime_name
