# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Explain which GPUs a container has, and the first step at which it did not get more.

``explain`` is pure: it compares what an engine reports about a container (``container.py``) with the host
(``ExplainedHost``), by the rules of the toolkit (``rules.py``). The steps after the injection are in ``result.py``.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import cdi_support, flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import facts as engines_facts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker import facts as docker_facts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    container as explain_container,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    contents as explain_contents,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import host as hosts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    outcome as explain_outcome,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    result as explain_result,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    rules as explain_rules,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import runtime_settings

if t.TYPE_CHECKING:
    Step = explain_result.Step


# The steps, in the order in which they depend on each other.
REQUEST, INJECTION, MODE, SETTINGS = "request", "injection", "mode", "settings"
# What adds the devices: the engine by CDI, a runtime of NVIDIA, or NVIDIA's hook.
BY_ENGINE, BY_RUNTIME, BY_HOOK, BY_NOTHING = "engine", "runtime", "hook", "none"
_NOT_NVIDIA = "runtime-not-nvidia"
# The usual name of NVIDIA's runtime.
_RUNTIME_NAME = "nvidia"
# Codes of failures of the engine, the toolkit and its settings, which a container meets only when it starts. One that
# runs with all of its devices was started before the fault.
_AT_START = (
    *("runtime-unknown", "cdi-disabled", "nri-plugin-missing", "nri-unsupported", "gpus-unsupported"),
    *("program-missing", "mode-unknown", "hook-refused", "config-invalid", "variable-refused", "mounts-refused"),
    "driver-root-missing",
)


def explain(container: explain_container.Container, host: hosts.ExplainedHost) -> dict[str, t.Any]:
    """Return the explanation, as the module documents it."""
    return _Explainer(container, host).explain()


def docker_gpus(host: hosts.ExplainedHost, names: t.Sequence[str]) -> str:
    """Return how Docker handles `--gpus`: BY_ENGINE, BY_HOOK, or BY_NOTHING if it refuses it.

    ``names`` are the CDI devices that it would use.
    """
    version = core_text.parse_version(host.engine_version) or ()
    hook, cdi_hook = (program in host.programs for program in docker_facts.GPUS_PROGRAMS)
    cdi = cdi_hook and host.engine_cdi
    resolves = all(name in host.engine_specifications.devices for name in names)
    if cdi and version >= docker_facts.GPUS_BY_CDI_SINCE and (resolves or not hook):
        return BY_ENGINE
    return BY_HOOK if hook else BY_NOTHING


