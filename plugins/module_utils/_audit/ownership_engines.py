# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find other tools that manage the files of Docker, CRI-O and Podman. It reads files and runs nothing."""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import finding as audit_finding
from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import ownership_containerd
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import nvidia_files
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import config as crio_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker import plan as docker_plan

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import host_configs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units


# Flags of dockerd whose setting has another name in the file, and short flags (daemon/command/config.go, moby 20.10 to
# 29).
_FLAGS = {
    "add-runtime": "runtimes",
    "cdi-spec-dir": "cdi-spec-dirs",
    "default-ulimit": "default-ulimits",
    "dns-opt": "dns-opts",
    "exec-opt": "exec-opts",
    "feature": "features",
    "host": "hosts",
    "insecure-registry": "insecure-registries",
    "label": "labels",
    "log-opt": "log-opts",
    "node-generic-resource": "node-generic-resources",
    "registry-mirror": "registry-mirrors",
    "storage-opt": "storage-opts",
    "D": "debug",
    "G": "group",
    "H": "hosts",
    "l": "log-level",
    "p": "pidfile",
    "s": "storage-driver",
}
# dockerd merges these settings from the file and the flags.
_ADD_UP = ("runtimes",)
_SHORT = re.compile(r"-([A-Za-z])(.*)")
# The names of backups that editors, package managers and Ansible's backup option leave beside a file.
_BACKUP = re.compile(r".*(~|\.bak|\.backup|\.old|\.orig|\.save|\.rpmsave|\.rpmnew|\.rpmorig|\.dpkg-[a-z]+|\.swp)")

_OVERRIDES = ("docker-override.conf",)
_DGX = "/etc/dgx-release"
_FORMER_PROGRAM = "/usr/bin/nvidia-docker"


# -- Docker ----------------------------------------------------------------------------------------------------------


def flags(look: host_configs.HostConfigs) -> t.Iterator[audit_finding.Finding]:
    """Yield a finding for settings in both the file and the unit's command line, with which dockerd does not start."""
    context, document = look.docker, look.daemon_json
    if context is None or document is None or context.unit is None:
        return
    both = [name for name in _flagged(context.unit) if name not in _ADD_UP and document.has(name)]
    if both:
        unit = context.unit
        yield audit_finding.Finding(
            audit_finding.CRITICAL,
            "flags-collide",
            context.path,
            f"{context.path} holds {core_text.listed(both)}, and so does the command line of {unit.name}"
            f" ({core_text.listed([unit.path, *unit.drop_ins])}): dockerd does not start with a setting in both"
            " places.",
            "Take them out of one of the two.",
        )


def _flagged(unit: systemd_units.Unit) -> list[str]:
    """Return the settings on a command line, by their names in the file."""
    names = []
    for word in unit.arguments[1:]:
        short = _SHORT.fullmatch(word)
        if word.startswith("--"):
            name = word[2:].partition("=")[0]
            names.append(_FLAGS.get(name, name))
        elif short is not None and short.group(1) in _FLAGS:
            names.append(_FLAGS[short.group(1)])
    return list(dict.fromkeys(names))


def overrides(look: host_configs.HostConfigs) -> t.Iterator[audit_finding.Finding]:
    """Yield findings for Docker settings of a vendor's image."""
    context = look.docker
    if context is not None and context.unit is not None:
        for path in context.unit.drop_ins:
            if posixpath.basename(path) in _OVERRIDES:
                yield audit_finding.Finding(
                    audit_finding.WARNING,
                    "vendor-override",
                    path,
                    f"{path} comes with the vendor's image (DGX OS) and gives dockerd flags of its own.",
                    "Leave settings that it makes out of daemon.json; updates of the image write it again.",
                )
    if look.host.exists(_DGX):
        said = f"{_DGX} is there: this is a DGX, whose image brings the toolkit, Docker's settings and their updates."
        yield audit_finding.Finding(
            audit_finding.INFO, "vendor-image", _DGX, said, "Let one of the two update the toolkit: the image, or you."
        )


