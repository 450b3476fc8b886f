# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read from the kubelet's log why it could not create a container of a pod.

Such a container is unknown to the engine, and the events of the pod are in the API server.
"""

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled, errors, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import distributions, kubelet

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# The number of lines of the journal, and of bytes of a file, that are read from the end.
_LINES, _BYTES = 5000, 4 << 20
# The kubelet writes structured messages: keys and values, texts in quotes as Go writes them (k8s.io/klog/v2).
_TEXT = r'"((?:[^"\\]|\\.)*)"'
_POD = re.compile(rf"\bpod={_TEXT}")
_REASON = re.compile(rf"\b(?:err|message)={_TEXT}")
# The container that an error is about: `failed to "StartContainer" for "main"` inside such a text, or a key.
_CONTAINER = re.compile(r'(?:Container\\*" for |\bcontainerName=)\\*"([a-z0-9-]+)')
# A line of k0s, which quotes the messages of the kubelet once more (pkg/supervisor/supervisor.go of k0s 1.36).
_IN_K0S = re.compile(rf"\bmsg={_TEXT} component=kubelet\b")


class PodError(t.NamedTuple):
    """The last error of a pod, and the engine of the kubelet."""

    engine: str
    message: str


def last_error(host: hostfs.HostFS, run: core_plan.Runner, name: str, listed: t.Collection[str]) -> PodError | None:
    """Return the last error of a pod in the kubelet's log; None without a kubelet or an error.

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
    message = _last(_log(host, run, found).splitlines(), parts)
    return PodError(target.partition("/")[0], message) if message else None


def _log(host: hostfs.HostFS, run: core_plan.Runner, found: distributions.FoundKubelet) -> str:
    """Return the last messages of a kubelet: those in the file of its distribution, otherwise those in the journal."""
    log = found.distribution.log
    content = host.read_end(kubelet.in_data_dir(host, found, log), _BYTES) if log else None
    if content:
        return content.decode("utf-8", "replace")
    argv = ["journalctl", "--unit", found.unit.name, "--output=cat", "--no-pager", "--boot", f"--lines={_LINES}"]
    status, output, _errors = run(host.argv(argv))
    return output if status == 0 else ""


def _last(lines: t.Sequence[str], parts: t.Sequence[str]) -> str:
    pod, container = "/".join(parts[:-1]), parts[-1]
    for line in map(_klog, reversed(lines)):
        named, reason = _POD.search(line), _REASON.search(line)
        # An error without a container, such as that of the sandbox, concerns all of them.
        about = container in (_CONTAINER.findall(line) or [container])
        # Without a namespace, the pod of any namespace is meant.
        if named and reason and about and (named[1] == pod or named[1].endswith(f"/{pod}")):
            return _unquoted(reason[1])
    return ""


def _klog(line: str) -> str:
    """Return a line in the text format of the kubelet, which k0s quotes, and which the kubelet may write as JSON.

    In JSON, a pod is an object (MarshalLog() of ObjectRef in k8s.io/klog/v2).
    """
    quoted = _IN_K0S.search(line)
    text = line if quoted is None else _unquoted(quoted[1])
    if not text.startswith("{"):
        return text
    try:
        data = json_data.load(text)
    except ValueError:
        return text
    pod: dict[str, t.Any] = json_data.get(data, "pod", {})
    fields = {**data, "pod": "/".join(json_data.get(pod, key, "") for key in ("namespace", "name"))}
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in fields.items() if isinstance(value, str)}
    return " ".join(f"{key}={text}" for key, text in texts.items())


def _unquoted(text: str) -> str:
    """Return a text without Go's quoting. Signs that cannot be printed stay as Go writes them, such as \\x1b."""
    return re.sub(r'\\([\\"nt])', lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), text)
