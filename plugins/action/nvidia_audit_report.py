# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The action plugin of nvidia_audit_report, which writes the report of an audit on the controller."""

from __future__ import annotations

import datetime
import json
import os
import typing as t

from ansible import context
from ansible.errors import AnsibleActionFail

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _check, _controller_action, _controller_files
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit import origin, page, report

NEVER = "never"
# The same as in plugins/modules/nvidia_audit_report.py.
ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "results": {"type": "str"},
    "directory": {"type": "path", "default": "."},
    "json": {"type": "path", "default": "gpufleet-audit.json"},
    "html": {"type": "path", "default": "gpufleet-audit.html"},
    "generated": {"type": "str"},
    "limit": {"type": "int", "default": 50},
    "fail_on": {"type": "str", "default": NEVER, "choices": [NEVER, "critical", "warning"]},
    "prepare_only": {"type": "bool", "default": False},
}


class ActionModule(_controller_action.ControllerAction):
    """Write the report of an audit on the controller, and return its lines.

    The results of hosts are read with ``hostvars.raw_get()`` and are not used in expressions: some releases of
    ansible-core would evaluate templates in them (CVE-2024-11079).
    """

    arguments = ARGUMENTS
    rules: t.ClassVar[dict[str, t.Any]] = {"required_if": [("prepare_only", False, ["results"])]}

    def work(self, given: dict[str, t.Any], variables: dict[str, t.Any]) -> dict[str, t.Any]:
        paths = {name: os.path.join(os.path.abspath(given["directory"]), given[name]) for name in ("json", "html")}
        if paths["json"] == paths["html"]:
            raise AnsibleActionFail(f"json and html are the same file, {paths['json']}. Name two files.")
        if given["prepare_only"]:
            problems = _check.check_names_for_audit(self, variables)
            if problems.errors:
                raise AnsibleActionFail("\n".join(problems.errors))
            created = [self._try(path, _controller_files.prepare) for path in paths.values()]
            return {"changed": any(created), "warnings": problems.warnings, **paths}
        fleet = report.report_of(_results(variables, given), given["generated"])
        # Only the page has the time of the controller. The JSON stays the same as long as the findings do.
        now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        html = page.page_of(fleet, now, origin.version(), origin.command(context.CLIARGS))
        changes = [
            self._try(paths["json"], _controller_files.write_private, json.dumps(fleet, indent=2) + "\n"),
            self._try(paths["html"], _controller_files.write_private, html, ignored=page.TIME),
        ]
        counts = fleet["totals"]["findings"]
        return {
            "changed": any(changes),
            "failed": _fails(counts, given["fail_on"]),
            "msg": " ".join(report.lines_of(fleet, 0)[:2]),
            "lines": report.lines_of(fleet, max(0, given["limit"])),
            "counts": counts,
            **paths,
            # Print the lines without -v too, as the action debug does.
            "_ansible_verbose_always": True,
        }

    def _try(self, path: str, write: t.Callable[..., bool], *content: str, **options: t.Any) -> bool:
        try:
            return write(path, *content, check_mode=self._task.check_mode, **options)
        except OSError as error:
            raise AnsibleActionFail(
                f"{path} on the controller cannot be written: {error.strerror}. Name a directory to which the user that"
                " runs Ansible can write."
            ) from None


def _results(variables: t.Mapping[str, t.Any], given: t.Mapping[str, t.Any]) -> dict[str, object]:
    """Return the registered result of each host of the play, without evaluating it."""
    found: dict[str, object] = {}
    for host in variables["ansible_play_hosts_all"]:
        registered = report.table(variables["hostvars"].raw_get(host))
        found[host] = registered.get(given["results"])
    return found


def _fails(counts: t.Mapping[str, int], fail_on: str) -> bool:
    severities = report.SEVERITIES
    failing = () if fail_on == NEVER else severities[: severities.index(fail_on) + 1]
    return any(counts[severity] for severity in failing)
