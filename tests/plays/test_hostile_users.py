# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Playbooks for hosts with a named user whose Python is hostile: the user cannot stop other engines, hosts or batches.

The interpreter of a host runs a script, or returns a result from a file. The stand-in of sudo tells it the user.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

pytest.importorskip("ansible.plugins.action", reason="playbooks run on the controller only")

COLLECTION = Path(__file__).resolve().parents[2]
# Seconds that a task of a user may take here.
SECONDS = 8
INTERPRETER = """\
#!/bin/sh
module=${{1##*/AnsiballZ_}}
name="{folder}/${{module%.py}}$BECOME"
echo "${{module%.py}}$BECOME" >>"{folder}/called"
[ ! -e "$name.sh" ] || exec /bin/sh "$name.sh"
cat "$name.json" 2>/dev/null || echo '{{"changed": false}}'
"""
# Runs the command as the same user: ... -u USER /bin/sh -c COMMAND.
SUDO = """\
#!/bin/sh
while [ "$1" != /bin/sh ]; do [ "$1" = -u ] && export BECOME=".$2"; shift; done
exec "$@"
"""
# Users that every host has.
ALICE, BOB = "docker/rootless/daemon", "docker/rootless/nobody"
ESCAPES = "\x1b[2J\x9b1A\u202e\u2028\r\nok: [forged] => (item=line)"


def engine(target: str = "docker", /, **values: t.Any) -> dict[str, t.Any]:
    user = target.rpartition("/")[2] if "/" in target else None
    return {"engine": "docker", "flavor": "rootless" if user else "system", "target": target, "user": user,
            "installed": True, "running": True, "service": "docker.service", "recorded_files": [], "inspected": True,
            "unfinished_restart": False, "used_by_kubelet": False, "problems": [], "readable": True,
            **values}  # fmt: skip


def configured(target: str, /, **values: t.Any) -> dict[str, t.Any]:
    row = {"target": target, "changed": True, "service": "docker.service", "restart_required": True,
           "restart_action": "restart", "pending_action": "restart", "default_runtime": "runc", "backup_files": [],
           "runtimes": {"nvidia": "/usr/bin/nvidia-container-runtime"}, "cdi": True, **values}  # fmt: skip
    return {"changed": True, "engines": [row]}


GPU = {"present": True, "kind": "driver", "message": ""}
TOOLKIT: dict[str, t.Any] = {
    "package_manager": "apt",
    "gpg": None,
    "version": "1.19.1",
    "gpu": GPU,
    "repository_files": [],
}
OF_ROOT = [engine(), engine(ALICE, inspected=False), engine(BOB, inspected=False)]
INFO = "nvidia_container_info"
# Of an unchanged host, and of its users.
ANSWERS: dict[str, t.Any] = {
    INFO: {"changed": False, "engines": OF_ROOT, "toolkit": TOOLKIT, "users_to_inspect": ["daemon", "nobody"]},
    f"{INFO}.daemon": {"changed": False, "engines": [engine(), engine(ALICE)]},
    f"{INFO}.nobody": {"changed": False, "engines": [engine(), engine(BOB)]},
    "nvidia_toolkit_install": {"changed": False, "version": "1.19.1"},
    "nvidia_cdi_spec": {"changed": False, "device_count": 1, "specification": "/etc/cdi/nvidia.yaml", "mode": "nvml",
                        "reasons": [], "not_described": None, "refreshed_by": None},
    "nvidia_runtime_config": configured("docker"),
    "nvidia_runtime_config.daemon": configured(ALICE),
    "nvidia_runtime_config.nobody": configured(BOB),
    "nvidia_runtime_restart": {"changed": True, "state": "applied"},
    "nvidia_runtime_verify": {"changed": False, "verified": True, "summary": "1 of 1 GPUs"},
}  # fmt: skip
for _module in ("restart", "verify"):
    for _user in ("daemon", "nobody"):
        ANSWERS[f"nvidia_runtime_{_module}.{_user}"] = ANSWERS[f"nvidia_runtime_{_module}"]
