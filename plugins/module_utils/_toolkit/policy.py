# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide by the policies of the task whether a problem is an error or a warning."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import installed as toolkit_installed


class Policies:
    """The policies of a task, and the warnings that they cause (``warnings``).

    Raises NvidiaError for an invalid ``minimum_version``.
    """

    def __init__(self, running_gpu_containers: str, minimum_version: str | None, minimum_version_policy: str) -> None:
        if minimum_version is not None and toolkit_installed.upstream_version(minimum_version) is None:
            raise errors.NvidiaError(
                f"minimum_version {minimum_version!r} is no version. Give one such as"
                f" {toolkit_installed.oldest_safe_version()}."
            )
        self._running_gpu_containers = running_gpu_containers
        self._minimum_version = minimum_version
        self._minimum_version_policy = minimum_version_policy
        self.warnings: list[str] = []

    def check_containers(self, containers: t.Sequence[str], harm: str, advice: str, remedy: str) -> None:
        """Raise HostError, or warn once, if a change does ``harm`` to containers."""
        if containers:
            problem = f"The containers {', '.join(containers)} {harm}"
            self.refuse_or_warn(problem, advice, f"{problem} {remedy}")

    def refuse_or_warn(self, problem: str, advice: str, warning: str) -> None:
        """Raise HostError, or add ``warning`` once, for a change that harms containers."""
        policy = self._running_gpu_containers
        if policy == "fail":
            raise errors.HostError(
                f"{problem} {advice}; running_gpu_containers: warn goes on nevertheless. Nothing was changed."
            )
        if policy == "warn":
            self.warn(warning)

    def warn(self, warning: str) -> None:
        """Add a warning once."""
        if warning not in self.warnings:
            self.warnings.append(warning)

    def check_minimum(self, version: str | None) -> None:
        """Raise NvidiaError, or warn once, if ``version`` is older than the minimum version."""
        policy = self._minimum_version_policy
        if version is None or policy == "ignore":
            return
        problem = below_minimum(version, self._minimum_version or toolkit_installed.oldest_safe_version())
        if problem is None:
            return
        if policy == "fail":
            raise errors.NvidiaError(f"{problem} Choose a newer version, or set minimum_version_policy: warn.")
        self.warn(problem)


def below_minimum(version: str, floor: str) -> str | None:
    """Return the problem with ``version`` as a message, or None if it is not older than ``floor``.

    Raises NvidiaError for an invalid ``floor``.
    """
    if toolkit_installed.upstream_version(floor) is None:
        raise errors.NvidiaError(f"minimum_version {floor!r} is no version of the toolkit. Write one like 1.19.1.")
    if toolkit_installed.upstream_version(version) is None:
        return f"Version {version!r} of the toolkit cannot be compared with {floor}, which it must not be older than."
    if toolkit_installed.version_key(version) >= toolkit_installed.version_key(floor):
        return None
    cves = ", ".join(f"{entry.name} ({entry.about})" for entry in toolkit_installed.known_vulnerabilities(version))
    known = f" Its known vulnerabilities are {cves}." if cves else ""
    return f"Version {toolkit_installed.upstream_version(version)} of the toolkit is older than {floor}.{known}"
