"""What every run of an example must show, whatever it does."""

from __future__ import annotations

import re
import sys
import typing as t

import places
from play_output import COUNTS

sys.path.append(str(places.TREE / "molecule" / "shared"))
from watched import lasting

if t.TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from play_output import PlayOutput

# Lines of status that an unchanged host may have.
MOST_LINES = 8
# Each role of a removal inspects the host itself.
MOST_LINES_OF_A_REMOVAL = 15
# What remains after a removal: the backups.
LEFT_BY_A_REMOVAL = re.compile(r"/var/lib/gpufleet-nvidia(/backups(/.*)?)?$")
# Changed by the package managers: the cache of the loader has the same libraries in another order.
REBUILT = ("/etc/ld.so.cache",)
TRACEBACK = "Traceback (most recent call last)"
FORBIDDEN = (TRACEBACK, "an exception occurred", "[DEPRECATION WARNING]", "no hosts matched", "assertion")


def different(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the entries of two manifests that differ, except for what the package managers rebuild."""
    found = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    return [f"{path}: {before.get(path)} -> {after.get(path)}" for path in found if path not in REBUILT]


class Checks:
    """The checks of the runs on some hosts. ``hosts`` has the name of each in the inventory, and of the booted host."""

    def __init__(self, report: places.Report, place: places.Place, hosts: Mapping[str, str]) -> None:
        self.report = report
        self.place = place
        self.hosts = hosts
        self.before = {name: places.manifest(host) for name, host in hosts.items()}
        self.last = self.before

    def play(self, command: str, status: int = 0, note: str = "", forbidden: Iterable[str] = FORBIDDEN) -> PlayOutput:
        """Run a command. No run may print one of the forbidden texts."""
        played = self.report.play(self.place, command, status, note)
        for words in forbidden:
            self.expect(played, words not in played.output, f"it prints {words!r}")
        return played

    def expect(self, played: PlayOutput, good: t.Any, words: str) -> None:
        """Record a failed check."""
        self.report.expect(played, good, words)

    def touched(self) -> dict[str, list[str]]:
        """Return what has changed on each host since the last call."""
        now = {name: places.manifest(host) for name, host in self.hosts.items()}
        found = {name: different(self.last[name], now[name]) for name in self.hosts}
        self.last = now
        return found

    def untouched(self, played: PlayOutput) -> None:
        """Check that no file has been written, also not with the same content."""
        for name, files in self.touched().items():
            self.expect(played, not files, f"{name}: files were written: {files[:5]}")

    def counts(self, played: PlayOutput, name: str) -> dict[str, int]:
        """Return the counts of a host in the recap."""
        found = played.recap.get(name)
        self.expect(played, found is not None, f"{name}: not in the recap")
        return found or dict.fromkeys(COUNTS, 0)

    def changing(self, played: PlayOutput, names: Iterable[str] | None = None) -> None:
        """Check that a run changed hosts, and failed on none."""
        for name in names or self.hosts:
            counts = self.counts(played, name)
            self.expect(played, counts["changed"] > 0, f"{name}: changed={counts['changed']}")
            self.expect(played, not counts["failed"] and not counts["unreachable"], f"{name}: {counts}")

    def unchanged(self, played: PlayOutput, most: int = MOST_LINES) -> None:
        """Check that a run changed nothing, and says so in few lines."""
        for name in self.hosts:
            counts, lines = self.counts(played, name), played.lines_of_status(name)
            self.expect(played, not counts["changed"], f"{name}: changed={counts['changed']}: {played.changed(name)}")
            self.expect(played, not counts["failed"] and not counts["unreachable"], f"{name}: {counts}")
            self.expect(played, len(lines) <= most, f"{name}: {len(lines)} lines of status: {lines}")
        self.untouched(played)

    def predicted(self, checked: PlayOutput, real: PlayOutput, hooks: Iterable[str] = ()) -> None:
        """Check that a check run names the tasks that change a host, and no others, except for the tasks of hooks.

        Those are the user's own commands, which Ansible skips in check mode.
        """
        for name in self.hosts:
            before, after = checked.changed(name), real.changed(name)
            after = [task for task in after if not any(hook in task for hook in hooks)]
            self.expect(checked, before == after, f"{name}: predicted {before}, changed were {after}")

    def closed(self, played: PlayOutput, *patterns: str, names: Iterable[str] | None = None) -> None:
        """Check that each host has one closing line, and that it has all of the patterns."""
        for name in names or self.hosts:
            lines = played.closing(name)
            self.expect(played, len(lines) == 1, f"{name}: {len(lines)} closing lines: {lines}")
            for pattern in patterns:
                self.expect(played, all(re.search(pattern, line) for line in lines), f"{name}: no {pattern} in {lines}")

    def restored(self, played: PlayOutput) -> None:
        """Check that the hosts are as they were before the first run, except for the backups."""
        self.touched()
        for name in self.hosts:
            left = different(lasting(self.before[name]), lasting(self.last[name]))
            left = [line for line in left if not LEFT_BY_A_REMOVAL.match(line.partition(": ")[0])]
            self.expect(played, not left, f"{name}: {len(left)} entries differ from the fresh host: {left[:8]}")
