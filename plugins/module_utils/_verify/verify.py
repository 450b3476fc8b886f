# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verify an engine from the driver to a container, and report the first check that fails.

The checks of the driver, the toolkit and CDI are in ``checks``; containers are started by ``containers`` and
``cri_pods``.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import configure as engines_configure
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import checks as verify_checks
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import containers as verify_containers

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


FILE, LIVE, CONTAINER = "engine file", "live engine", "container"
# Each check depends on those before it.
LINKS = (
    verify_checks.DRIVER,
    verify_checks.DEVICES,
    verify_checks.TOOLKIT,
    verify_checks.CONFIG,
    FILE,
    LIVE,
    verify_checks.CDI,
    CONTAINER,
)
LEVELS = ("config", "engine", "gpu")
# The command that a container runs for each level.
COMMANDS = {"engine": ("true",), "gpu": ("nvidia-smi", "-L")}
# The toolkit's value for no GPU is "void": the runtime starts such a container on every host, with any image.
_GPUS = {"engine": "void", "gpu": "all"}
# The exit status of a shell, and the message of a low-level runtime, if the image lacks the program.
_NO_SUCH_PROGRAM, _NOT_FOUND = 127, "executable file not found"
_KILLED = (137, 143)
# The number of output lines that a message quotes.
_QUOTED = 5


class VerifyOptions(t.NamedTuple):
    """The parameters of the task; an empty ``command`` selects the command of the level."""

    engine: str
    flavor: str = core_constants.AUTO
    user: str | None = None
    level: str = "config"
    runtime_name: str = "nvidia"
    image: str | None = None
    command: tuple[str, ...] = ()
    runtime_dir: str | None = None
    config_path: str | None = None
    service: str | None = None
    socket: str | None = None
    timeout: float = 60.0


class BrokenChainError(errors.NvidiaError):
    """The error for a check that failed; ``details`` are the module's results."""

    def __init__(self, message: str, details: t.Mapping[str, t.Any]) -> None:
        super().__init__(message)
        self.details = details


