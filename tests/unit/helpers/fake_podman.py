# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A podman that keeps containers, for the runner of a host."""

from __future__ import annotations

import typing as t

Answer = t.Tuple[int, str, str]


class FakePodman:
    """The answers of podman 4.3 to 5.8. ``answers`` has precedence, by the beginning of the command.

    ``commands`` are those that it got, and ``kept`` the names of its containers.
    """

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.answers: dict[str, Answer] = {}
        self.kept: list[str] = []
        self.states = ["running 0", "exited 0"]
        self.pid = 0
        self.output: tuple[str, str] = ("hello\n", "")

    def run(self, argv: list[str]) -> Answer:
        assert argv[:3] == ["chroot", "/host", "/usr/bin/podman"]
        words = argv[3:]
        self.commands.append(words)
        if words[0] == "run":
            self.kept += [word.partition("=")[2] for word in words if word.startswith("--name=")]
        for beginning, answer in self.answers.items():
            if " ".join(words).startswith(beginning):
                return answer
        return self._answer(words)

    def _answer(self, words: list[str]) -> Answer:
        name = words[-1]
        if words[0] in ("container", "logs") and name not in self.kept:
            return 125, "", f'Error: inspecting object: no such container "{name}"\n'
        if words[0] == "container" and "Pid" in words[2]:
            return 0, f"{self.pid}\n", ""
        if words[0] == "container":
            return 0, f"{self.states.pop(0) if len(self.states) > 1 else self.states[0]}\n", ""
        if words[0] == "logs":
            return (0, *self.output)
        if words[0] == "rm":
            self.kept = [kept for kept in self.kept if kept not in words[words.index("--") :]]
        return 0, "".join(f"{kept}\n" for kept in self.kept) if words[0] == "ps" else "", ""
