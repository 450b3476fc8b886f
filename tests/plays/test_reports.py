# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the playbooks print about each host at their end, what they verify, and how far a play in batches has come.

The interpreter of a host returns the result of a module from a file, and records the options of the module.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import types
import typing as t
from pathlib import Path

import pytest

pytest.importorskip("ansible.plugins.action", reason="playbooks run on the controller only")

COLLECTION = Path(__file__).resolve().parents[2]
INTERPRETER = """\
#!/bin/sh
module=${{1##*/AnsiballZ_}}
module=${{module%.py}}
sed -n '/ANSIBLE_MODULE_ARGS/p' "$1" >>"{folder}/$module.called"
cat "{folder}/$module.json" 2>/dev/null || echo '{{"changed": false}}'
"""
OPTIONS = re.compile(r"'\{\"ANSIBLE_MODULE_ARGS\".*'")
STATUS = re.compile(r"^(?:ok|changed|skipping|included|failed|fatal): ", re.MULTILINE)
INFO: dict[str, t.Any] = {
    "changed": False,
    "engines": [{"engine": "docker", "flavor": "system", "target": "docker", "user": None, "installed": True,
                 "running": True, "service": "docker.service", "recorded_files": [], "unfinished_restart": False,
                 "inspected": True, "used_by_kubelet": False, "problems": []}],
    "toolkit": {"package_manager": "apt", "gpg": None, "version": "1.18.2",
                "gpu": {"present": True, "kind": "driver", "message": ""},
                "repository_files": ["/usr/share/keyrings/gpufleet-nvidia-container-toolkit-ddcae044f796ecb0.asc",
                                     "/var/cache/gpufleet-nvidia-key-ddcae044f796ecb0.asc"]},
}  # fmt: skip
ENGINE = {"target": "docker", "changed": False, "service": "docker.service", "restart_required": False,
          "restart_action": "none", "pending_action": "none", "default_runtime": "runc", "backup_files": [],
          "runtimes": {"nvidia": "/usr/bin/nvidia-container-runtime"}, "cdi": True}  # fmt: skip
CHANGED = {
    **ENGINE,
    "changed": True,
    "restart_required": True,
    "restart_action": "restart",
    "pending_action": "restart",
}
SPECIFICATION = {"changed": False, "devices": ["0", "1", "all"], "specification": "/etc/cdi/nvidia.yaml",
                 "device_count": 2, "not_described": None, "refreshed_by": "nvidia-cdi-refresh.service",
                 "mode": "nvml", "reasons": []}  # fmt: skip
NO_DRIVER: dict[str, t.Any] = {
    "nvidia_container_info": {**INFO, "toolkit": {**INFO["toolkit"], "gpu": {"present": True, "kind": "pci",
                                                                             "message": "No driver is loaded."}}},
    "nvidia_cdi_spec": {"changed": True, "devices": [], "device_count": 0, "specification": None, "mode": None,
                        "not_described": "No GPU can be described.", "refreshed_by": "nvidia-cdi-refresh.service",
                        "reasons": []},
}  # fmt: skip
REMOVED: dict[str, dict[str, t.Any]] = {
    "nvidia_toolkit_install": {"changed": True, "version": None},
    "nvidia_cdi_spec": {**SPECIFICATION, "changed": True, "device_count": 0, "mode": None, "refreshed_by": None},
    "nvidia_runtime_config": {"changed": False, "engines": [{**ENGINE, "runtimes": {}}]},
}
ANSWERS: dict[str, dict[str, t.Any]] = {
    "nvidia_container_info": INFO,
    "nvidia_toolkit_install": {"changed": False, "version": "1.19.1"},
    "nvidia_cdi_spec": SPECIFICATION,
    "nvidia_runtime_config": {"changed": False, "engines": [ENGINE]},
    "nvidia_runtime_restart": {"changed": True, "state": "applied"},
    "nvidia_runtime_verify": {"changed": False, "verified": True, "summary": "2 of 2 GPUs (--runtime nvidia)"},
}
RESTART = {"nvidia_runtime_config": {"changed": True, "engines": [CHANGED]}}
BROKEN = "/etc/docker/daemon.json cannot be read. Correct it."
REFUSED = {"nvidia_runtime_config": {"failed": True, "msg": BROKEN}}
NOT_HEALTHY = "docker.service is not healthy."
SICK = {**RESTART, "nvidia_runtime_restart": {"failed": True, "msg": NOT_HEALTHY, "rolled_back": True}}
NO_REPOSITORY = {"nvidia_toolkit_install": {"failed": True, "msg": "The repository cannot be reached."}}
TOOLKIT, CDI = "toolkit 1.19.1", "CDI: 2 devices in /etc/cdi/nvidia.yaml, refreshed by nvidia-cdi-refresh.service"
DOCKER = "docker: runtime nvidia, not the default, CDI on"
NOT_WRITTEN = (
    "CDI: specification not written (no driver is loaded), nvidia-cdi-refresh.service writes it when the host starts"
    " with its driver"
)
NOT_REACHED = "State of this host: toolkit 1.18.2; CDI not reached; docker not reached."
UNCHANGED = f"{TOOLKIT}; {CDI}; {DOCKER}, not restarted"
CONTINUE = "Correct the cause, then continue with"
LEVELS = ("config", "engine", "gpu")
COMMAND = ["nvidia-smi", "-L"]


