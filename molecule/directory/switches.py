"""Inside a host: switches between two versions while containers start all the time: switches.py COUNT

One thread starts the runtime as fast as it can, another one containers of Docker's, and a process of its own only looks
whether the runtime is there, which is fast enough to see it gone for a few microseconds. Prints JSON, as Report does.
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
    """Does something over and over again until it is told to stop, and counts the answers."""

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
        """Stop it, and wait until it has."""
        self.stop.set()
        self.join()


def watch(teller: Connection) -> None:
    """Look whether the runtime is there until somebody wants to hear how often that was so, and how often not."""
    there = gone = 0
    while not teller.poll():
        for _look in range(1000):
            try:
                os.stat(f"{DEST}/{RUNTIME}")
            except OSError:
                gone += 1
            else:
                there += 1
    teller.send((there, gone))


def main() -> None:
    """Switch."""
    count = int(sys.argv[1])
    report, known = Report(), len(calls())
    install(OLD)
    listener, teller = multiprocessing.Pipe()
    watcher = multiprocessing.Process(target=watch, args=(teller,))
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
        listener.send("tell")
        there, gone = listener.recv()
        watcher.join()
    report.check("the runtime was always there", there > 1000 * count and not gone, (there, gone))
    report.check("starts", not starts.wrong, starts.wrong[:3])
    report.check("both versions were started", set(starts.answers) == {OLD, NEW}, starts.answers)
    report.check("something was started during nearly every switch", changes > 0.9 * count, changes)
    report.check("containers", not containers.wrong and containers.answers["container"] > 2, containers.wrong[:3])
    made = [of_one_version(line) for line in creations(known)]
    report.check("containers are of one version", len(made) == containers.answers["container"] and all(made), made)
    report.check("containers are of several versions", len(set(made)) > 1, made)
    report.check("it can be cleared away", not install((OLD, NEW)[count % 2]).get("failed"))
    report.check("two versions stay", len(versions()) == 2, versions())
    report.print(starts=sum(starts.answers.values()), containers=containers.answers, looks=there)


if __name__ == "__main__":
    main()
