# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The steps that findings advise, in the names of playbooks and variables, as in docs/troubleshooting.md.

An operator runs playbooks, so no finding names a module. All names of playbooks and variables in advice are here.
"""

from __future__ import annotations

AUDIT, SITE, REMOVE = "gpufleet.nvidia.audit", "gpufleet.nvidia.site", "gpufleet.nvidia.remove"
# For problems without advice of their own.
CORRECT = "Correct the cause, then run the audit again."


def run_site(effect: str = "", **variables: str) -> str:
    """Return the step that runs the playbook site with ``variables``. ``effect`` says what it then does."""
    values = " and ".join(f"{name}: {value}" for name, value in variables.items())
    return f"Run {SITE}{f' with {values}' if values else ''}{f', which {effect}' if effect else ''}."


# -- the toolkit -----------------------------------------------------------------------------------------------------

INSTALL_TOOLKIT = run_site("installs it")
ALIGN_TOOLKIT = run_site("installs all parts in one version")
INSTALL_HOOK = (
    f"{run_site('installs all packages', nvidia_toolkit_packages='full')} Or use CDI: set nvidia-container-runtime.mode"
    " to auto in nvidia_toolkit_settings, with version 1.18 or newer, and remove runtimes in mode legacy."
)
REPLACE_PACKAGES = run_site("replaces them")
REMOVE_UNUSED = (
    "Nothing is needed if other programs use them, such as enroot of Slurm or Apptainer. Otherwise set"
    " nvidia_toolkit_packages: base, and remove them with the package manager."
)
RELEASE_HOLD = f"Nothing is needed if this is intended. {run_site('releases them', nvidia_toolkit_hold='false')}"
REMOVE_SOURCES = run_site("removes them", nvidia_toolkit_remove_conflicts="true")
COMPLETE_PACKAGES = f"Or run {SITE}, which completes these packages and no others."
SET_TOOLKIT_SETTING = f"Change the setting in nvidia_toolkit_settings, and run {SITE}."
_OTHER_TOOL = "with the tool that installed this toolkit, such as the GPU operator"
_REGISTER_OWN = f"Or run {SITE}, which registers the toolkit that it installs."
SET_OTHER_TOOLKIT = f"Change the setting {_OTHER_TOOL}. {_REGISTER_OWN}"
INSPECT_RUNNING_HOST = "Inspect the running host instead of its directory tree."
CHECK_PROGRAMS = (
    "Run `nvidia-ctk --version` and `nvidia-container-cli --version`. A program that prints no version is damaged."
)


def update_toolkit(version: str, fixed: str, held: bool) -> str:
    """Return the step that installs a version in which the vulnerabilities ``fixed`` are fixed.

    Args:
        version: The lowest such version; empty if it is unknown.
        fixed: The names of the vulnerabilities.
        held: Whether the package manager holds packages, with which the installation would fail.
    """
    variables = {"nvidia_toolkit_version": version or "latest"}
    if held:
        variables["nvidia_toolkit_hold"] = "false"
    return f"Install {_at_least(version)} (fixes {fixed}). {run_site(**variables)}"


def update_other_toolkit(version: str, fixed: str) -> str:
    """Return what update_toolkit() does, for a toolkit that another tool has installed into a directory."""
    return f"Install {_at_least(version)} (fixes {fixed}) {_OTHER_TOOL}. {_REGISTER_OWN}"


def _at_least(version: str) -> str:
    return f"{version} or newer" if version else "the newest version"


# -- CDI -------------------------------------------------------------------------------------------------------------

WRITE_SPECIFICATION = run_site("writes the specification of the GPUs")
WRITE_OTHER_SPECIFICATION = "Write it again with the program that wrote it, or remove it if nothing uses it."
LOWER_SPECIFICATION = run_site("writes it in a version that all engines of the host support")
MOVE_SPECIFICATION = run_site("writes a specification to a directory that the engines read")
REPLACE_SPECIFICATION = run_site("replaces it", nvidia_cdi_exclusive="true")
KEEP_ONE_SPECIFICATION = run_site("keeps one of the files", nvidia_cdi_exclusive="true")
KEEP_ONE_OTHER_SPECIFICATION = "Remove all of these files but one."
INSTALL_REFRESH = run_site("installs units that write it again", nvidia_cdi_refresh="auto")
START_REFRESH = f"Correct the cause, then run {SITE}."


def write_after_updates(volatile: bool) -> str:
    """Return the step for a host without nvidia-ctk. A ``volatile`` specification is lost at each restart."""
    place = ", with nvidia_cdi_path below /etc/cdi," if volatile else ""
    return f"Run {SITE}{place} after each update of the driver, or install the toolkit."


# -- the driver -----------------------------------------------------------------------------------------------------

INSTALL_LIBRARIES = (
    "Install the libraries of the loaded driver's version. If they are in another directory, set"
    " nvidia_cdi_driver_root to it."
)

RELOAD_DRIVER = "Restart the host, or load the installed version of the module."
RESTART_HOST = "Restart the host when its containers can be stopped."

# -- engines ---------------------------------------------------------------------------------------------------------

RESTART_ENGINE = run_site("restarts it")
CONFIGURE_ENGINE = run_site("registers the runtime and restarts the engine")
REGISTER_DEFAULT = f"Run {SITE} to register it, or set another default runtime in the files of the engine."
INSTALL_FOR_DEFAULT = f"Run {SITE} to install the toolkit, or set another default runtime in the files of the engine."
INSTALL_FOR_RUNTIMES = f"Run {SITE} to install the toolkit, or remove these entries from the files of the engine."
RESTORE_DEFAULT = (
    f"Run {REMOVE} with --limit for this host, which restores the previous default. Correct a default that another"
    " tool has set in the files of the engine."
)
CONFIGURE_HOST = run_site("registers the runtime and writes a specification")
ENABLE_CDI = run_site("enables it", nvidia_runtime_enable_cdi="true")
MAKE_DEFAULT = (
    "Set runtimeClassName: nvidia for the pod of the device plugin, or make nvidia the default runtime: run"
    f" {SITE} with nvidia_runtime_set_as_default: true."
)
PURGE_LEGACY = run_site("removes it", nvidia_runtime_purge_legacy="true")
LEAVE_OPERATOR_TOOLKIT = f"Run {SITE}, which registers the toolkit that it installs. Then remove the directory."
SET_CONFIG_PATH = f"Set nvidia_runtime_config_path if its flags name another file, and run {SITE}."
REGISTER_FOR_PODS = (
    f"Run {SITE} with nvidia_runtime_set_as_default: true, or set deviceListStrategy of the device plugin to cdi-cri."
)
SELECT_RUNTIME = f"Set runtimeClassName: nvidia in the pods, or run {SITE} with nvidia_runtime_set_as_default: true."
DELETE_PODS = (
    "Delete the pods: the kubelet restarts a container in the sandbox of its pod, with the runtime of the sandbox."
)
RESTORE_FILES = (
    f"Run {REMOVE} with --limit for this host, which restores the files. Then run {SITE} if the host has other engines."
)


# These steps change only engines that the variables of the host select.
OF_SELECTED_ENGINES = (
    RESTART_ENGINE, CONFIGURE_ENGINE, REGISTER_DEFAULT, RESTORE_DEFAULT, ENABLE_CDI, SET_CONFIG_PATH, RESTORE_FILES,
)  # fmt: skip
SELECT_ENGINE = (
    "No playbook changes this engine, because nvidia_runtime_engines and nvidia_runtime_flavor of the host do not"
    " select it. Nothing is needed if its containers use no GPUs. Otherwise select it first."
)

# Only tasks of the user can read and change the rootless Docker of a user.
OF_USER = "Run a play of this user with the role gpufleet.nvidia.nvidia_runtime (docs/flavors.md, Rootless Docker)."
INSPECT_AS_USER = f"Run {AUDIT} with --become-user=USER and the name of the user."
