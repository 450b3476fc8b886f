# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Generated configurations of containerd and requests, for property-based tests."""

from __future__ import annotations

import typing as t

from hypothesis import assume
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_configs import (
    MAIN,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import NVIDIA, Host

Draw = t.Callable[[st.SearchStrategy[t.Any]], t.Any]
Asked = t.Dict[str, t.Any]
ROOTS = {1: "plugins.cri", 2: 'plugins."io.containerd.grpc.v1.cri"', 3: "plugins.'io.containerd.cri.v1.runtime'"}
NOTES = st.sampled_from(["", "", " # site", "\n# a line of its own", "\n\n"])
ENTRIES = st.lists(
    st.sampled_from(
        [
            "SystemdCgroup = true",
            "systemdCgroup = false",
            'Root = "/r"',
            "NoPivotRoot = false",
            'BinaryName = "/usr/bin/x"',
            'binaryName = "/usr/bin/y"',
            "shimCgroup = ''",
        ]
    ),
    max_size=3,
    unique=True,
)
RUNTIMES = st.lists(st.sampled_from(["runc", "crun", "kata", "nvidia", "gpu"]), max_size=3, unique=True)
OTHERS = st.sampled_from(
    ["[grpc]\ngid = 0x10", "[debug]\n  level = 'info' # [x]", "[[x.y]]\na = 1\n[[x.y]]", "[proxy_plugins.'ä b']\nt = 1"]
)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "runtime_name": st.sampled_from(["nvidia", "gpu", "nvidia-cdi"]),
        "runtime_dir": st.sampled_from(["/usr/bin", "/usr/local/nvidia/toolkit"]),
        "extra_modes": st.sets(st.sampled_from(["cdi", "legacy"])).map(sorted).map(tuple),
        "set_as_default": st.booleans(),
        "enable_cdi": st.sampled_from([True, False, "auto"]),
        "config_mode": st.sampled_from(["auto", "in_place", "drop_in"]),
        "runtime_options": st.sampled_from([{}, {"options": {"Root": "/o"}, "x": {"y": [1]}}]),
        "container_annotations": st.sampled_from([(), ("a/*",)]),
    },
)


def table(draw: Draw, root: str, name: str) -> str:
    """Return the table of a runtime in one of three styles: nested tables, an inline table, or dotted keys."""
    kind = "io.containerd.kata.v2" if name == "kata" else "io.containerd.runc.v2"
    options = draw(ENTRIES)
    if name == "gpu":
        options = [f'BinaryName = "{NVIDIA}"', *(entry for entry in options if "Binary" not in entry)]
    where = f"{root}.containerd.runtimes.{name}"
    indent = draw(st.sampled_from(["", "  ", "\t"]))
    style = draw(st.sampled_from(["tables", "tables", "inline", "dotted"]))
    if style == "inline":
        inner = ", ".join(options)
        return f'{indent}[{where}]\n{indent}runtime_type = "{kind}"\n{indent}options = {{ {inner} }}'
    if style == "dotted":
        lines = [f'runtime_type = "{kind}"', *(f"options.{entry}" for entry in options)]
    else:
        lines = [f'runtime_type = "{kind}"', "", f"[{where}.options]", *options]
    return "\n".join(indent + line for line in [f"[{where}]", *lines])


def blocks(draw: Draw, version: int, names: list[str]) -> list[str]:
    found = blocks_of(draw, ROOTS[version], names)
    # Files of version 2 may also have tables with the names of version 3.
    mixed = version == 2 and draw(st.sampled_from([True, False, False]))
    return found + (blocks_of(draw, ROOTS[3], draw(RUNTIMES)) if mixed else [])


def blocks_of(draw: Draw, root: str, names: list[str]) -> list[str]:
    found = [table(draw, root, name) for name in names]
    if draw(st.booleans()):
        entry = draw(st.sampled_from(['sandbox_image = "p"', "enable_cdi = false", "list = [\n  1, # one\n]", ""]))
        found.append(f"[{root}]\n{entry}")
    if draw(st.booleans()):
        other = draw(st.sampled_from(["x = 1", "snapshotter = 'zfs'"]))
        entry = f'default_runtime_name = "{draw(st.sampled_from(names))}"' if names and draw(st.booleans()) else other
        found.append(f"[{root}.containerd]\n{entry}")
    return found


@st.composite
def configurations(draw: Draw) -> dict[str, bytes | None]:
    """Draw a main file and, if it imports /x, possibly the imported file."""
    version = draw(st.sampled_from([1, 2, 2, 2, 3]))
    head = [] if version == 1 else [f"version = {version}"]
    files: dict[str, bytes | None] = {}
    names = draw(RUNTIMES)
    imported = draw(st.sampled_from(["", "", "/etc/containerd/conf.d/*.toml", "/x/*.toml", "/x/a.toml"]))
    if imported:
        head.append(f'imports = ["{imported}"]')
    if imported.startswith("/x"):
        own = draw(st.sampled_from([version, version, version, 1, 2, 3]))
        first = [] if own == 1 else [f"version = {own}"]
        later = first + blocks(draw, own, draw(RUNTIMES)) if draw(st.booleans()) else first
        files["/x/a.toml"] = ("\n".join(later) + "\n").encode()
    body = blocks(draw, version, names) + draw(st.lists(OTHERS, max_size=2, unique=True))
    if draw(st.booleans()):
        body = draw(st.permutations(body))
    text = "\n".join(part + draw(NOTES) for part in [*head, *body]) + draw(st.sampled_from(["", "\n", "\n\n"]))
    text = draw(st.sampled_from(["", "", "\ufeff"])) + text.replace("\n", draw(st.sampled_from(["\n", "\n", "\r\n"])))
    files[MAIN] = text.encode()
    if not imported and draw(st.sampled_from([True, False, False])):
        files[MAIN] = draw(st.sampled_from([None, b"", b"# only\n"]))
    return files


def host_of(files: dict[str, bytes | None], version: t.Any) -> Host:
    """Return a host with these files.

    Skips the example unless the files are valid, with no undefined key, and the CRI starts with them.
    """
    host = Host(files, version)
    try:
        host.effect.check_names()
        assume(starts(host))
    except NvidiaError:
        assume(False)
    return host


def starts(host: Host) -> bool:
    """Return whether the CRI starts with the files of the host."""
    files = host.effect
    runtimes, default = files.runtimes(), files.default_runtime() or "runc"
    return default in runtimes or (default == "runc" and (files.merges or not runtimes))


def ask(host: Host, **asked: t.Any) -> bool:
    """Return whether the request succeeds. A refused request must change nothing."""
    before = dict(host.files.content)
    try:
        host.present(**asked)
    except NvidiaError:
        assert host.files.content == before
        return False
    return True