def former(look: host_configs.HostConfigs) -> t.Iterator[audit_finding.Finding]:
    """Yield findings for what nvidia-docker2 left."""
    if look.host.exists(_FORMER_PROGRAM):
        said = f"{_FORMER_PROGRAM} is the command of nvidia-docker2, which no longer gets updates."
        yield audit_finding.Finding(
            audit_finding.INFO, "nvidia-docker", _FORMER_PROGRAM, said, "Use docker run --gpus, and remove the package."
        )
    context, document = look.docker, look.daemon_json
    if context is not None and document is not None and document.has(docker_plan.RUNTIMES, nvidia_files.EXPERIMENTAL):
        said = (
            f"{context.path} registers {nvidia_files.EXPERIMENTAL}, a runtime that the toolkit has had no program for"
            f" since 1.14."
        )
        yield audit_finding.Finding(
            audit_finding.WARNING, "runtime-experimental", context.path, said, ownership_containerd.PURGE
        )


# -- CRI-O -----------------------------------------------------------------------------------------------------------


def stray(look: host_configs.HostConfigs) -> t.Iterator[audit_finding.Finding]:
    if look.host.lexists(nvidia_files.STRAY_CRIO) and not look.is_ours(nvidia_files.STRAY_CRIO):
        said = (
            f"{nvidia_files.STRAY_CRIO} is where the toolkit up to 1.19.0 put its drop-in; CRI-O never reads that"
            f" folder."
        )
        yield audit_finding.Finding(
            audit_finding.WARNING, "drop-in-of-old-toolkit", nvidia_files.STRAY_CRIO, said, ownership_containerd.PURGE
        )


def backups(look: host_configs.HostConfigs) -> t.Iterator[audit_finding.Finding]:
    """Yield findings for backups and dangling links: CRI-O reads every file of its directory, whatever its name."""
    files = look.crio
    for file in files.files[1:] if files is not None else ():
        if _BACKUP.fullmatch(posixpath.basename(file.name)):
            said = f"{file.name} looks like a backup, and CRI-O reads it as configuration, after what it is a copy of."
            yield audit_finding.Finding(
                audit_finding.WARNING, "backup-is-configuration", file.name, said, "Move it out of that folder."
            )
    for name in files.missing if files is not None else ():
        said = f"{name} is a link that leads nowhere: CRI-O does not start with it."
        yield audit_finding.Finding(
            audit_finding.CRITICAL, "link-leads-nowhere", name, said, "Remove it, or put the file there."
        )


def tables(look: host_configs.HostConfigs) -> t.Iterator[audit_finding.Finding]:
    """Yield findings for NVIDIA runtimes in several files, and for a runtime that no longer has a program."""
    files = look.crio
    places: dict[str, list[str]] = {}
    for file in files.files if files is not None else ():
        found = file.document.value(*crio_config.RUNTIMES)
        for name, entry in found.items() if isinstance(found, dict) else ():
            if isinstance(entry, dict) and engines_base.is_nvidia_program(entry.get(crio_config.PROGRAM)):
                places.setdefault(name, []).append(file.name)
            if name == nvidia_files.EXPERIMENTAL:
                said = (
                    f"{file.name} registers {nvidia_files.EXPERIMENTAL}, for which the toolkit has had no program"
                    f" since 1.14."
                )
                yield audit_finding.Finding(
                    audit_finding.WARNING, "runtime-experimental", file.name, said, ownership_containerd.PURGE
                )
    for name, paths in places.items():
        if len(paths) > 1:
            said = f"The runtime {name} is defined in {' and '.join(paths)}; the last of them replaces the others."
            advice = "Leave it to one owner: take it out of the others."
            yield audit_finding.Finding(audit_finding.WARNING, "runtime-defined-twice", paths[-1], said, advice)


LOOKS = (flags, overrides, former, stray, backups, tables)