class _Explainer:
    """The decisions about one container, made in the order of the steps."""

    def __init__(self, container: explain_container.Container, host: hosts.ExplainedHost) -> None:
        self.container, self.host = container, host
        self.by_nri = self._uses_nri()
        if self.by_nri:
            named = dict.fromkeys([*container.cdi_devices, *container.nri_devices])
            container = container._replace(cdi_devices=tuple(named), request_known=True)
        # Network devices, and GPUs of other vendors, are also requested by CDI. So are GPUDirect Storage and IMEX
        # channels, beside GPUs that are requested in another way.
        others = (*container.cdi_devices, *container.as_paths)
        asks = bool(container.gpus or self._asked().devices)
        self.foreign = tuple(
            name for name in others if not _is_of_nvidia(name, host) or (asks and _adds_no_gpu(name, host))
        )
        own = tuple(name for name in container.cdi_devices if name not in self.foreign)
        paths = tuple(name for name in container.as_paths if name not in self.foreign)
        container = container._replace(
            program=host.program or container.program,
            cdi_devices=own,
            as_paths=paths,
            by_annotation=container.by_annotation and bool(own),
        )
        self.container = container
        self.gpu_names = _gpu_names(container)
        self.asked = self._asked()
        self.cdi = container.cdi_devices
        self.gpus_refused = False
        self.injection = self._injection()
        self.image = container.image(self._received())
        self.mode = ""
        self.devices: tuple[str, ...] = ()

    def _uses_nri(self) -> bool:
        """Return whether the annotations for the toolkit's NRI plugin count: it runs, or nothing else is requested."""
        container = self.container
        if not container.nri_devices or self.host.nri_plugin:
            return bool(container.nri_devices)
        return not (container.cdi_devices or container.gpus or self._asked().devices)

    # -- what adds the devices -----------------------------------------------------------------------------------

    def _injection(self) -> str:
        container, host = self.container, self.host
        if self.cdi:
            return BY_ENGINE
        by_docker = BY_NOTHING
        if container.gpus:
            names = explain_rules.cdi_devices(self.gpu_names, runtime_settings.RuntimeSettings(), explain_rules.CDI)
            by_docker = docker_gpus(host, names)
            if by_docker == BY_ENGINE:
                self.cdi = names
                return BY_ENGINE
            self.gpus_refused = by_docker == BY_NOTHING
            if self.gpus_refused:
                # Docker has started it, so at that time a program was on the host.
                return BY_HOOK if container.state == explain_container.RUNNING else BY_NOTHING
        if engines_base.is_nvidia_program(container.program):
            return BY_RUNTIME
        return BY_HOOK if self._has_hook() or by_docker == BY_HOOK else BY_NOTHING

    def _has_hook(self) -> bool:
        """Return whether the container was started with NVIDIA's hook."""
        return any(posixpath.basename(path) in explain_rules.HOOKS for path in self.container.hooks)

    def _received(self) -> dict[str, str]:
        """Return the variables that the runtime and the hook read."""
        container = self.container
        if container.received is not None:
            return dict(container.received)
        found = dict(container.environment)
        if container.gpus and self.injection != BY_ENGINE:
            # setNvidiaGPUs() in daemon/nvidia_linux.go of moby: the variables come after those of the container.
            found[explain_rules.VISIBLE_DEVICES] = ",".join(self.gpu_names) or "void"
            chosen = [name for request in container.gpus for name in request.capabilities]
            known = [name for name in chosen if name in runtime_settings.ALL_CAPABILITIES]
            found.update({explain_rules.DRIVER_CAPABILITIES: ",".join(known)} if known else {})
        # The engine adds the variables of CDI devices to those of the container.
        return {**found, **self.host.engine_specifications.variables(self.foreign)}

    # -- steps ---------------------------------------------------------------------------------------------------

    def explain(self) -> dict[str, t.Any]:
        steps = [self._request()]
        if steps[0].ok is not None:
            steps.append(self._handler())
        if all(map(self._continues, steps)) and self.injection in (BY_RUNTIME, BY_HOOK):
            steps += [self._mode(), self._settings()]
        outcome = self._outcome(self.cdi, self.devices)
        failed = [number for number, step in enumerate(steps) if step.ok is False]
        if failed and all(map(self._continues, steps)) and outcome.lacks_nothing:
            steps = [explain_result.only_at_start(step) if step.ok is False else step for step in steps]
        elif failed:
            steps = steps[: failed[0] + 1]
            outcome = self._outcome(self.container.cdi_devices, ())
        # Without a request, or something that handles it, there is nothing to compare.
        asked = bool(steps[0].ok) and self.injection != BY_NOTHING and all(step.ok is not False for step in steps)
        if steps[0].ok is None:
            steps[0] = steps[0]._replace(message=f"{steps[0].message}{outcome.has_nodes()}")
        steps += outcome.steps() if asked else [outcome.start()]
        details = {
            "mode": self.mode or None,
            "injection": self.injection,
            "requested": list(self._raw_request()),
            **outcome.details(),
        }
        return explain_result.summarize(self.container, self.host, steps, details, outcome.success() if asked else "")

    def _continues(self, step: Step) -> bool:
        """Return whether the next steps are compared after ``step``."""
        is_running = self.container.state == explain_container.RUNNING and self.injection != BY_NOTHING
        return step.ok is not False or (is_running and step.code in _AT_START)

    def _outcome(self, cdi: tuple[str, ...], devices: tuple[str, ...]) -> explain_outcome.Outcome:
        injected = explain_outcome.Injected(self.image, cdi, devices, self._enforced(), self._path(), self.mode)
        return explain_outcome.Outcome(self.container, self.host, injected)

    def _enforced(self) -> bool:
        """Return whether nvidia-container-cli reads driver capabilities and requirements of the image."""
        return self.injection == BY_HOOK or self.mode == explain_rules.LEGACY

    def _path(self) -> str:
        """Return how the devices are added, for messages."""
        if self.injection == BY_ENGINE:
            return f"CDI of {self.container.engine}"
        if self.injection == BY_RUNTIME:
            return f"the runtime {self.container.runtime} in mode {self.mode}"
        return explain_rules.HOOKS[0]

    def _asked(self) -> explain_rules.Visible:
        """Return what the container requests without CDI of the engine and --gpus, whether or not it is permitted."""
        permissive = self.host.settings._replace(accept_variable=True, accept_mounts=True)
        # In mode cdi, annotations are read as well.
        image = self.container.image(self.container.environment)
        return explain_rules.visible_devices(image, permissive, None, explain_rules.CDI)

    def _raw_request(self) -> tuple[str, ...]:
        """Return what the container requests."""
        container = self.container
        if container.cdi_devices or container.as_paths or container.gpus:
            return container.cdi_devices or container.as_paths or self.gpu_names
        return tuple(name or "none" for name in self.asked.devices)

    def _request(self) -> Step:
        requested = self._raw_request()
        named = bool(requested) and requested != ("none",)
        # The engine may have added devices by CDI that it does not report.
        if not self.container.request_known and not (named and self.injection in (BY_RUNTIME, BY_HOOK)):
            message = f"{self.container.engine} does not report what it requests."
            advice = f"If it requests no GPU: {self._advice_to_request()[:1].lower()}{self._advice_to_request()[1:]}"
            return explain_result.unknown(REQUEST, "request-unknown", message, advice)
        if named:
            return explain_result.passed(
                REQUEST, "gpus-requested", f"It requests {core_text.listed(requested)}{self._requested_by()}."
            )
        name = explain_rules.VISIBLE_DEVICES
        if requested:
            problem = f"{name} is none, so it requests the driver's files but no GPU"
            return explain_result.failed(REQUEST, "none-requested", problem, self._advice_to_request())
        value = self.container.environment.get(name)
        shown = f"{name} is {'not set' if value is None else value or 'empty'}"
        cdi = "no CDI device is requested"
        if self.foreign:
            cdi = f"the requested CDI devices are no GPUs of NVIDIA ({core_text.listed(self.foreign)})"
        problem = f"It requests no GPU: {shown}, and {cdi}"
        if explain_contents.contents_of(self.container.config, self.host.mountinfo).devices:
            problem += "; its device nodes come from another option, which adds no files of the driver"
        return explain_result.failed(REQUEST, "no-gpu-requested", problem, self._advice_to_request())

    def _requested_by(self) -> str:
        container = self.container
        if self.by_nri:
            return f" by the annotation {explain_rules.NRI_ANNOTATION} of its pod"
        if container.by_annotation:
            return " by an annotation"
        if container.cdi_devices or container.as_paths:
            return " by CDI"
        if container.gpus:
            return " with --gpus"
        texts = {
            explain_rules.BY_ANNOTATION: " by an annotation",
            explain_rules.BY_MOUNT: f" by mounts in {explain_rules.DEVICE_MOUNTS}",
            explain_rules.BY_IMAGE: f", because its image has {explain_rules.CUDA_VERSION} and no"
            f" {explain_rules.VISIBLE_DEVICES}",
            explain_rules.BY_VARIABLE: f" by {' and '.join(self.asked.variables)}",
        }
        return texts.get(self.asked.source, "")

    def _advice_to_request(self) -> str:
        return _facts(self.container).request_advice

    def _handler(self) -> Step:
        """Return whether something adds the requested devices."""
        container, host = self.container, self.host
        if not container.runtime_known:
            problem = f"{container.engine} has no runtime named {container.runtime}, so it cannot start the container"
            advice = (
                "Register the runtime with nvidia_runtime_config, reload the engine with nvidia_runtime_restart, and"
                " start the container again."
            )
            return explain_result.failed(INJECTION, "runtime-unknown", problem, advice)
        if container.as_paths or (self.injection == BY_ENGINE and not host.engine_reads):
            return self._without_cdi()
        if self.by_nri and not (host.nri_plugin and host.nri_adds):
            return self._without_nri()
        if self.injection == BY_ENGINE:
            if host.engine_cdi is False:
                return self._cdi_off(core_text.listed(self.cdi))
            if host.engine_cdi is None and container.state != explain_container.RUNNING:
                message = f"{container.engine} does not report whether it reads CDI specifications."
                advice = "Look for CDI in the configuration of the engine, or switch it on with nvidia_runtime_config."
                return explain_result.unknown(INJECTION, "cdi-unknown", message, advice)
            return explain_result.passed(
                INJECTION, "cdi", f"{container.engine} adds the devices by CDI.{self._limit()}"
            )
        if self.gpus_refused:
            return self._gpus_unsupported()
        if self.injection == BY_NOTHING:
            return self._not_nvidia()
        program = container.program if self.injection == BY_RUNTIME else explain_rules.HOOKS[0]
        if self.injection == BY_RUNTIME and not host.program_exists:
            problem = f"The program of its runtime, {program}, is not on this host"
            advice = "Install the NVIDIA Container Toolkit, or correct the path with nvidia_runtime_config."
            return explain_result.failed(INJECTION, "program-missing", problem, advice)
        return explain_result.passed(INJECTION, self.injection, f"{program} adds the devices.")

    def _without_cdi(self) -> Step:
        """Return the failed step for a release of the engine that has no CDI, or a client that passes paths."""
        container, host = self.container, self.host
        names = core_text.listed(container.as_paths or self.cdi)
        version = f"{container.engine} {host.engine_version}".rstrip()
        since = cdi_support.first_release(container.engine)
        reason = f"{version} has no CDI, which {container.engine} has from {since} on"
        if host.engine_reads:
            reason = f"the client that has created it has no CDI, so {version} takes the name for a path"
        advice = f"Update {container.engine} to {since} or newer"
        has_gpus = _facts(container).gpus_option
        other = ", or create it again with `--gpus all`" if has_gpus else ", or use the runtime nvidia"
        problem = f"It requests {names}, but {reason}"
        return explain_result.failed(INJECTION, "cdi-unsupported", problem, f"{advice}{other}.")

    def _without_nri(self) -> Step:
        """Return the failed step for an NRI plugin that does not run, or whose devices the engine does not add."""
        engine, names = self.container.engine, core_text.listed(self.container.nri_devices)
        if self.host.nri_plugin:
            problem = (
                f"{engine} {self.host.engine_version} ignores the CDI devices that an NRI plugin requests: {names}"
            )
            advice = f"Update {engine}. {self._advice_to_request()}"
            return explain_result.failed(INJECTION, "nri-unsupported", problem, advice)
        problem = f"Only the NRI plugin of the toolkit adds {names} for an annotation, and it does not run on this host"
        advice = f"Set cdi.nriPluginEnabled of the GPU operator to true. {self._advice_to_request()}"
        return explain_result.failed(INJECTION, "nri-plugin-missing", problem, advice)

    def _limit(self) -> str:
        """Return the condition of the NRI plugin for devices of management, as a sentence; empty for others."""
        kind = explain_rules.MANAGEMENT_KIND
        if not self.by_nri or not any(name.startswith(kind) for name in self.container.nri_devices):
            return ""
        return f" The NRI plugin requests {kind} only in its own namespace, and in those of its option for namespaces."

    def _cdi_off(self, names: str) -> Step:
        problem = f"CDI is off in {self.container.engine}, so it cannot add {names}"
        advice = self.host.cdi_advice or "Switch it on with enable_cdi of nvidia_runtime_config."
        advice = f"{advice} Then create the container again."
        return explain_result.failed(INJECTION, "cdi-disabled", problem, advice)

    def _gpus_unsupported(self) -> Step:
        host = self.host
        version = core_text.parse_version(host.engine_version) or ()
        hook, cdi_hook = docker_facts.GPUS_PROGRAMS
        if host.engine_cdi is False and cdi_hook in host.programs and version >= docker_facts.GPUS_BY_CDI_SINCE:
            return self._cdi_off(f"the GPUs of --gpus, and {hook} is not on this host")
        problem = (
            f"Docker {host.engine_version} finds no program for --gpus: neither {hook} nor, with CDI from"
            f" {core_text.dotted(docker_facts.GPUS_BY_CDI_SINCE)} on, {cdi_hook}"
        )
        advice = "Install the NVIDIA Container Toolkit, and restart Docker, which searches only when it starts."
        return explain_result.failed(INJECTION, "gpus-unsupported", problem, advice)

    def _not_nvidia(self) -> Step:
        container = self.container
        runtime, advice = container.runtime or "unknown", self._advice_for_runtime()
        if runtime == _RUNTIME_NAME == container.program:
            message = f"{container.engine} does not report the program of its runtime {runtime}."
            advice = "Look for the runtime in the configuration of the engine."
            return explain_result.unknown(INJECTION, "program-unknown", message, advice)
        if runtime == _RUNTIME_NAME:
            problem = f"Its runtime {runtime} is the program {container.program}, which is none of NVIDIA's"
            problem = f"{problem} and ignores {self._ignored()}"
            advice = "Register this name for NVIDIA's program with nvidia_runtime_config, and reload the engine."
            return explain_result.failed(INJECTION, _NOT_NVIDIA, problem, advice)
        problem = f"Its runtime is {runtime}, which is not a runtime of NVIDIA and ignores {self._ignored()}"
        if flavors.FACTS[container.engine].cri and self.host.default_nvidia:
            problem = f"{problem}. A runtime of NVIDIA is the default only for new pods"
            advice = (
                "Delete the pod: the kubelet restarts its containers in the old sandbox, with the old runtime. If it"
                " has another runtimeClassName, set that to nvidia."
            )
        return explain_result.failed(INJECTION, _NOT_NVIDIA, problem, advice)

    def _ignored(self) -> str:
        by_variable = self.asked.source == explain_rules.BY_VARIABLE
        return " and ".join(self.asked.variables) if by_variable else "this request"

    def _advice_for_runtime(self) -> str:
        return _facts(self.container).runtime_advice

    def _mode(self) -> Step:
        host, settings, tegra = self.host, self.host.settings, self.host.tegra
        if self.injection == BY_HOOK:
            self.mode = explain_rules.LEGACY
            refused = explain_rules.hook_refuses(self.image, settings, host.version, tegra)
            if refused:
                self.mode = refused
                problem = f"{explain_rules.HOOKS[0]} refuses to run, because the toolkit is in mode {refused}"
                advice = "Create the container with `--runtime nvidia`, or with CDI devices, instead of the hook."
                return explain_result.failed(MODE, "hook-refused", problem, advice)
            return self._programs() or explain_result.passed(MODE, self.mode, "The hook works in mode legacy.")
        mode = explain_rules.resolve_mode(self.image, settings, self.container.program, host.version, tegra)
        self.mode = mode.name
        too_new = mode.name == explain_rules.JIT_CDI and not runtime_settings.is_unified(host.version)
        if mode.name not in explain_rules.RUNTIME_MODES or too_new:
            problem = f"{host.config_path} sets the unknown mode {mode.name}"
            advice = f"Set {runtime_settings.KEYS['mode']} to auto."
            return explain_result.failed(MODE, "mode-unknown", problem, advice)
        reason = {
            "program": f"{posixpath.basename(self.container.program)} has only this mode",
            "config": f"{host.config_path} sets it",
        }.get(mode.chosen_by, f"auto resolves to it with the toolkit {host.version or 'of unknown version'}")
        return self._programs() or explain_result.passed(MODE, mode.name, f"The mode is {mode.name}: {reason}.")

    def _programs(self) -> Step | None:
        """Return the failed step for a mode without its programs; None if they exist, or if the container runs."""
        missing = self.host.missing_programs.get(self.mode, ())
        if not missing or self.container.state == explain_container.RUNNING:
            return None
        problem = f"Mode {self.mode} needs {core_text.listed(missing)}, which this host does not have"
        advice = "Install the NVIDIA Container Toolkit, or correct the paths in config.toml."
        if self.mode == explain_rules.LEGACY:
            advice = (
                "Install all packages of the NVIDIA Container Toolkit (the base package has no hook), correct the paths"
                " in config.toml, or create the container with CDI devices."
            )
        return explain_result.failed(MODE, "program-missing", problem, advice)

    def _settings(self) -> Step:
        """Return whether config.toml permits the request; this sets the devices that are added."""
        host, settings, image = self.host, self.host.settings, self.image
        hook = self.injection == BY_HOOK
        visible = explain_rules.visible_devices(image, settings, host.version, self.mode, hook=hook)
        self.devices = visible.devices or visible.refused
        if self.mode in (explain_rules.CDI, explain_rules.JIT_CDI):
            self.cdi = explain_rules.cdi_devices(self.devices, settings, self.mode)
        invalid = settings.invalid or (settings.refused_by_hook if self.mode == explain_rules.LEGACY else "")
        if host.config_problem or invalid:
            problem = f"The toolkit does not start any container with {host.config_path}"
            reason = host.config_problem or f"{problem}: {invalid}"
            return explain_result.failed(SETTINGS, "config-invalid", reason, runtime_settings.CORRECT_FILE)
        if visible.refused:
            return self._refused(visible)
        if not visible.devices:
            problem = f"{self._path()} reads no request: it ignores {core_text.listed(self._raw_request())}"
            advice = f"Request the GPUs with {explain_rules.VISIBLE_DEVICES}, or by CDI of the engine."
            return explain_result.failed(SETTINGS, "request-ignored", problem, advice)
        refused = explain_rules.refused_variable(image)
        # Only the hook reads these variables.
        if refused and self._enforced():
            problem = f"{refused} is set, which the toolkit permits only in privileged containers"
            advice = "Remove the variable, or create the container with --privileged."
            return explain_result.failed(SETTINGS, "variable-privileged", problem, advice)
        if self._enforced() and settings.no_cgroups and not host.rootless and not image.privileged:
            key = runtime_settings.KEYS["no_cgroups"]
            problem = f"{host.config_path} sets {key}, so the container may not open its GPUs"
            advice = "Set it to false with nvidia_toolkit_config, and use CDI for rootless engines."
            return explain_result.failed(SETTINGS, "cgroups-off", problem, advice)
        if self._enforced() and not settings.no_cgroups and host.rootless:
            key = runtime_settings.KEYS["no_cgroups"]
            problem = f"The hook of a rootless engine may not change device cgroups: {host.config_path} has no {key}"
            advice = "Use CDI for rootless engines, or set the key to true in a config.toml of the user."
            return explain_result.failed(SETTINGS, "cgroups-refused", problem, advice)
        if self._enforced() and not host.has_driver_root:
            problem = f"{host.config_path} names {settings.driver_root} as the driver's directory, which does not exist"
            advice = f"Set {runtime_settings.KEYS['driver_root']} to / with nvidia_toolkit_config."
            return explain_result.failed(SETTINGS, "driver-root-missing", problem, advice)
        return explain_result.passed(SETTINGS, "permitted", f"{host.config_path} permits the request.")

    def _refused(self, visible: explain_rules.Visible) -> Step:
        path, key = self.host.config_path, visible.setting
        if key == runtime_settings.KEYS["accept_mounts"]:
            problem = f"{path} does not accept requests by mounts: {key} is false"
            advice = f"Set {key} to true with nvidia_toolkit_config."
            return explain_result.failed(SETTINGS, "mounts-refused", problem, advice)
        names = " and ".join(visible.variables)
        problem = f"{path} refuses {names} in a container without privileges: {key} is false"
        advice = "Request the GPUs by CDI, or with the device plugin's volume mounts; or set the key to true."
        return explain_result.failed(SETTINGS, "variable-refused", problem, advice)