SLEEP = f"(exec -a gpufleet-sleep sleep 1{os.getpid()}) & sleep 1{os.getpid()}; sleep 1{os.getpid()}"
# What the Python of alice does in the inspection: the text of a script, or a result.
HOSTILE: dict[str, str | dict[str, t.Any]] = {
    "sleeps": SLEEP,
    "leaves_a_process": f"sleep 1{os.getpid()} & exit 0",
    "writes_for_ever": "while :; do printf '%65536s' x; done",
    "ends_early": "exit 0",
    "looks_unreachable": "exit 255",
    "garbage": "printf '{\"a\": \\033[2J [[[\\n\\377 nonsense'",
    "junk": "echo '{\"changed\": false, \"engines\": 5}'; printf '\\033[2J\\nok: [forged]\\n'",
    "deep": f"printf '{'[' * 60000}'",
    "fails": {"failed": True, "msg": f"failed {ESCAPES}", "exception": ESCAPES},
    "unreachable": {"unreachable": True, "msg": f"unreachable {ESCAPES}"},
    "list_as_target": {"engines": [{**engine(ALICE), "target": [ALICE]}]},
    "wrong_types": {"engines": [engine(ALICE, installed="yes", problems={}, service=["docker.service"])]},
    "row_of_bob": {"engines": [engine(BOB, service="x.service")]},
    "skips": {"skipped": True, "engines": [engine(ALICE, engine="crio")], "ansible_facts": {"a": []}},
    "escapes": {"engines": [engine(ALICE, service=f"docker{ESCAPES}")], "warnings": [ESCAPES, 5], "deprecations": 5},
}  # fmt: skip
# What alice does in later tasks.
LATER: dict[str, dict[str, str | dict[str, t.Any]]] = {
    "config_sleeps": {"nvidia_runtime_config": SLEEP},
    "config_types": {"nvidia_runtime_config": configured(ALICE, runtimes=["x"], unrecorded={"a": 1})},
    "restart_sleeps": {"nvidia_runtime_restart": SLEEP},
    "restart_fails": {"nvidia_runtime_restart": {"failed": True, "msg": f"no {ESCAPES}", "state": ["applied"]}},
    "verify_fails": {"nvidia_runtime_verify": {"failed": True, "msg": "no", "unreachable": True}},
}
HOSTS = (*HOSTILE, *LATER)


class Run(t.NamedTuple):
    """A run of a playbook: its output, and its recap by host."""

    output: str
    status: int

    def recap(self, name: str) -> dict[str, str]:
        return dict(re.findall(rf"^(\w+) +: .*\b{name}=(\d+)", self.output, re.MULTILINE))

    def warnings(self, host: str) -> list[str]:
        """Return the warnings about a host. ansible-core 2.16 breaks their lines."""
        until = r"(?=^\[|^\w+: \[|^(?:TASK|RUNNING|PLAY) |^$)"
        found = re.findall(rf"^\[WARNING\]: {host}: (.*?){until}", self.output, re.MULTILINE | re.DOTALL)
        return [" ".join(text.split()) for text in found]

    def closing(self, host: str) -> str:
        """Return the last line of a host."""
        lines = re.findall(rf"^ok: \[{host}\] => \(item=(toolkit.*)\)$", self.output, re.MULTILINE)
        return str(lines[-1])


