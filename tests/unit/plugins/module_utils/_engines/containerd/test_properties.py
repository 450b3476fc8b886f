# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# What holds for every configuration of containerd, every version of it and every series of requests.

from __future__ import annotations

import typing as t

from hypothesis import assume, given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import RuntimeRequest
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_configs import DROP_IN, MAIN
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import NVIDIA, Host

Draw = t.Callable[[st.SearchStrategy[t.Any]], t.Any]
Asked = t.Dict[str, t.Any]

OURS = ("nvidia", "gpu", "nvidia-cdi", "nvidia-legacy")
ROOTS = {1: "plugins.cri", 2: 'plugins."io.containerd.grpc.v1.cri"', 3: "plugins.'io.containerd.cri.v1.runtime'"}
VERSIONS = st.sampled_from([None, (1, 6, 20), (1, 7, 24), (2, 0, 0), (2, 1, 9), (2, 4, 0)])
NOTES = st.sampled_from(["", "", " # theirs", "\n# a line of its own", "\n\n"])
ENTRIES = st.lists(
    st.sampled_from(
        ["SystemdCgroup = true", 'Root = "/r"', "NoPivotRoot = false", 'BinaryName = "/usr/bin/x"', "shimCgroup = ''"]
    ),
    max_size=2,
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
    """A runtime, as one of the many ways to write a table."""
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
    root = ROOTS[version]
    found = [table(draw, root, name) for name in names]
    if draw(st.booleans()):
        entry = draw(st.sampled_from(['sandbox_image = "p"', "enable_cdi = false", "list = [\n  1, # one\n]", ""]))
        found.append(f"[{root}]\n{entry}")
    if draw(st.booleans()):
        entry = f'default_runtime_name = "{draw(st.sampled_from(names))}"' if names and draw(st.booleans()) else "x = 1"
        found.append(f"[{root}.containerd]\n{entry}")
    return found


@st.composite
def configurations(draw: Draw) -> dict[str, bytes | None]:
    """A main file, and maybe one that it imports."""
    version = draw(st.sampled_from([1, 2, 2, 2, 3]))
    head = [] if version == 1 else [f"version = {version}"]
    files: dict[str, bytes | None] = {}
    names = draw(RUNTIMES)
    imported = draw(st.sampled_from(["", "", "/etc/containerd/conf.d/*.toml", "/x/*.toml", "/x/a.toml"]))
    if imported:
        head.append(f'imports = ["{imported}"]')
    if imported.startswith("/x"):
        first = [] if version == 1 else [f"version = {version}"]
        later = first + blocks(draw, version, draw(RUNTIMES)) if draw(st.booleans()) else first
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
    """The host, if what stands there can be read at all and is alive."""
    host = Host(files, version)
    try:
        assume(alive(host))
    except NvidiaError:
        assume(False)
    return host


def alive(host: Host) -> bool:
    """Whether the CRI would start."""
    files = host.effect
    runtimes, default = files.runtimes(), files.default_runtime() or "runc"
    return default in runtimes or (default == "runc" and (files.merges or not runtimes))


def ask(host: Host, **asked: t.Any) -> bool:
    """Whether the request was granted; a refusal changes nothing."""
    before = dict(host.files.content)
    try:
        host.present(**asked)
    except NvidiaError:
        assert host.files.content == before
        return False
    return True


@given(configurations(), VERSIONS, REQUESTS)
def test_twice_is_once(files: dict[str, bytes | None], version: t.Any, asked: Asked) -> None:
    host = Host(files, version)
    if ask(host, **asked):
        once = dict(host.files.content)
        runtimes = host.runtimes
        for name, program in RuntimeRequest(**asked).runtimes().items():
            options = runtimes[name]["options"]
            assert [value for key, value in options.items() if key.lower() == "binaryname"] == [program]
        assert not asked.get("set_as_default") or host.default == RuntimeRequest(**asked).runtime_name
        assert ask(host, **asked)
        assert host.files.content == once


@given(configurations(), st.lists(st.tuples(VERSIONS, REQUESTS), min_size=1, max_size=4))
def test_absent_gives_every_byte_back(files: dict[str, bytes | None], calls: list[t.Any]) -> None:
    host = host_of(files, calls[0][0])
    original = dict(host.files.content)
    for version, asked in calls:
        host.version = version
        ask(host, **asked)
    if host.files.records:
        host.absent()
    assert host.files.content == original
    assert not host.files.records


@given(configurations(), VERSIONS, st.lists(REQUESTS, min_size=1, max_size=3), st.integers(0, 2))
def test_foreign_content_never_changes(
    files: dict[str, bytes | None], version: t.Any, calls: list[Asked], moment: int
) -> None:
    host = host_of(files, version)
    names = {*OURS, "runc"}
    entries = {name: entry for name, entry in host.runtimes.items() if name in names}
    for number, asked in enumerate(calls):
        if number == moment and MAIN in host.files.content:
            host.files.put(MAIN, host.files.content[MAIN].rstrip(b"\r\n") + b"\n[theirs]\nx = 1 # since\n")
        rest = host.everything_else(names)
        if ask(host, **asked):
            assert host.everything_else(names) == rest
            assert alive(host)
            # Of a runtime that was there only what was asked for may change.
            for name, entry in entries.items():
                assert host.runtimes[name].get("runtime_type") == entry["runtime_type"]
                assert set(entry.get("options", {})) <= set(host.runtimes[name].get("options", {}))
    rest = host.everything_else(names)
    if host.files.records:
        host.absent()
    assert host.everything_else(names) == rest
    assert alive(host)
    assert DROP_IN not in host.files.content
    runtimes = host.runtimes
    assert {name: runtimes.get(name) for name in entries} == entries
    kept = ("runc",) if not host.effect.merges else ()
    assert not [name for name in runtimes if name in names and name not in entries and name not in kept]
