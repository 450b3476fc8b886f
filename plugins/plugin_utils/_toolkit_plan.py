# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide what the role nvidia_toolkit does on a host: its steps, and the options of its tasks. Nothing is read here.

Private to this collection.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _role_state, _toolkit_repository

Values = t.Mapping[str, t.Any]
# The variable of the role with the settings that these functions read, and the results that it registers.
SETTINGS = "nvidia_toolkit_plan_settings"
INFO, SENT = "nvidia_toolkit_info", "nvidia_toolkit_send_result"
_DIRECTORY, _FILES, _REPOSITORY = "directory", "files", "repository"
_INSTALLS_WITHOUT_GPU, _CONFIGURES_WITHOUT_GPU = ("install_only", "configure"), "configure"
_NO_GPU_ACTIONS = {
    "fail": "nvidia_toolkit_when_no_gpu is fail. Set it to skip to leave such hosts unchanged.",
    "skip": "The host is left as it is (nvidia_toolkit_when_no_gpu is skip).",
    "install_only": "The toolkit is installed, the engines are left as they are (nvidia_toolkit_when_no_gpu is"
    " install_only).",
    "configure": "The host is configured like one with a GPU (nvidia_toolkit_when_no_gpu is configure).",
}
# Steps that change nothing on a host.
_WITHOUT_CHANGE = frozenset({"no_gpu"})
# The tags of the playbooks with which the role nvidia_runtime does not run.
_OTHER_TAGS = ("toolkit", "cdi", "always")


class Settings(t.NamedTuple):
    """The settings of the role, which may be set for each host."""

    state: str
    source: str
    when_no_gpu: str
    inspect_engines: bool
    host_root: str
    files: list[str]
    files_on: str
    key_refresh: bool
    check_mode: bool
    run_tags: list[str]
    skip_tags: list[str]
    # That of the role nvidia_runtime.
    runtime_state: str
    repository: _toolkit_repository.Repository

    @classmethod
    def of(cls, values: Values) -> Settings:
        """Read the value of the variable SETTINGS."""
        return cls(
            state=str(values["state"]),
            source=str(values["source"]),
            when_no_gpu=str(values["when_no_gpu"]),
            inspect_engines=boolean(values["inspect_engines"], strict=False),
            host_root=str(values["host_root"]),
            files=[str(path) for path in values["files"] or []],
            files_on=str(values["files_on"]),
            key_refresh=boolean(values["key_refresh"], strict=False),
            check_mode=bool(values["check_mode"]),
            run_tags=[str(tag) for tag in values["run_tags"] or []],
            skip_tags=[str(tag) for tag in values["skip_tags"] or []],
            runtime_state=str(values["runtime_state"]),
            repository=_toolkit_repository.Repository.of(values),
        )

    @property
    def sent(self) -> list[str]:
        """The packages that are sent from the controller."""
        return self.files if (self.source, self.files_on) == (_FILES, "controller") else []


class Host(t.NamedTuple):
    """What the inspection has found. Without one, a host has no package manager, and may have a GPU."""

    manager: str = ""
    has_gpg: bool = True
    files: t.Sequence[str] = ()
    gpu_missing: bool = False
    gpu_message: str = ""

    @classmethod
    def of(cls, info: Values) -> Host:
        """Read the result of nvidia_container_info."""
        toolkit = info.get("toolkit") or {}
        gpu = toolkit.get("gpu") or {}
        return cls(
            manager=toolkit.get("package_manager") or "",
            has_gpg=toolkit.get("gpg", "") is not None,
            files=toolkit.get("repository_files") or (),
            # It is None for a host that cannot be inspected, such as an image.
            gpu_missing=gpu.get("present") is False,
            gpu_message=str(gpu.get("message", "")),
        )


def plan(settings: Settings, host: Host) -> dict[str, t.Any]:
    """Return what the tasks of the role read. It contains no secrets."""
    steps = _steps(settings, host)
    return {
        "install": settings.state == "present" and _installs(settings, host),
        "engines_enabled": not host.gpu_missing or settings.when_no_gpu == _CONFIGURES_WITHOUT_GPU,
        "requires_engines": _requires_engines(settings),
        "steps": steps,
        "file": f"{steps[0] if len(steps) == 1 else 'several_steps'}.yml",
        "no_gpu": f"No GPU was found on this host: {host.gpu_message} {_NO_GPU_ACTIONS.get(settings.when_no_gpu, '')}",
        "staged_key": settings.repository.staged_key,
        "files_to_send": settings.sent,
        "package_cache": toolkit_constants.PACKAGE_CACHE,
    }


