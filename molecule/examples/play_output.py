"""Reads the output of ansible-playbook, as a user sees it with the default callback."""

from __future__ import annotations

import re
import typing as t

_TITLE = re.compile(r"(TASK|RUNNING HANDLER|PLAY) (?:\[(.*)\] \*+|\*+)")
_RESULT = re.compile(r"(ok|changed|skipping|fatal|failed): \[([^\] ]+)(?: -> [^\]]*)?\]:?(.*)")
_INCLUDED = re.compile(r"included: (\S+) for (.*)")
_RECAP = re.compile(r"(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)\s+skipped=(\d+)")
COUNTS = ("ok", "changed", "unreachable", "failed", "skipped")
# The last task of site, rolling and remove, and that of verify, which print the state of a host. Then the task of
# rolling that prints a line about all hosts.
_CLOSING = ("Report the state of the host", "Report the GPUs that containers see")
_OF_ALL = "Report the hosts of all batches"
# The task for all hosts that precedes the batches.
_FIRST = "Check the variables"
_ITEM = re.compile(r" => \(item=(.*?)\)")


class Result(t.NamedTuple):
    """One line about a task of a host. ``kind`` is its first word, ``lines`` what Ansible prints below it."""

    task: str
    kind: str
    host: str
    rest: str
    lines: list[str]

    @property
    def closes(self) -> bool:
        """Whether it is the closing line of its host."""
        return self.task.rpartition(" : ")[2] in _CLOSING


class PlayOutput:
    """The output of one run. ``recap`` has the counts of each host, ``results`` the lines about tasks."""

    def __init__(self, title: str, output: str) -> None:
        self.title = title
        self.output = output
        # Whether a check of this run has failed.
        self.wrong = False
        self.results: list[Result] = []
        self.recap: dict[str, dict[str, int]] = {}
        task = ""
        for line in output.splitlines():
            heading, result, included = _TITLE.match(line), _RESULT.match(line), _INCLUDED.match(line)
            recap = _RECAP.match(line)
            if heading:
                task = heading[2] or ""
            elif recap:
                self.recap[recap[1]] = dict(zip(COUNTS, map(int, recap.groups()[1:])))
            elif included:
                self.results += [
                    Result(task, "included", host, included[1], []) for host in included[2].split(" => ")[0].split(", ")
                ]
            elif result:
                self.results.append(Result(task, result[1], result[2], result[3], []))
            elif self.results and line:
                self.results[-1].lines.append(line)

    def counted(self, host: str) -> bool:
        """Return whether a task beyond the check of the variables was about this host."""
        return any(result.host == host and result.task != _FIRST for result in self.results)

    def changed(self, host: str) -> list[str]:
        """Return the tasks that changed a host, each with its item."""
        found = []
        for result in self.results:
            if result.kind == "changed" and result.host == host:
                item = _ITEM.match(result.rest)
                # An item of several lines or a dictionary is not compared.
                found.append(result.task + (f": {item[1]}" if item and "{" not in item[1] else ""))
        return found

    def lines_of_status(self, host: str) -> list[str]:
        """Return the lines of status of a host. The line about all hosts does not count."""
        return [
            f"{result.kind}: {result.task}"
            for result in self.results
            if result.host == host and result.kind in ("ok", "skipping", "included") and result.task != _OF_ALL
        ]

    def closing(self, host: str) -> list[str]:
        """Return the closing lines of a host: one; for the playbook verify, one per engine and one for the host."""
        return [result.rest.partition("(item=")[2] for result in self.results if result.host == host and result.closes]