class Host(t.NamedTuple):
    """The variables of a host, and the answers of its modules that differ from those of an unchanged host."""

    variables: t.Mapping[str, t.Any] = types.MappingProxyType({})
    answers: t.Mapping[str, dict[str, t.Any]] = types.MappingProxyType({})


class Fleet:
    """Hosts in a directory."""

    def __init__(self, work: Path, hosts: t.Mapping[str, Host]) -> None:
        self.work = work
        place = work / "ansible_collections/gpufleet/nvidia"
        place.parent.mkdir(parents=True)
        place.symlink_to(COLLECTION)
        inventory = {}
        for name, host in hosts.items():
            folder = work / name
            folder.mkdir()
            for module, answer in {**ANSWERS, **host.answers}.items():
                (folder / f"{module}.json").write_text(json.dumps(answer), encoding="utf-8")
            interpreter = folder / "python"
            interpreter.write_text(INTERPRETER.format(folder=folder), encoding="utf-8")
            interpreter.chmod(0o755)
            inventory[name] = {"ansible_python_interpreter": str(interpreter), **host.variables}
        hosts_file = {"all": {"hosts": inventory, "vars": {"ansible_connection": "local"}}}
        (work / "hosts.json").write_text(json.dumps(hosts_file), encoding="utf-8")

    def play(self, playbook: str, *arguments: str, **environ: str) -> Output:
        program = Path(sys.executable).with_name("ansible-playbook")
        if not program.exists():
            pytest.skip("There is no ansible-playbook beside this Python.")
        known = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(self.work), "ANSIBLE_HOME": str(self.work / "home"),
                 "ANSIBLE_NOCOLOR": "1", "COLUMNS": "10000", "ANSIBLE_SSH_RETRIES": "0", **environ}  # fmt: skip
        done = subprocess.run(
            [program, "-i", "hosts.json", playbook, *arguments], cwd=self.work, env=known, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return Output(done.stdout, done.returncode)

    def options(self, host: str, module: str) -> list[dict[str, t.Any]]:
        """Return the options of each run of a module, without those of Ansible and empty ones."""
        path = self.work / host / f"{module}.called"
        calls = OPTIONS.findall(path.read_text(encoding="utf-8")) if path.exists() else []
        given = [json.loads(ast.literal_eval(call))["ANSIBLE_MODULE_ARGS"] for call in calls]
        return [{name: value for name, value in one.items() if not name.startswith("_")} for one in given]


class Output(t.NamedTuple):
    """What a run printed, and its exit status."""

    text: str
    status: int

    def lines(self, host: str) -> list[str]:
        """Return the status lines of a host."""
        named = re.compile(rf"^\w+: (?:\S+ for )?(?:\[{host}\]|(?:\w+, )*{host}\b)")
        return [line for line in self.text.splitlines() if named.match(line) and STATUS.match(line)]

    def closing(self, host: str) -> list[str]:
        """Return the lines about a host in the last task."""
        last = self.text.rpartition("TASK [Report the state of the host]")[2]
        return re.findall(rf"^ok: \[{host}\] => \(item=(.*)\)$", last, re.MULTILINE)

    def messages(self, host: str) -> list[str]:
        """Return the messages of the failed tasks of a host."""
        failed = re.findall(rf"^(?:fatal|failed): \[{host}\].*? => (\{{.*\}})$", self.text, re.MULTILINE)
        return [json.loads(line)["msg"] for line in failed]


# -- the verification --------------------------------------------------------------------------------------------------


def verifying(level: str, answers: t.Mapping[str, t.Any]) -> Host:
    image = {"nvidia_runtime_verify_image": f"cuda:{level}", "nvidia_runtime_verify_command": COMMAND}
    return Host({"nvidia_runtime_verify": level, **image}, answers)


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fleet, Output]:
    """For each level a host on which nothing changes, and one whose engine is restarted."""
    hosts = {f"{level}_same": verifying(level, {}) for level in LEVELS}
    hosts.update({f"{level}_restarted": verifying(level, RESTART) for level in LEVELS})
    fleet = Fleet(tmp_path_factory.mktemp("verified"), hosts)
    return fleet, fleet.play("gpufleet.nvidia.site")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["same", "restarted"])
