# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what a run has seen of a host's file system, noted so that a later one can tell, without
# knowing why anybody looked, whether it would see the same.

from __future__ import annotations

import hashlib
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import FILE_BYTES, HostRoot

if t.TYPE_CHECKING:
    # By root directory, by question, and by path: the answer as JSON can hold it.
    Answers = t.Dict[str, t.Dict[str, t.Dict[str, t.Any]]]

# What the disk can be asked.  All that HostRoot tells beside that is made of these.
_QUESTIONS: dict[str, t.Callable[[HostRoot, str], t.Any]] = {
    "resolve": HostRoot.resolve,
    "locate": lambda host, path: host.resolve(path, last=False),
    "read": HostRoot.read,
    "read_text": lambda host, path: host.read_text(path).encode(),
    "exists": HostRoot.exists,
    "is_there": HostRoot.is_there,
    "is_executable": HostRoot.is_executable,
    "entries": HostRoot.entries,
    "walk": HostRoot.walk,
    "modified": HostRoot.modified,
}


class Observations:
    """What was asked of any number of hosts, and what they answered.

    ``consistent`` is False once a question was answered in two ways: something has changed meanwhile.
    """

    def __init__(self) -> None:
        self.answers: Answers = {}
        self.consistent = True

    def of(self, host: HostRoot) -> HostRoot:
        """``host``, asked through these observations.  It is an offline tree: what runs has no lasting answers."""
        observed = _Observed(host.root, live=False)
        observed.observations = self
        return observed

    def note(self, root: str, question: str, path: str, answer: t.Any) -> None:
        """Keep one answer, or the HostError that came instead."""
        noted = _noted(answer)
        known = self.answers.setdefault(root, {}).setdefault(question, {}).setdefault(path, noted)
        self.consistent = self.consistent and known == noted


def still_hold(answers: Answers) -> bool:
    """Whether all the hosts would answer the same today."""
    return all(
        _asked(HostRoot(root, live=False), question, path) == answer
        for root, questions in answers.items()
        for question, paths in questions.items()
        for path, answer in paths.items()
    )


class _Observed(HostRoot):
    """Notes every question that reaches the disk."""

    observations: Observations

    def resolve(self, path: str, last: bool = True) -> str:
        return str(self._ask("resolve" if last else "locate", path))

    def read(self, path: str, most: int = FILE_BYTES) -> bytes | None:  # noqa: ARG002 - answers are of whole files
        content: bytes | None = self._ask("read", path)
        return content

    def read_text(self, path: str, most: int = FILE_BYTES) -> str:  # noqa: ARG002
        return str(self._ask("read_text", path).decode())

    def exists(self, path: str) -> bool:
        return bool(self._ask("exists", path))

    def is_there(self, path: str) -> bool:
        return bool(self._ask("is_there", path))

    def is_executable(self, path: str) -> bool:
        return bool(self._ask("is_executable", path))

    def entries(self, path: str) -> list[str]:
        return list(self._ask("entries", path))

    def walk(self, folder: str) -> list[str]:
        return list(self._ask("walk", folder))

    def modified(self, path: str) -> float:
        return float(self._ask("modified", path))

    def _ask(self, question: str, path: str) -> t.Any:
        try:
            # Of a host that notes nothing, so that an answer is noted as a whole, and not how it came about.
            answer = _QUESTIONS[question](HostRoot(self.root, self.live), path)
        except HostError as error:
            self.observations.note(self.root, question, path, error)
            raise
        self.observations.note(self.root, question, path, answer)
        return answer


def _asked(host: HostRoot, question: str, path: str) -> t.Any:
    try:
        return _noted(_QUESTIONS[question](host, path))
    except HostError as error:
        return _noted(error)


def _noted(answer: t.Any) -> t.Any:
    """An answer as JSON can hold it; of a file's content the SHA-256, for it may hold secrets."""
    if isinstance(answer, HostError):
        return {"error": str(answer)}
    return hashlib.sha256(answer).hexdigest() if isinstance(answer, bytes) else answer
