# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The options that describe a CDI specification."""

    DOCUMENTATION = r"""
options:
  path:
    description:
      - The file to which the specification is written.
      - When left out, C(/etc/cdi/nvidia.yaml) for the kind C(nvidia.com/gpu), and C(/etc/cdi/VENDOR-CLASS.yaml) for any
        other kind, with the suffix C(.json) if O(format=json). Where the toolkit's own C(nvidia-cdi-refresh.service) is
        enabled for the same kind, and this collection has no unit that replaces it, it is the file that this service
        writes, which is C(/var/run/cdi/nvidia.yaml) unless its environment sets another one. A second file would make
        one of the two ineffective, and O(format) must fit.
      - Engines read only files that end in C(.yaml) or C(.json) in C(/etc/cdi) and C(/var/run/cdi). Other names in
        these directories are refused.
    type: path
  format:
    description: The format of the file. When left out, V(json) if O(path) ends in C(.json), else V(yaml).
    type: str
    choices: [yaml, json]
  backend:
    description:
      - The program that generates the specification.
      - V(native) needs only the files of the driver and nothing of NVIDIA's toolkit. It generates what C(nvidia-ctk cdi
        generate) of the toolkit 1.20.0 and the commits after it up to d34b3046 generates, which is up to five mounts
        more than 1.20.0. The collection's docs/cdi.md lists which release writes what.
      - V(nvidia-ctk) runs the toolkit's program with a fixed environment and explicit arguments. Its output is
        validated, compared, and written in the same way.
      - V(auto) is V(nvidia-ctk) for the modes V(csv) and V(wsl), and where a refresh unit of the toolkit or of this
        collection writes the same file, so that both write the same content. Elsewhere it is V(native).
      - Refresh units always run C(nvidia-ctk), so M(gpufleet.nvidia.nvidia_cdi_refresh) refuses V(native).
    type: str
    choices: [auto, native, nvidia-ctk]
    default: auto
  mode:
    description:
      - What the specification describes.
      - V(nvml) describes GPUs and MIG devices.
      - V(management) describes all nodes of the driver, for containers that manage GPUs.
      - V(imex) describes IMEX channels.
      - V(gds), V(gdrcopy), V(mofed), and V(nvswitch) describe the nodes of GPUDirect Storage, GDRCopy, InfiniBand, and
        NVSwitch.
      - V(csv) describes a Tegra, and V(wsl) the Windows Subsystem for Linux.
      - V(auto) detects whether the host needs V(nvml), V(csv), or V(wsl). It uses V(csv) if NVML reports the name of a
        GPU that is part of a Tegra.
    type: str
    choices: [auto, nvml, management, gds, gdrcopy, mofed, nvswitch, imex, csv, wsl]
    default: auto
  vendor:
    description: The part of the kind before the slash.
    type: str
    default: nvidia.com
  class:
    description:
      - The part of the kind after the slash.
      - The default is V(gpu) in every mode, as in NVIDIA's command line. If two specifications of one kind in one
        directory define the same device, engines find neither. Set a different class for other modes, such as V(gds).
    type: str
    default: gpu
  device_name_strategies:
    description:
      - How devices are named. Each device gets one name for each entry.
      - V(index) is C(0), or C(0:1) for a MIG device.
      - V(type-index) is C(gpu0) and C(mig0:1).
      - V(uuid) is the UUID that the driver reports.
    type: list
    elements: str
    choices: [index, type-index, uuid]
    default: [index, uuid]
  device_ids:
    description:
      - The devices to describe, by index (V(0), V(0:1)) or UUID. With O(mode=imex) they are channels.
      - V(none) writes a specification with one device that gives a container no GPU.
      - An empty list describes all devices.
    type: list
    elements: str
    default: []
  all_device:
    description: Whether the specification has a device C(all), which contains all other devices.
    type: bool
    default: true
  driver_root:
    description:
      - The root directory of the driver's files, as the host sees it, for example V(/run/nvidia/driver) if the driver
        is installed by a container.
    type: path
    default: /
  dev_root:
    description:
      - The directory that contains the directory C(dev) with the driver's nodes. When left out, O(driver_root).
    type: path
  library_search_paths:
    description:
      - Directories in which to search for the driver's libraries. They are paths on the host, so they begin with
        O(driver_root).
      - An empty list searches the usual directories of libraries, then the cache of the dynamic linker.
    type: list
    elements: path
    default: []
  config_search_paths:
    description:
      - Directories in which to search for the driver's configuration files. They are paths on the host, so they begin
        with O(driver_root).
      - An empty list searches C(/etc), C(/usr/local/share), and C(/usr/share) below O(driver_root).
    type: list
    elements: path
    default: []
  csv_files:
    description:
      - The CSV files that list the files and devices of mode V(csv), as for C(nvidia-ctk cdi generate --csv.file).
      - An empty list uses the files in C(/etc/nvidia-container-runtime/host-files-for-container.d).
    type: list
    elements: path
    default: []
  csv_ignore_patterns:
    description: Patterns of entries of O(csv_files) that are not written to the specification.
    type: list
    elements: str
    default: []
  csv_compat_container_root:
    description:
      - The directory of CUDA's forward compatibility libraries in containers, for mode V(csv). It needs the toolkit
        1.19.
      - When left out, C(nvidia-ctk) chooses it.
    type: path
  cdi_hook_path:
    description:
      - The program that engines run as a hook when a container starts. For a toolkit in a directory, set it to
        C(nvidia-cdi-hook) in that directory.
    type: path
    default: /usr/bin/nvidia-cdi-hook
  ldconfig_path:
    description: The host's C(ldconfig), which a hook runs inside containers. When left out, the hook searches for it.
    type: path
  hooks:
    description:
      - Which hooks the specification contains.
      - V(toolkit) adds all hooks. They need a program of the toolkit when a container starts.
      - V(none) adds no hooks, for hosts without the toolkit. Containers then get nodes and files, but not the links and
        the entries in the linker's cache through which most programs find C(libcuda.so.1). The image or the command of
        the container has to create them.
    type: str
    choices: [toolkit, none]
    default: toolkit
  enabled_hooks:
    description:
      - Hooks that the specification contains even if they are off by default or O(disabled_hooks) names them. With
        O(hooks=none) this option has no effect.
      - V(chmod) is off by default, and so is V(disable-device-node-modification) with O(mode=management).
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
      - Hooks that the specification does not contain. V(all) means all hooks that O(enabled_hooks) does not name.
      - V(enable-cuda-compat) is the hook of CVE-2025-23266 in toolkits before 1.17.8.
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
      - Feature flags of the generator, with the names of C(nvidia-ctk cdi generate --feature-flag).
      - C(nvidia-ctk) 1.18 and newer always gets V(disable-ipc-discoverer), because it would mount what any user can
        create at C(/tmp/nvidia-mps).
      - V(enable-coherent-annotations) writes two more files beside the specification, C(X.coherent.yaml) with the class
        C(CLASS.coherent), and C(X.noncoherent.yaml) with C(CLASS.noncoherent). Each describes the GPUs of its type,
        without MIG devices. It needs NVML. Both files are removed when the flag is removed.
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
      - Whether to ask the driver's C(libnvidia-ml.so.1) for the GPUs. Only NVML knows MIG devices, and the UUIDs of
        GPUs that no program has used since the host started.
      - When left out, NVML is asked on running hosts and not in offline trees. If it cannot be loaded, the module warns
        and reads C(/proc). An error that NVML returns fails the task.
      - V(false) reads C(/proc). On a host with MIG devices, the task fails if it has to read C(/proc).
    type: bool
  for_engines:
    description:
      - The engines that must be able to load the specification. An engine skips a file, and with it all devices, if the
        file uses a field that its version of CDI does not have, such as C(additionalGids) in Podman 4.
      - V(auto) uses the engines that are installed on the host, and asks their programs for their versions in each run.
        The containerd of K3s, RKE2, k0s, or MicroK8s is asked over its socket, so it must run. Otherwise a warning says
        that its version is not known. Name it then, as in V(containerd:1.7.6).
      - V(docker), V(containerd), V(crio), and V(podman) name one engine. A version after a colon (V(podman:4.9.3)) is
        for hosts on which the engine cannot be asked, and avoids asking it.
      - Fields that one of these engines does not know are left out, and RV(ignore:limits) lists them. An empty list
        leaves nothing out.
    type: list
    elements: str
    default: [auto]
  require_devices:
    description:
      - Whether all GPUs and MIG devices that O(device_ids) selects, C(/dev/nvidiactl), and C(/dev/nvidia-uvm) must
        exist. If one is missing, nothing is written, and the message says how to create the missing nodes. It applies
        to V(nvml) only.
      - V(false) describes the devices that exist. A node of the driver whose device numbers do not belong to its name
        is refused in any case.
    type: bool
    default: true
"""
