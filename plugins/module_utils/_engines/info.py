# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report the engines of a host, without changing or starting anything."""

from __future__ import annotations

import signal
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import program_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import rootless

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# Seconds for one engine. Each read has its own limit, but a hundred imports of 4 MiB or a hung program add up.
TIMEOUT = 30.0
# Seconds until work that was interrupted during its cleanup is interrupted again.
_REPEAT = 1.0


class _TimeoutError(BaseException):
    """One engine took too long. Code that catches Exception does not catch this error."""


def describe_engines(host: hostfs.HostFS, run: core_plan.Runner) -> tuple[list[dict[str, t.Any]], str | None]:
    """Return a description of every engine on ``host``, in every flavor. An unusual engine yields problems, no error.

    The second value names the Python package that is missing if files could not be read without it, otherwise it is
    None.
    """
    inspections = [_Inspection(target, host, run) for target in engines_registry.targets_on(host)]
    described = [inspection.describe() for inspection in inspections]
    described += _engines_of_users(host, [engine["target"] for engine in described])
    missing = (inspection.missing_package for inspection in inspections)
    return described, next((package for package in missing if package is not None), None)


def _unknown(target: engines_registry.Target) -> dict[str, t.Any]:
    """Return the description of an engine before it is inspected."""
    return {
        "engine": target.engine,
        "flavor": target.flavor,
        "user": target.user,
        "target": str(target),
        "inspected": True,
        "readable": True,
        "installed": False,
        "binary": None,
        "version": None,
        "running": False,
        "service": None,
        "unit_files": [],
        "socket": None,
        "config_path": None,
        "runtimes": {},
        "default_runtime": None,
        "cdi_directories": None,
        "recorded_files": [],
        "live": None,
        "restart_required": False,
        "missed_toolkit": False,
        "unfinished_restart": False,
        "problems": [],
    }


def _engines_of_users(host: hostfs.HostFS, described: t.Collection[str]) -> t.Iterator[dict[str, t.Any]]:
    """Yield what is known of other users' engines. No file that these users control is opened."""
    for user in rootless.running_engines(host):
        target = engines_registry.Target("docker", "rootless", user)
        if str(target) in described:
            continue
        yield {**_unknown(target), "inspected": False, "installed": True, "running": True}


class _Inspection:
    """The inspection of one engine. A part that cannot be read becomes a problem. The other parts are reported."""

    def __init__(self, target: engines_registry.Target, host: hostfs.HostFS, run: core_plan.Runner) -> None:
        self.missing_package: str | None = None
        self._target = target
        self._engine = target.load()
        self._host = host
        self._run = run
        self._problems: list[errors.Problem] = []

    def describe(self) -> dict[str, t.Any]:
        engine = self._engine
        described = {
            **_unknown(self._target),
            "config_path": engine.config_path,
            "default_runtime": engine.default_runtime,
        }
        if not in_time(TIMEOUT, lambda: self._fill(described)):
            message = f"The inspection of {self._target} took longer than {TIMEOUT:g} seconds and was stopped."
            advice = "Restart the engine if it hangs, and check its configuration for very large files."
            self._problems.append(errors.Problem("inspection-incomplete", message, advice))
        return {**described, "problems": errors.as_dicts(dict.fromkeys(self._problems))}

    def _fill(self, described: dict[str, t.Any]) -> None:
        engine, host = self._engine, self._host
        if not self._add(described, self._installed):
            described["readable"] = False
        self._add(
            described,
            lambda: {"recorded_files": [record.path for record in core_records.load_records(host, engine.key)]},
        )
        restart = core_records.restart_journal_path(engine.key, core_records.state_dir(host, engine.key))
        self._add(described, lambda: {"unfinished_restart": host.lexists(restart)})

    def _add(self, described: dict[str, t.Any], inspect: t.Callable[[], dict[str, t.Any]]) -> bool:
        """Add the result of ``inspect`` to ``described``, or a problem if it fails. Return whether it succeeded."""
        try:
            described.update(inspect())
        except errors.NvidiaError as error:
            if isinstance(error, errors.MissingPackageError):
                self.missing_package = self.missing_package or error.details.get("needed")
            self._problems.append(errors.Problem.of(error))
        except Exception as error:  # noqa: BLE001 - daemons and files of users may contain anything
            message = f"The configuration of {self._target} cannot be read ({type(error).__name__})."
            self._problems.append(errors.Problem(errors.NvidiaError.code, message, "Check its files."))
        else:
            return True
        return False

    def _installed(self) -> dict[str, t.Any]:
        engine, host = self._engine, self._host
        installation = engine.inspect(host)
        self._problems += installation.problems()
        live = engine.live(host, installation)
        if installation.pid is not None and live is None:
            message = f"{engine.name} runs but does not answer on {installation.socket}."
            self._problems.append(errors.Problem("engine-not-responding", message, "Restart it if it hangs."))
        version = (live.version if live is not None else None) or program_version.ask_version(
            engine, installation, host, self._run
        )
        release_problem = engine.release_problem(version)
        if release_problem is not None:
            self._problems.append(release_problem)
        found: dict[str, t.Any] = {
            "installed": installation.installed,
            "binary": installation.binary,
            "version": version,
            "running": installation.pid is not None,
            "service": installation.service if installation.unit is not None else None,
            "unit_files": [] if installation.unit is None else [installation.unit.path, *installation.unit.drop_ins],
            "socket": installation.socket or None,
            "config_path": installation.config_path,
            "live": None if live is None else _describe_live(live),
            "missed_toolkit": bool(engine.missed_toolkit(host, installation, version)),
        }
        files = self._add(found, lambda: _describe_files(engine, host, installation, live, version))
        # Files that a removed engine has left are not read by anything.
        return {**found, "readable": files or not installation.installed}


def _describe_files(
    engine: engines_base.Engine,
    host: hostfs.HostFS,
    installation: engines_base.Installation,
    live: engines_base.LiveState | None,
    version: str | None,
) -> dict[str, t.Any]:
    state = engine.configured(engines_base.HostFiles(host, engine.key).as_configured(installation, version))
    folders = engines_base.cdi_folders(live, state)
    return {
        "runtimes": state.paths(),
        "default_runtime": state.default_runtime or engine.default_runtime,
        "cdi_directories": None if folders is None else list(folders),
        "restart_required": live is not None and bool(engine.required_action(live, state)),
    }


def _describe_live(live: engines_base.LiveState) -> dict[str, t.Any]:
    return {
        "version": live.version,
        "runtimes": live.runtimes,
        "default_runtime": live.default_runtime,
        "cdi": live.cdi,
        "live_restore": live.live_restore,
        "running_containers": live.running_containers,
    }


def in_time(seconds: float, work: t.Callable[[], None]) -> bool:
    """Return whether ``work`` ended within ``seconds``. If not, a signal interrupts it.

    A signal ends a computation as well as a wait, and needs no second process. A command that ``work`` waited for ends
    by its own time limit.
    """

    def interrupt(_number: int, _frame: object) -> t.NoReturn:
        raise _TimeoutError

    try:
        before = signal.signal(signal.SIGALRM, interrupt)
    except ValueError:
        # Only the main thread gets signals. In other threads only the limits of each read apply.
        work()
        return True
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT)
            work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _TimeoutError:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return True
