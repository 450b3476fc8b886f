# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The options of a toolkit in a directory of its own."""

    DOCUMENTATION = r"""
options:
  src:
    description:
      - With O(source=directory), the root directory of the toolkit's files. It contains C(usr/bin), and C(usr/lib64),
        C(usr/lib/x86_64-linux-gnu), or C(usr/lib/aarch64-linux-gnu). Examples are packages that were unpacked into one
        directory, and C(/artifacts/deb) or C(/artifacts/rpm) of NVIDIA's toolkit image.
      - The programs must be for the same machine architecture as the host's C(/bin/sh).
    type: path
  remote_src:
    description:
      - Whether O(src) and O(files) are on the host. With V(false), which needs O(source=directory), they are on the
        controller, which sends what the host does not have. The controller searches for them as M(ansible.builtin.copy)
        does.
    type: bool
    default: true
  dest:
    description:
      - With O(source=directory), the path at which the toolkit is used. It becomes a link to the current version.
      - If O(dest) is a directory of NVIDIA's own installer, or a link, the new link replaces it in one step, and
        O(state=absent) restores it. A directory with any other content is refused.
      - To let engines use the runtimes in it, set O(gpufleet.nvidia.nvidia_runtime_config#module:runtime_dir).
    type: path
    default: /usr/local/nvidia/toolkit
  components:
    description:
      - With O(source=directory), the parts of the toolkit to install. The source must contain them.
      - V(runtime) is C(nvidia-container-runtime), and the runtimes of one fixed mode if the source has them. V(hook) is
        C(nvidia-container-runtime-hook), V(cli) is C(nvidia-container-cli) with its two libraries, V(ctk) is
        C(nvidia-ctk), and V(cdi_hook) is C(nvidia-cdi-hook).
      - When left out, all parts, except V(cdi_hook) if the source is from before that program existed.
    type: list
    elements: str
    choices: [runtime, hook, cli, ctk, cdi_hook]
  driver_root:
    description:
      - With O(source=directory), the root directory of the driver's files. Set V(/run/nvidia/driver) if a container
        installs the driver.
    type: path
    default: /
  settings:
    description:
      - Settings of the toolkit's C(config.toml), with names and values as in
        O(gpufleet.nvidia.nvidia_toolkit_config#module:settings). Settings that an earlier run wrote and that are not
        named are restored.
      - With O(source=directory) it is the file in O(dest), and these settings have precedence over those that this
        module writes by default. If the file was edited by hand, it is written again, after a backup.
      - With any other source it is C(/etc/nvidia-container-runtime/config.toml). It is written after the packages are
        installed. Wrong settings are refused before. When O(settings), O(profile), and O(debug) are left out, the file
        is not changed. O(state=absent) does not support them, use M(gpufleet.nvidia.nvidia_toolkit_config).
    type: dict
  profile:
    description:
      - A profile for O(settings), as O(gpufleet.nvidia.nvidia_toolkit_config#module:profile). When left out, none.
    type: str
    choices: [kubernetes_hardened, rootless]
  allow_unknown:
    description: For O(settings), as O(gpufleet.nvidia.nvidia_toolkit_config#module:allow_unknown).
    type: bool
    default: false
  debug:
    description: For O(settings), as O(gpufleet.nvidia.nvidia_toolkit_config#module:debug).
    type: bool
  low_level_runtimes:
    description:
      - With O(source=directory), the low-level runtimes that NVIDIA's runtimes may run, as names or absolute paths. The
        first one that exists is used.
      - When left out, the runtimes that the host's engines are configured with by absolute paths, and then C(runc) and
        C(crun). If CRI-O is the only engine, C(crun) comes before C(runc).
    type: list
    elements: str
  default_runtime_executable:
    description:
      - With O(source=directory), the program that starts containers while the driver is not loaded.
      - When left out, the first of O(low_level_runtimes) that exists.
    type: str
  create_device_nodes:
    description:
      - With O(source=directory), whether C(nvidia-modprobe) creates C(/dev/nvidiactl), C(/dev/nvidia-modeset),
        C(/dev/nvidia-uvm), and C(/dev/nvidia-uvm-tools) if they are missing or have wrong device numbers.
      - C(nvidia-modprobe) must be on the host, or in O(driver_root) if that has a directory C(dev) of its own. If nodes
        are missing and it is missing too, the task fails before it changes anything.
      - Nodes of kernel modules that are not loaded are not created, and a warning names them. O(state=absent) does not
        remove nodes.
    type: bool
    default: false
  checksum:
    description:
      - With O(source=directory), how the installed version is compared with its manifest, and a source on the host with
        the files that were installed from it.
      - V(stat) compares size, times, inode, mode, and owner. It reads a file only if its size, times, or inode differ.
      - V(full) reads all files and compares their SHA-256.
    type: str
    choices: [stat, full]
    default: stat
"""
