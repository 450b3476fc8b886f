# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_container_info
short_description: Report the engines, toolkit, GPUs and CDI specifications of a host, and their problems
version_added: 1.0.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Reads which container engines are installed and running on a host, which configuration file each of them uses, which
    runtimes its configuration registers, and what the running engine reports.
  - Reads which parts of the NVIDIA Container Toolkit are installed, in which version, which known vulnerabilities they
    have, and which settings are in effect.
  - Reads which GPUs and MIG devices the driver has, and which of them a container could not use.
  - Reads which CDI specifications engines find, whether they are valid, and which of them are stale and why.
  - On a Kubernetes node it reads which kubelet runs and which engine that uses, which devices the kubelet offers, which
    of them pods hold, and which DRA drivers serve it. It needs no access to the API server.
  - From all of this, and from more that it reads about the kernel, services, package sources, device plugins and
    files of other tools, it derives RV(findings). They say what is wrong with the host, and how to correct it.
  - The module changes and starts nothing, but it runs the programs of the engines and of the toolkit to ask for their
    versions, C(rpm) for the installed packages, and C(systemctl) for the state of a unit. With V(gpus), it runs
    C(nv-fabricmanager) on a host with NVSwitches, for its version, and C(modinfo) if the driver is not loaded.
  - A host with problems does not fail the task. RV(engines[].problems), RV(toolkit.problems), RV(gpus.problems),
    RV(cdi.problems), and RV(kubernetes.problems) list them.
  - On live hosts the GPUs are read from the driver's library NVML, as C(nvidia-smi -L) does, in a separate process that
    can neither create nor change device nodes. They are read from C(/proc) if nodes are missing and NVML cannot be
    prevented from creating them, in offline trees, and if the library cannot be used.
  - The devices of a node come from the PodResources API of the kubelet, which is a local socket. If the kubelet does
    not answer there, they come from its checkpoint. To find a device plugin that has ended, the module connects to its
    socket and calls C(GetDevicePluginOptions). It never calls C(ListAndWatch), which could take a change of health from
    the kubelet.
notes:
  - NVML wakes idle GPUs while it is asked, unless C(nvidia-persistenced) keeps them awake.