def called(work: Path, host: str) -> list[str]:
    return (work / host / "called").read_text(encoding="utf-8").split()


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Path]:
    """The collection with a short limit, and an inventory of the hosts."""
    work = tmp_path_factory.mktemp("users")
    place = work / "ansible_collections/gpufleet/nvidia"
    for name in ("playbooks", "plugins", "roles", "meta"):
        shutil.copytree(COLLECTION / name, place / name)
    limits = place / "plugins/plugin_utils/_user_tasks.py"
    text = limits.read_text(encoding="utf-8")
    assert "\nSECONDS = 120\n" in text
    short = text.replace("\nSECONDS = 120\n", f"\nSECONDS = {SECONDS}\n").replace("2 * timeout * (retries + 1)", "0")
    limits.write_text(short, encoding="utf-8")
    sudo = work / "sudo"
    sudo.write_text(SUDO, encoding="utf-8")
    sudo.chmod(0o755)
    inventory = {name: _host(work / name) for name in HOSTS}
    for name in HOSTS:
        of_alice = {INFO: HOSTILE[name]} if name in HOSTILE else LATER[name]
        for module, does in of_alice.items():
            path = work / name / f"{module}.daemon.{'sh' if isinstance(does, str) else 'json'}"
            path.write_text(does if isinstance(does, str) else json.dumps(does), encoding="utf-8")
    variables = {"ansible_connection": "local", "ansible_become_exe": str(sudo), "nvidia_toolkit_source": "existing",
                 "ansible_shell_allow_world_readable_temp": True, "nvidia_runtime_users": ["daemon", "nobody"],
                 "nvidia_runtime_verify": "config"}  # fmt: skip
    (work / "hosts.json").write_text(json.dumps({"all": {"hosts": inventory, "vars": variables}}), encoding="utf-8")
    yield work
    for process in sleeping():
        os.kill(process, signal.SIGKILL)


def _host(folder: Path) -> dict[str, t.Any]:
    folder.mkdir()
    for module, answer in ANSWERS.items():
        (folder / f"{module}.json").write_text(json.dumps(answer), encoding="utf-8")
    interpreter = folder / "python"
    interpreter.write_text(INTERPRETER.format(folder=folder), encoding="utf-8")
    interpreter.chmod(0o755)
    return {"ansible_python_interpreter": str(interpreter)}


