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
      - With O(source=directory), the root directory that the toolkit's files are in, with C(usr/bin), and C(usr/lib64),
        C(usr/lib/x86_64-linux-gnu), or C(usr/lib/aarch64-linux-gnu), such as packages unpacked side by side, or the
        C(/artifacts/deb) or C(/artifacts/rpm) of NVIDIA's toolkit image.
      - Programs have to be for the machine that the host's C(/bin/sh) is for.
    type: path
  remote_src:
    description:
      - Whether O(src) and O(files) are on the host. V(false), with O(source=directory) only, means the controller,
        which sends what the host has not. There they are looked for as M(ansible.builtin.copy) does.
    type: bool
    default: true
  dest:
    description:
      - With O(source=directory), the path by which everybody knows the toolkit. It becomes a link.
      - A directory of NVIDIA's own installer that is found there is exchanged for the link in one step, and given back
        by O(state=absent). So is a link. A directory with anything else in it is refused.
      - Engines take runtimes from it with O(gpufleet.nvidia.nvidia_runtime_config#module:runtime_dir).
    type: path
    default: /usr/local/nvidia/toolkit
  components:
    description:
      - With O(source=directory), which parts of the toolkit are installed, and so have to be in the source.
      - V(runtime) are C(nvidia-container-runtime), and its kin for one mode each where the source has them. V(hook) is
        C(nvidia-container-runtime-hook), V(cli) C(nvidia-container-cli) with its two libraries, V(ctk) C(nvidia-ctk),
        V(cdi_hook) C(nvidia-cdi-hook).
      - When left out, all of them, but for V(cdi_hook) where the source is older than that.
    type: list
    elements: str
    choices: [runtime, hook, cli, ctk, cdi_hook]
  driver_root:
    description:
      - With O(source=directory), the root directory of the driver's files, V(/run/nvidia/driver) where a container
        brings the driver.
    type: path
    default: /
  config:
    description:
      - With O(source=directory), settings of the toolkit's C(config.toml) in O(dest), with names and values as in
        O(gpufleet.nvidia.nvidia_toolkit_config#module:settings). They win over what this module writes by itself.
      - A file that was edited by hand is written anew, after a backup.
    type: dict
    default: {}
  profile:
    description: As O(gpufleet.nvidia.nvidia_toolkit_config#module:profile), with O(source=directory).
    type: str
    choices: [kubernetes_hardened, rootless]
  allow_unknown:
    description: As O(gpufleet.nvidia.nvidia_toolkit_config#module:allow_unknown), for O(config).
    type: bool
    default: false
  debug:
    description: As O(gpufleet.nvidia.nvidia_toolkit_config#module:debug), with O(source=directory).
    type: bool
  low_level_runtimes:
    description:
      - With O(source=directory), the programs that may run under NVIDIA's runtimes, as names or absolute paths. The
        first that is there is taken.
      - When left out, those that the host's engines are configured with by absolute paths, and then C(runc) and
        C(crun), the other way round where the only engine is CRI-O.
    type: list
    elements: str
  default_runtime_executable:
    description:
      - With O(source=directory), the program that starts containers while the driver is not loaded.
      - When left out, the first of O(low_level_runtimes) that is there.
    type: str
  create_device_nodes:
    description:
      - With O(source=directory), whether C(/dev/nvidiactl), C(/dev/nvidia-modeset), C(/dev/nvidia-uvm), and
        C(/dev/nvidia-uvm-tools) are created by C(nvidia-modprobe) if they are missing or have other numbers.
      - C(nvidia-modprobe) has to be on the host, or in O(driver_root) if that has a directory C(dev) of its own.
      - Nodes of modules that are not loaded are left out, with a warning. O(state=absent) leaves nodes as they are.
    type: bool
    default: false
  verify:
    description:
      - With O(source=directory), how the installed version is compared with its manifest, and a source on the host with
        what was installed from it.
      - V(stat) compares size, times, inode, mode, and owner, and reads a file only if its size, times, or inode differ.
      - V(full) reads all files and compares their SHA-256.
    type: str
    choices: [stat, full]
    default: stat
  shipped_toolkit:
    description:
      - Internal, not for use in tasks. The controller puts into it what it offers with O(remote_src=false).
    type: dict
"""
