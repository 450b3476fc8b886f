# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The report of nvidia_container_info as the rules read it, and the findings that they return.

It contains no rules. host_info collects the report.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import steps
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import records as cdi_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import facts as engines_facts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors

CRITICAL, WARNING, INFO = "critical", "warning", "info"
SEVERITIES = (CRITICAL, WARNING, INFO)
# The subjects of findings about the driver, the toolkit of the host, and the device plugin.
DRIVER, TOOLKIT, PLUGIN = "driver", "toolkit", "device plugin"
GPU_NAMES = f"{core_constants.GPU_KIND}="
_DEFAULT_SPEC = cdi_records.default_path(core_constants.GPU_KIND, cdi_options.YAML)
# The number of sentences that one finding joins.
_JOINED = 5


class Consequence(t.NamedTuple):
    """The findings with this id that another finding explains; of this subject and with this advice unless empty."""

    id: str
    subject: str = ""
    advice: str = ""

    def includes(self, finding: Finding) -> bool:
        return finding.id == self.id and self.subject in ("", finding.subject) and self.advice in ("", finding.advice)


Consequences = t.Tuple[Consequence, ...]


def consequences(*names: str, subject: str = "") -> Consequences:
    return tuple(Consequence(name, subject) for name in names)


class Finding(t.NamedTuple):
    """A problem of a host, or a fact that the user should know.

    ``severity`` is critical if containers cannot use GPUs, containers may soon not start, or the toolkit has a known
    vulnerability; warning if something works now but will stop working, or if two tools manage it; info for the rest.
    ``id`` is a stable name. ``subject`` is a target, a path, or a part of the host. ``explains`` are its consequences.
    """

    severity: str
    id: str
    subject: str
    text: str
    advice: str
    explains: Consequences = ()

    def row(self) -> dict[str, str]:
        """Return what the report has of the finding."""
        return {name: value for name, value in self._asdict().items() if name != "explains"}

    def sort_key(self) -> tuple[int, str, str, str]:
        return SEVERITIES.index(self.severity), self.subject, self.id, self.text


Findings = t.Iterator[Finding]


def critical(name: str, subject: str, message: str, advice: str, explains: Consequences = ()) -> Finding:
    return Finding(CRITICAL, name, subject, message, advice, explains)


def warning(name: str, subject: str, message: str, advice: str, explains: Consequences = ()) -> Finding:
    return Finding(WARNING, name, subject, message, advice, explains)


def info(name: str, subject: str, message: str, advice: str) -> Finding:
    return Finding(INFO, name, subject, message, advice)


# Consequences that several rules have in common. Without a runtime of NVIDIA, a device plugin does not work.
PLUGIN_STATES = consequences("device-plugin-not-serving")
WITHOUT_RUNTIME = (*consequences("pod-without-runtime", subject=PLUGIN), *PLUGIN_STATES)
MISSING_DEVICES = consequences("devices-not-offered")
_BROKEN_ENGINE = (*consequences("kubelet-engine-not-configured"), *WITHOUT_RUNTIME)
WITHOUT_DRIVER = consequences(
    "cdi-stale", "cdi-refresh-failed", "docker-needs-cdi", "gpu-unusable", "device-node-missing"
)


class HostFacts:
    """The report of a host for rules. A part that was not collected or has the wrong type is empty."""

    def __init__(self, parts: t.Any) -> None:
        parts = table(parts)
        self.engines = rows(parts.get("engines"))
        self.toolkit = table(parts.get("toolkit"))
        # The toolkit of the host, then those that engines run from other directories.
        self.toolkits = [self.toolkit, *rows(self.toolkit.get("other_toolkits"))]
        self.gpus = table(parts.get("gpus"))
        self.cdi = table(parts.get("cdi"))
        self.kubernetes = table(parts.get("kubernetes"))
        names = ("engines", "toolkit", "gpus", "cdi", "kubernetes")
        self.collected = frozenset(part for part in names if parts.get(part) is not None)
        self.specs = rows(self.cdi.get("files"))
        self.refresh = table(self.cdi.get("refresh"))
        self.refresh_service = text(self.refresh.get("service")) or "cdi"
        # The file that site writes if no variable names another one.
        output = text(self.refresh.get("output")) if self.refresh.get("enabled") is True else ""
        self.site_spec = (f"/var{output}" if output.startswith("/run/") else output) or _DEFAULT_SPEC
        devices = table(self.cdi.get("devices"))
        # The specifications from which engines take the GPUs.
        self.gpu_specs = {text(path) for name, path in devices.items() if name.startswith(GPU_NAMES)}

    @property
    def has_gpu(self) -> bool | None:
        """Whether the host has a GPU; None if that is unknown."""
        if rows(self.gpus.get("devices")):
            return True
        present = table(self.toolkit.get("gpu")).get("present")
        return present if isinstance(present, bool) else None

    @property
    def lacks_gpu_specs(self) -> bool:
        """Whether engines find no specification of the GPUs. False if that is unknown, because files were not read."""
        codes = [problem.code for problem in problems_in(self.cdi.get("problems"))]
        # A problem with a directory hides all files. The problems of the refresh service have codes of their own.
        is_listed = bool(self.specs) or all(code.startswith("cdi-refresh-") for code in codes)
        is_read = is_listed and all(isinstance(spec.get("valid"), bool) for spec in self.specs)
        return "cdi" in self.collected and is_read and not self.gpu_specs

    @property
    def without_driver(self) -> Consequences:
        """What a driver that is not loaded explains. If one GPU has a driver, findings about GPUs have other causes."""
        if text(self.gpus.get("driver_version")):
            return ()
        # Some engines need only a specification, which needs the driver.
        advice = "" if self.refresh.get("enabled") is True else steps.WRITE_SPECIFICATION
        unconfigured = Consequence("gpus-not-configured", advice=advice)
        return (*WITHOUT_DRIVER, *WITHOUT_RUNTIME, *MISSING_DEVICES, unconfigured)

    def without_engine(self, target: str) -> Consequences:
        """Return what an engine that starts no container with NVIDIA's runtime explains."""
        return _BROKEN_ENGINE if target == text(self.kubernetes.get("engine")) else ()

    @property
    def has_fresh_specs(self) -> bool:
        """Whether the GPUs have specifications, and all of these are valid and fresh."""
        fresh = {text(spec.get("path")) for spec in self.specs if spec.get("stale") is False}
        return bool(self.gpu_specs) and self.gpu_specs <= fresh


