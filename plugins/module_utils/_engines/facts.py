# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an engine is and can do, as plain facts. Each engine has them in its own package.

The files of facts import no planner, so that a task that only inspects a host or writes a specification stays small.
"""

from __future__ import annotations

import typing as t

Version = t.Tuple[int, ...]

# The options of nvidia_runtime_config that the files of only some engines can contain.
TABLES = frozenset({"extra_modes", "runtime_type", "runtime_options", "container_annotations"})
FILE_OPTIONS = frozenset({"config_mode", "drop_in_path"})
RUNTIMES = frozenset({"register", "runtime_name", "set_as_default", "enable_cdi"})


class EngineFacts(t.NamedTuple):
    """The facts of one engine. Those with a version hold from this version of the engine on.

    - ``cdi_newest``: the highest CDI version. Engines before the first entry read no specifications.
    - ``cdi_folders``: the directories of specifications, where they are not the usual ones.
    - ``cdi_setting``: the setting that names other directories.
    - ``cdi_always``: it cannot switch CDI off, and does not report it.
    - ``options``: the options in TABLES, FILE_OPTIONS and RUNTIMES, and others, that its files can contain.
    - ``hook_mode``: whether config_mode may be hook.
    - ``packages``: the Python packages that its task needs, and those that only some hosts need.
    - ``cri``: a kubelet can use it.
    - ``cri_plugin``: its CRI is a plugin, which may be disabled while the daemon runs.
    - ``files_define_runtimes``: runtimes are defined in files only, not by flags.
    - ``rootless``: ordinary users start its containers without a daemon.
    - ``device_option``, ``gpus_option``, ``runtime_option``: whether its command has --device, --gpus, --runtime.
    - ``gpus_by_cdi``: the first release whose option --gpus selects CDI devices if there are any.
    - ``load_image``: the command that loads an image from a file.
    """

    name: str
    cdi_newest: tuple[tuple[Version, str], ...]
    cdi_folders: tuple[tuple[Version, tuple[str, ...]], ...] = ()
    cdi_setting: str = "cdi_spec_dirs"
    cdi_always: bool = False
    options: frozenset[str] = frozenset()
    hook_mode: bool = False
    packages: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    cri: bool = False
    cri_plugin: bool = False
    files_define_runtimes: bool = False
    rootless: bool = False
    device_option: bool = False
    gpus_option: bool = False
    runtime_option: bool = False
    gpus_by_cdi: Version | None = None
    load_image: str = "podman load --input FILE"


# An engine accepts the CDI versions that its copy of the CDI project's library supports. Releases 0.3 to 0.8.x of the
# library support CDI versions up to the one of the same number, 1.0.x up to 1.0.0, and 1.1.x up to 1.1.0
# (CurrentVersion in specs-go). An engine skips the whole specification if it has a later version or an unknown field.
#
# "run": that build was given specifications of all versions, with the fields that each version added, in both
# directories. "read": the library that the go.mod (Docker: vendor.mod) of each release requires. "First": the first
# release with this CDI version or a later one, "last without it": the newest release of the branch before. Release
# branches that changed the library are rows of their own. Distributions may build with another library: Debian's
# packages do.
#
# The directories are the defaults. An engine's own configuration can name others (cdi-spec-dirs of Docker's
# daemon.json, cdi_spec_dirs of containerd, CRI-O and containers.conf), which base.cdi_folders() returns. The audit
# applies the table to Docker and MicroK8s in snaps by the release of the engine, but none of them was run. It does not
# apply it to K3s, RKE2 and k0s, which report their own version.
