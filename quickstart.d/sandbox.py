# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sandbox host: a directory tree that is configured and restored. Every step is checked and described."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
import typing as t
from pathlib import Path

if t.TYPE_CHECKING:
    import collections.abc as c

_TREE = Path(__file__).with_name("sandbox")
# This program creates stand-ins for NVIDIA's programs.
_PROGRAMS = Path(__file__).resolve().parents[1] / "tests" / "hosts" / "fixtures" / "elf_programs.py"
_NAME = "nvidia-container-runtime"
_PROGRAM = f"/usr/bin/{_NAME}"
_CONTAINERD = ("plugins", "io.containerd.grpc.v1.cri", "containerd")
_CRIO = ("crio", "runtime")
# Every entry that a run adds or changes.
_ENTRIES: dict[str, dict[tuple[str, ...], t.Any]] = {
    "etc/docker/daemon.json": {
        ("runtimes", "nvidia", "path"): _PROGRAM,
        ("default-runtime",): "nvidia",
        ("features", "cdi"): True,
    },
    # The type and SystemdCgroup are inherited from runc.
    "etc/containerd/config.toml": {
        (*_CONTAINERD[:2], "enable_cdi"): True,
        (*_CONTAINERD, "default_runtime_name"): "nvidia",
        (*_CONTAINERD, "runtimes", "nvidia", "runtime_type"): "io.containerd.runc.v2",
        (*_CONTAINERD, "runtimes", "nvidia", "options", "SystemdCgroup"): True,
        (*_CONTAINERD, "runtimes", "nvidia", "options", "BinaryName"): _PROGRAM,
    },
    # All settings but the program and its root are inherited from crun. Only crun can read this root.
    "etc/crio/crio.conf.d/99-nvidia.toml": {
        (*_CRIO, "default_runtime"): "nvidia",
        (*_CRIO, "runtimes", "nvidia", "runtime_path"): _PROGRAM,
        (*_CRIO, "runtimes", "nvidia", "runtime_type"): "oci",
        (*_CRIO, "runtimes", "nvidia", "monitor_path"): "/usr/libexec/crio/conmon",
        (*_CRIO, "runtimes", "nvidia", "monitor_env"): [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        ],
        (*_CRIO, "runtimes", "nvidia", "allowed_annotations"): [
            "io.containers.trace-syscall", "io.kubernetes.cri-o.Devices",
        ],
    },
    # The first setting is written below its comment. The file had no line for the second one.
    "etc/nvidia-container-runtime/config.toml": {
        ("accept-nvidia-visible-devices-as-volume-mounts",): True,
        ("accept-nvidia-visible-devices-envvar-when-unprivileged",): False,
    },
}  # fmt: skip
# The directory for a toolkit without packages, and the directories from which it is installed.
_DEST = "/usr/local/nvidia/toolkit"
_SOURCES = {version: f"/srv/nvidia-container-toolkit-{version}" for version in ("1.19.1", "1.20.0")}
# The passwords in the files of the sandbox, which a diff must never show.
_SECRET = "not-for-a-log"  # noqa: S105
# The unit that writes the CDI specification when the host starts with its driver.
_UNIT = "etc/systemd/system/gpufleet-nvidia-cdi.service"
_PURGE = {f"nvidia_{role}_purge_backups": True for role in ("runtime", "toolkit", "cdi")}
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_RECAP = re.compile(r"^sandbox\s+: ok=\d+\s+changed=(\d+)\s", re.MULTILINE)
_COMMENTED_OUT = re.compile(r"\s*#\s*[\w.-]+\s*=")
_DIFF_LINE = re.compile(r"^[-+].*$", re.MULTILINE)
_IS_LEFT_OUT = re.compile(r"\s*$|included: |ok: ")
# The task with the closing line of a host, which is the result of a run.
_REPORT = "TASK [Report the state of the host]"


def _parse(name: str, content: bytes) -> t.Any:
    text = content.decode()
    return tomllib.loads(text) if name.endswith(".toml") else json.loads(text)


def _leaves(data: t.Any, path: tuple[str, ...] = ()) -> c.Iterator[tuple[tuple[str, ...], t.Any]]:
    """Yield every value that is not a table, with its path."""
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


class SandboxError(Exception):
    """A step did not have the expected result."""


def _from(source: str) -> tuple[str, ...]:
    """Return the options with which a play installs a directory from ``source``."""
    return "--extra-vars", f"nvidia_toolkit_source=directory nvidia_toolkit_src={source}"