class Verification:
    """The verification of one engine on one host, check by check. It changes nothing except the container it starts."""

    def __init__(self, wanted: VerifyOptions, host: hostfs.HostFS, run: core_plan.Runner) -> None:
        self.wanted = _checked(wanted, host)
        self.host = host
        self.run = run
        target = engines_registry.resolve_target(host, wanted.engine, wanted.flavor, wanted.user, wanted.service)
        self.engine: engines_base.Engine = target.load()
        installation: engines_base.Installation = self.engine.inspect(host, wanted.service)
        self.installation = installation._replace(
            socket=self.wanted.socket or installation.socket,
            config_path=self.wanted.config_path or installation.config_path,
        )
        # An engine without a daemon needs no registered runtime and answers no queries.
        self._daemon = engines_registry.FLAVORS[target.engine, target.flavor].daemon
        self.live: engines_base.LiveState | None = self.engine.live(host, self.installation)
        self.state: engines_base.ConfiguredState | None = None
        self.program: str | None = None
        self.output = ""
        # Whether a container failed for a reason that may lie in the host.
        self.unexplained = False
        self.warnings: list[str] = []

    def execute(self, check_mode: bool) -> dict[str, t.Any]:
        """Return the module's results. Raises BrokenChainError if a check fails."""
        file = self._file()
        checks = [file, self._live()]
        links = verify_checks.GpuChecks(self.host, self.wanted.runtime_name, self.program, self.wanted.runtime_dir)
        if self.wanted.level == "gpu":
            checks += links.checks()
        hint = ""
        if self.wanted.level != "config" and not _broken(checks):
            checks.append(self._container(check_mode))
            if self.unexplained and self.wanted.level == "engine":
                hint = _hint(links)
        checks.sort(key=lambda check: LINKS.index(check.link))
        broken = _broken(checks)
        result = {
            "changed": False,
            "checks": [
                {"link": check.link, "ok": check.ok, "detail": masking.mask_urls(check.detail)} for check in checks
            ],
            "broken": broken.link if broken is not None else None,
            "output": self.output,
        }
        if broken is not None:
            words = [f"{broken.link}: {broken.detail}", broken.advice, hint, *self.warnings]
            raise BrokenChainError(masking.mask_urls(" ".join(word for word in words if word)), result)
        skipped = [f"{check.link}: {check.detail}" for check in checks if check.ok is None]
        return {**result, "warnings": [masking.mask_urls(warning) for warning in [*skipped, *self.warnings]]}

    # -- the engine ----------------------------------------------------------------------------------------------

    def _context(self) -> engines_base.Context:
        version = self.live.version if self.live is not None else None
        version = version or engines_configure.ask_version(self.engine, self.installation, self.host, self.run)
        return engines_base.HostFiles(self.host, self.engine.key).as_configured(self.installation, version)

    def _file(self) -> verify_checks.Check:
        """Check that the engine's files or flags register the runtime, and that its program is on the host."""
        name, engine, path = self.wanted.runtime_name, self.engine.name, self.installation.config_path
        if not self._daemon:
            return verify_checks.skipped(FILE, f"No runtime is registered with {engine}: it needs none.")
        try:
            state = self.state = self.engine.configured(self._context())
        except errors.NvidiaError as error:
            return verify_checks.failed(FILE, str(error))
        if engine == "containerd" and not state.lists_runtimes:
            return verify_checks.failed(
                FILE,
                f"{path} or a file that it imports switches containerd's CRI off.",
                "Take it out of disabled_plugins there, and restart containerd.",
            )
        flags = self.installation.unit.flag_values("--add-runtime") if self.installation.unit is not None else []
        flagged = {flag.partition("=")[0]: flag.partition("=")[2] for flag in flags}
        if name not in state.runtimes and name not in state.flagged_runtimes:
            known = ", ".join(sorted([*state.runtimes, *state.flagged_runtimes])) or "none"
            return verify_checks.failed(
                FILE,
                f"{path} and what belongs to it register no runtime {name}. Registered: {known}.",
                "Register it with nvidia_runtime_config, or correct runtime_name.",
            )
        self.program = _program_of(state.runtimes.get(name)) or flagged.get(name)
        if self.program is None:
            return verify_checks.passed(FILE, f"{path} registers {name}, without a program of its own.")
        if self.host.find_executable([self.program]) is None:
            return verify_checks.failed(
                FILE,
                f"{path} registers {name} as {self.program}, which is no executable file on this host.",
                "Install the NVIDIA Container Toolkit, or correct runtime_dir when registering it.",
            )
        return verify_checks.passed(FILE, f"{path} registers {name} as {self.program}.")

    def _live(self) -> verify_checks.Check:
        """Check that the daemon runs, answers, and has applied its current files."""
        name, engine, installation = self.wanted.runtime_name, self.engine.name, self.installation
        if not self._daemon:
            return verify_checks.skipped(LIVE, f"{engine} has no daemon.")
        if not self.host.live:
            return verify_checks.skipped(
                LIVE, f"An offline tree has no running {engine}: only its files were looked at."
            )
        journal = f"Look at journalctl --unit {installation.service}."
        if installation.pid is None:
            start = f"Start it with systemctl start {installation.service}; if it does not stay, look at its journal."
            return verify_checks.failed(LIVE, f"{engine} does not run as {installation.service}.", start)
        if self.live is None:
            problem = f"{engine} runs, but does not answer on {installation.socket}."
            return verify_checks.failed(LIVE, problem, f"{journal} If it listens elsewhere, name that in socket.")
        health_problem = self.engine.health_problem(self.host, installation, self.live, self.state)
        if health_problem is not None:
            return verify_checks.failed(LIVE, f"{engine} runs, but {health_problem.message}.", journal)
        restart = "Let it take its files over with nvidia_runtime_restart."
        if not self.live.runtimes_unknown and name not in self.live.runtimes:
            known = ", ".join(sorted(self.live.runtimes)) or "none"
            return verify_checks.failed(
                LIVE, f"The running {engine} knows no runtime {name}. It knows: {known}.", restart
            )
        if (
            self.state is not None
            and self.engine.required_action(self.live, self.state) is not engines_base.Action.NONE
        ):
            problem = f"{engine} runs with something else than {installation.config_path} says by now."
            return verify_checks.failed(LIVE, problem, restart)
        if self.live.runtimes_unknown:
            told = f"{engine} runs and has read its files as they are; it does not tell which runtimes it knows."
            return verify_checks.passed(LIVE, told)
        return verify_checks.passed(LIVE, f"The running {f'{engine} {self.live.version}'.rstrip()} knows {name}.")

    # -- the container -------------------------------------------------------------------------------------------

    def _container(self, check_mode: bool) -> verify_checks.Check:
        wanted = self.wanted
        if check_mode:
            return verify_checks.skipped(CONTAINER, "No container is started in check mode.")
        order = verify_containers.ContainerSpec(
            image=wanted.image or "",
            command=wanted.command or COMMANDS[wanted.level],
            runtime=wanted.runtime_name if self._daemon else self.engine.name,
            environment={"NVIDIA_VISIBLE_DEVICES": _GPUS[wanted.level]},
            timeout=wanted.timeout,
        )
        try:
            end = self._started(order)
        except verify_containers.NotRunError as error:
            self.output = masking.mask_urls(error.output)
            lacking = _NOT_FOUND in error.problem
            self.unexplained = error.tried and not lacking
            advice = self._about_program() if lacking else error.advice or self._look()
            return verify_checks.failed(CONTAINER, f"{error.problem.rstrip('.')}.{self._quoted()}", advice)
        self.output = masking.mask_urls(end.output)
        ran = f"{' '.join(order.command)} in a container of {order.image}, started through {order.runtime},"
        if end.status:
            self.unexplained = end.status != _NO_SUCH_PROGRAM
            return verify_checks.failed(
                CONTAINER, f"{ran} ended with status {end.status}.{self._quoted()}", self._meaning(end.status)
            )
        return verify_checks.passed(CONTAINER, f"{ran} ended with status 0.")

    def _started(self, order: verify_containers.ContainerSpec) -> verify_containers.ContainerResult:
        # Only the levels engine and gpu need these imports.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock  # noqa: PLC0415

        # Only the holder of the lock starts containers, so all others of this collection are leftovers.
        with lock.host_lock(self.host), verify_containers.interruptible():
            containers = self._containers()
            try:
                return containers.run(order)
            finally:
                if containers.left_behind:
                    self.warnings.append(f"{containers.left_behind.rstrip('.')}.")

    def _containers(self) -> verify_containers.Containers:
        socket = self.installation.socket
        if self.engine.name == "docker":
            return verify_containers.DockerContainers(self.host.real_path(socket), socket)
        if not self._daemon:
            return self._podman_containers()
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri  # noqa: PLC0415
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import cri_pods  # noqa: PLC0415

        said = cri.runtime_config(self.host.real_path(socket))
        told = said or {}
        # The containerd of a Kubernetes distribution is another program, whose dump is not used.
        binary = self.installation.binary
        if self.engine.name != "containerd" or posixpath.basename(binary or "") != self.engine.program:
            binary = None
        image = cri_pods.sandbox_image(told, binary, self.installation.config_path, self.host, self.run)
        return cri_pods.CriPods(
            cri_pods.Cri(
                self.host, self.engine.name, socket, image, cri_pods.wants_slice(told, self.wanted.runtime_name)
            )
        )

    def _podman_containers(self) -> verify_containers.Containers:

        binary = self.installation.binary
        if binary is None:
            raise verify_containers.NotRunError(
                f"There is no {self.engine.name} on this host", "Install it.", tried=False
            )
        devices = [verify_containers.ALL_GPUS] if self.wanted.level == "gpu" else []
        return verify_containers.PodmanContainers(self.host, self.run, binary, devices)

    def _meaning(self, status: int) -> str:
        if status == _NO_SUCH_PROGRAM:
            return self._about_program()
        if status in _KILLED:
            return "It was killed: for want of memory, or by somebody who does not know it, such as a kubelet."
        return self._look()

    def _about_program(self) -> str:
        if self.wanted.level == "gpu" and not self.wanted.command:
            return "The runtime brings nvidia-smi along if it is installed on the host beside the driver."
        return "The image has no such program: name another command or image."

    def _look(self) -> str:
        if not self._daemon:
            return "Start it by hand, with podman --log-level=debug run."
        return (
            f"Look at journalctl --unit {self.installation.service}. The runtime tells more with the setting debug of"
            " nvidia-container-runtime in the toolkit's config.toml."
        )

    def _quoted(self) -> str:
        lines = self.output.splitlines()[-_QUOTED:]
        return f" It said: {' / '.join(lines)}." if lines else ""


