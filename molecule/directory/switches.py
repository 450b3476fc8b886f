"""Inside a host: switches between two versions while containers start continuously: switches.py COUNT

One thread starts the runtime repeatedly, another one starts containers of Docker, and a separate process only checks
whether the runtime exists, so often that it can notice an absence of some microseconds. Prints JSON, as Report does.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from typing import TYPE_CHECKING

from engines import ENGINES
from engines import start as start_container
from toolkits import DEST, NEW, OLD, RUNTIME, Report, calls, creations, install, of_one_version, start, versions

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection


class Repeated(threading.Thread):
    """Repeats an action until end() is called, and counts the results."""

    def __init__(self, action: Callable[[], tuple[str, str]]) -> None:
        super().__init__()
        self.action = action
        self.stop = threading.Event()
        self.answers: dict[str, int] = {}
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self.stop.is_set():
            answer, complaint = self.action()
            self.answers[answer] = self.answers.get(answer, 0) + 1
            if complaint:
                self.wrong.append(complaint)

    def end(self) -> None:
        """Stop the thread, and wait for its end."""
        self.stop.set()
        self.join()


def watch(pipe: Connection) -> None:
    """Look for the runtime until the parent process sends a message. Then send how often it existed and was missing."""
    there = gone = 0
    while not pipe.poll():
        for _attempt in range(1000):
            try:
                os.stat(f"{DEST}/{RUNTIME}")
            except OSError:
                gone += 1
            else:
                there += 1
    pipe.send((there, gone))


def main() -> None:
    """Switch between the versions, and check what the threads and the process have seen."""
    count = int(sys.argv[1])
    report, known = Report(), len(calls())
    install(OLD)
    parent_end, child_end = multiprocessing.Pipe()
    watcher = multiprocessing.Process(target=watch, args=(child_end,))
    watcher.start()
    starts = Repeated(lambda: start(DEST))
    containers = Repeated(lambda: ("container", start_container(ENGINES["docker"])))
    for thread in (starts, containers):
        thread.start()
    changes = 0
    try:
        for number in range(count):
            before = dict(starts.answers)
            version = (NEW, OLD)[number % 2]
            result = install(version)
            report.worked(f"switch {number}", result, changed=True)
            report.check(f"version {number}", result.get("version") == version, result)
            changes += before != starts.answers
    finally:
        for thread in (starts, containers):
            thread.end()
        parent_end.send("stop")
        there, gone = parent_end.recv()
        watcher.join()
    report.check("the runtime was always there", there > 1000 * count and not gone, (there, gone))
    report.check("starts", not starts.wrong, starts.wrong[:3])
    report.check("both versions were started", set(starts.answers) == {OLD, NEW}, starts.answers)
    report.check("something was started during nearly every switch", changes > 0.9 * count, changes)
    report.check("containers", not containers.wrong and containers.answers["container"] > 2, containers.wrong[:3])
    made = [of_one_version(line) for line in creations(known)]
    report.check("containers are of one version", len(made) == containers.answers["container"] and all(made), made)
    report.check("containers are of several versions", len(set(made)) > 1, made)
    # A task also removes versions that no container uses any more.
    report.check("the current version can be installed again", not install((OLD, NEW)[count % 2]).get("failed"))
    report.check("two versions stay", len(versions()) == 2, versions())
    report.print(starts=sum(starts.answers.values()), containers=containers.answers, observations=there)


if __name__ == "__main__":
    main()
