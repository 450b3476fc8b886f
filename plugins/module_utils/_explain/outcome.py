# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The steps of an explanation after the injection, from the driver to the access of the container's processes.

The step about devices is in ``selection.py``. It is pure.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    access as explain_access,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    container as explain_container,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    contents as explain_contents,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    devices as explain_devices,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    requirements as explain_requirements,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    result as explain_result,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    rules as explain_rules,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    selection as explain_selection,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import runtime_settings

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import host as hosts

    Step = explain_result.Step


DRIVER, CAPABILITIES, REQUIREMENTS = "driver", "capabilities", "requirements"
START, CONTENTS, ACCESS = "start", "contents", "access"
_AGAIN = "Start the container again"
_LOOK = "Run `nvidia-smi -L` in the container."
# What to do about errors of NVIDIA's programs, by words in them. Only the advice depends on them.
_START_ADVICE = (
    ("could not select device driver", "Restart Docker, which searches the toolkit only when it starts."),
    ("unresolvable CDI devices", "The device is defined now. Start the container again."),
    ("unknown or invalid runtime name", "Docker has this runtime now. Start the container again."),
    ("driver/library version mismatch", "Restart the host, to load the module of the installed driver."),
    ("driver not loaded", "Load the driver with `modprobe nvidia`, and start the container again."),
    ("libnvidia-ml.so.1", "Install the libraries of the driver on the host, and start the container again."),
    ("requirement error", "Install a newer driver, or use an image for an older CUDA version."),
    ("unknown device", "Request GPUs by the numbers or UUIDs that `nvidia-smi -L` prints on the host, or all."),
    ("identifier is not a valid UUID or index", "Request GPUs by number, by UUID, or with all in lower case."),
    ("device cgroup", "Use CDI, or set no-cgroups to false in the config.toml of an engine that runs as root."),
    ("ldcache error", "Correct the setting nvidia-container-cli.ldconfig with nvidia_toolkit_config."),
    ("failed to fulfil mount request", "Write the CDI specification again, and create the container again."),
    ("permission denied", "Look for a denial by SELinux or AppArmor in the kernel's log."),
)


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

    def __init__(self, container: explain_container.Container, host: hosts.ExplainedHost, injected: Injected) -> None:
        self.container, self.host, self.image = container, host, injected.image
        self.enforced, self.path, self.mode = injected.enforced, injected.path, injected.mode
        self.devices = injected.devices
        self.is_running = container.state == explain_container.RUNNING
        self.capabilities = explain_rules.capabilities(self.image, host.settings)
        self.granted = self.capabilities.granted if self.enforced else explain_contents.ALL
        how = explain_selection.How(self.path, self.enforced, self.mode)
        self.selection = explain_selection.Selected(host, injected.cdi, injected.devices, self.granted, how)
        # Only a runtime of NVIDIA changes the config of an engine.
        is_final = container.config_is_final or not injected.devices
        self.contents = explain_contents.contents_of(container.config, host.mountinfo, is_final)
        self.expected = self._with_imex(self.selection.expected)

    def _imex(self) -> tuple[str, ...]:
        """Return the IMEX channels that the toolkit reads from the request."""
        reads = bool(self.devices) and self.selection.generated and self.mode != explain_rules.CSV
        return explain_rules.imex_channels(self.image, self.host.settings) if reads else ()

    def _with_imex(self, expected: explain_contents.Expected) -> explain_contents.Expected:
        ignored = self.host.settings.ignore_imex
        nodes = () if ignored else tuple(f"{explain_rules.IMEX_NODES}/channel{name}" for name in self._imex())
        return expected._replace(devices=(*expected.devices, *nodes))

    @property
    def lacks_nothing(self) -> bool:
        """Whether the container runs, and lacks no device and no file, as far as that is known."""
        contents, expected = self.contents, self.expected
        has_gpu = contents.has_gpu or not contents.nodes_known
        complete = self.is_running and contents.complete and has_gpu and self.selection.comparable
        return complete and not expected.missing_devices(contents) and not expected.missing_files(contents)

    def _at_start(self, name: str, code: str, problem: str, advice: str) -> Step:
        """Return the step for a problem that prevents the start; a remark for a container that lacks nothing."""
        step = explain_result.failed(name, code, problem, advice)
        return explain_result.only_at_start(step) if self.lacks_nothing else step

    def steps(self) -> list[Step]:
        return [
            self._driver(),
            self.selection.step(self.is_running, self.contents),
            self._features(),
            self._capabilities(),
            self._requirements(),
            self.start(),
            self._contents(),
            self._access(),
        ]

    # -- the driver ----------------------------------------------------------------------------------------------

    def _driver(self) -> Step:
        host = self.host
        if not host.comparable:
            code = "driver-unknown" if self.selection.generated else explain_result.NOT_COMPARED
            return explain_result.unknown(DRIVER, code, "The drivers of WSL and Tegra are not checked.")
        if not host.driver_loaded:
            advice = (
                "Install NVIDIA's driver, and load it with `modprobe nvidia`. If that fails, read the kernel's log."
            )
            return explain_result.failed(DRIVER, "driver-missing", "No NVIDIA driver is loaded on this host", advice)
        problem = host.driver_problem
        if problem.code == explain_rules.LIBRARY_DIFFERS and self.selection.generated:
            return self._at_start(DRIVER, *problem)
        if problem.code and problem.code != explain_rules.LIBRARY_DIFFERS:
            return explain_result.failed(DRIVER, *problem)
        if self.selection.generated and host.driver and not self.lacks_nothing:
            step = self._library(host.driver)
            if step is not None:
                return step
        return explain_result.passed(DRIVER, "loaded", f"The driver {host.driver or 'of unknown version'} is loaded.")

    def _library(self, driver: str) -> Step | None:
        """Return the step for a host whose libraries are not those of the loaded module; None if they are."""
        found = {"libnvidia-ml.so.1": self.host.library, "libcuda.so.1": self.host.cuda_library}
        if "compute" not in self.granted:
            del found["libcuda.so.1"]
        others = [name for name, version in found.items() if version != driver]
        if not others:
            return None
        name, library = others[0], found[others[0]]
        if library is None:
            message = f"This host has no {name} in the directories that are searched."
            advice = "Install the libraries of the driver, or correct nvidia-container-cli.root in config.toml."
            return None if self.is_running else explain_result.unknown(DRIVER, "library-unknown", message, advice)
        problem = f"{name} of this host has the version {library}, but the loaded module is {driver}"
        advice = "Restart the host, or load the kernel module of the installed driver."
        return explain_result.failed(DRIVER, explain_rules.LIBRARY_DIFFERS, problem, advice)

    def _features(self) -> Step:
        """Return whether the host has the IMEX channels and other devices that are requested beside the GPUs."""
        name, host, channels = "features", self.host, self._imex()
        if channels and host.settings.ignore_imex:
            problem = (
                f"{host.config_path} ignores its request for IMEX channels: {runtime_settings.KEYS['ignore_imex']}"
            )
            advice = "Set the key to false with nvidia_toolkit_config."
            return explain_result.failed(name, "imex-ignored", problem, advice)
        absent = [channel for channel in channels if channel not in host.imex_channels]
        if absent and not (host.creates_imex and self.enforced):
            problem = f"This host has no IMEX channel {core_text.listed(absent)} in {explain_rules.IMEX_NODES}"
            advice = "Load the module nvidia with NVreg_CreateImexChannel0=1, or do not request the channel."
            return self._at_start(name, "imex-missing", problem, advice)
        reads = bool(self.devices) and (self.selection.generated or self.mode == explain_rules.LEGACY)
        wanted = explain_rules.features(self.image) if reads else ()
        missing = [variable for variable in wanted if variable not in host.features]
        if missing:
            nodes = core_text.listed([node for variable in missing for node in explain_rules.FEATURE_NODES[variable]])
            problem = f"{core_text.listed(missing)} is enabled, but this host has no device nodes {nodes}"
            advice = "Load the kernel module of the feature on the host, or remove the variable."
            return explain_result.failed(name, "feature-missing", problem, advice)
        what = core_text.listed([*(f"IMEX channel {channel}" for channel in channels), *wanted])
        message = f"The host has what it requests beside GPUs: {what}." if what else "It requests nothing beside GPUs."
        return explain_result.passed(name, "features", message)

    def _capabilities(self) -> Step:
        capabilities = self.capabilities
        if not self.enforced:
            return explain_result.passed(CAPABILITIES, "all", "CDI adds the files of all driver capabilities.")
        if capabilities.unsupported:
            names = core_text.listed(sorted(capabilities.unsupported))
            problem = (
                f"{explain_rules.DRIVER_CAPABILITIES} has {names}, which the setting"
                f" {runtime_settings.KEYS['supported_capabilities']} in {self.host.config_path} does not permit"
            )
            advice = "Remove the capability from the variable, or add it to the setting."
            return self._at_start(CAPABILITIES, "capabilities-refused", problem, advice)
        missing = sorted(runtime_settings.ALL_CAPABILITIES - capabilities.granted)
        rest = f", and not {', '.join(missing)}" if missing else ""
        granted = ", ".join(sorted(capabilities.granted)) or "none"
        if "compute" not in capabilities.granted:
            problem = f"It gets only the driver capabilities {granted}, so programs with CUDA find no libcuda"
            advice = f"Add compute to {explain_rules.DRIVER_CAPABILITIES} if the container uses CUDA."
            return explain_result.remark(CAPABILITIES, "no-compute", [(problem, advice)])
        message = f"It gets the driver capabilities {granted}{rest}."
        return explain_result.passed(CAPABILITIES, "granted", message)

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
            result.append({"variable": name, "requirement": text[: explain_result.LONGEST], "met": met})
        return result

    def _facts(self) -> list[explain_requirements.Facts]:
        """Return the facts of each selected GPU, or of the driver alone (configure_command() of configure.c)."""
        driver = explain_requirements.Facts(self.host.cuda, self.host.driver)
        return [driver._replace(arch=gpu.arch, brand=gpu.brand) for gpu in self.selection.gpus] or [driver]

    def _requirements(self) -> Step:
        found, problem = explain_rules.requirements(self.image, self.host.settings)
        if not found and not problem:
            message = "Its image has no requirements, or they are switched off."
            return explain_result.passed(REQUIREMENTS, "none", message)
        if self.mode == explain_rules.CSV:
            message = f"{self.path} checks the requirements of the image in its own way, which is not compared."
            return explain_result.unknown(REQUIREMENTS, "requirement-unknown", message)
        if not self.enforced:
            return self._not_enforced()
        advice = f"Correct the variable of the image, or set {explain_rules.DISABLE_REQUIRE}=1."
        if problem:
            return explain_result.failed(REQUIREMENTS, "requirement-invalid", problem, advice)
        for name, text in sorted(found.items()):
            try:
                met = explain_requirements.combined(text, self._facts())
            except explain_requirements.InvalidRequirementError as error:
                reason = f"{name} cannot be evaluated: {error}"
                return explain_result.failed(REQUIREMENTS, "requirement-invalid", reason, advice)
            if met is False:
                return explain_result.failed(REQUIREMENTS, "requirement-unmet", *self._unmet(name, text))
            if met is None and self.is_running:
                return explain_result.passed(REQUIREMENTS, "met", f"It runs, so the toolkit has found {name} met.")
            if met is None:
                message = f"Whether {name} is met is not known."
                return explain_result.unknown(REQUIREMENTS, "requirement-unknown", message)
        return explain_result.passed(REQUIREMENTS, "met", f"The driver meets {core_text.listed(sorted(found))}.")

    def _not_enforced(self) -> Step:
        """Return the step for a path that does not check requirements: a remark if one is not met."""
        unmet = [row for row in self.requirements() if row["met"] is False]
        if not unmet:
            message = f"{self.path} does not check the requirements of the image."
            return explain_result.passed(REQUIREMENTS, "not-checked", message)
        remarks = [self._unmet(row["variable"], row["requirement"]) for row in unmet[:1]]
        limit = f"This is not checked by {self.path}, but programs of the image may not work"
        remarks = [(f"{problem}. {limit}", advice) for problem, advice in remarks]
        return explain_result.remark(REQUIREMENTS, "not-checked", remarks)

    def _unmet(self, name: str, text: str) -> tuple[str, str]:
        driver = f"the driver {self.host.driver or 'of unknown version'}"
        cuda = f" (CUDA {self.host.cuda})" if self.host.cuda else ""
        problem = f"{name} requires {text[:200]}, which {driver}{cuda} of this host does not meet"
        return problem, "Install a newer driver, or use an image for an older CUDA version."

    # -- the container itself ------------------------------------------------------------------------------------

    def start(self) -> Step:
        container = self.container
        if container.error:
            reason = explain_result.shown(container.error).rstrip(".")
            advice = next((known for words, known in _START_ADVICE if words in container.error), "")
            advice = advice or f"Read the log of {container.engine}. {_AGAIN} after the correction."
            problem = f"{container.engine} could not start it: {reason}"
            return explain_result.failed(START, "start-failed", problem, advice)
        if container.state == explain_container.CREATED:
            return explain_result.unknown(START, explain_result.NOT_STARTED, "It has not been started.")
        if container.state == explain_container.EXITED:
            return explain_result.unknown(START, explain_result.EXITED, "It has exited, so its mounts are not known.")
        return explain_result.passed(START, "running", "It runs.")

    def _contents(self) -> Step:
        contents, expected = self.contents, self.expected
        if not self.is_running:
            message = "What it has is known only while it runs."
            return explain_result.unknown(CONTENTS, explain_result.CONTENTS_LATER, message)
        if not contents.complete:
            message = "The list of its mounts cannot be read."
            return explain_result.unknown(CONTENTS, "contents-unknown", message, _LOOK)
        if not self.selection.comparable:
            message = "The files of WSL and Tegra are not compared."
            return explain_result.unknown(CONTENTS, "contents-unknown", message)
        advice = (
            f"Create the container again. If that does not help, verify the engine with {errors.option:level}: gpu."
        )
        nodes = expected.missing_devices(contents)
        if nodes:
            problem = f"It does not have the device nodes {core_text.listed(nodes)}"
            return explain_result.failed(CONTENTS, "devices-missing", problem, advice)
        stale = self._stale_nodes()
        if stale:
            problem = f"It has {core_text.listed(stale)} with device numbers that the loaded driver does not use"
            return explain_result.failed(CONTENTS, "devices-stale", problem, f"{_AGAIN}.")
        if self.host.driver:
            others = contents.other_versions(self.host.driver)
            if others:
                problem = f"It has {others[0]}, but the loaded driver is {self.host.driver}"
                return explain_result.failed(CONTENTS, "libraries-stale", problem, "Create the container again.")
        files = expected.missing_files(contents)
        if files:
            problem = f"It does not have {core_text.listed(files)}"
            return explain_result.failed(CONTENTS, "files-missing", problem, advice)
        unseen = expected.unseen_devices(contents)
        if unseen:
            message = (
                f"Whether it has {core_text.listed(unseen)} is not known: the OCI config in its bundle is not found."
            )
            return explain_result.unknown(CONTENTS, "contents-unknown", message, _LOOK)
        return explain_result.passed(CONTENTS, "complete", "It has all devices and files that it should have.")

    def _stale_nodes(self) -> list[str]:
        """Return the device nodes of the container whose numbers are not those of the host."""
        host = {path: node.number for path, node in self.host.nodes.items() if path in self.expected.devices}
        made = self.contents.made
        return [path for path, number in host.items() if number and path in made and made[path].number != number]

    # -- access --------------------------------------------------------------------------------------------------

    def _access(self) -> Step:
        """Return whether its processes may open the device nodes, with a remark on CUDA_VISIBLE_DEVICES."""
        denied = self._denied()
        if denied is not None:
            return denied
        count = self.selection.count
        value = self.image.environment.get(explain_devices.CUDA_VISIBLE_DEVICES)
        problem = explain_devices.cuda_problem(value, count)
        if problem:
            advice = f"Remove {explain_devices.CUDA_VISIBLE_DEVICES}, or set it to numbers or UUIDs of GPUs."
            return explain_result.remark(ACCESS, "cuda-limited", [(problem, advice)])
        return explain_result.passed(ACCESS, "permitted", "Nothing that is checked denies it the device nodes.")

    def _denied(self) -> Step | None:
        host, container = self.host, self.container
        wanted = self.expected.devices
        made = {path: node for path, node in self.contents.made.items() if path in wanted and self.is_running}
        # A node that the low-level runtime makes can have another mode than that of the host.
        known = self.contents.mounted if self.is_running and not self.contents.nodes_known else wanted
        nodes = {path: host.nodes[path] for path in wanted if path in host.nodes and path in known}
        closed = explain_access.denied_by_config(container.config, made)
        if closed:
            problem = f"It was started without the permission to read and write {core_text.listed(closed)}"
            advice = "Write the CDI specification again, without permissions for its nodes, and start it again."
            return explain_result.failed(ACCESS, "cgroup-denied", problem, advice)
        denied = explain_access.denied_by_cgroup(host.device_rules, wanted)
        if denied:
            problem = f"Its device cgroup does not permit {core_text.listed(denied)}"
            advice = "Start it again, and use CDI: a reload of systemd removes what the hook has permitted."
            return explain_result.failed(ACCESS, "cgroup-denied", problem, advice)
        # Generated specifications add the groups of the nodes when the container starts.
        later = not self.is_running and not self.enforced
        # The user of a rootless engine is known only from the OCI config.
        user = None if host.rootless and container.config is None else container.user
        own = {**nodes, **made}
        denied, unknown = ((), ()) if later else explain_access.denied_by_mode(own, user)
        if denied:
            node = own[denied[0]]
            problem = (
                f"Its user {container.user.uid if container.user else ''} may not open {core_text.listed(denied)},"
                f" which has the mode {node.mode:04o} and the group {node.gid}"
            )
            advice = f"Add the group {node.gid} to the container, or set NVreg_DeviceFileMode=0666 for the driver."
            return explain_result.failed(ACCESS, "nodes-denied", problem, advice)
        refused, unsure = explain_access.denied_by_selinux(host.selinux, container.config, self.contents.mounted, nodes)
        if refused:
            problem = f"SELinux does not let it open {core_text.listed(refused)}"
            advice = "Run `setsebool -P container_use_devices on`, or use CDI of an engine that runs as root."
            return explain_result.failed(ACCESS, "selinux-denied", problem, advice)
        if unknown or unsure:
            message = f"Whether it may open {core_text.listed(unknown or unsure)} is not known."
            advice = "Look at the user of the container, the mode of the nodes, and the denials of SELinux."
            return explain_result.unknown(ACCESS, "access-unknown", message, advice)
        return None

    # -- result --------------------------------------------------------------------------------------------------

    def success(self) -> str:
        """Return the sentence for a container without a failed step."""
        have = "has" if self.is_running else "gets at its next start"
        return f"The container {have} {self.selection.described} through {self.path}."

    def has_nodes(self) -> str:
        """Return which device nodes it has, as a sentence; empty if it has none."""
        found = sorted(self.contents.devices)
        return f" It has {core_text.listed(found)}." if found else ""

    def details(self) -> dict[str, t.Any]:
        """Return the fields of the result about devices, files, capabilities and requirements."""
        selection, contents = self.selection, self.contents
        cdi = [] if selection.generated else list(selection.cdi)
        longest, most = explain_result.LONGEST, explain_result.MOST
        return {
            "cdi_devices": [
                {"name": name[:longest], "path": selection.specifications.devices.get(name)} for name in cdi[:most]
            ],
            "capabilities": {
                "requested": [name[:longest] for name in sorted(self.capabilities.requested)[:most]],
                "granted": sorted(self.capabilities.granted) if self.enforced else None,
            },
            "requirements": self.requirements(),
            "requirements_checked": self.enforced or self.mode == explain_rules.CSV,
            "devices": sorted(contents.devices),
            "missing_devices": list(self.expected.missing_devices(contents)) if contents.complete else [],
            "files": sorted(contents.files),
            "missing_files": list(self.expected.missing_files(contents)) if contents.complete else [],
        }