def test_the_variables_of_the_role_select_the_verification(
    verified: tuple[Fleet, Output], level: str, kind: str
) -> None:
    fleet, output = verified
    assert output.status == 0, output.text
    (options,) = fleet.options(f"{level}_{kind}", "nvidia_runtime_verify")
    assert options == {
        "engine": "docker", "flavor": "system", "level": level, "method": "runtime", "runtime_name": "nvidia",
        "image": f"cuda:{level}", "command": COMMAND, "pull": False, "host_root": "/", "host_root_live": False,
    }  # fmt: skip
    restarts = fleet.options(f"{level}_{kind}", "nvidia_runtime_restart")
    assert [one["action"] for one in restarts] == ([] if kind == "same" else ["restart"])


@pytest.mark.parametrize(("kind", "restart"), [("same", "not restarted"), ("restarted", "restarted")])
def test_each_host_has_one_closing_line(verified: tuple[Fleet, Output], kind: str, restart: str) -> None:
    for level in LEVELS:
        line = f"{TOOLKIT}; {CDI}; {DOCKER}, {restart}, verified ({level})"
        assert verified[1].closing(f"{level}_{kind}") == [line]


def test_the_role_adds_two_status_lines_and_the_play_one(verified: tuple[Fleet, Output]) -> None:
    begin = verified[1].text.index("nvidia_runtime : Configure the container engines]")
    after = Output(verified[1].text[begin:], 0)
    assert after.lines("config_same") == [
        "ok: [config_same]", "ok: [config_same] => (item=docker.service)",
        f"ok: [config_same] => (item={UNCHANGED}, verified (config))",
    ]  # fmt: skip


def test_an_unchanged_host_shows_at_most_eight_status_lines(verified: tuple[Fleet, Output]) -> None:
    assert len(verified[1].lines("config_same")) <= 8


# -- site, remove ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    hosts = {
        "same": Host(), "restarted": Host({}, RESTART), "refused": Host({}, REFUSED), "sick": Host({}, SICK),
        "stopped": Host({}, NO_REPOSITORY), "missing": Host({"nvidia_runtime_engines": ["docker", "crio"]}),
        "removed": Host({}, REMOVED), "bare": Host({}, NO_DRIVER),
    }  # fmt: skip
    return Fleet(tmp_path_factory.mktemp("site"), hosts)


@pytest.fixture(scope="module")
def site(fleet: Fleet) -> Output:
    return fleet.play("gpufleet.nvidia.site")


@pytest.mark.parametrize(
    ("host", "line"),
    [
        ("same", UNCHANGED),
        ("restarted", f"{TOOLKIT}; {CDI}; {DOCKER}, restarted"),
        ("bare", f"{TOOLKIT}; {NOT_WRITTEN}; {DOCKER}, not restarted"),
    ],
)  # fmt: skip
def test_site_ends_with_a_line_for_each_host(site: Output, host: str, line: str) -> None:
    assert site.status == 2
    assert site.closing(host) == [line]
    assert site.lines(host)[-1] == f"ok: [{host}] => (item={line})"


@pytest.mark.parametrize(
    ("host", "message", "state"),
    [
        ("refused", f"docker: {BROKEN}", f"{TOOLKIT}; {CDI}; docker: failed"),
        ("sick", f"docker.service: {NOT_HEALTHY}",
         f"{TOOLKIT}; {CDI}; docker: restart failed, previous configuration restored"),
        ("stopped", "The repository cannot be reached.", NOT_REACHED),
    ],
)  # fmt: skip
def test_the_error_of_a_host_has_its_line(site: Output, host: str, message: str, state: str) -> None:
    assert sum(line.count(message) for line in site.lines(host)) == 1
    (text,) = site.messages(host)
    assert text.startswith(message)
    assert state in site.lines(host)[-1]
    assert site.closing(host) == []


