"""Inside a host: checks a container that Docker starts at boot: restart.py before UNIT, then restart.py after UNIT

UNIT is the service that writes the specification. The restart gives nvidia-uvm another number. "after" prints JSON,
as Report does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import simulated_gpus
from checks import KIND
from engines import IMAGE, PATIENCE, run
from observing import STARTED
from toolkits import Report, must

NAME = "at-boot"
SCRIPT = "stat -c %t:%T /dev/nvidia-uvm; exec sleep 2147483647"
# The identifier of systemd's message "unit is starting" (sd-messages.h).
STARTING = "7d4958e842da4a758f6c1cdc7b36dcc5"
# The major number of nvidia-uvm before and after the restart.
OLD_UVM, NEW_UVM = simulated_gpus.SimulatedHost().uvm, 508


def before() -> None:
    """Start the container, and set another number of nvidia-uvm for the next restart."""
    chosen = ["--restart=always", "--stop-signal=KILL", "--network=none", f"--device={KIND}=all"]
    must("docker", "run", "--detach", f"--name={NAME}", *chosen, IMAGE, "sh", "-c", SCRIPT)
    must(sys.executable, "-B", "/molecule/cdi/simulated_gpus.py", "later", f"uvm={NEW_UVM}")


def moment(unit: str, message: str) -> int:
    """Return the time of systemd's last such message about a unit in microseconds since the boot, or 0."""
    words = [f"UNIT={unit}", f"MESSAGE_ID={message}"]
    entry = subprocess.check_output(["journalctl", "--quiet", "--output=json", "--lines=1", *words], text=True)
    return int(json.loads(entry)["__MONOTONIC_TIMESTAMP"]) if entry else 0


def numbers() -> list[str]:
    """Return the number of nvidia-uvm in each start of the container. Wait until there are two starts."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = run("docker", "logs", NAME).stdout.split()
        if len(found) > 1 or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def after(unit: str) -> None:
    """Check that the specification was written before Docker started, and which number the container got."""
    report = Report()
    report.check("the number of the host", simulated_gpus.now().uvm == NEW_UVM, simulated_gpus.now())
    found = numbers()
    report.check("the container", found == [f"{OLD_UVM:x}:0", f"{NEW_UVM:x}:0"], found)
    subprocess.check_call(["journalctl", "--sync"])
    made, engine = moment(unit, STARTED), moment("docker.service", STARTING)
    report.check(
        "the specification comes first", 0 < made < engine, (made, engine, run("journalctl", "-u", unit).stdout)
    )
    must("docker", "rm", "--force", NAME)
    report.print(made=made, engine=engine)


def main() -> None:
    """Run before() or after()."""
    what, unit = sys.argv[1:]
    if what == "before":
        before()
    else:
        after(unit)


if __name__ == "__main__":
    main()
