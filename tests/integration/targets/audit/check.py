# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""check.py DIRECTORY: checks the report and the page that audit.yml has written there about all hosts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HOSTS = 18
HOSTILE = "</script><img src=x onerror=document.title='ran'>"
GPUS = {"present": True, "count": 4, "models": {"NVIDIA A100-SXM4-40GB": 4}, "unhealthy": 4}
ENGINES = {
    "docker-01": ["docker"],
    "both-01": ["docker", "containerd"],
    "k3s-01": ["containerd/k3s"],
    "rke2-01": ["containerd/rke2"],
    "k0s-01": ["containerd/k0s"],
    "bare-01": [],
}
CDI = {"docker-01": "none", "podman-01": "fresh", "cdi-stale-01": "stale", "cdi-invalid-01": "invalid"}


def expect(found: object, expected: object) -> None:
    """Exit with a message if the value that was found is not the expected one."""
    if found != expected:
        sys.exit(f"{found!r} should be {expected!r}")


def main() -> None:
    """Check both files."""
    report = json.loads(Path(sys.argv[1], "gpufleet-audit.json").read_text(encoding="utf-8"))
    page = Path(sys.argv[1], "gpufleet-audit.html").read_text(encoding="utf-8")
    hosts = {host["host"]: host for host in report["hosts"]}
    totals = report["totals"]
    severities = [host["severity"] for host in report["hosts"]]

    expect((report["schema"], report["generated"], len(hosts), HOSTILE in hosts), (1, None, HOSTS, True))
    expect((totals["hosts"], sum(totals["hosts_by_severity"].values())), (HOSTS, HOSTS))
    expect((totals["unreachable"], totals["failed"], totals["gpus"], totals["unhealthy_gpus"]), (1, 1, 4, 4))
    expect(totals["hosts_with_known_cves"], 1)
    expect(severities, sorted(severities, key=["critical", "warning", "info", None].index))

    gone, failed = hosts["gone-01"], hosts["no-python-01"]
    expect((gone["state"], "temporary directory" in gone["reason"]), ("unreachable", True))
    expect([finding["id"] for finding in gone["findings"]], ["host-unreachable"])
    expect((failed["state"], "/nowhere/python3" in failed["reason"]), ("failed", True))

    docker, old, gpus = hosts["docker-01"], hosts["docker-old-01"], hosts["gpus-01"]
    expect((docker["state"], docker["engines"][0]["default_runtime"]), ("ok", "nvidia"))
    expect((docker["toolkit"]["version"], docker["toolkit"]["known_cves"]), ("1.20.0", []))
    expect((old["toolkit"]["version"], len(old["toolkit"]["known_cves"]) > 1), ("1.17.3", True))
    expect((gpus["driver"], gpus["gpus"]), ("580.95.05", GPUS))
    expect({name: [engine["target"] for engine in hosts[name]["engines"]] for name in ENGINES}, ENGINES)
    expect({name: hosts[name]["cdi"]["state"] for name in CDI}, CDI)
    ranked = ("no-python-01", "docker-old-01", "docker-broken-01", "bare-01")
    expect([hosts[name]["severity"] for name in ranked], ["critical", "critical", "critical", None])
    expect([finding["id"] for finding in hosts["docker-broken-01"]["findings"]], ["config-unreadable"])
    # The missing driver is the cause of the missing specification.
    critical = [finding["text"] for finding in hosts["batch-01"]["findings"] if finding["severity"] == "critical"]
    cause = "The NVIDIA driver does not use the GPU 0000:01:00.0 (no driver)."
    expect(critical, [f"{cause} This also causes: gpus-not-configured (host)."])

    expect((page[:15], page.count("<time>")), ("<!DOCTYPE html>", 1))
    data = page.partition('<script id="hosts" type="application/json">')[2].partition("</script>")[0]
    expect([host["host"] for host in json.loads(data)], list(hosts))
    # The name of the host is not part of the markup.
    expect((page.count("<img"), page.count("</script>")), (0, 2))


if __name__ == "__main__":
    main()
