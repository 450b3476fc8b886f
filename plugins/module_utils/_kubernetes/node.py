# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Add the kubelet of a node, its devices and its plugins to the report that `info.py` returns."""

from __future__ import annotations

import contextlib
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import (
    checkpoint,
    distributions,
    kubelet,
    plugins,
    pod_resources,
    strategies,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


_DOMAIN = "nvidia.com/"
_NOT_ANSWERING = "kubelet-not-responding"


def add_kubelet(
    host: hostfs.HostFS, found: distributions.FoundKubelet, report: dict[str, t.Any], problems: list[errors.Problem]
) -> str | None:
    """Add the kubelet to ``report``. Return the Python package that is missing to read its files."""
    report["distribution"] = distributions.kind_of(found, host)
    report["service"] = found.unit.name
    report["running"] = found.pid is not None if host.live else None
    settings = kubelet.read_settings(host, found)
    problems += settings.problems
    report["root_dir"] = settings.root_dir
    report["config_files"] = list(settings.files)
    report["cri_endpoint"] = settings.endpoint or None
    report["engine"] = kubelet.target_of_endpoint(host, settings.endpoint, found.distribution.name)
    answered = _add_devices(host, settings.root_dir, report, problems)
    probe = plugins.Probe(host)
    report["device_plugins"] = [socket._asdict() for socket in plugins.device_plugins(host, probe)]
    report["dra_drivers"] = [_describe_driver(driver) for driver in plugins.dra_drivers(host, settings.root_dir, probe)]
    pods, processes = plugins.plugin_pods(host), plugins.plugin_processes(host)
    report["plugin_pods"] = list(dict.fromkeys(pod.pod for pod in pods))
    report["plugin_processes"] = processes
    report["device_list_strategies"] = strategies.strategies(host, processes, answered)
    _add_programs(host, report, pods)
    report["nri_plugin"] = plugins.has_nri_plugin(host)
    return settings.missing_package


def _describe_driver(driver: plugins.Driver) -> dict[str, t.Any]:
    sockets = [*driver.sockets, *driver.registration]
    return {
        "name": driver.name,
        "sockets": [{"path": socket.path, "listens": socket.listens} for socket in sockets],
    }


def _add_programs(host: hostfs.HostFS, report: dict[str, t.Any], pods: t.Sequence[plugins.PluginPod]) -> None:
    """Add the programs with which the containers that hold devices, and the pods of the plugin, were started."""
    held = [entry for resource in report["resources"] for entry in resource["held"]]
    found = strategies.pod_containers(host) if host.live and (held or pods) else []
    for entry in held:
        # The checkpoint has the UIDs of pods instead of their names.
        own = [
            one.program
            for one in found
            if one.container == entry["container"]
            and (entry["namespace"], entry["pod"]) in ((one.namespace, one.pod), (None, one.uid))
        ]
        entry["program"] = own[0] if own else None
    by_pod = {f"{one.namespace}/{one.pod}": one.program for one in found if one.sandbox}
    report["plugin_logs"] = [{**pod._asdict(), "program": by_pod.get(pod.pod)} for pod in pods]


def _add_devices(
    host: hostfs.HostFS, root_dir: str, report: dict[str, t.Any], problems: list[errors.Problem]
) -> list[str]:
    """Add the devices that the kubelet reports, or else those in its checkpoint.

    Return the strategies with which plugins have answered allocations of NVIDIA's resources.
    """
    recorded = None
    try:
        recorded = checkpoint.read(host)
    except errors.NvidiaError as error:
        problems.append(errors.Problem.of(error))
    answer = _ask(host, f"{root_dir}/{pod_resources.SOCKET}", problems) if report["running"] else None
    registered = recorded.registered if recorded is not None else {}
    if answer is not None:
        report["source"] = checkpoint.FROM_API
        report["claims"] = [claim._asdict() for claim in answer.claimed]
        allocatable, held = answer.allocatable, answer.held
    elif recorded is not None:
        report["source"] = checkpoint.FROM_CHECKPOINT
        allocatable, held = registered, recorded.held
    else:
        return []
    names = dict.fromkeys([*registered, *allocatable, *(entry.resource for entry in held)])
    report["resources"] = [
        {
            "name": name,
            "allocatable": list(allocatable.get(name, ())),
            "recorded": list(registered[name]) if name in registered else None,
            "held": [
                {
                    "pod": entry.pod,
                    "namespace": entry.namespace or None,
                    "container": entry.container,
                    "devices": list(entry.devices),
                }
                for entry in held
                if entry.resource == name
            ],
        }
        for name in sorted(names)
    ]
    answered: list[str] = []
    for resource, answer_of_plugin in recorded.answers if recorded is not None else ():
        if resource.startswith(_DOMAIN):
            with contextlib.suppress(ValueError):
                answered += strategies.of_answer(answer_of_plugin)
    return answered


def _ask(host: hostfs.HostFS, path: str, problems: list[errors.Problem]) -> pod_resources.PodResources | None:
    """Return what the kubelet reports; None if it has no socket or does not answer."""
    process_path = plugins.socket_path(host, path)
    if process_path is None:
        return None
    try:
        return pod_resources.ask(process_path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "no answer"
        message = f"The kubelet does not answer on {path}: {reason}. The devices are those of its last checkpoint."
        advice = "Look for the cause in the journal of its unit."
        problems.append(errors.Problem(_NOT_ANSWERING, message, advice))
        return None
