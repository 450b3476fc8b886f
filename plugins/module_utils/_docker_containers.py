# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: a container of a local image through Docker's API.  Nothing is ever pulled.

from __future__ import annotations

import json
import typing as t
import uuid
from urllib.parse import quote

from ansible_collections.gpufleet.nvidia.plugins.module_utils._containers import (
    LABEL,
    NAME,
    REMOVAL,
    Deadline,
    End,
    NotRunError,
    Order,
    not_ended,
    shortened,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._docker_api import Answer, ask
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_data import check, field

# Lines of a container's output that are asked for.
_LINES = 100
# What Docker puts before each piece of the output of a container without a terminal: stream, zeros, size.
_HEAD = 8


class DockerContainers:
    """Containers of the dockerd behind a socket."""

    def __init__(self, socket_path: str, shown_socket: str) -> None:
        self._socket = socket_path
        self._shown_socket = shown_socket
        self._deadline = Deadline(REMOVAL)
        self.left_behind = ""

    def run(self, order: Order) -> End:
        self._deadline = Deadline(order.timeout)
        self._check_image(order.image)
        self._remove_all()
        try:
            return self._run(order)
        finally:
            self._deadline = Deadline(REMOVAL)
            self.left_behind = self._remove_all()

    def _run(self, order: Order) -> End:
        name = f"{NAME}-{uuid.uuid4().hex[:12]}"
        made = self._ask("POST", f"/containers/create?name={name}", _body(order))
        if made.refused:
            raise NotRunError(f"docker does not create it: {made.words()}")
        started = self._ask("POST", f"/containers/{name}/start")
        if started.refused:
            raise NotRunError(f"docker cannot start it: {started.words()}", output=self._output(name))
        status = self._deadline.ended(lambda: self._status(name))
        output = self._output(name)
        if status is None:
            raise not_ended(order, output)
        return End(status, output)

    def _check_image(self, image: str) -> None:
        answer = self._ask("GET", f"/images/{quote(image, safe='/:@')}/json")
        if answer.status == 404:
            raise NotRunError(
                f"The image {image} is not on this host, and nothing is pulled here",
                "Load it first, for example with docker load --input FILE, or name another one in image.",
                tried=False,
            )
        if answer.refused:
            raise NotRunError(
                f"docker does not know the image {image}: {answer.words()}", "Correct image.", tried=False
            )

    def _status(self, name: str) -> int | None:
        answer = self._ask("GET", f"/containers/{name}/json")
        if answer.status == 404:
            raise NotRunError("Somebody removed it while it ran", "Run this again when nothing prunes containers.")
        try:
            state = field(answer.value(), "State", dict)
            return field(state, "ExitCode", int) if field(state, "Status", str) in ("exited", "dead") else None
        except ValueError as error:
            raise NotRunError(f"docker does not report the container's state: {error}") from error

    def _output(self, name: str) -> str:
        """What the container has said; a container that was never started has said nothing."""
        try:
            answer = self._ask("GET", f"/containers/{name}/logs?stdout=1&stderr=1&tail={_LINES}")
        except NotRunError:
            return ""
        return "" if answer.refused else shortened(_plain(answer.body))

    def _remove_all(self) -> str:
        """Remove all containers that this module has ever left here; returns why one stays, if one does."""
        try:
            answer = self._ask("GET", f"/containers/json?all=1&filters={quote(json.dumps({'label': [LABEL]}))}")
            found = [] if answer.refused else answer.value()
            for identity in [field(container, "Id", str) for container in check(found, list)]:
                gone = self._ask("DELETE", f"/containers/{quote(identity, safe='')}?force=1&v=1")
                # Somebody else may have been faster, or be at it.
                if gone.refused and gone.status not in (404, 409):
                    return f"The container {identity[:12]} cannot be removed: {gone.words()}"
        except (NotRunError, ValueError) as error:
            reason = error.problem if isinstance(error, NotRunError) else "docker does not list its containers properly"
            return f"The container may still be there: {reason}"
        return "" if not answer.refused else f"The container may still be there: {answer.words()}"

    def _ask(self, method: str, request: str, body: t.Any = None) -> Answer:
        try:
            return ask(self._socket, method, request, body, self._deadline.left())
        except (OSError, ValueError) as error:
            raise NotRunError(
                f"docker gives no proper answer on {self._shown_socket} ({str(error) or 'it says nothing'})",
                "Give it more time with timeout, or look at its journal.",
            ) from error


def _body(order: Order) -> dict[str, t.Any]:
    return {
        "Image": order.image,
        # In place of the image's own, which may do anything.
        "Entrypoint": list(order.command),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in order.environment.items()],
        "Labels": {LABEL: "1"},
        "NetworkDisabled": True,
        "HostConfig": {
            "Runtime": order.runtime,
            "NetworkMode": "none",
            # The daemon's own default may be a driver whose logs cannot be read back.
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m"}},
        },
    }


def _plain(stream: bytes) -> str:
    """What both streams of a container say, in the order in which it came."""
    text = bytearray()
    position = 0
    while position + _HEAD <= len(stream):
        size = int.from_bytes(stream[position + 4 : position + _HEAD], "big")
        text += stream[position + _HEAD : position + _HEAD + size]
        position += _HEAD + size
    return text.decode("utf-8", "replace")