def table(value: t.Any) -> dict[str, t.Any]:
    """Return ``value`` without keys that are not strings if it is a dictionary; otherwise an empty one."""
    return {name: entry for name, entry in value.items() if isinstance(name, str)} if isinstance(value, dict) else {}


def rows(value: t.Any) -> list[dict[str, t.Any]]:
    """Return the dictionaries in a list."""
    return [table(entry) for entry in value if isinstance(entry, dict)] if isinstance(value, (list, tuple)) else []


def texts(value: t.Any) -> list[str]:
    """Return the strings in a list."""
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, (list, tuple)) else []


def problems_in(value: t.Any) -> list[errors.Problem]:
    """Return the problems in a list of the report."""
    return [
        errors.Problem(text(row.get("code")), text(row["message"]), text(row.get("advice")))
        for row in rows(value)
        if text(row.get("message"))
    ]


def joined(sentences: t.Iterable[str]) -> str:
    """Return different sentences as one text, only the first ones if there are many."""
    found = list(dict.fromkeys(filter(None, sentences)))
    # Messages about several places in one file begin with its path.
    path = re.split("[,:] ", found[0], maxsplit=1)[0] if found and found[0].startswith("/") else ""
    rest = len(found) - _JOINED
    shown = [found[0], *(without_path(sentence, path) for sentence in found[1:_JOINED])] if found else []
    return " ".join([*shown, *([f"{rest} more of this kind are not listed."] if rest > 0 else [])])


def without_path(sentence: str, path: str) -> str:
    """Return ``sentence`` without the ``path`` at its beginning."""
    is_path = path and sentence.startswith((f"{path}, ", f"{path}: "))
    rest = sentence[len(path) + 2 :]
    return rest[:1].upper() + rest[1:] if is_path else sentence


def text(value: t.Any) -> str:
    """Return ``value`` if it is a string; otherwise an empty one."""
    return value if isinstance(value, str) else ""


def number(value: t.Any) -> int | None:
    """Return ``value`` if it is an integer; otherwise None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# For a row of an engine that this collection does not know.
_UNKNOWN_ENGINE = engines_facts.EngineFacts("", ())


def facts_of(engine: t.Mapping[str, t.Any]) -> engines_facts.EngineFacts:
    """Return the facts of the engine in a row of the report."""
    return flavors.FACTS.get(text(engine.get("engine")), _UNKNOWN_ENGINE)


def cdi_advice(engine: t.Mapping[str, t.Any], usual: str) -> str:
    """Return what switches CDI on in the engine in a row of the report; ``usual`` if this collection does."""
    row = flavors.FLAVORS.get((text(engine.get("engine")), text(engine.get("flavor"))))
    return usual if row is None else flavors.cdi_advice(row, engine.get("cdi_directories"), usual)


def toolkit_subject(toolkit: t.Mapping[str, t.Any]) -> str:
    """Return the subject of findings about a toolkit: its directory, unless it is the toolkit of the host."""
    return text(toolkit.get("path")) or TOOLKIT


def toolkit_place(toolkit: t.Mapping[str, t.Any]) -> str:
    """Return where a toolkit is and which engines use it, for a message; empty for the toolkit of the host."""
    path, engines = text(toolkit.get("path")), core_text.listed(texts(toolkit.get("engines")))
    return f" in {path} (in use by {engines})" if path else ""


def runtimes_of(engine: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return the runtimes in the files of an engine, and those that the daemon reports."""
    return {**table(engine.get("runtimes")), **table(table(engine.get("live")).get("runtimes"))}


def target_of(engine: t.Mapping[str, t.Any]) -> str:
    """Return the name that identifies an engine on its host."""
    return text(engine.get("target")) or text(engine.get("engine")) or "an engine"
