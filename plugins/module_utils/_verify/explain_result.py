# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The steps of an explanation after the injection: driver, devices, capabilities, requirements, start and contents.

It also builds the module's result. It is pure.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import (
    explain_container,
    explain_contents,
    explain_requirements,
    explain_rules,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import explain_host as hosts


DRIVER, DEVICES, CAPABILITIES, REQUIREMENTS, START, CONTENTS = (
    *("driver", "devices", "capabilities", "requirements"),
    *("start", "contents"),
)
# The longest value of a variable, message, or text of an engine in the result, and the maximum number of requested
# devices in it. A container chooses its variables.
_LONGEST = 2000
_MOST = 1000


class Step(t.NamedTuple):
    """The result of one step. ``ok`` is None if it is unknown, or does not apply yet."""

    name: str
    ok: bool | None
    code: str
    message: str
    advice: str = ""


def passed(name: str, code: str, message: str) -> Step:
    return Step(name, ok=True, code=code, message=message)


def failed(name: str, code: str, problem: str, advice: str) -> Step:
    """Return a failed step. ``problem`` is a sentence without its full stop."""
    return Step(name, ok=False, code=code, message=f"{problem}.", advice=advice)


def unknown(name: str, code: str, message: str) -> Step:
    return Step(name, ok=None, code=code, message=message)


class Injected(t.NamedTuple):
    """What is added to a container.

    ``cdi`` are the CDI devices, ``devices`` the request that NVIDIA's runtime or hook got, empty if the engine adds
    the devices itself. ``enforced`` says that capabilities and requirements count. ``path`` names what adds the
    devices, ``mode`` is the mode of the toolkit.
    """

    image: explain_rules.Image
    cdi: tuple[str, ...]
    devices: tuple[str, ...]
    enforced: bool
    path: str
    mode: str = ""