def _facts(container: explain_container.Container) -> engines_facts.EngineFacts:
    """Return the facts of its engine. The kubelet passes no options of Docker's command line on."""
    facts = flavors.FACTS[container.engine]
    if not container.in_pod:
        return facts
    request, runtime = engines_facts.REQUEST_IN_POD, engines_facts.RUNTIME_OF_POD
    return facts._replace(gpus_option=False, request_advice=request, runtime_advice=runtime)


def _is_of_nvidia(name: str, host: hosts.ExplainedHost) -> bool:
    """Return whether a CDI device is NVIDIA's, by its vendor or by what its specification adds."""
    vendor = name.partition("/")[0]
    nodes = host.engine_specifications.expected([name]).devices
    return f".{vendor}".endswith(".nvidia.com") or any(node.startswith("/dev/nvidia") for node in nodes)


def _adds_no_gpu(name: str, host: hosts.ExplainedHost) -> bool:
    """Return whether a CDI device is known to have no GPU: another class, and no such node in its specification."""
    specifications = host.engine_specifications
    is_known = name in specifications.devices and name.partition("=")[0].rpartition("/")[2] != "gpu"
    return is_known and not specifications.has_gpu_node(name)


def _gpu_names(container: explain_container.Container) -> tuple[str, ...]:
    """Return the devices that `--gpus` requests (getRequestedDevicesIDs() in daemon/nvidia_linux.go of moby)."""
    found: list[str] = []
    for request in container.gpus:
        numbers = ["all"] if request.number < 0 else [str(number) for number in range(min(request.number, 64))]
        found += request.identifiers or numbers
    return tuple(dict.fromkeys(found))
