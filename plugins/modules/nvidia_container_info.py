# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_container_info
short_description: Tell which container engines a host has and how they stand
version_added: 0.1.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Reads which container engines are installed and running on a host, which configuration file each one really uses,
    which runtimes it registers, and what the running engine says of itself.
  - Nothing is changed and nothing is started. A strange host is described, with RV(engines[].problems), and is no
    failure.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.host_root
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
"""

EXAMPLES = r"""
- name: Look at the host
  gpufleet.nvidia.nvidia_container_info:
  register: host

- name: Show the engines that still run with an older configuration
  ansible.builtin.debug:
    msg: "{{ host.engines | selectattr('restart_required') | map(attribute='engine') }}"

- name: Look into an image that is being built
  gpufleet.nvidia.nvidia_container_info:
    host_root: /srv/images/gpu-node
"""

RETURN = r"""
engines:
  description:
    - One entry for each engine that this collection knows and of which the host has anything, be it the program, a
      unit, a configuration below C(/etc), or our record of one.
  returned: success
  type: list
  elements: dict
  contains:
    engine:
      description: The engine's name, as O(gpufleet.nvidia.nvidia_runtime_config#module:engine) takes it.
      type: str
      sample: docker
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
      elements: str
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
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.nvidia.plugins.module_utils._container_info import describe_host
from ansible_collections.gpufleet.nvidia.plugins.module_utils._module import (
    HOST_ROOT_OPTIONS,
    finish,
    host_of,
    run_in,
)


def main() -> None:
    module = AnsibleModule(argument_spec=HOST_ROOT_OPTIONS, supports_check_mode=True)
    finish(module, lambda: describe_host(host_of(module), run_in(module)))


if __name__ == "__main__":
    main()
