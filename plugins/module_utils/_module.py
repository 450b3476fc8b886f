# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The only file that imports AnsibleModule: parameters, commands, diff and exit."""

from __future__ import annotations

import contextlib
import copy
import json
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import compile_once

# Modules import this file first (ruff sorts it so), and this file imports compile_once first. All other imports then
# compile each file once.
compile_once.compile_once(__spec__.loader)

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled, hostfs, trusted_paths  # noqa: E402
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants  # noqa: E402
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors  # noqa: E402
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import variables as core_variables  # noqa: E402
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking  # noqa: E402

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule
    from ansible.module_utils.common.arg_spec import ValidationResult

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan

    # The type of a module for files that do not import Ansible.
    Module = AnsibleModule


# Seconds for a command. The commands that use this limit end within one second.
TIMEOUT = 60
# The environment of every command: English messages, no questions (debconf), and no automatic restart of daemons
# (needrestart).
ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "LANGUAGE": "C",
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
    "NEEDRESTART_MODE": "l",
}
# The exit status of timeout(1) for a command that does not end, and of shells for a command that does not exist.
_TIMED_OUT, _NOT_FOUND = 124, 127
# timeout(1) sends SIGKILL to a command that ignores SIGTERM, and to itself.
_KILLED = (137, -9)

# The options of the doc fragment host_root.
HOST_ROOT_OPTIONS: dict[str, dict[str, t.Any]] = {
    "host_root": {"type": "path", "default": "/"},
    "host_root_live": {"type": "bool", "default": False},
}
# The option of the doc fragment predicted_toolkit.
PREDICTED_OPTIONS: dict[str, dict[str, t.Any]] = {
    "predicted_toolkit": {
        "type": "dict",
        "options": {
            "version": {"type": "str"},
            "programs": {"type": "list", "elements": "path", "required": True},
        },
    }
}
# The action plugin sets this option (plugin_utils/_bundled.py): the packed packages by name, which are not logged,
# because they are long.
BUNDLED_OPTIONS: dict[str, dict[str, t.Any]] = {core_constants.BUNDLED: {"type": "dict", "no_log": True}}


def new_module(argument_spec: dict[str, dict[str, t.Any]], **rules: t.Any) -> AnsibleModule:
    """Return an AnsibleModule with check mode that hides the secrets in its parameters from logs and results.

    ``rules`` are the rules of AnsibleModule for several parameters, such as ``required_if``.

    The secrets are registered when the parameters are loaded, because AnsibleModule logs the parameters in its
    constructor. Only the secret values are registered, so that all other text stays readable.
    """
    # The unit tests also run without Ansible.
    from ansible.module_utils.basic import AnsibleModule  # noqa: PLC0415

    class MaskingModule(AnsibleModule):
        def _load_params(self) -> None:
            super()._load_params()  # type: ignore[no-untyped-call]
            _hide_secrets(self, self.params, self.argument_spec)

    return MaskingModule(argument_spec, supports_check_mode=True, **rules)  # type: ignore[no-untyped-call]


def _hide_secrets(module: AnsibleModule, params: t.Mapping[str, t.Any], spec: t.Mapping[str, t.Any]) -> None:
    # The unit tests also run without Ansible.
    from ansible.module_utils.common.validation import check_type_dict  # noqa: PLC0415

    for name, given in params.items():
        value = given
        # Packages from the controller are long and contain no secrets.
        if name == core_constants.BUNDLED:
            continue
        if isinstance(value, str) and spec.get(name, {}).get("type") == "dict":
            with contextlib.suppress(TypeError):
                value = check_type_dict(value)
        for secret in masking.secrets_of({name: value}):
            if len(secret) >= masking.SHORTEST_HIDDEN:
                # Logs contain dictionaries in Python syntax, and results may contain them in JSON.
                module.no_log_values.update((secret, repr(secret)[1:-1], json.dumps(secret)[1:-1]))


def with_options(
    module: AnsibleModule, spec: dict[str, dict[str, t.Any]], options: t.Mapping[str, t.Any]
) -> AnsibleModule:
    """Return a copy of the module with the options of another one. The result of ``module`` hides its secrets too.

    Raises NvidiaError for options that Ansible refuses.
    """
    _hide_secrets(module, options, spec)
    validated = _validated("", spec, options)
    module.no_log_values.update(validated._no_log_values)  # noqa: SLF001 - no public attribute has them
    other = copy.copy(module)
    internal = {name: module.params[name] for name in BUNDLED_OPTIONS}
    other.params, other.argument_spec = {**validated.validated_parameters, **internal}, spec
    return other


