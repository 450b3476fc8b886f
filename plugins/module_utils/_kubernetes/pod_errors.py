# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read from the kubelet's journal why it could not create a container of a pod.

Such a container is unknown to the engine, and the events of the pod are in the API server.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled, errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import distributions, kubelet

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# The number of lines of the journal that are read, from its end.
_LINES = 5000
# The kubelet writes structured messages: keys and values, texts in quotes as Go writes them (k8s.io/klog/v2).
_TEXT = r'"((?:[^"\\]|\\.)*)"'
_POD = re.compile(rf"\bpod={_TEXT}")
_REASON = re.compile(rf"\b(?:err|message)={_TEXT}")
# The container that an error is about: `failed to "StartContainer" for "main"` inside such a text, or a key.
_CONTAINER = re.compile(r'(?:Container\\*" for |\bcontainerName=)\\*"([a-z0-9-]+)')


class PodError(t.NamedTuple):
    """The last error of a pod, and the engine of the kubelet."""

    engine: str
    message: str


def last_error(host: hostfs.HostFS, run: core_plan.Runner, name: str, listed: t.Collection[str]) -> PodError | None:
    """Return the last error of a pod in the kubelet's journal; None without a kubelet or an error.

    ``name`` is [NAMESPACE/]POD/CONTAINER, as for a container of a pod. Errors that name only other containers of the
    pod do not count. ``listed`` are the targets that do not have the container. None without the engine of the kubelet
    among them: the container may exist, whatever the kubelet reported earlier.

    Raises NvidiaError if the engine is not known without a Python package that this host lacks.
    """
    parts = name.split("/")
    if not host.live or len(parts) not in (2, 3):
        return None
    try:
        found = distributions.find_kubelet(host)
        if found is None:
            return None
        settings = kubelet.read_settings(host, found)
        target = kubelet.target_of_endpoint(host, settings.endpoint, found.distribution.name)
    except errors.NvidiaError:
        return None
    if settings.missing_package is not None and target is None:
        bundled.import_bundled(settings.missing_package)
    if target is None or target not in listed:
        return None
    argv = ["journalctl", "--unit", found.unit.name, "--output=cat", "--no-pager", "--boot", f"--lines={_LINES}"]
    status, output, _errors = run(host.argv(argv))
    message = _last(output.splitlines(), parts) if status == 0 else ""
    return PodError(target.partition("/")[0], message) if message else None


def _last(lines: t.Sequence[str], parts: t.Sequence[str]) -> str:
    pod, container = "/".join(parts[:-1]), parts[-1]
    for line in reversed(lines):
        named, reason = _POD.search(line), _REASON.search(line)
        # An error without a container, such as that of the sandbox, concerns all of them.
        about = container in (_CONTAINER.findall(line) or [container])
        # Without a namespace, the pod of any namespace is meant.
        if named and reason and about and (named[1] == pod or named[1].endswith(f"/{pod}")):
            return _unquoted(reason[1])
    return ""


def _unquoted(text: str) -> str:
    """Return a text without Go's quoting. Signs that cannot be printed stay as Go writes them, such as \\x1b."""
    return re.sub(r'\\([\\"nt])', lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), text)
