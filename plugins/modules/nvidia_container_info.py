# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_container_info
short_description: Tell which engines, toolkit, GPUs and CDI specifications a host has, and how they stand
version_added: 0.1.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Reads which container engines are installed and running on a host, which configuration file each one really uses,
    which runtimes it registers, and what the running engine says of itself.
  - Reads which parts of the NVIDIA Container Toolkit are installed, whether they are of one version, which known
    vulnerabilities and which settings make it unsafe, and what would stand in the way of another version.
  - Reads which GPUs and MIG devices the driver has and which of them a container could not use, as a Kubernetes device
    plugin would advertise them, and which device nodes are missing.
  - Reads which CDI specifications engines find, whether these are valid, which of them are stale and why, and which are
    in each other's way.
  - Nothing is changed and nothing is started, but the toolkit's programs are asked for their versions. A strange host
    is described, with RV(engines[].problems), RV(toolkit.problems), RV(gpus.problems) and RV(cdi.problems), and is no
    failure.
  - On live hosts GPUs are looked up with the driver's own library NVML, as C(nvidia-smi -L) does, in a process of its
    own that can neither make device nodes nor change them. Where it cannot be kept from that and some are missing, as
    well as in offline trees and where the library cannot be used, they are looked up in C(/proc).
notes:
  - NVML wakes GPUs that nothing uses, for as long as it is asked, unless C(nvidia-persistenced) keeps them awake.
