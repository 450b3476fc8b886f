# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rules about CDI specifications that engines do not read, because of their directory, name or permissions."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import report
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import ignored
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


_ADVICE = {
    ignored.LINKED: "Replace the link by a directory, or name its target in the settings of the engines.",
    ignored.SUFFIX: "Rename the file, so that it ends in .yaml.",
    ignored.UNREADABLE: "Set the mode of directories to 0755 and of files to 0644.",
}


def ignored_files(facts: report.HostFacts, host: hostfs.HostFS) -> report.Findings:
    """Yield findings for files that engines ignore. Permissions matter only for rootless engines, such as Podman's."""
    if "cdi" not in facts.collected:
        return
    has_rootless = any(
        report.facts_of(row).rootless or report.text(row.get("flavor")) in flavors.OF_USERS for row in facts.engines
    )
    for found in ignored.ignored_paths(host):
        if found.kind != ignored.UNREADABLE or has_rootless:
            is_cause = found.kind != ignored.UNREADABLE and facts.has_gpu and facts.lacks_gpu_specs
            severity = report.CRITICAL if is_cause else report.WARNING
            yield report.Finding(severity, "cdi-file-ignored", found.path, found.message, _ADVICE[found.kind])


HOST_RULES = (ignored_files,)
