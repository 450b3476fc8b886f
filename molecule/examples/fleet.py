"""The examples with several hosts: 40 hosts in three groups, and a site without Internet access."""

from __future__ import annotations

import re
import typing as t

import page
import places
from checks import MOST_LINES_OF_A_REMOVAL, Checks

if t.TYPE_CHECKING:
    from pathlib import Path

    from play_output import PlayOutput

HOSTS = {"ws-01.example.com": "ws", "batch-01.example.com": "batch", "node-01.example.com": "node"}
WS, BATCH, NODE = HOSTS
# What the closing line of each host has, whatever the run does.
ENGINES = {WS: "docker: .*", BATCH: "podman: .*", NODE: "containerd: .*"}
EXAMPLES = places.TREE / "docs" / "examples" / "kubernetes"
HOOKS = {f"hooks/{name}": (EXAMPLES / name).read_text() for name in ("drain.yml", "uncordon.yml")}
BROKEN = "/etc/nvidia-container-runtime/config.toml"
HOOKS_THAT_CHANGE = ("Note that this play cordons the node", "Drain the node", "Allow pods on the node again")


def fingerprint() -> dict[str, t.Any]:
    """Return the only variable of this collection that the page lacks: the scenario cannot sign with NVIDIA's key."""
    return {"nvidia_toolkit_key_fingerprint": places.inside("ws", "cat", "/run/gpufleet-fingerprint")}


def mixed_hosts(report: places.Report, work: Path) -> None:
    """Run the example with 40 hosts, of which one host of each group is booted."""
    section = page.read(page.GETTING_STARTED, page.FLEET)
    place = places.Controller(work, HOSTS, fingerprint())
    place.put({**section.files, **HOOKS})
    checks = Checks(report, place, HOSTS)
    audit, check, rolling = section.commands

    seen = checks.play(audit)
    checks.expect(seen, (work / "gpufleet-audit.html").exists(), "it writes no page")
    checks.untouched(seen)
    checked = checks.play(check)
    checks.changing(checked)
    checks.closed(checked)
    checks.untouched(checked)
    place.calls.unlink(missing_ok=True)

    first = checks.play(rolling, note="first run")
    checks.changing(first)
    checks.predicted(checked, first, HOOKS_THAT_CHANGE)
    expect_lines(checks, first)
    checks.touched()
    expect_drained(checks, first, place)
    second = checks.play(rolling, note="second run")
    checks.unchanged(second)
    expect_lines(checks, second)
    checks.expect(second, not place.calls.exists(), "it runs kubectl")

    a_host_fails(checks, rolling)
    a_host_is_unreachable(checks, rolling, place)

    # The hosts have no driver, so no container is started.
    verify = checks.play("ansible-playbook -i inventory -b gpufleet.nvidia.verify", status=2)
    for name, engine in ENGINES.items():
        lines = [line for line in verify.closing(name) if re.match(engine, line)]
        checks.expect(verify, len(lines) == 1, f"{name}: {len(lines)} lines about its engine: {verify.closing(name)}")
    checks.untouched(verify)
    seen = checks.play(audit, note="after the runs")
    checks.untouched(seen)
    remove = "ansible-playbook -i inventory -b gpufleet.nvidia.remove --limit gpu"
    checked = checks.play(f"{remove} --check --diff")
    checks.closed(checked)
    checks.untouched(checked)
    removed = checks.play(remove)
    checks.changing(removed)
    checks.predicted(checked, removed, HOOKS_THAT_CHANGE)
    checks.closed(removed, "toolkit removed")
    checks.restored(removed)
    again = checks.play(remove, note="second run")
    checks.unchanged(again, MOST_LINES_OF_A_REMOVAL)
    checks.closed(again)


def expect_drained(checks: Checks, played: PlayOutput, place: places.Controller) -> None:
    """Check that the node was drained once, and uncordoned."""
    calls = place.calls.read_text().splitlines() if place.calls.exists() else []
    place.calls.unlink(missing_ok=True)
    words = [call.split()[0] for call in calls]
    wanted = ["get", "annotate", "drain", "wait", "get", "uncordon", "annotate"]
    checks.expect(played, words == wanted and all(NODE in call for call in calls), f"the calls of kubectl are {calls}")