def sleeping() -> list[int]:
    """Return the processes of SLEEP."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if command[-2:-1] == [f"1{os.getpid()}".encode()]:
            found.append(int(path.parent.name))
    return found


def play(work: Path, playbook: str, *arguments: str) -> Run:
    program = Path(sys.executable).with_name("ansible-playbook")
    if not program.exists():
        pytest.skip("There is no ansible-playbook beside this Python.")
    for path in work.glob("*/called"):
        path.unlink()
    environ = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(work), "ANSIBLE_HOME": str(work / "home"),
               "ANSIBLE_FORKS": "8", "ANSIBLE_NOCOLOR": "1", "COLUMNS": "10000"}  # fmt: skip
    done = subprocess.run(
        [program, "-i", "hosts.json", f"gpufleet.nvidia.{playbook}", *arguments], cwd=work, env=environ, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="surrogateescape",
    )  # fmt: skip
    return Run(done.stdout, done.returncode)


def assert_harmless(run: Run) -> None:
    """The output has no control characters, and no line that a user has forged."""
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\udc80-\udcff]", run.output)
    assert not re.search(r"^\W*ok: \[forged\]", run.output, re.MULTILINE)


@pytest.fixture(scope="module")
def rolled(work: Path) -> Run:
    """All hosts in two batches, of which the second one begins only if no host of the first one fails."""
    run = play(work, "rolling", "--extra-vars=nvidia_serial=6,100%")
    (work / "output.txt").write_text(run.output, encoding="utf-8", errors="surrogateescape")
    return run


def test_no_user_stops_a_host_or_a_batch(rolled: Run, work: Path) -> None:
    assert rolled.recap("failed") == dict.fromkeys(HOSTS, "0"), rolled.output
    assert rolled.recap("unreachable") == dict.fromkeys(HOSTS, "0")
    assert rolled.status == 0
    for host in HOSTS:
        # Root's engine and that of the other user.
        for name in ("nvidia_runtime_config", "nvidia_runtime_restart", "nvidia_runtime_verify"):
            assert called(work, host).count(name) == called(work, host).count(f"{name}.nobody") == 1, (host, name)


@pytest.mark.parametrize("host", HOSTILE)
def test_the_engine_is_not_configured(rolled: Run, work: Path, host: str) -> None:
    # Without a result, Ansible also asks for the version of Python.
    of_alice = [name for name in called(work, host) if name.endswith(".daemon") and name != "-c.daemon"]
    assert of_alice == [f"{INFO}.daemon"]
    assert len([text for text in rolled.warnings(host) if text.startswith(f"{ALICE} is not configured: ")]) == 1
    assert f"; {ALICE}: not configured; {BOB}: runtime nvidia, not the default, CDI on, restarted" in rolled.closing(
        host
    )


@pytest.mark.parametrize("host", LATER)
def test_a_later_task_of_the_user_fails_alone(rolled: Run, host: str) -> None:
    warnings = [text for text in rolled.warnings(host) if ALICE in text]
    assert len(warnings) == 1, rolled.warnings(host)
    assert re.search(rf"; {ALICE}: (not configured|.*(restart|verification) failed)", rolled.closing(host))


@pytest.mark.parametrize("host", ["sleeps", "config_sleeps", "restart_sleeps"])
def test_a_task_without_end_is_ended_on_the_host(rolled: Run, host: str) -> None:
    (warning,) = [text for text in rolled.warnings(host) if ALICE in text]
    assert f"did not end within {SECONDS} seconds. Its processes that were found on the host were ended." in warning
    assert sleeping() == []


def test_output_without_end_is_bounded(rolled: Run) -> None:
    (warning,) = [text for text in rolled.warnings("writes_for_ever") if ALICE in text]
    assert re.search(rf"wrote more than \d+ MiB|did not end within {SECONDS} seconds", warning)


def test_the_output_of_rolling_is_harmless(rolled: Run) -> None:
    assert_harmless(rolled)


def test_remove(work: Path) -> None:
    run = play(work, "remove", "--limit=sleeps,list_as_target,row_of_bob,config_types")
    assert run.status == 0, run.output
    for host in ("sleeps", "list_as_target", "row_of_bob", "config_types"):
        assert called(work, host).count("nvidia_runtime_restart") == 1
        assert f"{ALICE} is not removed: " in "".join(run.warnings(host))
    assert_harmless(run)


def test_audit(work: Path) -> None:
    run = play(
        work, "audit", f"--extra-vars=nvidia_audit_dir={work}", "--limit=sleeps,looks_unreachable,row_of_bob,fails"
    )
    assert run.status == 0, run.output
    report = json.loads((work / "gpufleet-audit.json").read_text(encoding="utf-8"))
    for host in report["hosts"]:
        found = {finding["id"]: finding for finding in host["findings"]}
        if host["host"] != "row_of_bob":
            assert found["user-inspection-failed"]["subject"] == ALICE
        assert [engine["target"] for engine in host["engines"]].count("docker") == 1
    assert_harmless(run)


INFO_AS_ROOT, INFO_AS_USER = INFO, f"{INFO}.nobody"


@pytest.mark.parametrize(
    ("users", "inspections"),
    [
        ("nobody", [INFO_AS_ROOT, INFO_AS_USER]),
        ("all", [INFO_AS_ROOT]),
        (["all"], [INFO_AS_ROOT]),
        (["all", "nobody"], [INFO_AS_ROOT, INFO_AS_USER]),
    ],
)
def test_audit_runs_as_root_and_as_each_named_user(work: Path, users: str | list[str], inspections: list[str]) -> None:
    """The value "all" of nvidia_runtime_users is not the name of a user."""
    variables = json.dumps({"nvidia_audit_dir": str(work), "nvidia_runtime_users": users})
    run = play(work, "audit", f"--extra-vars={variables}", "--limit=fails")
    assert run.status == 0, run.output
    assert called(work, "fails") == inspections


def test_verify_fails_only_in_its_report(work: Path) -> None:
    run = play(work, "verify", "--limit=sleeps,verify_fails,restart_fails")
    assert run.recap("failed") == {"sleeps": "1", "verify_fails": "1", "restart_fails": "0"}, run.output
    for host in ("sleeps", "verify_fails"):
        assert {"nvidia_runtime_verify", "nvidia_runtime_verify.nobody"} <= {*called(work, host)}
    assert f"(item={ALICE}: not inspected)" in run.output
    assert_harmless(run)
