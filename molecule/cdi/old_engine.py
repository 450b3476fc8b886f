"""Inside a host with Podman 4.3.1: checks that the specification contains only what this release reads.

Prints JSON, as Report does. The nodes below /dev/dri belong to other groups, for which a newer specification has
additionalGids. Podman 4.3.1 skips a file with additionalGids as a whole.
"""

from __future__ import annotations

import checks
import simulated_gpus
from toolkits import Report

GROUPS = "additionalGids"


def main() -> None:
    """Run all checks. The specification is removed at the end."""
    report = Report()
    host = simulated_gpus.create(simulated_gpus.SimulatedHost())
    checks.specification(state="absent")
    written = checks.specification()
    report.worked("limited", written, changed=True)
    engines = {entry["name"]: entry["newest_cdi"] for entry in written.get("engines", [])}
    report.check("limited, engines", engines.get("podman") == "0.5.0", written)
    report.check("limited, version", written.get("cdi_version") == "0.5.0", written)
    reported = [sentence for sentence in written.get("limits", []) if GROUPS in sentence and "podman" in sentence]
    report.check("limited, reported", len(reported) == 1, written)
    report.check("limited, warned", GROUPS in str(written.get("warnings")), written)
    report.check("limited, no groups", GROUPS not in checks.SPECIFICATION.read_text())
    for name in ("all", "0", simulated_gpus.uuid(0)):
        found = checks.seen("podman", name)
        report.check(f"limited, {name}", found == checks.whole(host, 0), found)
    unlimited = checks.specification(for_engines=[])
    report.worked("unlimited", unlimited, changed=True)
    report.check("unlimited, version", unlimited.get("cdi_version") == "0.7.0", unlimited)
    report.check("unlimited, groups", GROUPS in checks.SPECIFICATION.read_text())
    found = checks.seen("podman", "all")
    report.check("unlimited, refused", f"{checks.KIND}=all" in found.complaint, found)
    report.worked("limited again", checks.specification(), changed=True)
    found = checks.seen("podman", "all")
    report.check("limited again, all", found == checks.whole(host, 0), found)
    checks.specification(state="absent")
    report.print()


if __name__ == "__main__":
    main()