def plan_of(variables: Values, settings: Values) -> dict[str, t.Any]:
    """Return the plan, with these variables of the host, and the value of SETTINGS."""
    return plan(Settings.of(settings), Host.of(_role_state.table(variables.get(INFO))))


def options_of_task(variables: Values, settings: Values, given: Values) -> dict[str, t.Any]:
    """Return the options of the role's task that installs the toolkit."""
    sent = _role_state.table(variables.get(SENT)).get("changed") is True
    host = Host.of(_role_state.table(variables.get(INFO)))
    return install_options(Settings.of(settings), host, given, sent)


def _installs(settings: Settings, host: Host) -> bool:
    return not host.gpu_missing or settings.when_no_gpu in _INSTALLS_WITHOUT_GPU


def _requires_engines(settings: Settings) -> bool:
    """Return whether the role nvidia_runtime configures engines later in the play."""
    configured = (settings.state, settings.runtime_state) == ("present", "present") and settings.inspect_engines
    selected = any(tag not in _OTHER_TAGS for tag in settings.run_tags) and "runtime" not in settings.skip_tags
    return configured and selected


def _steps(settings: Settings, host: Host) -> list[str]:
    """Return the names of the task files that this host needs, in their order. A host that is up to date needs none."""
    if settings.state == "absent":
        return ["remove_directory" if settings.source == _DIRECTORY else "remove_packages"]
    installs = _installs(settings, host)
    if installs and settings.host_root != "/" and settings.source not in ("existing", _DIRECTORY):
        return ["refuse_packages"]
    needed = {
        "no_gpu": host.gpu_missing,
        "key": installs and _lacks_key(settings, host),
        "send": installs and bool(settings.sent),
    }
    return [step for step, is_needed in needed.items() if is_needed]


def _lacks_key(settings: Settings, host: Host) -> bool:
    """Return whether the key of the repository is fetched.

    The name of a key file contains the fingerprint, so an existing key need not be fetched again. The installation
    refuses a host that can use no repository, so none is fetched for it.
    """
    if settings.source != _REPOSITORY or settings.host_root != "/" or settings.repository.key:
        return False
    is_missing = settings.repository.staged_key not in host.files
    is_refreshed = settings.key_refresh and not settings.check_mode
    return _toolkit_repository.can_use_key(host.manager, host.has_gpg) and (is_missing or is_refreshed)


def install_options(settings: Settings, host: Host, given: Values, sent_changed: bool) -> dict[str, t.Any]:
    """Return the options of nvidia_toolkit_install.

    Args:
        settings: The settings of the role.
        host: The host.
        given: The options of the role's task, for all sources.
        sent_changed: Whether the task that sends packages has changed something, in check mode too.
    """
    from_packages = settings.source != _DIRECTORY
    # The module refuses those for the other kind of source.
    others = toolkit_constants.OPTIONS_OF_DIRECTORY if from_packages else toolkit_constants.OPTIONS_OF_PACKAGES
    repository = settings.repository
    options = {
        **given,
        "files": _paths(settings),
        "remote_src": from_packages or settings.files_on == "node",
        "pending": bool(settings.sent) and sent_changed,
        "package_cache": toolkit_constants.PACKAGE_CACHE,
        "key_fingerprint": repository.fingerprint,
        "repository_files": repository.files(host.manager) if settings.source == _REPOSITORY else [],
    }
    return {name: value for name, value in options.items() if name not in others}


def options_ahead(settings: Settings, given: Values) -> dict[str, t.Any]:
    """Return the options before the host is known, and the files of the repository for each package manager.

    A toolkit in a directory has none, because the controller may have to send it.
    """
    if settings.source == _DIRECTORY:
        return {}
    by_manager = {name: settings.repository.files(name) for name in _toolkit_repository.MANAGERS}
    return {
        "options": install_options(settings, Host(), given, sent_changed=False),
        "repository_files": by_manager if settings.source == _REPOSITORY else {},
    }


def is_unchanged_before_installation(settings: Settings, host: Host) -> bool:
    """Return whether no task changes this host between its inspection and the installation."""
    return not set(_steps(settings, host)) - _WITHOUT_CHANGE


def _paths(settings: Settings) -> list[str]:
    """Return the packages on the host, or the archives for a directory, which are where files_on says."""
    if settings.sent:
        return [f"{toolkit_constants.PACKAGE_CACHE}/{posixpath.basename(path)}" for path in settings.sent]
    return settings.files if settings.source in (_DIRECTORY, _FILES) else []
