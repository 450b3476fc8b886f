# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The options that say which CDI specification is wanted."""

    DOCUMENTATION = r"""
options:
  path:
    description:
      - The file that the specification goes to.
      - When left out, that is C(/etc/cdi/nvidia.yaml) for the kind C(nvidia.com/gpu), and
        C(/etc/cdi/VENDOR-CLASS.yaml) for any other. Where the toolkit's own C(nvidia-cdi-refresh.service) is enabled,
        it is the file that this service writes (C(/var/run/cdi/nvidia.yaml) unless its environment says otherwise),
        for with a second file one of the two would be in vain.
      - Engines read only C(.yaml) and C(.json) in C(/etc/cdi) and C(/var/run/cdi). Other names there are refused.
    type: path
  format:
    description: What the file is written as. When left out, V(json) where O(path) ends so, else V(yaml).
    type: str
    choices: [yaml, json]
  backend:
    description:
      - What makes the specification.
      - V(native) needs nothing of NVIDIA's toolkit, only the driver's files. It makes what C(nvidia-ctk cdi generate)
        of the toolkit 1.20.0 and the commits after it up to d34b3046 makes, that is up to five mounts more than
        1.20.0. The collection's docs/cdi.md lists which release writes what.
      - V(nvidia-ctk) asks the toolkit's program, with an environment and arguments that leave nothing to chance. What
        it prints is judged, compared, and written as everything else.
      - V(auto) is V(nvidia-ctk) for the modes V(csv) and V(wsl), and where a refresh unit, of the toolkit or of this
        collection, writes the same file, so that both agree. Elsewhere it is V(native).
      - Refresh units always use C(nvidia-ctk), so M(gpufleet.nvidia.nvidia_cdi_refresh) refuses V(native).
    type: str
    choices: [auto, native, nvidia-ctk]
    default: auto
  mode:
    description:
      - What the specification describes. V(nvml) is GPUs and MIG devices, V(management) every node of the driver for
        those who look after it, V(imex) IMEX channels; V(gds), V(gdrcopy), V(mofed), and V(nvswitch) are the nodes of
        GPUDirect Storage, GDRCopy, InfiniBand, and NVSwitch; V(csv) is Tegra, and V(wsl) the Windows Subsystem for
        Linux.
      - V(auto) finds out which of V(nvml), V(csv), and V(wsl) the host is. A GPU that is part of a Tegra, by its name
        in NVML, makes it V(csv).
    type: str
    choices: [auto, nvml, management, gds, gdrcopy, mofed, nvswitch, imex, csv, wsl]
    default: auto
  vendor:
    description: The part of the kind before the slash.
    type: str
    default: nvidia.com
  class:
    description:
      - The part of the kind behind the slash.
      - It is V(gpu) in every mode, as in NVIDIA's command line. Two specifications of one kind in one folder take their
        devices from each other, so give other modes a class of their own, such as V(gds).
    type: str
    default: gpu
  device_name_strategies:
    description:
      - The names of each device. V(index) is C(0), or C(0:1) for a MIG device; V(type-index) is C(gpu0) and C(mig0:1);
        V(uuid) is what the driver calls it.
    type: list
    elements: str
    choices: [index, type-index, uuid]
    default: [index, uuid]
  device_ids:
    description:
      - The devices to describe, by index (V(0), V(0:1)) or UUID; all when left out. With O(mode=imex) they are
        channels.
      - V(none) makes a specification of one device that gives a container no GPU at all.
    type: list
    elements: str
    default: []
  all_device:
    description: Whether there is a device C(all), which stands for all others.
    type: bool
    default: true
  driver_root:
    description:
      - Where the driver's files are, as the host sees it, for example V(/run/nvidia/driver) where the driver runs in a
        container.
    type: path
    default: /
  dev_root:
    description: Where the folder C(dev) with the driver's nodes is. When left out, in O(driver_root).
    type: path
  library_search_paths:
    description: Folders in O(driver_root) to look for the driver's libraries in, in place of all others.
    type: list
    elements: path
    default: []
  config_search_paths:
    description: Folders in O(driver_root) to look for the driver's configuration files in, in place of the usual ones.
    type: list
    elements: path
    default: []
  csv_files:
    description:
      - The lists of files and devices that V(csv) describes, as C(nvidia-ctk cdi generate --csv.file) takes them.
      - When left out, those in C(/etc/nvidia-container-runtime/host-files-for-container.d).
    type: list
    elements: path
    default: []
  csv_ignore_patterns:
    description: Patterns of entries of O(csv_files) to leave out.
    type: list
    elements: str
    default: []
  csv_compat_container_root:
    description:
      - The folder of CUDA's forward compatibility in containers that V(csv) names. When left out, C(nvidia-ctk) chooses
        it. It needs the toolkit 1.19.
    type: path
  cdi_hook_path:
    description:
      - The program that engines run as a hook when a container starts. Of a toolkit in a directory it is
        C(nvidia-cdi-hook) there.
    type: path
    default: /usr/bin/nvidia-cdi-hook
  ldconfig_path:
    description: The host's C(ldconfig), which a hook runs inside containers. When left out, the hook finds it.
    type: path
  hooks:
    description:
      - V(toolkit) has all hooks, which need a program of the toolkit when a container starts.
      - V(none) has none, for hosts without the toolkit. Containers then get nodes and files, but not the links and the
        entries in the linker's cache by which most programs find C(libcuda.so.1); images or commands have to see to
        that themselves.
    type: str
    choices: [toolkit, none]
    default: toolkit
  enabled_hooks:
    description:
      - Hooks to have in any case.
      - V(chmod) is off by itself, and V(disable-device-node-modification) is with O(mode=management).
    type: list
    elements: str
    choices:
      - create-symlinks
      - chmod
      - enable-cuda-compat
      - update-ldcache
      - disable-device-node-modification
      - update-application-profile
    default: []
  disabled_hooks:
    description:
      - Hooks to leave out; V(all) leaves out those that O(enabled_hooks) does not name.
      - V(enable-cuda-compat) is what CVE-2025-23266 is about, in toolkits before 1.17.8.
    type: list
    elements: str
    choices:
      - create-symlinks
      - chmod
      - enable-cuda-compat
      - update-ldcache
      - disable-device-node-modification
      - update-application-profile
      - all
    default: []
  feature_flags:
    description:
      - Switches of the generator, by the names that C(nvidia-ctk cdi generate --feature-flag) takes.
      - V(enable-coherent-annotations) writes two more files beside the specification, C(X.coherent.yaml) with the class
        C(CLASS.coherent), and C(X.noncoherent.yaml) with C(CLASS.noncoherent), each for the GPUs that it names, without
        MIG devices. It needs NVML. Both files are removed with the flag.
    type: list
    elements: str
    choices:
      - enable-explicit-driver-libraries
      - disable-ipc-discoverer
      - no-additional-gids-for-device-nodes
      - disable-nvsandboxutils
      - disable-multiple-csv-devices
      - enable-coherent-annotations
    default: []
  use_nvml:
    description:
      - Whether to ask the driver's C(libnvidia-ml.so.1) for the GPUs. It alone knows MIG devices, and UUIDs of GPUs
        that nothing has used since the host started.
      - When left out, it is asked on running hosts and not in offline trees. Where it cannot be loaded, a warning tells
        so, and C(/proc) is read. An error that it returns is an error.
    type: bool
  for_engines:
    description:
      - The engines that have to understand the specification. An engine skips a file of a version of CDI that it does
        not know, and with it all devices. Podman 4 does so with C(additionalGids), for example.
      - V(auto) is the engines that are found on the host. V(docker), V(containerd), V(crio), and V(podman) name one,
        and a version behind a colon (V(podman:4.9.3)) is for hosts where it cannot be asked.
      - What an engine does not know is left out and RV(ignore:limits) says so. An empty list leaves nothing out.
    type: list
    elements: str
    default: [auto]
  require_devices:
    description:
      - Whether all of the host's GPUs and MIG devices, C(/dev/nvidiactl), and C(/dev/nvidia-uvm) have to be there.
        Otherwise nothing is written, and the message says what makes the missing nodes. It concerns V(nvml) only.
      - V(false) describes what is there. A node of the driver that is another device than its name says is refused in
        any case.
    type: bool
    default: true
"""
