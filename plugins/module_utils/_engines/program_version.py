# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the version that a program of an engine or of the toolkit prints.

This file imports no engine, so that a task that only writes a specification stays small.
"""

from __future__ import annotations

import re
import typing as t

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base

# A version at the beginning of a word, with or without "v".
_VERSION = re.compile(r"v?([0-9]+\.[0-9].*)")


def read_version(argv: t.Sequence[str], host: hostfs.HostFS, run: core_plan.Runner) -> tuple[str | None, str]:
    """Return the version that ``argv`` prints, such as 20.10.24+dfsg1, or None and the reason why it is unknown."""
    if not host.live:
        return None, "programs of an offline tree are not run"
    status, output, error = run(host.argv(argv))
    if status:
        return None, " ".join((error or output).split()).rstrip(".") or f"exit status {status}"
    # The commit that follows may begin with a digit too, but contains no dots.
    matches = (_VERSION.match(word.strip(",")) for word in output.split())
    return next((match.group(1) for match in matches if match is not None), None), "its output has no version"


def printed_version(argv: t.Sequence[str], host: hostfs.HostFS, run: core_plan.Runner) -> str | None:
    """Return the version that read_version() returns."""
    return read_version(argv, host, run)[0]


def ask_version(
    engine: engines_base.InstalledEngine,
    installation: engines_base.Installation,
    host: hostfs.HostFS,
    run: core_plan.Runner,
) -> str | None:
    """Return the version that the program of ``engine`` prints, None as in printed_version()."""
    if installation.binary is None:
        return None
    return printed_version(engine.version_argv(installation.binary), host, run)