class Outcome:
    """What a container whose request is handled should have, and has."""

    def __init__(self, container: explain_container.Container, host: hosts.Host, injected: Injected) -> None:
        self.container, self.host, self.image = container, host, injected.image
        self.cdi, self.devices = injected.cdi, injected.devices
        self.enforced, self.path, self.mode = injected.enforced, injected.path, injected.mode
        # Just-in-time CDI generates its specification, all other CDI reads files.
        automatic = bool(self.cdi) and self.cdi[0].startswith(f"{explain_rules.AUTOMATIC_KIND}=")
        self.generated = bool(self.devices) and (automatic or not self.cdi)
        self.specifications = host.engine_specifications if not self.devices else host.runtime_specifications
        self.capabilities = explain_rules.capabilities(self.image, host.settings)
        self.selection = host.select(self._plain_names()) if self.generated else None
        # WSL and Tegra have other files, which are known only from CDI specifications.
        self.comparable = host.comparable or not self.generated
        self.contents = explain_contents.contents_of(container.config, host.mountinfo)
        self.expected = self._expected()

    def _plain_names(self) -> tuple[str, ...]:
        """Return the requested devices without the kind of generated specifications."""
        prefix = f"{explain_rules.AUTOMATIC_KIND}="
        names = (name[len(prefix) :] if name.startswith(prefix) else name for name in self.cdi or self.devices)
        return tuple("" if name == "none" else name for name in names)

    def _expected(self) -> explain_contents.Expected:
        if not self.generated:
            return self.specifications.expected(self.cdi)
        if not self.comparable:
            return explain_contents.Expected()
        granted = self.capabilities.granted if self.enforced else explain_contents.ALL
        nodes = self.selection.nodes if self.selection is not None else ()
        return explain_contents.of_driver(self.host.driver, nodes, granted)

    def steps(self) -> list[Step]:
        return [
            self._driver(),
            self._devices(),
            self._capabilities(),
            self._requirements(),
            self.start(),
            self._contents(),
        ]

    def _driver(self) -> Step:
        if not self.host.comparable:
            return unknown(DRIVER, "driver-unknown", "The drivers of WSL and Tegra are not checked.")
        if not self.host.driver_loaded:
            advice = (
                "Install NVIDIA's driver, and load it with `modprobe nvidia`. If that fails, read the kernel's log."
            )
            return failed(DRIVER, "driver-missing", "No NVIDIA driver is loaded on this host", advice)
        return passed(DRIVER, "loaded", f"The driver {self.host.driver or 'of unknown version'} is loaded.")

    def _devices(self) -> Step:
        if not self.generated:
            return self._cdi_devices()
        if explain_rules.mixes_kinds(self.cdi):
            problem = f"It requests {core_text.listed(self.cdi)}, and {self.path} does not mix these kinds"
            advice = "Name all devices as CDI devices, such as nvidia.com/gpu=0, or none of them."
            return failed(DEVICES, "kinds-mixed", problem, advice)
        if not self.comparable:
            return unknown(DEVICES, "devices-unknown", "The GPUs of WSL and Tegra are not compared.")
        selection = self.selection
        if selection is None or (selection.unknown and not selection.certain):
            return unknown(DEVICES, "devices-unknown", "The names of the GPUs of this host are not known.")
        if selection.unknown:
            problem = f"This host has no GPU named {core_text.listed(selection.unknown)}"
            advice = "Request GPUs by the numbers or UUIDs that `nvidia-smi -L` prints on the host, or all."
            return failed(DEVICES, "device-missing", problem, advice)
        count = f"{len(selection.names)} of {len(self.host.gpus)} GPUs of this host"
        return passed(DEVICES, "selected", f"It requests {count}.")

    def _cdi_devices(self) -> Step:
        if explain_rules.mixes_kinds(self.cdi):
            problem = f"It requests {core_text.listed(self.cdi)}, and {self.path} does not mix these kinds"
            advice = "Name all devices as CDI devices, such as nvidia.com/gpu=0, or none of them."
            return failed(DEVICES, "kinds-mixed", problem, advice)
        specifications = self.specifications
        missing = [name for name in self.cdi if name not in specifications.devices]
        if not missing:
            files = dict.fromkeys(specifications.devices[name] for name in self.cdi)
            return passed(DEVICES, "defined", f"{core_text.listed(list(files))} defines the requested devices.")
        where = " or ".join(specifications.folders) or "any directory"
        problem = f"No CDI specification in {where} defines {core_text.listed(missing)}"
        reasons = f" {' '.join(specifications.problems[:2])}" if specifications.problems else ""
        known = [name for name in specifications.devices if name.partition("=")[0] == missing[0].partition("=")[0]]
        have = f" Defined are: {core_text.listed(known)}." if known else ""
        advice = f"Create the specification again with nvidia_cdi_spec, or request a defined device.{have}{reasons}"
        return failed(DEVICES, "cdi-device-missing", problem, advice)

    def _capabilities(self) -> Step:
        capabilities = self.capabilities
        if not self.enforced:
            return passed(CAPABILITIES, "all", "CDI adds the files of all driver capabilities.")
        if capabilities.unsupported:
            names = core_text.listed(sorted(capabilities.unsupported))
            problem = (
                f"{explain_rules.DRIVER_CAPABILITIES} has {names}, which the setting"
                f" {explain_rules.KEYS['supported_capabilities']} in {self.host.config_path} does not permit"
            )
            advice = "Remove the capability from the variable, or add it to the setting."
            return failed(CAPABILITIES, "capabilities-refused", problem, advice)
        missing = sorted(explain_rules.ALL_CAPABILITIES - capabilities.granted)
        rest = f", and not {', '.join(missing)}" if missing else ""
        granted = ", ".join(sorted(capabilities.granted)) or "none"
        return passed(CAPABILITIES, "granted", f"It gets the driver capabilities {granted}{rest}.")

    # -- requirements --------------------------------------------------------------------------------------------

    def requirements(self) -> list[dict[str, t.Any]]:
        """Return each requirement, and whether it is met (None: unknown or invalid)."""
        found, _problem = explain_rules.requirements(self.image, self.host.settings)
        result = []
        for name, text in sorted(found.items()):
            try:
                met = explain_requirements.combined(text, self._facts())
            except explain_requirements.InvalidRequirementError:
                met = None
            result.append({"variable": name, "requirement": text[:_LONGEST], "met": met})
        return result

    def _facts(self) -> list[explain_requirements.Facts]:
        """Return the facts of each selected GPU, or of the driver alone (configure_command() of configure.c)."""
        gpus = self.selection.gpus if self.selection is not None else ()
        driver = explain_requirements.Facts(self.host.cuda, self.host.driver)
        return [driver._replace(arch=gpu.arch, brand=gpu.brand) for gpu in gpus] or [driver]

    def _requirements(self) -> Step:
        found, problem = explain_rules.requirements(self.image, self.host.settings)
        if not found and not problem:
            return passed(REQUIREMENTS, "none", "Its image has no requirements, or they are switched off.")
        if self.mode == explain_rules.CSV:
            message = f"{self.path} checks the requirements of the image in its own way, which is not compared."
            return unknown(REQUIREMENTS, "requirement-unknown", message)
        if not self.enforced:
            return passed(REQUIREMENTS, "not-checked", f"{self.path} does not check the requirements of the image.")
        advice = f"Correct the variable of the image, or set {explain_rules.DISABLE_REQUIRE}=1."
        if problem:
            return failed(REQUIREMENTS, "requirement-invalid", problem, advice)
        for name, text in sorted(found.items()):
            try:
                met = explain_requirements.combined(text, self._facts())
            except explain_requirements.InvalidRequirementError as error:
                return failed(REQUIREMENTS, "requirement-invalid", f"{name} cannot be evaluated: {error}", advice)
            if met is False:
                return self._unmet(name, text)
            if met is None:
                return unknown(REQUIREMENTS, "requirement-unknown", f"Whether {name} is met is not known.")
        return passed(REQUIREMENTS, "met", f"The driver meets {core_text.listed(sorted(found))}.")

    def _unmet(self, name: str, text: str) -> Step:
        driver = f"the driver {self.host.driver or 'of unknown version'}"
        cuda = f" (CUDA {self.host.cuda})" if self.host.cuda else ""
        problem = f"{name} requires {text[:200]}, which {driver}{cuda} of this host does not meet"
        advice = "Install a newer driver, or use an image for an older CUDA version."
        return failed(REQUIREMENTS, "requirement-unmet", problem, advice)

    # -- the container itself ------------------------------------------------------------------------------------

    def start(self) -> Step:
        container = self.container
        if container.error:
            reason = _shown(container.error)
            advice = f"Read the log of {container.engine}, and start the container again after the correction."
            return failed(START, "start-failed", f"{container.engine} could not start it: {reason.rstrip('.')}", advice)
        if container.state == explain_container.CREATED:
            return unknown(START, "not-started", "It has not been started.")
        if container.state == explain_container.EXITED:
            return unknown(START, "exited", "It has exited, so its mounts are not known.")
        return passed(START, "running", "It runs.")

    def _contents(self) -> Step:
        contents, expected = self.contents, self.expected
        if self.container.state != explain_container.RUNNING or not contents.complete:
            return unknown(CONTENTS, "contents-unknown", "What it has is known only while it runs.")
        if not self.comparable:
            return unknown(CONTENTS, "contents-unknown", "The files of WSL and Tegra are not compared.")
        advice = "Create the container again. If that does not help, verify the engine with level: gpu."
        nodes = expected.missing_devices(contents)
        if nodes:
            problem = f"It does not have the device nodes {core_text.listed(nodes)}"
            return failed(CONTENTS, "devices-missing", problem, advice)
        if self.host.driver:
            others = contents.other_versions(self.host.driver)
            if others:
                problem = f"It has {others[0]}, but the loaded driver is {self.host.driver}"
                return failed(CONTENTS, "libraries-stale", problem, "Create the container again.")
        files = expected.missing_files(contents)
        if files:
            return failed(CONTENTS, "files-missing", f"It does not have {core_text.listed(files)}", advice)
        return passed(CONTENTS, "complete", "It has all devices and files that it should have.")

    def success(self) -> str:
        """Return the sentence for a container without a failed step."""
        if not self.devices and not self.cdi:
            return f"The container has {core_text.listed(sorted(self.contents.devices))}."
        have = "has" if self.container.state == explain_container.RUNNING else "gets at its next start"
        if not self.comparable:
            what = core_text.listed(self.devices)
        elif self.generated and self.selection is not None:
            what = f"{len(self.selection.names)} of {len(self.host.gpus)} GPUs of this host"
        else:
            what = core_text.listed(self.cdi)
        return f"The container {have} {what} through {self.path}."

    def details(self) -> dict[str, t.Any]:
        """Return the fields of the result about devices, files, capabilities and requirements."""
        cdi = [] if self.generated else list(self.cdi)
        contents = self.contents
        return {
            "cdi_devices": [
                {"name": name[:_LONGEST], "path": self.specifications.devices.get(name)} for name in cdi[:_MOST]
            ],
            "capabilities": {
                "requested": [name[:_LONGEST] for name in sorted(self.capabilities.requested)[:_MOST]],
                "granted": sorted(self.capabilities.granted) if self.enforced else None,
            },
            "requirements": self.requirements(),
            "requirements_checked": self.enforced or self.mode == explain_rules.CSV,
            "devices": sorted(contents.devices),
            "missing_devices": list(self.expected.missing_devices(contents)) if contents.complete else [],
            "files": sorted(contents.files),
            "missing_files": list(self.expected.missing_files(contents)) if contents.complete else [],
        }