def test_a_missing_engine_is_found_before_the_first_engine_is_configured(fleet: Fleet, site: Output) -> None:
    (message,) = site.messages("missing")
    assert message.startswith(
        "nvidia_runtime_engines names crio, which this host does not have. Install the engine first"
    )
    assert fleet.options("missing", "nvidia_runtime_config") == []


def test_check_mode_says_what_would_happen(fleet: Fleet) -> None:
    output = fleet.play("gpufleet.nvidia.site", "--check", "--limit=same,restarted")
    assert output.status == 0, output.text
    assert output.closing("same") == [UNCHANGED]
    would = DOCKER.replace("runtime nvidia", "would have runtime nvidia")
    assert output.closing("restarted") == [f"{TOOLKIT}; {CDI}; {would}, would be restarted"]


@pytest.mark.parametrize(("arguments", "would"), [((), ""), (("--check",), "would be ")])
def test_a_removal_says_what_was_removed(fleet: Fleet, arguments: tuple[str, ...], would: str) -> None:
    output = fleet.play("gpufleet.nvidia.remove", "--limit=removed", *arguments)
    assert output.status == 0, output.text
    engine = "docker: no runtime of NVIDIA, CDI on, not restarted"
    assert output.closing("removed") == [f"toolkit {would}removed; CDI: {would}removed; {engine}"]


def test_a_failed_restart_ends_a_removal(fleet: Fleet) -> None:
    output = fleet.play("gpufleet.nvidia.remove", "--limit=same,sick,refused")
    for host in ("sick", "refused"):
        # The toolkit stays, because the engine still uses it.
        assert not [one for one in fleet.options(host, "nvidia_toolkit_install") if one.get("state") == "absent"]
        (message,) = output.messages(host)
        assert message.count("State of this host: ") == 1
    assert len(output.closing("same")) == 1


# -- rolling -----------------------------------------------------------------------------------------------------------


def report_of(output: Output) -> list[str]:
    return re.findall(r'^ok: \[\w+\] => \{\n    "changed": false,\n    "msg": "(.*)"\n', output.text, re.MULTILINE)


@pytest.mark.parametrize(
    ("bad", "serial", "reports"),
    [
        ({}, "1,3", ["Done: 1 of 4 hosts. Not started: 3.", "All 4 hosts are done."]),
        # The healthy hosts of the batch are completed, also those with handlers.
        ({"b": Host({}, REFUSED), "c": Host({}, RESTART)}, "1,2,1",
         ["Done: 1 of 4 hosts. Not started: 3.",
          f"Done: a, c. Failed: b. Not started: d. {CONTINUE} --limit b,d"]),
        # The only host of a batch fails.
        ({"a": Host({}, SICK)}, "1",
         [f"Done: none. Failed: a. Not started: b, c, d. {CONTINUE} --limit a,b,c,d"]),
    ],
)  # fmt: skip
def test_rolling_reports_the_hosts(tmp_path: Path, bad: dict[str, Host], serial: str, reports: list[str]) -> None:
    fleet = Fleet(tmp_path, {**dict.fromkeys("abcd", Host()), **bad})
    output = fleet.play("gpufleet.nvidia.rolling", "-e", f"nvidia_serial={serial}")
    assert report_of(output) == reports, output.text
    assert output.status == (2 if bad else 0)
    if "c" in bad:
        assert output.closing("c") == [f"{TOOLKIT}; {CDI}; {DOCKER}, restarted"]
        assert fleet.options("d", "nvidia_runtime_config") == []


def test_a_failed_module_reports_the_hosts_in_its_error(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, {**dict.fromkeys("abcd", Host()), "b": Host({}, NO_REPOSITORY)})
    output = fleet.play("gpufleet.nvidia.rolling", "-e", "nvidia_serial=1,2,1")
    (message,) = output.messages("b")
    assert message == (
        f"The repository cannot be reached. {NOT_REACHED} Done:"
        f" a. Failed: b. Not finished: c. Not started: d. {CONTINUE} --limit b,c,d"
    )


