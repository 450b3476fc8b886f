# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import difflib
import importlib
import os
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument

FILES = Path(__file__).parents[3] / "files"
V2 = ("plugins", "io.containerd.grpc.v1.cri", "containerd")
V3 = ("plugins", "io.containerd.cri.v1.runtime", "containerd")
CRIO = ("crio", "runtime", "runtimes")
RUNTIME = {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": "P", "SystemdCgroup": True}}
Edits = t.Dict[t.Tuple[str, ...], t.Any]


def document(text: str | bytes) -> TomlDocument:
    return TomlDocument.from_bytes("/etc/containerd/config.toml", text if isinstance(text, bytes) else text.encode())


def edit(before: TomlDocument, edits: Edits) -> TomlDocument:
    for path, value in edits.items():
        before = before.set(path, value)
    return before


def difference(before: str, after: str) -> str:
    """Return the changed lines, each with the line above and the line below."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm="")
    return "\n".join(line.rstrip() for line in list(lines)[2:] if not line.startswith("@@")) + "\n"


# Real files, edits, and the difference that a careful manual edit would make.
REAL: dict[str, tuple[str, Edits, str]] = {
    "containerd 1.7, default": (
        "containerd-1.7.toml",
        {
            ("plugins", "io.containerd.grpc.v1.cri", "enable_cdi"): True,
            (*V2, "runtimes", "nvidia"): RUNTIME,
            ("imports",): ["/c/*.toml"],
        },
        """\
 disabled_plugins = []
-imports = []
+imports = ["/c/*.toml"]
 oom_score = 0
     drain_exec_sync_io_timeout = "0s"
-    enable_cdi = false
+    enable_cdi = true
     enable_selinux = false

+        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
+          runtime_type = "io.containerd.runc.v2"
+
+          [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
+            BinaryName = "P"
+            SystemdCgroup = true
+
       [plugins."io.containerd.grpc.v1.cri".containerd.untrusted_workload_runtime]
""",
    ),
    "containerd 2.1, default": (
        "containerd-2.1.toml",
        {(*V3, "runtimes", "nvidia"): RUNTIME, (*V3, "runtimes", "runc", "options", "SystemdCgroup"): True},
        """\
             ShimCgroup = ''
-            SystemdCgroup = false
+            SystemdCgroup = true
+
+        [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
+          runtime_type = 'io.containerd.runc.v2'
+
+          [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
+            BinaryName = 'P'
+            SystemdCgroup = true

""",
    ),
    "Debian's": (
        "containerd-debian.toml",
        {
            (*V2, "runtimes", "runc", "runtime_type"): "io.containerd.runc.v2",
            (*V2, "runtimes", "nvidia"): RUNTIME,
            (*V2, "default_runtime_name"): "nvidia",
        },
        """\
       conf_dir = "/etc/cni/net.d"
+    [plugins."io.containerd.grpc.v1.cri".containerd]
+      default_runtime_name = "nvidia"
+    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
+      runtime_type = "io.containerd.runc.v2"
+    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
+      runtime_type = "io.containerd.runc.v2"
+      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
+        BinaryName = "P"
+        SystemdCgroup = true
   [plugins."io.containerd.internal.v1.opt"]
""",
    ),
    "Docker's": (
        "containerd-docker.toml",
        {("disabled_plugins",): [], ("version",): 2, (*V2, "default_runtime_name"): "nvidia"},
        """\

-disabled_plugins = ["cri"]
+disabled_plugins = []
+version = 2

 #  level = "info"
+
+[plugins."io.containerd.grpc.v1.cri".containerd]
+default_runtime_name = "nvidia"
""",
    ),
    "kubeadm": (
        "containerd-kubeadm.toml",
        {(*V2, "runtimes", "nvidia"): RUNTIME, (*V2, "default_runtime_name"): "nvidia"},
        """\
 sandbox_image = "registry.k8s.io/pause:3.9" # as kubeadm wants it
+
+[plugins."io.containerd.grpc.v1.cri".containerd]
+default_runtime_name = "nvidia"


+[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
+runtime_type = "io.containerd.runc.v2"
+
+[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
+BinaryName = "P"
+SystemdCgroup = true
+
 # Mirrors
""",
    ),
    "kubespray": (
        "containerd-kubespray.toml",
        {(*V2, "runtimes", "nvidia"): RUNTIME},
        """\
             binaryName = "/usr/local/bin/runc"
+        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
+          runtime_type = "io.containerd.runc.v2"
+
+          [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
+            BinaryName = "P"
+            SystemdCgroup = true
     [plugins."io.containerd.grpc.v1.cri".registry]
""",
    ),
    "k3s": (
        "containerd-k3s.toml",
        {(*V3, "runtimes", "nvidia"): RUNTIME},
        """\

+[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
+  runtime_type = "io.containerd.runc.v2"
+
+[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
+  BinaryName = "P"
+  SystemdCgroup = true
+
 [plugins.'io.containerd.cri.v1.images'.registry]
""",
    ),
    "CRI-O": (
        "crio.conf",
        {
            (*CRIO, "nvidia"): {"runtime_path": "P", "monitor_path": "/usr/libexec/crio/conmon"},
            ("crio", "runtime", "default_runtime"): "nvidia",
            (*CRIO, "crun", "allowed_annotations"): ["io.containers.trace-syscall", "b"],
        },
        """\
 # default_runtime = "crun"
+default_runtime = "nvidia"

     "io.containers.trace-syscall",
+    "b",
 ]
 # monitor_path = ""
+
+[crio.runtime.runtimes.nvidia]
+runtime_path = "P"
+monitor_path = "/usr/libexec/crio/conmon"

""",
    ),
}


@pytest.mark.parametrize(("name", "edits", "expected"), REAL.values(), ids=REAL)
@pytest.mark.parametrize("windows", [False, True], ids=["", "windows"])
def test_writes_into_real_files_as_a_person_would(name: str, edits: Edits, expected: str, windows: bool) -> None:
    content = (FILES / name).read_bytes()
    content = content.replace(b"\n", b"\r\n") if windows else content
    before = document(content)
    after = edit(before, edits)
    assert difference(before.text, after.text) == expected
    assert after.to_bytes().count(b"\r\n") == (after.to_bytes().count(b"\n") if windows else 0)
    assert edit(after, edits).to_bytes() == after.to_bytes()
    for path in edits:
        after = after.restore(path, before)
    assert after.to_bytes() == content


@pytest.mark.parametrize("content", [b"", b" \n\t\r\n", b"# only a comment\n", b"\xef\xbb\xbf"])
def test_a_file_without_entries_is_an_empty_configuration(content: bytes) -> None:
    empty = document(content)
    assert empty.value() == {}
    assert empty.to_bytes() == content
    filled = empty.set(("version",), 2).set((*V2, "runtimes", "nvidia"), RUNTIME)
    assert filled.value(*V2, "runtimes", "nvidia", "options", "BinaryName") == "P"
    removed = filled.restore((*V2, "runtimes", "nvidia"), empty).restore(("version",), empty)
    assert removed.to_bytes() == content


FRESH = """\
version = 2

[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "nvidia"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "P"
SystemdCgroup = true
"""


@pytest.mark.parametrize("before", ["", "# A notice\n", "# A notice\n\n"])
@pytest.mark.parametrize("whole", [True, False], ids=["tables", "entry by entry"])
def test_begins_a_file_as_a_person_would(before: str, whole: bool) -> None:
    runtime = (*V2, "runtimes", "nvidia")
    tables: Edits = {runtime: RUNTIME, (*V2, "default_runtime_name"): "nvidia"}
    entries: Edits = {
        (*V2, "default_runtime_name"): "nvidia",
        (*runtime, "runtime_type"): RUNTIME["runtime_type"],
        (*runtime, "options", "BinaryName"): "P",
        (*runtime, "options", "SystemdCgroup"): True,
    }
    after = edit(document(before), {("version",): 2, **(tables if whole else entries)})
    assert after.text.strip() == (before.strip() + "\n\n" + FRESH).strip()
    assert after.text.endswith("\n")


def test_reads_plain_data_under_any_name() -> None:
    read = document('a."b.c" = 0x1F\n[[list]]\nx = 1\n')
    assert read.value("a", "b.c") == 31
    assert read.value("list") == [{"x": 1}]
    assert read.has("a")
    assert not read.has("a", "b")
    assert not read.has("list", "x")
    assert read.value("list", "x") is None


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_keeps_the_byte_order_mark(mark: bytes) -> None:
    assert document(mark + b"version = 2").set(("a",), 1).to_bytes() == mark + b"version = 2\na = 1"


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ('version = 2\nplugins = "x"\n', ("plugins", "a"), "line 2, column 1: plugins is a string"),
        ("[a]\n  b = [1]\n", ("a", "b", "c", "d"), "line 2, column 3: a.b is an array"),
        ("[[a]]\nb = 1\n", ("a", "b"), "line 1, column 1: a is an array"),
        ("a = { b = true }\n", ("a", "b", "c"), "line 1, column 7: a.b is a boolean"),
        ("a.b = 07:32:00\n", ("a", "b", "c"), "line 1, column 1: a.b is a date or time"),
    ],
)
def test_refuses_to_write_below_what_is_no_table(text: str, path: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        document(text).set(path, 1)


def test_refuses_to_lose_a_comment() -> None:
    with pytest.raises(ConfigurationError, match="line 1, column 1: a change of a would delete"):
        document("a = [\n  1, # one\n  2, # two\n]\n").set(("a",), [3])


def test_refuses_to_lose_a_comment_inside_an_element() -> None:
    with pytest.raises(ConfigurationError, match="line 1, column 1: a change of a would delete"):
        document("a = [[\n  1, # one\n], 2]\n").set(("a",), [2])


def test_refuses_an_edit_that_does_not_read_back_as_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    editor = importlib.import_module(TomlDocument.__module__.replace("toml_document", "toml_editor")).Editor
    before = document("# why\na = 1\nb = 2\n")
    for text in ("# why\na = 1\nb = 2\n", "a = 3\nb = 2\n", "# why\na = 3\n", "# why\na = \nb = 2\n"):
        monkeypatch.setattr(editor, "replace", lambda self, *arguments, text=text: setattr(self, "text", text))  # noqa: ARG005
        with pytest.raises(ConfigurationError, match="without a change of other entries"):
            before.set(("a",), 3)


def test_edits_what_is_nested_deeply() -> None:
    path = ("a",) * 99
    text = f"[{'.'.join(path)}]\nb = 1\nc = 2\n"
    assert document(text).set((*path, "b"), 3).delete((*path, "c")).text == text.replace("b = 1\nc = 2", "b = 3")
    with pytest.raises(ConfigurationError, match="cannot be changed without"):
        document(text).set((*path, "d", "e"), 3)


def test_equal_means_equal_in_type() -> None:
    text = "a = 1\nb = { c=true }\nd = [1.0]\n"
    before = document(text)
    assert before.set(("a",), 1).set(("b",), {"c": True}).set(("d",), [1.0]).text == text
    assert before.set(("a",), value=True).text == text.replace("a = 1", "a = true")
    assert before.set(("d",), [1]).text == text.replace("1.0", "1")


def test_reading_imports_no_editor_and_no_tomlkit_where_there_is_tomllib() -> None:
    package = toml_document.__package__ or ""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for name in [name for name in sys.modules if name.startswith((package, "tomllib", "tomlkit"))]:
                del sys.modules[name]
            document = importlib.import_module(toml_document.__name__).TomlDocument
            document.from_bytes("f", b"a = 1").set(("a",), 1)
            status = f"{package}.toml_editor" in sys.modules or {"tomllib", "tomlkit"} <= set(sys.modules)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


# A text with the entry a.b of this collection, and the text without it.
HEADERS: dict[str, tuple[str, str]] = {
    "of ours": ("[a]\nb = 1\n[a.c]\nx = 1\n", "[a.c]\nx = 1\n"),
    "of ours, empty": ("x = 1\n[a]\nb = 1\n", "x = 1\n"),
    "with a remark": ("[a] # Ann's\nb = 1\n[a.c]\nx = 1\n", "[a] # Ann's\n[a.c]\nx = 1\n"),
    "with a remark, empty": ("x = 1\n[a] # Ann's\nb = 1\n", "x = 1\n[a] # Ann's\n"),
    "with others": ("[a]\nb = 1\nd = 1\n[a.c]\nx = 1\n", "[a]\nd = 1\n[a.c]\nx = 1\n"),
}


@pytest.mark.parametrize(("before", "after"), list(HEADERS.values()), ids=list(HEADERS))
def test_only_own_headers_are_removed_with_the_entry(before: str, after: str) -> None:
    assert document(before).restore(("a", "b"), document("")).text == after
    # The header of an outer table stays, because the removal of the entry did not make it bare.
    before, after = ("[o]\n" + text.replace("[a", "[o.a") for text in (before, after))
    assert document(before).restore(("o", "a", "b"), document("")).text == after


@pytest.mark.parametrize("original", ["a = {}\n", "[a]\n", "a.c = 1\n"])
def test_a_table_that_the_original_has_stays_when_it_is_empty(original: str) -> None:
    assert document("[a]\nb = 1\n").restore(("a", "b"), document(original)).text == "[a]\n"


# The text, the entry, and the text after it was set to 3: the new line is below the line that is commented out.
COMMENTED: dict[str, tuple[str, tuple[str, ...], str]] = {
    "in a table": ('[a]\n#b = "x"\nc = 1\n', ("a", "b"), '[a]\n#b = "x"\nb = 3\nc = 1\n'),
    "indented": ("[a]\n    # b = 1\n    c = 2\n", ("a", "b"), "[a]\n    # b = 1\n    b = 3\n    c = 2\n"),
    "with a remark": ("#b = 1  # the # of it\n", ("b",), "#b = 1  # the # of it\nb = 3\n"),
    "no final newline": ("a = 1\n#b = 1", ("b",), "a = 1\n#b = 1\nb = 3"),
    "Windows line ends": ("a = 1\r\n#b = 1\r\nc = 1\r\n", ("b",), "a = 1\r\n#b = 1\r\nb = 3\r\nc = 1\r\n"),
    "of another table": ("[c]\n#b = 1\n[a]\n", ("a", "b"), "[c]\n#b = 1\n[a]\nb = 3\n"),
    "below a header in a comment": ("[a]\n#[c]\n#b = 1\n", ("a", "b"), "[a]\nb = 3\n#[c]\n#b = 1\n"),
    "with its header in a comment": ("d = 1\n\n#[a]\n#b = 1\n", ("a", "b"), "d = 1\n\n#[a]\n#b = 1\n\n[a]\nb = 3\n"),
    "in a string over lines": ("c = '''\n#b = 1\n'''\n", ("b",), "c = '''\n#b = 1\n'''\nb = 3\n"),
    "it is there": ("#b = 1\nb = 2\n", ("b",), "#b = 1\nb = 3\n"),
}


@pytest.mark.parametrize(("before", "path", "after"), list(COMMENTED.values()), ids=list(COMMENTED))
def test_an_entry_is_written_below_its_comment(before: str, path: tuple[str, ...], after: str) -> None:
    original = document(before)
    written = original.set(path, 3)
    assert written.text == after
    assert written.restore(path, original).text == before