def summarize(
    container: explain_container.Container,
    host: hosts.Host,
    steps: t.Sequence[Step],
    details: t.Mapping[str, t.Any],
    success: str,
) -> dict[str, t.Any]:
    """Return the module's result: the first failed step in one sentence, all steps, and the details."""
    steps = [step._replace(message=step.message[:_LONGEST], advice=step.advice[:_LONGEST]) for step in steps]
    broken = next((step for step in steps if step.ok is False), None)
    message = success if broken is None else f"{container.shown}: {broken.message}"
    swarm = host.settings.swarm_variables
    return {
        "ok": broken is None,
        "code": "ok" if broken is None else broken.code,
        "message": message,
        "advice": "" if broken is None else broken.advice,
        "steps": [step._asdict() for step in steps],
        "container": {
            "engine": container.engine,
            "id": container.identifier,
            "name": container.name,
            "state": container.state,
            "pid": container.pid,
            "error": _shown(container.error),
            "runtime": container.runtime,
            "program": container.program,
            "privileged": container.privileged,
        },
        "environment": {
            name: value[:_LONGEST]
            for name, value in sorted(container.environment.items())
            if name in explain_rules.VARIABLES or name in swarm or name.startswith(explain_rules.REQUIRE)
        },
        "toolkit": {
            "version": host.version,
            "config_path": host.config_path,
            "settings": {
                explain_rules.KEYS[name]: list(value) if isinstance(value, tuple) else value
                for name, value in host.settings._asdict().items()
                if name in explain_rules.KEYS
            },
        },
        **details,
        "requested": [name[:_LONGEST] for name in details["requested"][:_MOST]],
    }


def _shown(text: str) -> str:
    """Return a text of an engine in one line, without secrets."""
    return masking.mask_urls_in_string(" ".join(text.split()))[:_LONGEST]