def test_the_callback_reports_unreachable_hosts(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    gone = Host({"ansible_connection": "ssh", "ansible_ssh_executable": str(ssh)})
    fleet = Fleet(tmp_path, {**dict.fromkeys("abc", Host()), "b": gone})
    ssh.write_text("#!/bin/sh\nexit 255\n", encoding="utf-8")
    ssh.chmod(0o755)
    output = fleet.play("gpufleet.nvidia.rolling", "-e", "nvidia_serial=1",
                        ANSIBLE_CALLBACKS_ENABLED="gpufleet.nvidia.progress")  # fmt: skip
    # The play ends, because a whole batch has failed.
    assert report_of(output) == ["Done: 1 of 3 hosts. Not started: 2."]
    (line,) = [line for line in output.text.splitlines() if line.startswith("progress: ")]
    expected = f"Done: a. Unreachable: b. Not started: c. {CONTINUE} --limit b,c"
    assert line == f"progress: {expected}"


@pytest.mark.parametrize(
    ("playbook", "options"),
    [
        *((playbook, options) for playbook in ("site", "rolling", "remove") for options in ([], ["--tags=runtime"])),
        ("site", ["-e", "nvidia_toolkit_source=files", "-e", '{"nvidia_toolkit_files": ["/x"]}']),
        ("site", ["--skip-tags=toolkit"]), ("verify", []),
    ],
)  # fmt: skip
def test_no_playbook_runs_without_the_tag_always(tmp_path: Path, playbook: str, options: list[str]) -> None:
    fleet = Fleet(tmp_path, {"refused": Host({}, REFUSED)})
    output = fleet.play(f"gpufleet.nvidia.{playbook}", "--skip-tags=always", *options)
    assert output.status == 2, output.text
    assert "The tag always is skipped (--skip-tags), and with it the check of the variables" in output.text
    assert [path.name for path in (tmp_path / "refused").glob("*.called")] == []


# -- the role in a play of a user --------------------------------------------------------------------------------------

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Configure two trees
      ansible.builtin.include_role:
        name: gpufleet.nvidia.nvidia_runtime
      loop: [/, /srv]
      vars:
        nvidia_runtime_host_root: "{{ item }}"
        nvidia_runtime_host_root_live: true
    - name: Run the handlers
      ansible.builtin.meta: flush_handlers
    - name: Configure one of them again
      ansible.builtin.include_role:
        name: gpufleet.nvidia.nvidia_runtime
    - name: Be reached
      ansible.builtin.debug:
        msg: reached
"""


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fleet, Output]:
    late = {"nvidia_runtime_fail_last": True}
    crio = {**INFO["engines"][0], "engine": "crio", "target": "crio"}
    half = {"nvidia_runtime_config": {"changed": True, "engines": [CHANGED], "failed": True},
            "nvidia_container_info": {**INFO, "engines": [*INFO["engines"], crio]}}  # fmt: skip
    hosts = {"restarted": Host({}, RESTART), "refused": Host({}, REFUSED), "late": Host(late, REFUSED),
             "half": Host({}, half)}  # fmt: skip
    fleet = Fleet(tmp_path_factory.mktemp("role"), hosts)
    (fleet.work / "play.yml").write_text(PLAY, encoding="utf-8")
    return fleet, fleet.play("play.yml")


def test_one_handler_restarts_the_engines_of_all_trees(role: tuple[Fleet, Output]) -> None:
    roots = [one["host_root"] for one in role[0].options("restarted", "nvidia_runtime_restart")]
    assert roots == ["/", "/srv", "/"]
    assert role[1].messages("restarted") == []


def test_a_role_in_a_loop_prints_no_warning(role: tuple[Fleet, Output]) -> None:
    assert "loop variable" not in role[1].text


def test_an_error_of_an_engine_fails_the_host_in_the_role(role: tuple[Fleet, Output]) -> None:
    assert role[1].messages("refused") == [f"docker: {BROKEN}"]
    # The other engine is restarted first.
    assert [one["engine"] for one in role[0].options("half", "nvidia_runtime_restart")] == ["docker"]
    (message,) = role[1].messages("half")
    assert message.startswith("crio: ")
    assert "reached" not in "".join(role[1].lines("half") + role[1].lines("refused"))


def test_an_error_of_an_engine_fails_the_host_in_the_handler(role: tuple[Fleet, Output]) -> None:
    # The role ran for two trees before the handler.
    assert role[1].messages("late") == [f"docker: {BROKEN} | docker: {BROKEN}"]