def shortened(lines: t.Iterable[str], *, with_diff: bool) -> c.Iterator[str]:
    """Yield the lines of Ansible's output that report a change, a problem or a result.

    Left out are the names of included files, headings without such a line, that of the closing line of the host, and
    the content of new files. Without ``with_diff``, all diffs are left out.
    """
    play = task = diff_of = ""
    is_report = False
    for line in lines:
        text = _ESCAPE.sub("", line)
        if text.startswith("--- before: "):
            diff_of = "new file" if text.rstrip().endswith("(absent)") else "changed file"
        # Ansible prints "\\ No newline at end of file".
        elif not text.startswith((" ", "+", "-", "@", "\\")):
            diff_of = ""
        if text.startswith("PLAY "):
            play, task = ("" if text.startswith("PLAY RECAP ") else line), ""
        elif text.startswith(("TASK [", "RUNNING HANDLER [")):
            task, is_report = line, text.startswith(_REPORT)
        in_new_file = diff_of == "new file" and text.startswith(("+", "\\")) and not text.startswith("+++ after: ")
        if is_report and text.startswith("ok: "):
            yield line
        if (diff_of and not with_diff) or in_new_file or line in (play, task) or _IS_LEFT_OUT.match(text):
            continue
        yield from filter(None, (play, task))
        play = task = ""
        yield f"{line.rstrip()} (not shown)\n" if diff_of == "new file" and text.startswith("@") else line


def _kept(lines: t.Iterable[str], kept: list[str]) -> c.Iterator[str]:
    """Yield the lines, and append each to ``kept``."""
    for line in lines:
        kept.append(line)
        yield line


class _Entry(t.NamedTuple):
    mode: str
    owner: int
    group: int
    content: bytes


