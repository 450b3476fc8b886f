"""On the controller: runs the examples, and prints every check that failed.

The examples of one host and those of several hosts run at the same time.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import traceback
import typing as t
from pathlib import Path

import desk
import fleet
import page
import places


def desk_examples(report: places.Report, _work: Path) -> None:
    """Run the examples of the desk."""
    desk.prepare()
    desk.quickstart(report)
    desk.workstation(report)


def fleet_examples(report: places.Report, work: Path) -> None:
    """Run the examples of the other hosts."""
    fleet.mixed_hosts(report, work / "mixed")
    fleet.without_internet(report, work / "offline")


EXAMPLES: dict[str, t.Callable[[places.Report, Path], None]] = {"desk": desk_examples, "fleet": fleet_examples}


def guarded(name: str, report: places.Report, work: Path) -> None:
    """Run examples, and record an error that ends them."""
    try:
        EXAMPLES[name](report, work)
    except Exception:  # noqa: BLE001 - the other examples go on
        report.failed.append(f"{name}: {traceback.format_exc()}")


def main() -> int:
    """Run the examples that the command line names, by default all."""
    report = places.Report()
    report.failed += page.wrong()
    with tempfile.TemporaryDirectory(prefix="gpufleet-examples-") as folder:
        threads = [
            threading.Thread(target=guarded, args=(name, report, Path(folder)))
            for name in sys.argv[1:] or EXAMPLES
            if not report.failed
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    report.show()
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