def expect_lines(checks: Checks, played: PlayOutput) -> None:
    """Check the closing lines, and that verification had the level of the page, config: no container was started."""
    for name, host in HOSTS.items():
        checks.closed(played, r"toolkit 1\.19\.1", ENGINES[name] + r"verified \(config\)", names=[name])
        # CALLS of molecule/toolkit/packages/programs/runtime.py. Without any call, there is no such file.
        calls = places.inside(host, "sh", "-c", "cat /var/log/nvidia-container-runtime.calls || true")
        checks.expect(played, " create" not in calls, f"{name}: a container was started: {calls}")


def a_host_fails(checks: Checks, rolling: str) -> None:
    """Break the second of three hosts, correct it, and run the command that the play prints."""
    places.inside("batch", "mv", BROKEN, "/run/original")
    places.write("batch", BROKEN, "[nvidia-ctk\n")
    played = checks.play(rolling, status=2, note="one host fails")
    places.inside("batch", "mv", "/run/original", BROKEN)
    checks.touched()
    checks.expect(played, BROKEN in played.output, f"{BROKEN} is not named")
    checks.expect(played, checks.counts(played, BATCH)["failed"] == 1, f"{BATCH}: {played.recap.get(BATCH)}")
    limit = continuation(checks, played, "Failed")
    again = checks.play(f"{rolling} {limit}", note="after the correction")
    checks.expect(again, not again.counted(WS), f"{WS} is in the play again")
    for name in (BATCH, NODE):
        checks.expect(again, again.counted(name) and not again.recap[name]["changed"], f"{name}: {again.recap}")
    checks.untouched(again)


def a_host_is_unreachable(checks: Checks, rolling: str, place: places.Controller) -> None:
    """Name a booted host that does not exist. Only a callback can report it."""
    place.reach(BATCH, "gone")
    played = checks.play(f"ANSIBLE_CALLBACKS_ENABLED=gpufleet.nvidia.progress {rolling}", status=4)
    place.reach(BATCH, HOSTS[BATCH])
    checks.expect(played, checks.counts(played, BATCH)["unreachable"] == 1, f"{BATCH}: {played.recap.get(BATCH)}")
    continuation(checks, played, "Unreachable")
    checks.untouched(played)


def continuation(checks: Checks, played: PlayOutput, state: str) -> str:
    """Return the option that continues a run which the second host ended. Check what it says about the hosts."""
    checks.expect(played, not played.counted(NODE), f"{NODE} was started")
    for words in (f"Done: {WS}", f"{state}: {BATCH}", f"Not started: {NODE}"):
        checks.expect(played, words in played.output, f"it does not say {words!r}")
    limit = f"--limit {BATCH},{NODE}"
    checks.expect(played, f"continue with {limit}" in played.output, f"it does not print {limit}")
    return limit


def without_internet(report: places.Report, work: Path) -> None:
    """Run the example without Internet access, on a host with apt and one with dnf."""
    section = page.read(page.GETTING_STARTED, page.OFFLINE)
    hosts = {"gpu-01.example.com": "ws", "gpu-02.example.com": "batch"}
    place = places.Controller(work, hosts, fingerprint())
    place.put(section.files)
    checks = Checks(report, place, hosts)
    site = section.commands[-1]
    first = checks.play(site, note="without Internet access")
    checks.changing(first)
    checks.closed(first, r"toolkit 1\.19\.1")
    for host, path in {"ws": "/etc/apt/sources.list.d", "batch": "/etc/yum.repos.d"}.items():
        text = places.inside(host, "grep", "-rh", "mirror.example.com", path)
        checks.expect(first, "https://mirror.example.com/nvidia/stable/" in text, f"{host}: {text}")
    checks.touched()
    again = checks.play(site, note="without Internet access, second run")
    checks.unchanged(again)
    checks.closed(again)