def _snapshot(root: Path) -> dict[str, _Entry]:
    """Return every path below the root without /run, which is empty after each boot."""
    entries = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if name == "run" or name.startswith("run/"):
            continue
        status = path.lstat()
        content = b""
        if path.is_symlink():
            content = bytes(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        entries[name] = _Entry(stat.filemode(status.st_mode), status.st_uid, status.st_gid, content)
    return entries


def _identities(root: Path) -> dict[str, tuple[int, int]]:
    """Return the inode and modification time of every file. A run without changes must not change them."""
    found = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_file() and not name.startswith("run/"):
            status = path.lstat()
            found[name] = (status.st_ino, status.st_mtime_ns)
    return found


def _difference(before: c.Mapping[str, t.Any], after: c.Mapping[str, t.Any]) -> list[str]:
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return [
        f"{name} ({'changed' if name in before and name in after else 'gone' if name in before else 'new'})"
        for name in names
    ]


class Sandbox:
    """One sandbox host in a temporary directory, on which ansible-playbook runs."""

    def __init__(
        self, work: Path, playbook: str, environ: c.Mapping[str, str], node_python: str, log: t.TextIO
    ) -> None:
        self.root = work / "host"
        self._playbook = playbook
        self._log = log
        self._colour = log.isatty()
        shutil.copytree(_TREE, self.root, symlinks=True)
        # The repository does not contain these modes, because the files have no shebang and the umask changes modes.
        for binary in (*self.root.glob("usr/bin/*"), *self.root.glob("usr/sbin/*")):
            binary.chmod(0o755)
        # The other low-level runtimes in the engines' files.
        for name in ("usr/local/sbin/runc", "usr/libexec/crio/runc", "usr/libexec/crio/crun"):
            binary = self.root / name
            binary.parent.mkdir(parents=True, exist_ok=True)
            binary.touch(0o755)
        for name in _ENTRIES:
            if (self.root / name).exists():
                (self.root / name).chmod(0o640)
        self._inventory = work / "inventory.json"
        self._inventory.write_text(
            json.dumps({"all": {"hosts": {"sandbox": {
                "ansible_connection": "local",
                "ansible_python_interpreter": node_python,
                "ansible_remote_tmp": str(work / "ansible-tmp"),
                "nvidia_toolkit_source": "existing",
                "nvidia_toolkit_files_on": "node",
                "nvidia_toolkit_profile": "kubernetes_hardened",
                "nvidia_host_root": str(self.root),
                "nvidia_runtime_set_as_default": True,
                "nvidia_runtime_enable_cdi": True,
                # The engines of this machine must not be restarted.
                "nvidia_runtime_restart_mode": "none",
            }}}}),
            encoding="utf-8",
        )  # fmt: skip
        self._environ = {
            **environ,
            "ANSIBLE_DIFF_CONTEXT": "1",
            "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "false",
            "ANSIBLE_FORCE_COLOR" if self._colour else "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCAL_TEMP": str(work / "ansible-tmp"),
        }

    def demonstrate(self) -> None:
        """Run check mode, a run, a second run and a removal. Raise SandboxError for an unexpected result."""
        original = _snapshot(self.root)

        self._headline("1. What would change (check mode)")
        predicted, output = self._play("site", "--check", "--diff")
        predicted_diff = _DIFF_LINE.findall(output)
        self._expect(predicted > 0, "check mode predicts no change")
        self._expect(bool(predicted_diff), "check mode shows no diff")
        self._unchanged(original, "check mode has changed the host")
        self._tell(f"{predicted} change(s) predicted. No file of the host was changed.")

        self._headline("2. The run")
        changed, output = self._play("site", "--diff", with_diff=False)
        self._expect(changed == predicted, f"check mode predicted {predicted} change(s), but the run made {changed}")
        self._expect(_DIFF_LINE.findall(output) == predicted_diff, "the diff differs from the one of check mode")
        for name, entries in _ENTRIES.items():
            self._configured(name, original[name].content if name in original else b"", entries)
        self._expect((self.root / _UNIT).is_file(), f"{_UNIT} does not exist")
        configured, identities = _snapshot(self.root), _identities(self.root)
        self._tell(
            "The diff is the same, so it is not shown again. The toolkit's configuration is hardened for Kubernetes.\n"
            "   The NVIDIA runtime is registered with Docker, containerd and CRI-O, and is their default. CDI is\n"
            "   enabled. A unit writes the specification at each start. All other settings and all comments are\n"
            "   unchanged. No diff contains a password."
        )

        self._headline("3. A second run")
        changed, _output = self._play("site", "--diff")
        self._expect(changed == 0, f"the second run reports {changed} change(s)")
        self._unchanged(configured, "the second run has changed the host")
        touched = _difference(identities, _identities(self.root))
        self._expect(not touched, f"the second run has replaced files: {', '.join(touched)}")
        self._tell("changed=0. No file was written again, not even with the same content.")

        self._headline("4. The removal")
        changed, _output = self._play("remove", "--limit=sandbox", "--extra-vars", json.dumps(_PURGE))
        self._expect(changed > 0, "the removal reports no change")
        self._unchanged(original, "the removal did not restore the original state")
        self._tell(f"All {len(original)} files and directories have their original content, owner, group and mode.")

    def demonstrate_directory(self) -> None:
        """Do the same with a toolkit in a directory, and replace it by another version in between."""
        for version, source in _SOURCES.items():
            self._make_toolkit(version, source)
        original = _snapshot(self.root)

        self._headline(f"1. What would change with the toolkit in the directory {_DEST} (check mode)")
        predicted, _output = self._play("site", *_from(_SOURCES["1.19.1"]), "--check")
        self._unchanged(original, "check mode has changed the host")
        self._tell(f"{predicted} change(s) predicted. No file of the host was changed.")

        self._headline("2. The run, and a second one")
        changed, _output = self._play("site", *_from(_SOURCES["1.19.1"]))
        self._expect(
            changed == predicted > 0, f"check mode predicted {predicted} change(s), but the run made {changed}"
        )
        first = self._installed("1.19.1")
        for name in list(_ENTRIES)[:3]:
            text = (self.root / name).read_text(encoding="utf-8")
            self._expect(f"{_DEST}/{_NAME}" in text, f"{name} does not name the runtime in {_DEST}")
        identities = _identities(self.root)
        changed, _output = self._play("site", *_from(_SOURCES["1.19.1"]))
        touched = _difference(identities, _identities(self.root))
        self._expect(changed == 0 and not touched, f"the second run has changed {changed}: {', '.join(touched)}")
        self._tell(
            f"{_DEST} is a link to {first},\n   and the engines use the runtime in it. The second run: changed=0."
        )

        self._headline("3. Another version")
        changed, _output = self._play("site", *_from(_SOURCES["1.20.0"]), "--diff")
        self._expect(changed == 1, f"{changed} changes instead of one")
        second = self._installed("1.20.0")
        new = f"{second}/".lstrip("/")
        others = {name: found for name, found in _identities(self.root).items() if not name.startswith(new)}
        touched = _difference(identities, others)
        self._expect(not touched, f"another version has changed other files: {', '.join(touched)}")
        self._tell(
            f"One link was replaced in one step. It is now a link to {second}.\n"
            "   A container that starts meanwhile gets one complete version. No engine restarts. The old one is kept."
        )

        self._headline("4. The removal")
        toolkit = _from(_SOURCES["1.20.0"])
        changed, _output = self._play("remove", "--limit=sandbox", *toolkit, "--extra-vars", json.dumps(_PURGE))
        self._expect(changed > 0, "the removal reports no change")
        self._unchanged(original, "the removal did not restore the original state")
        self._tell(f"All {len(original)} files and directories have their original state.")

    def _make_toolkit(self, version: str, source: str) -> None:
        """Create the files of the toolkit's packages in the directory ``source`` of the host."""
        command = [sys.executable, "-B", str(_PROGRAMS), "tree", str(self.root / source[1:]), version]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self._expect(done.returncode == 0, f"{shlex.join(command)} failed with status {done.returncode}: {done.stdout}")

    def _installed(self, version: str) -> Path:
        """Return the target of the toolkit's link as a path on the host."""
        link = self.root / _DEST[1:]
        self._expect(link.is_symlink(), f"{_DEST} is not a link")
        target = link.readlink()
        self._expect(target.name.startswith(f"{version}-"), f"{_DEST} is a link to {target}, not to version {version}")
        self._expect((link / _NAME).is_file(), f"{_DEST}/{_NAME} does not exist")
        return Path(_DEST).parent / target

    def _play(self, playbook: str, *arguments: str, with_diff: bool = True) -> tuple[int, str]:
        """Run a playbook. Return the number of changes in the recap, and the output, of which a part is printed."""
        command = [self._playbook, "-i", str(self._inventory), f"gpufleet.nvidia.{playbook}", *arguments]
        shown = shlex.join(["ansible-playbook", f"gpufleet.nvidia.{playbook}", *arguments])
        print(f"$ {shown}", file=self._log, flush=True)
        lines: list[str] = []
        with subprocess.Popen(
            command, env=self._environ, cwd=self.root.parent, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        ) as process:  # fmt: skip
            for line in shortened(_kept(process.stdout or (), lines), with_diff=with_diff):
                print(line, end="", file=self._log, flush=True)
        output = _ESCAPE.sub("", "".join(lines))
        self._expect(process.returncode == 0, f"{shown} failed with status {process.returncode}")
        self._expect(_SECRET not in output, "a password is in the output")
        recap = _RECAP.search(output)
        if recap is None:
            raise SandboxError(f"the output of {shown} has no recap")
        return int(recap.group(1)), output

    def _configured(self, name: str, original: bytes, entries: c.Mapping[tuple[str, ...], t.Any]) -> None:
        """Check that a file has only the expected changes."""
        content = (self.root / name).read_bytes()
        before, after = (dict(_leaves(_parse(name, text))) for text in (original, content))
        new = {path: value for path, value in after.items() if before.get(path) != value}
        self._expect(new == entries, f"{name} has other changes than expected: {new}")
        lost = [path for path in before if path not in after]
        self._expect(not lost, f"{name} lacks the settings {lost}")
        lines = original.decode().splitlines()
        comments = [line for line in lines if "#" in line and not _COMMENTED_OUT.match(line)]
        remaining = iter(content.decode().splitlines())
        self._expect(all(line in remaining for line in comments), f"comments in {name} have changed")

    def _unchanged(self, before: dict[str, _Entry], complaint: str) -> None:
        names = _difference(before, _snapshot(self.root))
        self._expect(not names, f"{complaint}: {', '.join(names)}")

    def _expect(self, holds: bool, complaint: str) -> None:
        if not holds:
            raise SandboxError(complaint)

    def _headline(self, text: str) -> None:
        print(f"\n== {text}", file=self._log, flush=True)

    def _tell(self, text: str) -> None:
        print(f"-> {text}", file=self._log, flush=True)


def demonstrate(playbook: str, environ: c.Mapping[str, str], node_python: str, *, directory: bool) -> None:
    """Run a demonstration with this ansible-playbook in ``environ``. Modules run on ``node_python``."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-sandbox-") as work:
        sandbox = Sandbox(Path(work).resolve(), playbook, environ, node_python, sys.stdout)
        (sandbox.demonstrate_directory if directory else sandbox.demonstrate)()


if __name__ == "__main__":
    # sandbox.py ANSIBLE_PLAYBOOK NODE_PYTHON: run all demonstrations in an environment in which Ansible finds the
    # collection.
    try:
        for directory in (False, True):
            demonstrate(sys.argv[1], os.environ, sys.argv[2], directory=directory)
    except SandboxError as error:
        sys.exit(f"FAILED: {error}")
