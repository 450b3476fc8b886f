# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verify an engine from the driver to a container, and report the first check that fails.

The checks of the driver and of CDI are in ``checks``. ``containers`` and ``cri_pods`` start the container, and
``visible_gpus`` compares what it sees with the host.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import cdi_support, flavors, program_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes, procfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import info as gpu_info
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import runtime_settings
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import checks as verify_checks
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import containers as verify_containers
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import (
    cri_pods,
    error_texts,
    host_programs,
    podman_containers,
    visible_gpus,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import injection as verify_injection

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


FILE, LIVE, CONTAINER = "engine file", "live engine", "container"
# Each check depends on those before it.
CHECKS = (
    verify_checks.DRIVER,
    verify_checks.DEVICES,
    FILE,
    LIVE,
    verify_checks.CDI,
    CONTAINER,
)
LEVELS = ("config", "engine", "gpu")
# The command that a container runs for each level. The archive of the host's programs has no "true".
COMMANDS: dict[str, tuple[str, ...]] = {"engine": ("true",), "gpu": visible_gpus.COMMAND}
_ARCHIVE_COMMANDS: dict[str, tuple[str, ...]] = {"engine": ("/bin/sh", "-c", "true"), "gpu": visible_gpus.COMMAND}
# The toolkit's value for no GPU is "void": the runtime starts such a container on every host, with any image.
_VARIABLE, _NO_GPU, _ALL_GPUS = "NVIDIA_VISIBLE_DEVICES", "void", "all"
# The number of output lines that a message quotes.
_QUOTED = 5


class VerifyOptions(t.NamedTuple):
    """The parameters of the task; an empty ``command`` selects the command of the level."""

    engine: str
    flavor: str = core_constants.AUTO
    user: str | None = None
    level: str = "config"
    runtime_name: str = "nvidia"
    method: str = verify_injection.RUNTIME
    image: str | None = None
    pull: bool = False
    command: tuple[str, ...] = ()
    config_path: str | None = None
    service: str | None = None
    socket: str | None = None
    timeout: float = 60.0


class VerificationError(errors.NvidiaError):
    """The error for a check that failed; ``details`` are the module's results."""

    def __init__(self, message: str, details: t.Mapping[str, t.Any]) -> None:
        super().__init__(message)
        self.details = details


class Verification:
    """The verification of one engine on one host, check by check. It changes nothing except the container it starts."""

    def __init__(self, options: VerifyOptions, host: hostfs.HostFS, run: core_plan.Runner) -> None:
        self.options = _normalized(options, host)
        self.host = host
        self.run = run
        target = engines_registry.resolve_target(host, options.engine, options.flavor, options.user, options.service)
        self.engine: engines_base.Engine = target.load()
        installation: engines_base.Installation = self.engine.inspect(host, options.service)
        self.installation = installation._replace(
            socket=self.options.socket or installation.socket,
            config_path=self.options.config_path or installation.config_path,
        )
        self._row = flavors.FLAVORS[target.engine, target.flavor]
        # An engine without a daemon needs no registered runtime and answers no queries.
        self._daemon = self._row.daemon
        self.live: engines_base.LiveState | None = self.engine.live(host, self.installation)
        self.state: engines_base.ConfiguredState | None = None
        self.program: str | None = None
        # How the container gets the GPUs, and the GPUs of the host, each with whether the container sees it.
        self.injection = verify_injection.RUNTIME
        self.gpus: list[tuple[visible_gpus.HostGpu, bool]] = []
        # Why no container is started although no check has failed.
        self.not_verified = ""
        self.output = ""
        self.warnings: list[str] = []

    def execute(self, check_mode: bool) -> dict[str, t.Any]:
        """Return the module's results. Raises VerificationError if a check fails."""
        options = self.options
        checks = [self._check_file()]
        if self.not_verified:
            return self._result(checks)
        checks.append(self._check_live())
        if options.level == "gpu":
            checks += self._gpu_checks()
        if options.level != "config" and _first_failed(checks) is None:
            checks.append(self._check_container(check_mode))
        checks.sort(key=lambda check: CHECKS.index(check.name))
        return self._result(checks)

    def _result(self, checks: t.Sequence[verify_checks.Check]) -> dict[str, t.Any]:
        """Return the module's results. Raises VerificationError if one of ``checks`` failed."""
        failed = _first_failed(checks)
        injection = verify_injection.describe(self.injection, self.engine.name, self.options.runtime_name)
        result = {
            "changed": False,
            "checks": [
                {"name": check.name, "ok": check.ok, "detail": masking.mask_urls(check.detail)} for check in checks
            ],
            "failed_check": failed.name if failed is not None else None,
            "gpus": [{**gpu._asdict(), "nodes": list(gpu.nodes), "seen": seen} for gpu, seen in self.gpus],
            "injection": injection if self.options.level == "gpu" and not self.not_verified else None,
            "output": self.output,
            "summary": self._summary(failed is not None, injection),
            "verified": any(check.name == CONTAINER and check.ok for check in checks),
        }
        if failed is not None:
            messages = [f"{failed.name}: {failed.detail}", failed.advice, *self.warnings]
            raise VerificationError(masking.mask_urls(" ".join(filter(None, messages))), result)
        skipped = [f"{check.name}: {check.detail}" for check in checks if check.ok is None]
        return {**result, "warnings": [masking.mask_urls(warning) for warning in [*skipped, *self.warnings]]}

    def _summary(self, failed: bool, injection: str) -> str:
        """Return the result in a few words, for one line in a report of many hosts."""
        if self.gpus:
            return f"{sum(seen for _gpu, seen in self.gpus)} of {len(self.gpus)} GPUs ({injection})"
        if self.not_verified:
            return f"not verified: {self.not_verified}"
        return "failed" if failed else "verified"

    def _gpu_checks(self) -> list[verify_checks.Check]:
        """Check the driver, its nodes, and the specifications if the engine or the runtime takes the GPUs from them."""
        folders = self._folders_of_injection()
        if folders is None:
            roots = [self._settings().driver_root or "/"]
            return [verify_checks.check_driver(self.host), verify_checks.check_devices(self.host, roots)]
        # A specification has paths of its own.
        devices = verify_checks.check_devices(self.host, device_nodes.DRIVER_ROOTS)
        return [verify_checks.check_driver(self.host), devices, self._check_cdi(folders)]

    def _settings(self) -> runtime_settings.RuntimeSettings:
        return verify_checks.settings_of(self.host, self.program)

    def _folders_of_injection(self) -> tuple[str, ...] | None:
        """Return the directories from which the engine or the runtime takes the GPUs; None if it does not use CDI."""
        if self.injection == verify_injection.CDI:
            return self._cdi_folders()
        settings = self._settings()
        by_runtime = self.injection == verify_injection.RUNTIME
        is_cdi = by_runtime and verify_checks.uses_cdi(self.options.runtime_name, self.program, settings)
        return settings.cdi_folders if is_cdi else None

    def _check_cdi(self, folders: tuple[str, ...]) -> verify_checks.Check:
        try:
            return verify_checks.check_cdi(self.host, folders)
        except errors.HostError as error:
            return verify_checks.failed(verify_checks.CDI, str(error))

    def _cdi_folders(self) -> tuple[str, ...]:
        """Return the directories from which the engine reads CDI specifications."""
        named = engines_base.cdi_folders(self.live, self.state)
        if named is not None:
            return named
        version = self.live.version if self.live is not None else ""
        engine = cdi_support.running_engine(self.engine.name, version, self.host, self.run)
        return engine.folders or core_constants.CDI_SPEC_DIRS

    # -- the engine ----------------------------------------------------------------------------------------------

    def _context(self) -> engines_base.Context:
        version = self.live.version if self.live is not None else None
        version = version or program_version.ask_version(self.engine, self.installation, self.host, self.run)
        return engines_base.HostFiles(self.host, self.engine.key).as_configured(self.installation, version)

    def _check_file(self) -> verify_checks.Check:
        """Check that the engine's files or flags register the runtime, and that its program is on the host."""
        name, engine, path = self.options.runtime_name, self.engine.name, self.installation.config_path
        if not self._daemon:
            self.injection = verify_injection.CDI
        try:
            state = self.state = self.engine.configured(self._context())
        except errors.NvidiaError as error:
            return verify_checks.failed(FILE, str(error))
        if not self._daemon:
            return verify_checks.passed(FILE, f"{engine} needs no registered runtime.")
        if flavors.FACTS[engine].cri_plugin and not state.lists_runtimes:
            problem = f"{path} or a file that it imports disables the CRI of {engine}."
            if self.options.method != verify_injection.RUNTIME:
                self.not_verified = "its CRI is disabled"
                return verify_checks.skipped(FILE, problem)
            return verify_checks.failed(
                FILE,
                problem,
                "Remove the CRI plugin from disabled_plugins, and restart containerd.",
            )
        if self.options.method == verify_injection.CDI:
            self.injection = verify_injection.CDI
            return self._check_cdi_is_on(state)
        flags = self.installation.unit.flag_values("--add-runtime") if self.installation.unit is not None else []
        programs_of_flags = {flag.partition("=")[0]: flag.partition("=")[2] for flag in flags}
        if name not in state.runtimes and name not in state.flagged_runtimes:
            return self._check_other_injection(state)
        self.program = _program_of(state.runtimes.get(name)) or programs_of_flags.get(name)
        if self.program is None:
            return verify_checks.passed(FILE, f"{path} registers {name}, without a program.")
        if self.host.find_executable([self.program]) is None:
            return verify_checks.failed(
                FILE,
                f"{path} registers {name} as {self.program}, which is not an executable file on this host.",
                f"Install the NVIDIA Container Toolkit, or correct {errors.option:runtime_dir} of"
                " nvidia_runtime_config.",
            )
        return verify_checks.passed(FILE, f"{path} registers {name} as {self.program}.")

    def _check_cdi_is_on(self, state: engines_base.ConfiguredState) -> verify_checks.Check:
        """Check that the engine reads CDI specifications. The runtime need not be registered."""
        engine, cdi = self.engine.name, self._cdi(state)
        if cdi:
            return verify_checks.passed(FILE, f"CDI is on in {engine}.")
        usual = f"Set {errors.option:enable_cdi} of nvidia_runtime_config to true."
        advice = flavors.cdi_advice(self._row, engines_base.cdi_folders(self.live, state), usual)
        return verify_checks.failed(
            FILE,
            f"{verify_injection.without_cdi(engine, cdi)} Its configuration is {self.installation.config_path}.",
            advice,
        )

    def _cdi(self, state: engines_base.ConfiguredState) -> bool | None:
        """Return whether the engine reads CDI specifications, None if it is unknown."""
        # CRI-O cannot switch CDI off, and does not report it.
        reported = self.live.cdi if self.live is not None and self.live.cdi is not None else state.cdi
        return flavors.FACTS[self.engine.name].cdi_always or reported

    def _check_other_injection(self, state: engines_base.ConfiguredState) -> verify_checks.Check:
        """Check whether containers get the GPUs without the runtime, which the files do not register."""
        name, path = self.options.runtime_name, self.installation.config_path
        registered = ", ".join(sorted([*state.runtimes, *state.flagged_runtimes])) or "none"
        problem = f"{path} does not register the runtime {name}. Registered runtimes: {registered}."
        if self.options.method == verify_injection.AUTO and self.options.level == "gpu":
            cdi = self._cdi(state)
            specification = self._check_cdi(self._cdi_folders()) if cdi else None
            has_hook = self.host.find_executable([runtime_settings.HOOK]) is not None
            if specification is not None and specification.ok:
                self.injection = verify_injection.CDI
            elif flavors.FACTS[self.engine.name].gpus_option and has_hook:
                self.injection = verify_injection.GPUS
            if self.injection != verify_injection.RUNTIME:
                how = verify_injection.describe(self.injection, self.engine.name, name)
                return verify_checks.passed(FILE, f"{problem} Containers get the GPUs with `{how}`.")
            reason = (
                verify_injection.without_cdi(self.engine.name, cdi) if specification is None else specification.detail
            )
            problem = f"{problem} {reason}"
        return verify_checks.failed(
            FILE, problem, f"Register it with nvidia_runtime_config, or correct {errors.option:runtime_name}."
        )

    def _check_live(self) -> verify_checks.Check:
        """Check that the daemon runs, answers, and has applied its current files."""
        name, engine, installation = self.options.runtime_name, self.engine.name, self.installation
        if not self._daemon:
            return verify_checks.passed(LIVE, f"{engine} has no daemon.")
        if not self.host.live:
            return verify_checks.skipped(LIVE, "An offline tree has no running engine. Only its files were checked.")
        journal = f"Read `journalctl --unit {installation.service}`."
        if installation.pid is None:
            start = f"Start it with `systemctl start {installation.service}`. {journal}"
            return verify_checks.failed(LIVE, f"{engine} does not run as {installation.service}.", start)
        if self.live is None:
            problem = f"{engine} runs, but does not answer on {installation.socket}."
            return verify_checks.failed(
                LIVE, problem, f"{journal} If it listens on another socket, set {errors.option:socket}."
            )
        health_problem = self.engine.health_problem(self.host, installation, self.live, self.state)
        if health_problem is not None:
            return verify_checks.failed(LIVE, f"{engine} runs, but {health_problem.message}.", journal)
        restart = "Restart or reload it with nvidia_runtime_restart."
        by_runtime = self.injection == verify_injection.RUNTIME
        if by_runtime and not self.live.runtimes_unknown and name not in self.live.runtimes:
            reported = ", ".join(sorted(self.live.runtimes)) or "none"
            problem = f"The running {engine} does not have the runtime {name}. Its runtimes: {reported}."
            return verify_checks.failed(LIVE, problem, restart)
        if (
            self.state is not None
            and self.engine.required_action(self.live, self.state) is not engines_base.Action.NONE
        ):
            problem = f"The settings of the running {engine} differ from {installation.config_path}."
            return verify_checks.failed(LIVE, problem, restart)
        if self.live.runtimes_unknown:
            return verify_checks.passed(LIVE, f"{engine} runs with its current files. It does not report its runtimes.")
        version = f"{engine} {self.live.version}".rstrip()
        has = f"has {name}" if by_runtime else "runs with its current files"
        return verify_checks.passed(LIVE, f"The running {version} {has}.")

    # -- the container -------------------------------------------------------------------------------------------

    def _check_container(self, check_mode: bool) -> verify_checks.Check:
        if check_mode:
            self.not_verified = "check mode"
            return verify_checks.skipped(CONTAINER, "No container is started in check mode.")
        if not self.options.image and flavors.FACTS[self.engine.name].cri:
            self.not_verified = "no image"
            problem = f"No container was started, because {self.engine.name} needs an image. Set {errors.option:image}."
            return verify_checks.skipped(CONTAINER, problem)
        try:
            spec = self._container_spec()
            result = self._run_container(spec)
        except verify_containers.ContainerError as error:
            self.output = masking.mask_urls(error.output)
            known = error_texts.find(error.problem)
            found = error.advice or (known.advice if known is not None else self._log_advice())
            advice = _program_advice() if error.no_program else found
            return verify_checks.failed(CONTAINER, f"{error.problem.rstrip('.')}.{self._quoted_output()}", advice)
        except errors.HostError as error:
            return verify_checks.failed(CONTAINER, str(error))
        self.output = masking.mask_urls(result.output)
        detail = f"{self._shown_container(spec)} exited with status {result.status}."
        if result.status:
            no_program = result.status == verify_containers.NO_SUCH_PROGRAM and not spec.archive
            advice = _program_advice() if no_program else self._status_advice(result.status)
            return verify_checks.failed(CONTAINER, f"{detail}{self._quoted_output()}", advice)
        if spec.command in visible_gpus.COMMANDS:
            return self._compare_gpus(by_nodes=spec.command == visible_gpus.NODES_COMMAND)
        return verify_checks.passed(CONTAINER, detail)

    def _container_spec(self) -> verify_containers.ContainerSpec:
        """Return the container to start. Raises HostError if the host's programs cannot be used."""
        options, archive, commands = self.options, b"", COMMANDS
        if not options.image:
            archive, commands = host_programs.archive(self.host), _ARCHIVE_COMMANDS
        gpu, by_runtime = options.level == "gpu", self.injection == verify_injection.RUNTIME
        command = options.command or commands[options.level]
        if command == visible_gpus.COMMAND and self._without_hooks():
            # Without hooks, the container has no links to the libraries, so nvidia-smi does not find NVML.
            command = visible_gpus.NODES_COMMAND
        all_gpus = gpu and self.injection == verify_injection.GPUS
        # Docker sets the variable itself for --gpus. With CDI, a default runtime of NVIDIA must not add GPUs as well.
        variable = {} if all_gpus else {_VARIABLE: _ALL_GPUS if gpu and by_runtime else _NO_GPU}
        return verify_containers.ContainerSpec(
            image=options.image or "",
            command=command,
            runtime=options.runtime_name if by_runtime else "",
            environment=variable,
            timeout=options.timeout,
            devices=(verify_injection.ALL_GPUS,) if gpu and self.injection == verify_injection.CDI else (),
            all_gpus=all_gpus,
            archive=archive,
        )

    def _without_hooks(self) -> bool:
        """Return whether the containers get the GPUs by a CDI specification without hooks (``hooks: none``)."""
        folders = self._folders_of_injection()
        return folders is not None and not verify_checks.has_hooks(self.host, folders, verify_injection.ALL_GPUS)

    def _shown_container(self, spec: verify_containers.ContainerSpec) -> str:
        names: dict[tuple[str, ...], str] = {
            visible_gpus.COMMAND: "nvidia-smi -L",
            visible_gpus.NODES_COMMAND: "ls /dev",
        }
        command = names.get(spec.command) or " ".join(spec.command)
        runtime = f" with the runtime {spec.runtime}" if spec.runtime else ""
        return f"`{command}` in a container of {spec.image or 'the programs of this host'}{runtime}"

    def _compare_gpus(self, by_nodes: bool) -> verify_checks.Check:
        """Compare the GPUs in the container's output with those of the host."""
        devices = gpu_info.describe_gpus(self.host)["devices"]
        view = visible_gpus.view_of(self.output)
        expected = visible_gpus.gpus_of_host(devices, procfs.MigCapabilities(self.host).known_nodes)
        self.gpus = [(gpu, visible_gpus.is_seen(gpu, view)) for gpu in expected]
        if not self.gpus:
            problem = "This host has no GPU that a container can use."
            return verify_checks.failed(CONTAINER, problem, "Create MIG devices, or switch MIG mode off.")
        how = verify_injection.describe(self.injection, self.engine.name, self.options.runtime_name)
        missing = [str(gpu) for gpu, seen in self.gpus if not seen]
        count = f"{len(self.gpus) - len(missing)} of {len(self.gpus)} GPUs"
        detail = f"A container with `{how}` sees {count} of this host."
        if by_nodes:
            detail = f"{detail} Only device nodes were compared, because the CDI specification has no hooks."
        if missing:
            detail = f"{detail} It does not see {core_text.listed(missing)}.{self._quoted_output()}"
            return verify_checks.failed(CONTAINER, detail, self._missing_advice())
        return verify_checks.passed(CONTAINER, detail)

    def _run_container(self, spec: verify_containers.ContainerSpec) -> verify_containers.ContainerResult:
        # Only the holder of the lock starts containers, so all others of this collection are leftovers.
        with lock.host_lock(self.host), lock.interruptible():
            containers = self._containers()
            try:
                return containers.run(spec)
            finally:
                if containers.cleanup_error:
                    self.warnings.append(f"{containers.cleanup_error.rstrip('.')}.")

    def _containers(self) -> verify_containers.Containers:
        socket, binary = self.installation.socket, self.installation.binary
        if self._daemon and not flavors.FACTS[self.engine.name].cri:
            return verify_containers.DockerContainers(self.host.real_path(socket), socket)
        if not self._daemon:
            if binary is None:
                raise verify_containers.ContainerError(
                    f"{self.engine.name} is not installed on this host", "Install it.", started=False
                )
            return podman_containers.PodmanContainers(self.host, self.run, binary)

        status = cri.runtime_config(self.host.real_path(socket)) or {}
        # The containerd of a Kubernetes distribution is another program, whose dump is not used.
        if not flavors.FACTS[self.engine.name].cri_plugin or posixpath.basename(binary or "") != self.engine.program:
            binary = None
        image = cri_pods.sandbox_image(status, binary, self.installation.config_path, self.host, self.run)
        default = self.live.default_runtime if self.live is not None else ""
        runtime = self.options.runtime_name if self.injection == verify_injection.RUNTIME else default
        systemd_cgroup = cri_pods.needs_slice(status, runtime)
        cri_of_host = cri_pods.Cri(self.host, self.engine.name, socket, image, systemd_cgroup, self.options.pull)
        return cri_pods.CriPods(cri_of_host)

    def _status_advice(self, status: int) -> str:
        if status in verify_containers.KILLED:
            return "It was killed. Check the memory of the host, and whether a kubelet removes unknown containers."
        return self._log_advice()

    def _missing_advice(self) -> str:
        if self.injection == verify_injection.CDI:
            return "Create the CDI specification again with nvidia_cdi_spec."
        if self.injection == verify_injection.RUNTIME and not self._settings().accept_variable:
            return (
                "config.toml of the toolkit makes NVIDIA_VISIBLE_DEVICES ineffective in containers without privileges."
                " Verify the GPUs with CDI, or set accept-nvidia-visible-devices-envvar-when-unprivileged to true."
            )
        return self._log_advice()

    def _log_advice(self) -> str:
        if self.injection == verify_injection.GPUS:
            return "Docker searches for nvidia-container-runtime-hook only when it starts. Restart it."
        if not self._daemon:
            return "Run the container by hand with `podman --log-level=debug run`."
        return (
            f"Read `journalctl --unit {self.installation.service}`, and the findings of nvidia_container_info about the"
            " toolkit. To make the runtime log more, set debug of nvidia-container-runtime in its config.toml."
        )

    def _quoted_output(self) -> str:
        lines = self.output.splitlines()[-_QUOTED:]
        return f" Output: {' / '.join(lines)}." if lines else ""


def _program_advice() -> str:
    return f"The image does not contain the program. Set {errors.option:command} or {errors.option:image}."


def _normalized(options: VerifyOptions, host: hostfs.HostFS) -> VerifyOptions:
    """Return the options with normalized paths. Raises NvidiaError for an unusable level or path."""
    if options.level != "config" and not host.live:
        raise errors.NvidiaError(
            f"level {options.level} starts a container, which needs a running host, but {errors.option:host_root}"
            f" {host.root!r} is an offline tree. Use {errors.option:level}: config, or set"
            f" {errors.option:host_root_live}: true if it is the file system of a running host."
        )

    def normalized(name: str, path: str | None) -> str | None:
        return None if path is None else host.check_path(name, path)

    return options._replace(
        config_path=normalized("config_path", options.config_path),
        socket=normalized("socket", options.socket),
    )


def _program_of(entry: t.Any) -> str | None:
    """Return the program of a runtime: its path, or the option BinaryName where Docker has a runtime type."""
    options = entry.get("options") if isinstance(entry, dict) else None
    binary_name = options.get("BinaryName") if isinstance(options, dict) else None
    program = (entry.get("path") if isinstance(entry, dict) else None) or binary_name
    return program if isinstance(program, str) and program else None


def _first_failed(checks: t.Iterable[verify_checks.Check]) -> verify_checks.Check | None:
    return next((check for check in checks if check.ok is False), None)