options:
  gather_subset:
    description:
      - The parts to read. Fewer parts take less time.
      - V(engines), V(toolkit), V(gpus), V(cdi), and V(kubernetes) return the values of the same names.
      - V(findings) returns RV(findings), which are about the other parts that are read, and about files of other tools.
    type: list
    elements: str
    choices: [engines, toolkit, gpus, cdi, kubernetes, findings]
    default: [engines, toolkit, gpus, cdi, kubernetes, findings]
  toolkit_dir:
    description:
      - A directory in which the toolkit may be installed without packages, which is
        O(gpufleet.nvidia.nvidia_toolkit_install#module:dest) of its installation. It is used if C(/usr/bin) has no
        C(nvidia-container-runtime).
    type: path
    default: /usr/local/nvidia/toolkit
  driver_root:
    description:
      - The directory of the driver's files, as in O(gpufleet.nvidia.nvidia_cdi_spec#module:driver_root). NVML is loaded
        from it.
      - When left out, C(/), and then C(/run/nvidia/driver) of NVIDIA's GPU Operator.
      - Device nodes are searched in C(dev) of the first of these directories that has C(nvidiactl) there, and otherwise
        in C(/dev).
    type: path
    version_added: 1.2.0
  library_search_paths:
    description:
      - The directories of the driver's libraries, as in
        O(gpufleet.nvidia.nvidia_cdi_spec#module:library_search_paths).
    type: list
    elements: path
    default: []
    version_added: 1.2.0
  selected_engines:
    description:
      - The engines that the playbooks change on this host. The advice in RV(findings) about other engines says so.
    type: dict
    version_added: 1.2.0
    suboptions:
      names:
        description: The value of C(nvidia_runtime_engines), as in O(require_engines.names).
        type: list
        elements: str
        default: [auto]
      flavor:
        description: The value of C(nvidia_runtime_flavor), as in O(require_engines.flavor).
        type: str
        default: auto
  require_root:
    description:
      - Whether to fail if the task does not run as root and O(host_root) is V(/). Use it before tasks that change the
        host. With V(false) the module reads what the user of the task can read.
    type: bool
    default: false
  require_engines:
    description:
      - The engines that later tasks configure. The module fails, before these tasks have changed the host, if
        M(gpufleet.nvidia.nvidia_runtime_config) would fail for one of them, because one of its files cannot be read or
        parsed, or because it is not installed. The message is that of the engine.
      - With O(require_engines.options), the module also plans the change of each engine, as that module does in check
        mode. It then also fails for files that can be parsed, but that the engine or this collection refuses, such as a
        setting with a wrong type. If the files would change, the engine's own validator checks copies of them.
      - V(engines) must be in O(gather_subset). A host on which V(toolkit) finds no GPU does not fail if
        O(require_engines.without_gpu) is V(false).
    type: dict
    version_added: 1.2.0
    suboptions:
      names:
        description:
          - Engines such as V(docker), targets such as V(containerd/k3s), or only V(auto) for all installed engines.
          - Named engines must be installed, except in check mode and in offline trees.
        type: list
        elements: str
        default: [auto]
      flavor:
        description: The only flavor that is configured, or V(auto).
        type: str
        default: auto
      files:
        description:
          - Whether the files that the engines read must be readable and valid.
        type: bool
        default: true
      options:
        description:
          - The options of the later task M(gpufleet.nvidia.nvidia_runtime_config) that say what to configure, from
            O(gpufleet.nvidia.nvidia_runtime_config#module:runtime_name) to
            O(gpufleet.nvidia.nvidia_runtime_config#module:backup_dir), without those that select an engine. The
            programs of the toolkit count as installed.
        type: dict
      without_gpu:
        description: Whether the engines are also configured on a host without a GPU.
        type: bool
        default: true
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.host_root
  - gpufleet.nvidia.bundled
attributes:
  check_mode:
    details: This module changes nothing.
  diff_mode:
    support: N/A
    details: This module changes nothing.
  idempotent:
    details: This module changes nothing.
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
- name: Inspect the host
  gpufleet.nvidia.nvidia_container_info:
  register: host

- name: Show the engines that need a restart
  ansible.builtin.debug:
    msg: "{{ host.engines | selectattr('restart_required') | map(attribute='engine') }}"

- name: Fail on known vulnerabilities, and on a toolkit of unknown version
  ansible.builtin.assert:
    that:
      - host.toolkit.known_cves is not none
      - host.toolkit.known_cves | length == 0
    fail_msg: "{{ host.toolkit.known_cves | default([], true) | map(attribute='name') | join(', ') }}"

- name: Inspect the host, and fail on critical findings
  gpufleet.nvidia.nvidia_container_info:
  register: host
  failed_when: host.findings | selectattr('severity', 'equalto', 'critical') | length > 0

- name: Find out why a Kubernetes node does not offer its GPUs
  gpufleet.nvidia.nvidia_container_info:
    gather_subset: [engines, gpus, kubernetes, findings]
  register: node

- name: Show the findings, and how to correct them
  ansible.builtin.debug:
    msg: "{{ node.findings | map(attribute='text') | zip(node.findings | map(attribute='advice')) }}"

- name: Inspect an image
  gpufleet.nvidia.nvidia_container_info:
    host_root: /srv/images/gpu-node
"""

RETURN = r"""
engines:
  description:
    - One entry for each supported engine of which the host has a program, a unit, a directory of its configuration or
      data, or a record of this collection.
    - Null if O(gather_subset) does not include V(engines).
  returned: success
  type: list
  elements: dict
  contains:
    engine:
      description: The name of the engine, as for O(gpufleet.nvidia.nvidia_runtime_config#module:engine).
      type: str
      sample: docker
    flavor:
      description: How the engine was installed, as for O(gpufleet.nvidia.nvidia_runtime_config#module:flavor).
      type: str
      sample: system
    user:
      description: The user to whom the engine belongs, null for an engine of the system.
      type: str
      sample: null
    target:
      description:
        - A unique name for the engine on this host, V(ENGINE) for the system's own, else V(ENGINE/FLAVOR), or
          V(ENGINE/FLAVOR/INSTANCE) with the user or the unit.
      type: str
      sample: docker
    inspected:
      description:
        - Whether this task has read the files of the engine and asked its daemon. For the rootless Docker of another
          user the module only reports that it runs, from the kernel's list of processes.
        - To inspect it, run the module as that user (C(become_user)).
      type: bool
      sample: true
    readable:
      description:
        - V(false) if the engine is or may be installed, and a file that it reads cannot be read or parsed. The reason
          is in RV(engines[].problems).
      type: bool
      version_added: 1.2.0
      sample: true
    used_by_kubelet:
      description:
        - Whether the kubelet of this host uses the engine, by its CRI endpoint. For Docker, it uses cri-dockerd. False
          on a host without a kubelet, and if the endpoint is not known.
      type: bool
      sample: false
    installed:
      description: Whether the program of the engine exists.
      type: bool
      sample: true
    binary:
      description: The program of the engine, null if there is none.
      type: str
      sample: /usr/sbin/dockerd
    version:
      description: The version of the running engine, else of its program, null if both are unknown.
      type: str
      sample: 26.1.5
    running:
      description: Whether the engine runs.
      type: bool
      sample: true
    service:
      description: The systemd unit of the engine, null if it has none.
      type: str
      sample: docker.service
    config_path:
      description: The configuration file that the unit of the engine uses.
      type: str
      sample: /etc/docker/daemon.json
    runtimes:
      description: The runtimes that the configuration files register, with the paths of their programs.
      type: dict
      sample:
        nvidia: /usr/bin/nvidia-container-runtime
    default_runtime:
      description: The default runtime of an engine that starts with the current configuration files.
      type: str
      sample: nvidia
    cdi_directories:
      description:
        - The directories of CDI specifications that the running engine reports, otherwise those that its files name.
        - Null if there are none of either, so that the engine reads the usual directories of its release.
      type: list
      elements: str
      sample: [/etc/cdi, /var/run/cdi]
      version_added: 1.2.0
    recorded_files:
      description: The files that this collection changed and can restore.
      type: list
      elements: str
      sample: [/etc/docker/daemon.json]
    live:
      description: What the running engine reports, null if it does not run or does not answer.
      type: dict
      contains:
        runtimes:
          description: The runtimes of the engine, including built-in ones, with the paths of their programs.
          type: dict
          sample:
            nvidia: /usr/bin/nvidia-container-runtime
            runc: runc
        default_runtime:
          description: The default runtime of the engine.
          type: str
          sample: nvidia
        cdi:
          description: Whether the engine resolves CDI devices, null if it does not report that.
          type: bool
          sample: true
    restart_required:
      description: Whether the running engine does not use the current content of its files.
      type: bool
      sample: false
    missed_toolkit:
      description:
        - Whether a running Docker was started before this collection installed the packages of the toolkit. It refuses
          C(docker run --gpus) until it is restarted.
      type: bool
      sample: false
      version_added: 1.2.0
    unfinished_restart:
      description:
        - Whether M(gpufleet.nvidia.nvidia_runtime_restart) was killed before it had verified the engine's new state or
          restored the previous one. Its next run completes that work.
      type: bool
      sample: false
    problems:
      description: The files and daemons that could not be read, with the causes.
      type: list
      elements: dict
      contains: &problem
        code:
          description: The kind of problem. Codes stay the same in later versions, messages may change.
          type: str
          sample: file-invalid
        message:
          description: The description of the problem.
          type: str
          sample: "/etc/docker/daemon.json, line 1, column 14: the file ends, but a value is expected."
        advice:
          description: What to do about it.
          returned: if it is known
          type: str
          version_added: 1.2.0
          sample: Correct the file.
      sample: []
  sample:
    - engine: docker
      used_by_kubelet: false
      installed: true
      binary: /usr/sbin/dockerd
      version: 26.1.5
      running: true
      service: docker.service
      config_path: /etc/docker/daemon.json
      runtimes:
        nvidia: /usr/bin/nvidia-container-runtime
      default_runtime: nvidia
      cdi_directories: [/etc/cdi, /var/run/cdi]
      recorded_files: [/etc/docker/daemon.json]
      live:
        runtimes:
          nvidia: /usr/bin/nvidia-container-runtime
          runc: runc
        default_runtime: nvidia
        cdi: true
      restart_required: false
      unfinished_restart: false
      problems: []
toolkit:
  description:
    - The parts of the NVIDIA Container Toolkit on the host. Null if O(gather_subset) does not include V(toolkit).
  returned: success
  type: dict
  contains:
    gpu:
      description: Whether the host has an NVIDIA GPU.
      type: dict
      contains:
        present:
          description: Whether it has one, null if that is unknown, as in an offline tree.
          type: bool
          sample: true
        kind:
          description:
            - How the GPU was detected. V(tegra) is a Tegra with an integrated GPU, and V(driver) the loaded driver of
              another GPU. Without a driver, V(pci) is a GPU on the PCI bus, and V(wsl) is this platform. Null if no GPU
              was detected.
          type: str
          sample: driver
        message:
          description: How the GPU was detected, as a message.
          type: str
          sample: "The NVIDIA driver is loaded: /proc/driver/nvidia/version exists."
    package_manager:
      description: The package manager of the host, null if it has none that this collection supports.
      type: str
      sample: apt
    gpg:
      description:
        - The path of the program C(gpg), with which M(gpufleet.nvidia.nvidia_toolkit_install) checks the key for
          C(dnf) and C(zypper). Null if there is none.
      type: str
      sample: /usr/bin/gpg
    packages:
      description:
        - The installed packages of the toolkit and of its predecessors, by name. Each has its C(version), and C(held)
          is true if the package manager is set to keep the package at that version.
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
        - The programs of the toolkit, by name, with C(path) and C(version). The version is null if the program must not
          be run, as in an offline tree, or does not report one. For a toolkit in a directory the version is known
          without running the program.
      type: dict
      sample:
        nvidia-ctk:
          path: /usr/bin/nvidia-ctk
          version: 1.19.1
    version:
      description:
        - The version of all packages and programs, without the revision of a package. Null if there are none, or if
          they have several versions.
      type: str
      sample: 1.19.1
    known_cves:
      description:
        - The known vulnerabilities of the oldest version that any package or program of the toolkit has. Empty if the
          toolkit is not installed, null if it is but no part reports a version.
      type: list
      elements: dict
      contains:
        name:
          description: The identifier of the vulnerability.
          type: str
          sample: CVE-2026-24260
        floor:
          description: The oldest version without the vulnerability.
          type: str
          sample: 1.19.1
        about:
          description: A short description of the vulnerability.
          type: str
          sample: race between check and use
    directory:
      description:
        - The directory to which O(toolkit_dir) links, if M(gpufleet.nvidia.nvidia_toolkit_install) with
          O(gpufleet.nvidia.nvidia_toolkit_install#module:source=directory) has installed the toolkit there, else null.
      type: str
      sample: /usr/local/nvidia/toolkit.versions/1.19.1-0f8fad5bd9cb
    config_path:
      description: The configuration file of the toolkit.
      type: str
      sample: /etc/nvidia-container-runtime/config.toml
    settings:
      description:
        - The settings in effect, by names with dots, including defaults. Null is a setting without a value. Empty if
          the file cannot be read, or there is no toolkit.
        - Secrets are masked. They are user names and passwords in URLs, values of keys that look like secrets, and
          values of variables in C(nvidia-container-cli.environment) whose names look like secrets.
      type: dict
      sample:
        accept-nvidia-visible-devices-envvar-when-unprivileged: true
        nvidia-container-runtime.log-level: info
    other_toolkits:
      description:
        - The toolkits that engines run from other directories than that of C(programs), such as the toolkit of the GPU
          operator. Empty if O(gather_subset) does not include V(engines). Programs in a directory that another user can
          change are not run, so their version is unknown. RV(findings) has the problems of their settings.
      type: list
      elements: dict
      contains:
        path:
          description: The directory.
          type: str
          sample: /usr/local/nvidia/toolkit
        engines:
          description: The C(target) of each engine with a runtime in this directory.
          type: list
          elements: str
          sample: [containerd]
        version:
          description: The version of all programs. Null if none reports one, or if they have several.
          type: str
          sample: 1.19.1
        known_cves:
          description: The known vulnerabilities, as C(known_cves) of the toolkit.
          type: list
          elements: dict
          sample: []
      sample: []
    recorded_files:
      description:
        - The files with settings of the toolkit that M(gpufleet.nvidia.nvidia_toolkit_config) changed and can restore
          with O(gpufleet.nvidia.nvidia_toolkit_config#module:state=absent).
      type: list
      elements: str
      sample: [/etc/nvidia-container-runtime/config.toml]
    repository_files:
      description: The existing files of the package source that this collection writes, with its key and a fetched key.
      type: list
      elements: str
      sample: [/etc/apt/sources.list.d/gpufleet-nvidia-container-toolkit.sources]
    problems:
      description:
        - The files that could not be read, packages that an interrupted installation left half installed, and the
          values of RV(toolkit.settings) that the toolkit cannot use.
      type: list
      elements: dict
      contains: *problem
      sample: []
  sample:
    gpu:
      present: true
      kind: driver
      message: "The NVIDIA driver is loaded: /proc/driver/nvidia/version exists."
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
    known_cves: []
    directory: null
    config_path: /etc/nvidia-container-runtime/config.toml
    settings:
      nvidia-container-runtime.log-level: info
    other_toolkits: []
    recorded_files: []
    repository_files: [/etc/apt/sources.list.d/gpufleet-nvidia-container-toolkit.sources]
    problems: []
gpus:
  description: The GPUs of the driver. Null if O(gather_subset) does not include V(gpus).
  returned: success
  type: dict
  contains:
    driver_version:
      description: Version of the loaded driver, null if none is loaded or it does not report a version.
      type: str
      sample: 580.95.05
    modules:
      description:
        - The loaded kernel modules of the driver, and those of others for its GPUs, by name. Each has its C(version),
          null if it reports none, and its C(refcount), the number of modules and open files that use it.
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
        - One entry for each GPU, in the order of NVML, or else of the PCI addresses. GPUs that the driver is configured
          to exclude, and those that only drive a screen, are left out.
      type: list
      elements: dict
      contains:
        index:
          description: The index of the GPU in C(nvidia-smi), null if NVML does not list it.
          type: int
          sample: 0
        uuid:
          description: The UUID of the GPU, null if the driver does not know it.
          type: str
          sample: GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c
        minor:
          description: Minor number of the device node, such as 0 for C(/dev/nvidia0). Null if it is not known.
          type: int
          sample: 0
        bus_id:
          description:
            - The PCI address of the GPU as in C(/sys), where a domain above C(ffff) has five digits or more. Null if it
              is not known.
          type: str
          sample: "0000:0f:00.0"
        model:
          description: The name of the GPU model, null if it is not known.
          type: str
          sample: NVIDIA A100-SXM4-40GB
        mig_enabled:
          description:
            - Whether the GPU is in MIG mode. Null if that is not known, for example without NVML if the GPU has no MIG
              devices.
          type: bool
          sample: true
        mig_devices:
          description: The MIG devices of the GPU.
          type: list
          elements: dict
          contains:
            index:
              description: The index of the MIG device on this GPU, null if it is not known, as without NVML.
              type: int
              sample: 0
            uuid:
              description: The UUID of the MIG device, null if it is not known, as without NVML.
              type: str
              sample: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f
            gpu_instance:
              description: The ID of the GPU instance.
              type: int
              sample: 7
            compute_instance:
              description: The ID of the compute instance.
              type: int
              sample: 0
            profile:
              description: The profile of the MIG device, null if the driver does not report it.
              type: str
              sample: 1g.5gb
            healthy:
              description: Whether no problem is known that would prevent a container from using the MIG device.
              type: bool
              sample: true
            reasons:
              description:
                - The problems that would prevent it, as messages. Problems of the GPU are problems of all of its MIG
                  devices.
              type: list
              elements: str
              sample: []
        healthy:
          description: Whether no problem is known that would prevent a container from using the GPU.
          type: bool
          sample: true
        reasons:
          description:
            - The problems that would prevent it, as messages. They are errors that occur when the GPU is read, a GPU
              that NVML does not list or that has disappeared from the PCI bus, and device nodes that are missing or
              have wrong device numbers.
          type: list
          elements: str
          sample: []
    problems:
      description:
        - Errors while the GPUs were read, values that are not known because the GPUs were read from C(/proc), GPUs on
          the PCI bus that the driver does not use, and kernel modules of different versions.
      type: list
      elements: dict
      contains: *problem
      sample: []
  sample:
    driver_version: 580.95.05
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
    problems: []
cdi:
  description:
    - The CDI specifications in the directories that engines read, C(/etc/cdi) and C(/var/run/cdi). Null if
      O(gather_subset) does not include V(cdi).
  returned: success
  type: dict
  contains:
    files:
      description: The specifications, in the order in which engines read them. A later directory has precedence.
      type: list
      elements: dict
      contains:
        path:
          description: The path of the specification.
          type: str
          sample: /etc/cdi/nvidia.yaml
        kind:
          description: The kind of its devices, null if it cannot be read.
          type: str
          sample: nvidia.com/gpu
        cdi_version:
          description: The version of CDI in the file, null if it cannot be read.
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
            - Whether engines load it. Null for a YAML file if neither the host nor the controller has a PyYAML that
              could read it.
          type: bool
          sample: true
        errors:
          description: Why engines skip it, as messages.
          type: list
          elements: str
          sample: []
        warnings:
          description: Differences from the host with which engines can still use the file, as messages.
          type: list
          elements: str
          sample: []
        stale:
          description:
            - Whether it does not match the host, so that containers do not start or get wrong GPUs. Null for a
              specification that is not valid.
          type: bool
          sample: false
        reasons:
          description:
            - Why it is stale, as messages. The reasons are missing paths, paths that another user could replace, device
              nodes with other device numbers, another version of the driver, and, for the kind C(nvidia.com/gpu), GPUs
              and MIG devices that it lacks or that no longer exist.
          type: list
          elements: str
          sample: []
    devices:
      description:
        - The devices that engines find, by the names that containers request, each with the file that defines it.
      type: dict
      sample:
        nvidia.com/gpu=0: /etc/cdi/nvidia.yaml
        nvidia.com/gpu=all: /etc/cdi/nvidia.yaml
    refresh:
      description:
        - The service that generates the specification again, null if there is none. That of the toolkit is none if it
          is masked, if its program does not exist, or if that of M(gpufleet.nvidia.nvidia_cdi_refresh) replaces it.
      type: dict
      contains:
        service:
          description: The name of the unit.
          type: str
          sample: nvidia-cdi-refresh.service
        enabled:
          description: Whether it runs at boot or after a change of the driver.
          type: bool
          sample: true
        output:
          description: The file that it writes, null if it writes none or that cannot be read.
          type: str
          sample: /var/run/cdi/nvidia.yaml
      sample:
        service: nvidia-cdi-refresh.service
        enabled: true
        output: /var/run/cdi/nvidia.yaml
    problems:
      description: The files that could not be read, and the problems of the service.
      type: list
      elements: dict
      contains: *problem
      sample: []
  sample:
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
    devices:
      nvidia.com/gpu=0: /etc/cdi/nvidia.yaml
      nvidia.com/gpu=all: /etc/cdi/nvidia.yaml
    refresh: null
    problems: []
kubernetes:
  description:
    - The kubelet of a Kubernetes node, and its devices. All values are null or empty on a host without a kubelet.
    - Null if O(gather_subset) does not include V(kubernetes).
  returned: success
  type: dict
  contains:
    distribution:
      description:
        - How the kubelet was installed, V(kubeadm), V(k3s), V(rke2), V(k0s), V(microk8s), or V(kubelet) for all others.
          Null if the host has none.
      type: str
      sample: kubeadm
    service:
      description: The systemd unit that starts the kubelet.
      type: str
      sample: kubelet.service
    running:
      description: Whether the kubelet runs, null in an offline tree.
      type: bool
      sample: true
    engine:
      description:
        - The RV(engines[].target) of the engine that the kubelet uses. It is V(docker) if the kubelet uses cri-dockerd.
          Null if it is no supported engine of this host.
      type: str
      sample: containerd
    resources:
      description: The resources of all device plugins.
      type: list
      elements: dict
      contains:
        name:
          description: The name of the resource.
          type: str
          sample: nvidia.com/gpu
        allocatable:
          description:
            - The healthy devices that the kubelet offers. With time-slicing and MPS, a number follows after C(::).
          type: list
          elements: str
          sample: [GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c]
        held:
          description:
            - The C(devices) that each C(container) holds. C(pod) is the name of its pod in C(namespace). The checkpoint
              has no names, so C(pod) is then the UID and C(namespace) is null.
            - C(program) is the program with which containerd has started the container, null if that is unknown.
          type: list
          elements: dict
          sample:
            - pod: train-0
              namespace: ml
              container: cuda
              devices: [GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c]
              program: /usr/bin/nvidia-container-runtime
      sample:
        - name: nvidia.com/gpu
          allocatable: [GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c]
          held: []
    claims:
      description: The devices that DRA drivers have prepared for containers, if the kubelet reports them.
      type: list
      elements: dict
      sample:
        - driver: gpu.nvidia.com
          pool: node-1
          device: gpu-0
          pod: train-0
          namespace: ml
          container: cuda
    dra_drivers:
      description: The DRA drivers of the node, with their C(sockets), and whether a program listens on each of them.
      type: list
      elements: dict
      sample:
        - name: gpu.nvidia.com
          sockets:
            - path: /var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock
              listens: true
    problems:
      description: The files that could not be read, and a kubelet that does not answer.
      type: list
      elements: dict
      contains: *problem
      sample: []
findings:
  description:
    - Present and future problems of the host, the most severe first, each with advice. Null if O(gather_subset) does
      not include V(findings).
    - Findings with one cause are one finding. Its text names the others by RV(findings[].id) and
      RV(findings[].subject). Packages, vulnerabilities, files, GPUs and settings that need the same step are also one.
    - They are derived from all other parts that are read, and from files of other tools, such as Kubespray, the GPU
      operator, and earlier versions of NVIDIA's tools.
  returned: success
  type: list
  elements: dict
  contains:
    severity:
      description:
        - V(critical) is for GPUs that containers cannot use now or after the next restart, a configuration that the
          engine cannot read, and a known vulnerability.
        - V(warning) is for a configuration that works now but will stop working, or that two tools manage.
        - V(info) is for information.
      type: str
      sample: warning
    id:
      description: The kind of finding. It stays the same in later versions.
      type: str
      sample: cdi-stale
    subject:
      description: What the finding is about, such as an engine's RV(engines[].target), a file, or C(toolkit). It lists
        several of them if they need the same step.
      type: str
      sample: /etc/cdi/nvidia.yaml
    text:
      description: The description of the finding.
      type: str
      sample: /etc/cdi/nvidia.yaml does not match the host. It is for driver 575.51.03, but the driver is 580.95.05.
    advice:
      description: How to correct the problem, with the playbooks and variables of this collection.
      type: str
      sample: Run gpufleet.nvidia.site, which writes the specification of the GPUs.
  sample:
    - severity: critical
      id: cdi-stale
      subject: /etc/cdi/nvidia.yaml
      text: /etc/cdi/nvidia.yaml does not match the host. It is for driver 575.51.03, but the driver is 580.95.05.
      advice: Run gpufleet.nvidia.site, which writes the specification of the GPUs.
"""

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import host_info
from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import container_info


def main() -> None:
    module = _module.new_module(container_info.SPEC)
    _module.run_module(module, lambda: container_info.describe(module, host_info.describe_host))


if __name__ == "__main__":
    main()