options:
  gather:
    description:
      - What to look at. The less, the faster.
      - V(findings) are about what else is looked at, and about other owners of the same files.
    type: list
    elements: str
    choices: [engines, toolkit, gpus, cdi, findings]
    default: [engines, toolkit, gpus, cdi, findings]
  toolkit_dir:
    description:
      - A directory in which the toolkit may be that did not come from packages, the
        O(gpufleet.nvidia.nvidia_toolkit_install#module:dest) of its installation. It counts where C(/usr/bin) has no
        C(nvidia-container-runtime).
    type: path
    default: /usr/local/nvidia/toolkit
  require_root:
    description: Fails if the task does not run as root and O(host_root) is V(/), before tasks that change the host.
    type: bool
    default: false
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.host_root
  - gpufleet.nvidia.shipped
  - gpufleet.nvidia.shipped_yaml
attributes:
  check_mode:
    support: full
    details: This module changes nothing.
  diff_mode:
    support: N/A
    details: This module changes nothing.
  idempotent:
    support: full
    details: This module changes nothing.
  platform:
    platforms: Linux
    support: full
  safe_file_operations:
    support: N/A
    details: This module writes no file.
seealso:
  - module: gpufleet.nvidia.nvidia_runtime_config
  - module: gpufleet.nvidia.nvidia_toolkit_install
  - module: gpufleet.nvidia.nvidia_toolkit_config
  - module: gpufleet.nvidia.nvidia_cdi_spec
  - module: gpufleet.nvidia.nvidia_cdi_refresh
"""

EXAMPLES = r"""
- name: Look at the host
  gpufleet.nvidia.nvidia_container_info:
  register: host

- name: Show the engines that still run with an older configuration
  ansible.builtin.debug:
    msg: "{{ host.engines | selectattr('restart_required') | map(attribute='engine') }}"

- name: Look at the toolkit only
  gpufleet.nvidia.nvidia_container_info:
    gather: [toolkit]
  register: host

- name: Refuse hosts with known vulnerabilities, and those whose toolkit tells no version
  ansible.builtin.assert:
    that:
      - host.toolkit.open_cves is not none
      - host.toolkit.open_cves | length == 0
    fail_msg: "{{ host.toolkit.open_cves | default([], true) | map(attribute='name') | join(', ') }}"

- name: Look at everything, and refuse hosts on which containers would get no GPU
  gpufleet.nvidia.nvidia_container_info:
  register: host
  failed_when: host.findings | selectattr('severity', 'equalto', 'critical') | length > 0

- name: Look at the GPUs, and at the specifications that give them to containers
  gpufleet.nvidia.nvidia_container_info:
    gather: [gpus, cdi]
  register: host

- name: Refuse hosts with a GPU, or a part of one, that no container could use
  ansible.builtin.assert:
    that:
      - host.gpus.devices | length > 0
      - host.gpus.devices | rejectattr('healthy') | length == 0
      - host.gpus.devices | map(attribute='mig_devices') | flatten | rejectattr('healthy') | length == 0
    fail_msg: "{{ host.gpus.devices | map(attribute='reasons') | flatten | map(attribute='message') | join(' ') }}"

- name: Refuse hosts with a CDI specification that engines skip, or that is stale
  ansible.builtin.assert:
    that:
      - host.cdi.files | rejectattr('valid') | length == 0
      - host.cdi.files | selectattr('stale') | length == 0
      - host.cdi.conflicts.unresolvable | length == 0
    fail_msg: "{{ host.cdi.files | map(attribute='reasons') | flatten | map(attribute='message') | join(' ') }}"

- name: Count the GPUs and MIG devices that a device plugin would advertise
  ansible.builtin.debug:
    msg: "{{ host.gpus.advertised | length }}"

- name: Look into an image that is being built
  gpufleet.nvidia.nvidia_container_info:
    host_root: /srv/images/gpu-node
"""

RETURN = r"""
engines:
  description:
    - One entry for each engine that this collection knows and of which the host has anything, be it the program, a
      unit, a configuration below C(/etc), or our record of one.
    - Null if O(gather) does not have V(engines).
  returned: success
  type: list
  elements: dict
  contains:
    engine:
      description: The engine's name, as O(gpufleet.nvidia.nvidia_runtime_config#module:engine) takes it.
      type: str
      sample: docker
    flavor:
      description: How it comes to the host, as O(gpufleet.nvidia.nvidia_runtime_config#module:flavor) takes it.
      type: str
      sample: system
    user:
      description: The user whose engine it is, null where it is the system's.
      type: str
      sample: null
    target:
      description:
        - A name for it that no other one on the host has, V(ENGINE) for the system's own, else V(ENGINE/FLAVOR), or
          V(ENGINE/FLAVOR/INSTANCE) with the user or the unit.
      type: str
      sample: docker
    inspected:
      description:
        - Whether this task has read the engine's files and asked its daemon. Of another user's rootless Docker it only
          says that it runs, with RV(engines[].pid), by the kernel's list of processes.
        - That user's own task (C(become_user)) inspects it.
      type: bool
      sample: true
    installed:
      description: Whether the engine's program is there.
      type: bool
      sample: true
    binary:
      description: The engine's program, null if there is none.
      type: str
      sample: /usr/sbin/dockerd
    version:
      description: Version of the running engine, else of its program, null where neither can be asked.
      type: str
      sample: 26.1.5
    running:
      description: Whether the engine runs.
      type: bool
      sample: true
    pid:
      description: Its process, null if it does not run.
      type: int
      sample: 812
    service:
      description: Its systemd unit, null if it has none.
      type: str
      sample: docker.service
    unit_files:
      description: The files that make up the unit, drop-ins after the unit itself.
      type: list
      elements: str
      sample: [/usr/lib/systemd/system/docker.service, /etc/systemd/system/docker.service.d/proxy.conf]
    socket:
      description: The socket that it listens on, as far as its unit and its file tell, else its default one.
      type: str
      sample: /run/docker.sock
    config_path:
      description: The configuration file that its unit really uses.
      type: str
      sample: /etc/docker/daemon.json
    config_exists:
      description: Whether that file exists.
      type: bool
      sample: true
    runtimes:
      description: The runtimes that the file registers, with the paths of their programs.
      type: dict
      sample:
        nvidia: /usr/bin/nvidia-container-runtime
    default_runtime:
      description: The default runtime of an engine that starts with this file.
      type: str
      sample: nvidia
    recorded_files:
      description: The files that this collection changed and can restore.
      type: list
      elements: str
      sample: [/etc/docker/daemon.json]
    live:
      description: What the running engine says of itself, null if it does not run or does not answer.
      type: dict
      contains:
        version:
          description: Its version.
          type: str
          sample: 26.1.5
        runtimes:
          description: Its runtimes, built-in ones included, with the paths of their programs.
          type: dict
          sample:
            nvidia: /usr/bin/nvidia-container-runtime
            runc: runc
        default_runtime:
          description: Its default runtime.
          type: str
          sample: nvidia
        cdi:
          description: Whether it resolves CDI devices, null where it does not tell.
          type: bool
          sample: true
        live_restore:
          description: Whether Docker's containers survive its restart. Null for engines whose containers always do.
          type: bool
          sample: false
        running_containers:
          description: How many containers run. Null for engines other than Docker.
          type: int
          sample: 3
    restart_required:
      description: Whether the running engine differs from its file.
      type: bool
      sample: false
    unfinished_restart:
      description:
        - Whether M(gpufleet.nvidia.nvidia_runtime_restart) was killed before it could prove the engine's new state or
          bring the old one back. Its next run ends that work.
      type: bool
      sample: false
    problems:
      description: What could not be read, and why.
      type: list
      elements: dict
      contains:
        code:
          description: What kind of problem it is. It stays the same over versions; messages do not.
          type: str
          sample: file-invalid
        message:
          description: The sentence about it.
          type: str
          sample: "/etc/docker/daemon.json, line 1, column 14: the file ends where a value is expected."
      sample: []
  sample:
    - engine: docker
      installed: true
      binary: /usr/sbin/dockerd
      version: 26.1.5
      running: true
      pid: 812
      service: docker.service
      unit_files: [/usr/lib/systemd/system/docker.service]
      socket: /run/docker.sock
      config_path: /etc/docker/daemon.json
      config_exists: true
      runtimes:
        nvidia: /usr/bin/nvidia-container-runtime
      default_runtime: nvidia
      recorded_files: [/etc/docker/daemon.json]
      live:
        version: 26.1.5
        runtimes:
          nvidia: /usr/bin/nvidia-container-runtime
          runc: runc
        default_runtime: nvidia
        cdi: true
        live_restore: false
        running_containers: 3
      restart_required: false
      unfinished_restart: false
      problems: []
toolkit:
  description: What the host has of the NVIDIA Container Toolkit. Null if O(gather) does not have V(toolkit).
  returned: success
  type: dict
  contains:
    gpu:
      description: Whether the host has a GPU of NVIDIA.
      type: dict
      contains:
        present:
          description: Whether it has one, null where that cannot be known, as in an offline tree.
          type: bool
          sample: true
        kind:
          description:
            - What shows it, V(driver) for a loaded driver, and else V(pci) for a GPU on the PCI bus, V(wsl) or
              V(tegra). Null where nothing does.
          type: str
          sample: driver
        evidence:
          description: The sentence about it.
          type: str
          sample: "The driver is loaded: /proc/driver/nvidia/version is there."
        driver_version:
          description: Version of the loaded driver, null if none is loaded or it does not tell.
          type: str
          sample: 580.95.05
    package_manager:
      description: The package manager that this collection would use, null if it knows none for this host.
      type: str
      sample: apt
    gpg:
      description: The path of the program C(gpg), with which the role checks the key for C(dnf); null if there is none.
      type: str
      sample: /usr/bin/gpg
    packages:
      description:
        - The installed packages of the toolkit, and those of its forerunners, by name. Each has its C(version), and
          C(held) says whether the package manager was told to keep it.
      type: dict
      sample:
        nvidia-container-toolkit:
          version: 1.19.1-1
          held: false
        nvidia-container-toolkit-base:
          version: 1.19.1-1
          held: false
        libnvidia-container-tools:
          version: 1.19.1-1
          held: false
        libnvidia-container1:
          version: 1.19.1-1
          held: false
    programs:
      description:
        - The programs of the toolkit, by name, with C(path) and C(version). The latter is null where the program may
          not be run, as in an offline tree, or does not tell. Of a toolkit in a directory it is known without that.
      type: dict
      sample:
        nvidia-ctk:
          path: /usr/bin/nvidia-ctk
          version: 1.19.1
    version:
      description:
        - The version of all packages and programs, without a package's revision. Null if there are none, or several
          versions.
      type: str
      sample: 1.19.1
    differences:
      description:
        - What of the toolkit is missing or of another version than the rest, in sentences. In a directory, what is not
          as it was installed.
      type: list
      elements: str
      sample: []
    open_cves:
      description:
        - The known vulnerabilities of the oldest version that any package or program of the toolkit has. Empty if there
          is nothing of the toolkit, null if there is but none of it tells a version.
      type: list
      elements: dict
      contains:
        name:
          description: Its name.
          type: str
          sample: CVE-2026-24260
        floor:
          description: The oldest version without it.
          type: str
          sample: 1.19.1
        about:
          description: What it is about.
          type: str
          sample: race between check and use
    directory:
      description:
        - What M(gpufleet.nvidia.nvidia_toolkit_install) with
          O(gpufleet.nvidia.nvidia_toolkit_install#module:source=directory) has put into O(toolkit_dir), null if that is
          nothing.
      type: dict
      contains:
        path:
          description: The path by which everybody knows it, a link.
          type: str
          sample: /usr/local/nvidia/toolkit
        installed_path:
          description: Where that link leads.
          type: str
          sample: /usr/local/nvidia/toolkit.versions/1.19.1-0f8fad5bd9cb
        previous_path:
          description: The version before the last change, null if there is none any more.
          type: str
          sample: /usr/local/nvidia/toolkit.versions/1.18.2-7c9e6679f425
        components:
          description: The parts that were asked for, null for all.
          type: list
          elements: str
          sample: [runtime, ctk, cdi_hook]
        sources:
          description:
            - The packages, or the files, that it was made of, as long as they are on the host. Empty if the controller
              sent them.
          type: list
          elements: str
          sample: [/srv/packages/nvidia-container-toolkit-base_1.19.1-1_amd64.deb]
      sample:
        path: /usr/local/nvidia/toolkit
        installed_path: /usr/local/nvidia/toolkit.versions/1.19.1-0f8fad5bd9cb
        previous_path: null
        components: null
        sources: [/srv/packages/nvidia-container-toolkit-base_1.19.1-1_amd64.deb]
    config_path:
      description: The toolkit's configuration file.
      type: str
      sample: /etc/nvidia-container-runtime/config.toml
    config_exists:
      description: Whether that file exists.
      type: bool
      sample: true
    settings:
      description:
        - The settings in effect, by dotted keys, defaults included; null is a setting without a value. Empty if the
          file cannot be read, or there is no toolkit.
        - Secrets are masked, that is user names and passwords in URLs, values of keys that look like secrets, and of
          variables in C(nvidia-container-cli.environment) whose names look so.
      type: dict
      sample:
        accept-nvidia-visible-devices-envvar-when-unprivileged: true
        nvidia-container-runtime.log-level: info
    unsafe_settings:
      description: Which of them are unsafe and why, in sentences.
      type: list
      elements: str
      sample: []
    conflicting_sources:
      description: Sources of packages that would contend with the one that this collection writes.
      type: list
      elements: dict
      contains:
        path:
          description: The file.
          type: str
          sample: /etc/apt/sources.list
        line:
          description: The first line of it that contends, null if the file has nothing else and can go as a whole.
          type: int
          sample: 12
        address:
          description: The address there, without scheme and user, null if the file can go as a whole.
          type: str
          sample: nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)
    recorded_files:
      description:
        - The files with settings of the toolkit that M(gpufleet.nvidia.nvidia_toolkit_config) changed and can restore
          with O(gpufleet.nvidia.nvidia_toolkit_config#module:state=absent).
      type: list
      elements: str
      sample: [/etc/nvidia-container-runtime/config.toml]
    repository_files:
      description: The files of the source that this collection writes, as far as they are there.
      type: list
      elements: str
      sample: [/etc/apt/sources.list.d/nvidia-container-toolkit.sources]
    gpu_containers:
      description:
        - Running containers that got their GPU from the toolkit's hook and not through CDI. They lose it when systemd
          reloads its units, as the scripts of the toolkit's packages make it do.
      type: list
      elements: str
      sample: [docker/926edfbc4433]
    reboot_required:
      description: Whether the host waits for a reboot, null where that is not known.
      type: bool
      sample: false
    problems:
      description: What could not be read and why, and what of RV(toolkit.settings) the toolkit cannot use.
      type: list
      elements: dict
      contains:
        code:
          description: As in RV(engines[].problems[].code).
          type: str
          sample: package-half-installed
        message:
          description: The sentence about it.
          type: str
          sample: "An interrupted installation left these packages half installed: libnvidia-container1."
      sample: []
  sample:
    gpu:
      present: true
      kind: driver
      evidence: "The driver is loaded: /proc/driver/nvidia/version is there."
      driver_version: 580.95.05
    package_manager: apt
    gpg: /usr/bin/gpg
    packages:
      nvidia-container-toolkit:
        version: 1.19.1-1
        held: false
    programs:
      nvidia-ctk:
        path: /usr/bin/nvidia-ctk
        version: 1.19.1
    version: 1.19.1
    differences: []
    open_cves: []
    directory: null
    config_path: /etc/nvidia-container-runtime/config.toml
    config_exists: true
    settings:
      nvidia-container-runtime.log-level: info
    unsafe_settings: []
    conflicting_sources: []
    recorded_files: []
    repository_files: [/etc/apt/sources.list.d/nvidia-container-toolkit.sources]
    gpu_containers: []
    reboot_required: false
    problems: []
gpus:
  description: The GPUs that the driver has. Null if O(gather) does not have V(gpus).
  returned: success
  type: dict
  contains:
    driver_version:
      description: Version of the loaded driver, null if none is loaded or it does not tell.
      type: str
      sample: 580.95.05
    source:
      description:
        - Where the GPUs were looked up, V(nvml) or V(proc), the latter being the driver's files in C(/proc). Null if no
          driver is loaded.
      type: str
      sample: nvml
    modules:
      description:
        - The loaded kernel modules of the driver and those that others add for its GPUs, by name. Each has its
          C(version), null if it tells none, and its C(refcount), which is how many modules and open files use it.
      type: dict
      sample:
        nvidia:
          version: 580.95.05
          refcount: 42
        nvidia_uvm:
          version: 580.95.05
          refcount: 2
    devices:
      description:
        - One entry for each GPU, in the order of NVML, or else of the PCI addresses. GPUs that the driver was told to
          exclude, and those for a screen alone, are left out.
      type: list
      elements: dict
      contains:
        index:
          description: Its number as C(nvidia-smi) has it, null if NVML does not list it.
          type: int
          sample: 0
        uuid:
          description: Its UUID, null where the driver does not know it.
          type: str
          sample: GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c
        minor:
          description: Minor number of its device node, C(/dev/nvidia0) for 0. Null where that is not known.
          type: int
          sample: 0
        bus_id:
          description:
            - Its PCI address, with a domain of four digits, or of eight where four do not hold it. Null where that is
              not known.
          type: str
          sample: "0000:0f:00.0"
        model:
          description: Its name, null where that is not known.
          type: str
          sample: NVIDIA A100-SXM4-40GB
        mig_enabled:
          description: Whether it is in MIG mode, null where that is not known, as without NVML.
          type: bool
          sample: true
        mig_devices:
          description: Its MIG devices.
          type: list
          elements: dict
          contains:
            index:
              description: Its number on this GPU, null where that is not known, as without NVML.
              type: int
              sample: 0
            uuid:
              description: Its UUID, null where that is not known, as without NVML.
              type: str
              sample: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f
            gpu_instance:
              description: Number of its GPU instance.
              type: int
              sample: 7
            compute_instance:
              description: Number of its compute instance.
              type: int
              sample: 0
            profile:
              description: Its profile, null where the driver does not tell.
              type: str
              sample: 1g.5gb
            healthy:
              description: Whether nothing is known that would keep a container from using it.
              type: bool
              sample: true
            reasons:
              description: What would. What is wrong with the GPU is wrong with all of its parts.
              type: list
              elements: dict
              contains:
                code:
                  description: As in RV(engines[].problems[].code).
                  type: str
                  sample: mig-node-unusable
                message:
                  description: The sentence about it.
                  type: str
                  sample: "/dev/nvidia-caps/nvidia-cap3 is not there."
              sample: []
        healthy:
          description: Whether nothing is known that would keep a container from using it.
          type: bool
          sample: true
        reasons:
          description:
            - What would. That is an error that NVML returns for it, a GPU that has left the PCI bus, and device nodes
              that are missing or have other numbers.
          type: list
          elements: dict
          contains:
            code:
              description: As in RV(engines[].problems[].code).
              type: str
              sample: node-unusable
            message:
              description: The sentence about it.
              type: str
              sample: "/dev/nvidia0 is not there."
          sample: []
    advertised:
      description:
        - The UUIDs that a Kubernetes device plugin would advertise as healthy, of GPUs that are not in MIG mode, and of
          MIG devices.
      type: list
      elements: str
      sample: [MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f]
    missing_nodes:
      description: Device nodes of the driver that are not there, though the driver has what belongs to them.
      type: list
      elements: dict
      contains:
        path:
          description: The node.
          type: str
          sample: /dev/nvidia-uvm
        advice:
          description: What makes it.
          type: str
          sample: Make it with nvidia-modprobe -u -c 0.
    problems:
      description:
        - What could not be read and why, GPUs on the PCI bus that the driver does not drive, and kernel modules of
          different versions.
      type: list
      elements: dict
      contains:
        code:
          description: As in RV(engines[].problems[].code).
          type: str
          sample: gpu-without-driver
        message:
          description: The sentence about it.
          type: str
          sample: "NVIDIA's driver does not drive the GPU 0000:0f:00.0 (without a driver)."
      sample: []
  sample:
    driver_version: 580.95.05
    source: nvml
    modules:
      nvidia:
        version: 580.95.05
        refcount: 42
      nvidia_uvm:
        version: 580.95.05
        refcount: 2
    devices:
      - index: 0
        uuid: GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c
        minor: 0
        bus_id: "0000:0f:00.0"
        model: NVIDIA A100-SXM4-40GB
        mig_enabled: true
        mig_devices:
          - index: 0
            uuid: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f
            gpu_instance: 7
            compute_instance: 0
            profile: 1g.5gb
            healthy: true
            reasons: []
        healthy: true
        reasons: []
    advertised: [MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f]
    missing_nodes: []
    problems: []
cdi:
  description: The CDI specifications where engines look for them. Null if O(gather) does not have V(cdi).
  returned: success
  type: dict
  contains:
    folders:
      description: The folders, the one that goes before the others last.
      type: list
      elements: str
      sample: [/etc/cdi, /var/run/cdi]
    files:
      description: The specifications in them, in the order in which engines read them.
      type: list
      elements: dict
      contains:
        path:
          description: The file.
          type: str
          sample: /etc/cdi/nvidia.yaml
        kind:
          description: The kind of its devices, null if it tells none that can be read.
          type: str
          sample: nvidia.com/gpu
        cdi_version:
          description: The version of CDI that it states, null if that cannot be read.
          type: str
          sample: 0.5.0
        driver_version:
          description: The version of the driver whose libraries it mounts, null if it mounts none.
          type: str
          sample: 580.95.05
        devices:
          description: The names of its devices.
          type: list
          elements: str
          sample: ["0", all]
        valid:
          description:
            - Whether engines load it. Null if it is in YAML, and neither the host nor the controller has a PyYAML that
              could read it.
          type: bool
          sample: true
        errors:
          description: Why engines skip it, in sentences.
          type: list
          elements: str
          sample: []
        warnings:
          description: What in it is odd but accepted, in sentences.
          type: list
          elements: str
          sample: []
        stale:
          description:
            - Whether it no longer fits the host, so that containers would not start, or get other GPUs than the host
              has. Null for one that is not valid.
          type: bool
          sample: false
        reasons:
          description:
            - Why it is stale. That is paths that are missing, device nodes with other numbers, another
              version of the driver, and, of the kind C(nvidia.com/gpu), GPUs and MIG devices that it lacks or that are
              gone.
          type: list
          elements: dict
          contains:
            code:
              description: As in RV(engines[].problems[].code).
              type: str
              sample: driver-differs
            message:
              description: The sentence about it.
              type: str
              sample: "It is for the driver 575.51.03; now it is 580.95.05."
          sample: []
        missing_paths:
          description: The files, device nodes and programs that it names and that are not on the host.
          type: list
          elements: str
          sample: []
    devices:
      description: The devices that engines find, by the names that containers ask for, each with the file it is from.
      type: dict
      sample:
        nvidia.com/gpu=0: /etc/cdi/nvidia.yaml
        nvidia.com/gpu=all: /etc/cdi/nvidia.yaml
    conflicts:
      description: Devices that several files define.
      type: dict
      contains:
        sentences:
          description: All of them in sentences.
          type: list
          elements: str
          sample: ["/var/run/cdi/nvidia.yaml goes before /etc/cdi/nvidia.yaml for nvidia.com/gpu=1."]
        shadowed:
          description: The files that define a device in vain, because a later folder has it too, by device.
          type: dict
          sample:
            nvidia.com/gpu=1: [/etc/cdi/nvidia.yaml]
        unresolvable:
          description: Devices that engines do not find, because several files of one folder define them, with these.
          type: dict
          sample: {}
      sample:
        sentences: []
        shadowed: {}
        unresolvable: {}
    ignored:
      description: What else lies in these folders, which engines do not look at.
      type: list
      elements: str
      sample: [/etc/cdi/nvidia.yaml.old]
    refresh:
      description:
        - The service that makes the specification anew, null if there is none. An enabled one goes before others, and
          the toolkit's before the one of M(gpufleet.nvidia.nvidia_cdi_refresh).
      type: dict
      contains:
        owner:
          description: Whose service it is, V(toolkit) or V(gpufleet).
          type: str
          sample: toolkit
        service:
          description: Its name.
          type: str
          sample: nvidia-cdi-refresh.service
        enabled:
          description: Whether it runs by itself, at boot or after a change of the driver.
          type: bool
          sample: true
        failed:
          description: Whether its last run failed, null where systemd cannot be asked.
          type: bool
          sample: false
        output:
          description: The file that it writes, null if it writes none or that cannot be read.
          type: str
          sample: /var/run/cdi/nvidia.yaml
      sample:
        owner: toolkit
        service: nvidia-cdi-refresh.service
        enabled: true
        failed: false
        output: /var/run/cdi/nvidia.yaml
    problems:
      description: What could not be read and why, and what is wrong with the service.
      type: list
      elements: dict
      contains:
        code:
          description: As in RV(engines[].problems[].code).
          type: str
          sample: cdi-refresh-failed
        message:
          description: The sentence about it.
          type: str
          sample: "nvidia-cdi-refresh.service has failed, so that the specification may be stale."
      sample: []
  sample:
    folders: [/etc/cdi, /var/run/cdi]
    files:
      - path: /etc/cdi/nvidia.yaml
        kind: nvidia.com/gpu
        cdi_version: 0.5.0
        driver_version: 580.95.05
        devices: ["0", all]
        valid: true
        errors: []
        warnings: []
        stale: false
        reasons: []
        missing_paths: []
    devices:
      nvidia.com/gpu=0: /etc/cdi/nvidia.yaml
      nvidia.com/gpu=all: /etc/cdi/nvidia.yaml
    conflicts:
      sentences: []
      shadowed: {}
      unresolvable: {}
    ignored: []
    refresh: null
    problems: []
findings:
  description:
    - What is wrong with the host, or will be, worst first, each with what to do. Null if O(gather) does not have
      V(findings).
    - Findings with one cause are one finding. Its text names the other ones by RV(findings[].id) and
      RV(findings[].subject).
    - They follow from all that was looked at, and from files of other owners, such as Kubespray, the GPU operator, and
      earlier versions of NVIDIA's tools.
  returned: success
  type: list
  elements: dict
  contains:
    severity:
      description:
        - V(critical) for containers that get no GPU, a node that is about to lose them, a configuration that the engine
          cannot read, or a known vulnerability.
        - V(warning) for what works now but will not for long, or has two owners.
        - V(note) for what is worth to know.
      type: str
      sample: warning
    id:
      description: What kind of finding it is, a name that stays the same over versions.
      type: str
      sample: cdi-stale
    subject:
      description: What it is about, such as an engine's RV(engines[].target), a file, or C(toolkit).
      type: str
      sample: /etc/cdi/nvidia.yaml
    text:
      description: What was found.
      type: str
      sample: /etc/cdi/nvidia.yaml is stale. It is for driver 575.51.03, and the host has 580.95.05.
    advice:
      description: What to do about it.
      type: str
      sample: Run the role nvidia_cdi, or nvidia_cdi_spec.
  sample:
    - severity: warning
      id: cdi-stale
      subject: /etc/cdi/nvidia.yaml
      text: /etc/cdi/nvidia.yaml is stale. It is for driver 575.51.03, and the host has 580.95.05.
      advice: Run the role nvidia_cdi, or nvidia_cdi_spec.
"""

import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import host_info
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule


def describe(module: AnsibleModule) -> dict[str, object]:
    """Look at the host; the result as documented."""
    params = module.params
    if params["require_root"] and params["host_root"] == "/" and os.geteuid() != 0:
        raise errors.HostError(f"The task runs as user {os.geteuid()}, not as root. Run with -b (become).")
    _module.load_bundled_packages(module)
    return host_info.describe_host(
        _module.host_from_params(module), _module.command_runner(module), params["gather"], params["toolkit_dir"]
    )


def main() -> None:
    module = _module.new_module(
        {
            "gather": {
                "type": "list",
                "elements": "str",
                "choices": list(host_info.SUBJECTS),
                "default": list(host_info.SUBJECTS),
            },
            "toolkit_dir": {"type": "path", "default": toolkit_constants.DIRECTORY},
            "require_root": {"type": "bool", "default": False},
            **_module.HOST_ROOT_OPTIONS,
            **_module.SHIPPED_OPTIONS,
            **_module.SHIPPED_YAML_OPTIONS,
        }
    )
    _module.run_module(module, lambda: describe(module))


if __name__ == "__main__":
    main()