def checked_options(name: str, spec: t.Mapping[str, t.Any], values: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return the value of the option ``name``, which has the options in ``spec``, with their types and defaults.

    Raises NvidiaError for values that Ansible refuses.
    """
    return dict(_validated(f"{name}: ", spec, values).validated_parameters)


def _validated(place: str, spec: t.Mapping[str, t.Any], values: t.Mapping[str, t.Any]) -> ValidationResult:
    # The unit tests also run without Ansible.
    from ansible.module_utils.common.arg_spec import ArgumentSpecValidator  # noqa: PLC0415

    validated: ValidationResult = ArgumentSpecValidator({**spec}).validate(values)
    if validated.error_messages:
        raise core_errors.NvidiaError(f"{place}{'; '.join(validated.error_messages)}. Correct it.")
    return validated


def load_bundled_packages(module: AnsibleModule) -> None:
    """Make the packages importable that the controller has sent with the task."""
    packages = module.params.get(core_constants.BUNDLED)
    if packages:
        bundled.register(packages)


def host_from_params(module: AnsibleModule) -> hostfs.HostFS:
    """Return the host that the task's parameters name. In check mode it has the programs of ``predicted_toolkit``.

    Raises HostError, also for a tree into which writing, or from which running programs, is not safe.
    """
    host = hostfs.HostFS.of(module.params["host_root"], module.params["host_root_live"])
    # All modules that write have the parameter backup_dir. All modules run programs of a live tree.
    if host.root != "/" and (host.live or "backup_dir" in module.params):
        trusted_paths.require_trusted_root(host)
    require_trusted_options(module, host)
    if module.params.get("predicted_toolkit") and module.check_mode:
        host = host.with_programs(**module.params["predicted_toolkit"])
    return host if host.root != "/" or not module.selinux_enabled() else host._replace(label_of=_selinux_policy(module))


def require_trusted_options(module: AnsibleModule, host: hostfs.HostFS) -> None:
    """Raise HostError if an option names files of root that another user can replace."""
    trusted_paths.require_trusted_options(host, module.params, getattr(module, "argument_spec", {}))


def _selinux_policy(module: AnsibleModule) -> t.Callable[[str], str | None]:
    """Return a function that gives the SELinux label of the policy for a path; None if the policy has none."""

    def label_of(path: str) -> str | None:
        parts = module.selinux_default_context(path)
        return ":".join(parts) if all(parts) else None

    return label_of


def command_runner(module: AnsibleModule, limit: int | None = TIMEOUT) -> t.Callable[[list[str]], tuple[int, str, str]]:
    """Return a runner of commands with a time limit of ``limit`` seconds; None sets no limit.

    The messages of a command are in English, so that this collection can parse them, and it asks no questions. A
    command that does not exist or does not end in time also returns a status and a message, because the caller may have
    to clean up before the task ends.
    """

    def run(argv: list[str]) -> tuple[int, str, str]:
        timeout = None if limit is None else module.get_bin_path("timeout")
        limited = [timeout, "-k", "5", str(limit), *argv] if timeout else argv
        start = time.monotonic()
        try:
            status, output, errors = module.run_command(
                limited, environ_update=ENVIRONMENT, handle_exceptions=False, expand_user_and_vars=False
            )
        except OSError as error:
            return _NOT_FOUND, "", f"{argv[0]} cannot be run: {error.strerror}"
        # A kill before the limit has another cause, such as a lack of memory.
        killed = status in _KILLED and limit is not None and time.monotonic() - start >= limit
        if timeout and (status == _TIMED_OUT or killed):
            status, errors = _TIMED_OUT, f"it did not end within {limit} seconds"
        return int(status), str(output), str(errors)

    return run


def pinned_runner(module: AnsibleModule, limit: int = TIMEOUT) -> core_plan.Runner:
    """Return a runner for programs of the toolkit, whose output depends on their environment.

    Their environment is only the search path of services, in which nvidia-ctk also finds the driver's programs.
    """
    run = command_runner(module, limit)
    return lambda argv: run(["env", "-i", f"PATH={':'.join(hostfs.SERVICE_PATH)}", *argv])


def selinux_labeler(module: AnsibleModule, host: hostfs.HostFS) -> t.Callable[[str, str], None]:
    """Return a function that gives a path the SELinux label that the policy has for another path.

    The first argument is the path to label, the second the path whose label it gets.
    """

    def label(path: str, final: str) -> None:
        if host.root == "/" and module.selinux_enabled():
            module.set_context_if_different(path, module.selinux_default_context(final), changed=False)

    return label


def run_module(module: AnsibleModule, work: t.Callable[[], dict[str, t.Any]]) -> None:
    """Exit with the result of ``work``, or fail with the message of an error of this collection."""
    name = str(module._name)  # noqa: SLF001 - no public attribute has the name
    try:
        with core_errors.role_variables(core_variables.variables_of(name, module.argument_spec)):
            result = work()
    except core_errors.NvidiaError as error:
        for warning in core_errors.take_warnings():
            warn(module, warning)
        module.fail_json(msg=message_of(str(error)), **error.details)
    for warning in [*result.pop("warnings", ()), *core_errors.take_warnings()]:
        warn(module, warning)
    module.exit_json(**result)


def warn(module: AnsibleModule, text: str) -> None:
    """Print a warning. The controller writes the name of the host before it (plugin_utils/_results)."""
    module.warn(message_of(text))


def message_of(text: str) -> str:
    """Return a message without secrets, in an encoding that AnsibleModule can print."""
    # AnsibleModule.warn() of ansible-core 2.16 cannot log lone surrogates.
    return masking.mask_urls(text).encode("utf-8", "backslashreplace").decode("utf-8")


def diff_of(
    files: t.Sequence[core_plan.PlannedFile], mask: t.Callable[[str], str] | None = None
) -> list[dict[str, str]]:
    """Return one diff entry for each file.

    ``mask`` hides the secrets of a text in the format of ``files``. It is None for files without secrets.
    """
    return [
        {
            "before_header": file.path if file.before is not None else f"{file.path} (absent)",
            "after_header": file.path if file.after is not None else f"{file.path} (absent)",
            "before": _shown(file.before, mask),
            "after": _shown(file.after, mask),
        }
        for file in files
    ]


def _shown(content: bytes | None, mask: t.Callable[[str], str] | None) -> str:
    text = (content or b"").decode("utf-8", "replace")
    return mask(text) if mask is not None else text