def _checked(wanted: VerifyOptions, host: hostfs.HostFS) -> VerifyOptions:
    """Return the options with normalized paths. Raises NvidiaError for an unusable level or path."""
    if wanted.level != "config" and not host.live:
        raise errors.NvidiaError(
            f"level {wanted.level} starts a container, which needs a running host, and host_root {host.root!r} is an"
            " offline tree. Use level: config, or set host_root_live: true if it is the file system of a running host."
        )

    def normal(name: str, path: str | None) -> str | None:
        return None if path is None else host.check_path(name, path)

    return wanted._replace(
        runtime_dir=normal("runtime_dir", wanted.runtime_dir),
        config_path=normal("config_path", wanted.config_path),
        socket=normal("socket", wanted.socket),
    )


def _program_of(entry: t.Any) -> str | None:
    """Return the program of a runtime: its path, or the option BinaryName where Docker has a runtime type."""
    options = entry.get("options") if isinstance(entry, dict) else None
    named = options.get("BinaryName") if isinstance(options, dict) else None
    program = (entry.get("path") if isinstance(entry, dict) else None) or named
    return program if isinstance(program, str) and program else None


def _broken(checks: t.Iterable[verify_checks.Check]) -> verify_checks.Check | None:
    return next((check for check in checks if check.ok is False), None)


def _hint(links: verify_checks.GpuChecks) -> str:
    """Return the check that probably explains a failed container; a host without GPUs fails all of them."""
    try:
        broken = _broken(links.checks())
    except errors.MissingPackageError:
        # Asking the controller for the package would start the container a second time.
        return ""
    return f"Of what a GPU needs, this is not right either: {broken.link}: {broken.detail}" if broken else ""
