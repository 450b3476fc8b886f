# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_runtime_verify
short_description: Verify that an engine can start a container through the NVIDIA runtime
version_added: 0.1.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Checks whether a container engine can start a container through an NVIDIA runtime. The checks go from the driver to
    the container. If one fails, the module fails, names the first failed check, and says what to do.
  - The module needs no network and pulls no image. The container has no network. Through containerd and CRI-O it has
    the network of the host, because that needs no network plugin.
  - The module changes nothing. It always removes the container. If a run is killed, the next run removes its container,
    which it finds by the label C(gpufleet.nvidia.verify).
  - While the container runs, other tasks of this collection that change the engines of the host wait.
  - O(level=gpu) needs NVIDIA's driver for Linux on the host. WSL and Tegra have other devices and are not supported
    yet.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.target
  - gpufleet.nvidia.host_root
  - gpufleet.nvidia.bundled
attributes:
  check_mode:
    support: full
    details: The host is checked, but no container is started, and a warning says so.
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
    details: This module leaves no file.
options:
  engine:
    description: The container engine to verify.
    type: str
    choices: [docker, containerd, crio, podman]
    required: true
  level:
    description:
      - What is verified. Each level includes the previous ones.
      - V(config) checks the engine. Its files and flags must register O(runtime_name) with a program that exists on the
        host, and the running daemon must report the runtime and run with the settings of the files.
      - V(engine) starts a container of O(image) without a GPU through the runtime, which also works on hosts without a
        GPU. C(NVIDIA_VISIBLE_DEVICES) is V(void) in it.
      - V(gpu) checks the driver, its device nodes, the toolkit, and its C(config.toml). If the runtime uses CDI,
        it also checks for a specification of C(nvidia.com/gpu) that engines load and that fits the host. It then starts
        a container with all GPUs.
      - A container is only started if no previous check fails.
    type: str
    choices: [config, engine, gpu]
    default: config
  runtime_name:
    description: The name under which the runtime is registered.
    type: str
    default: nvidia
  image:
    description:
      - Name of an image that the engine already has. For containerd it must be in the namespace C(k8s.io).
      - Required for O(level=engine) and O(level=gpu). Any image that contains O(command) can be used.
      - Pods of containerd and CRI-O also need the pause image that the engine is configured with.
    type: str
  command:
    description:
      - The command of the container, program first, instead of the command of the image. It must exit with status 0.
      - When left out, C(true) with O(level=engine), and C(nvidia-smi -L) with O(level=gpu).
    type: list
    elements: str
  runtime_dir:
    description:
      - Directory with the programs of the NVIDIA Container Toolkit, for O(level=gpu). The usual directories are
        searched too.
      - When left out, the directory of the program that is registered as O(runtime_name).
      - C(.config/nvidia-container-runtime/config.toml) in it has precedence over the one in C(/etc).
    type: path
  config_path:
    description: The engine's configuration file. When left out, the one that its unit uses.
    type: path
  service:
    description:
      - The engine's systemd unit, if it is not the usual one, such as C(k3s.service). When left out, the usual one.
    type: str
  socket:
    description: The socket of the engine. When left out, the one that its unit or file names.
    type: path
  timeout:
    description:
      - Seconds that the container may take from its creation to its end.
      - On nodes of a Kubernetes cluster choose a command that ends soon. The kubelet stops pods that it does not know
        within seconds. The module detects this and starts such a pod up to three times.
    type: int
    default: 60
seealso:
  - module: gpufleet.nvidia.nvidia_container_info
  - module: gpufleet.nvidia.nvidia_runtime_config
"""

EXAMPLES = r"""
- name: Check that the running Docker has the runtime nvidia
  gpufleet.nvidia.nvidia_runtime_verify:
    engine: docker

- name: Check that Docker starts containers through it
  gpufleet.nvidia.nvidia_runtime_verify:
    engine: docker
    level: engine
    image: busybox:1.36

- name: Check that pods get all GPUs
  gpufleet.nvidia.nvidia_runtime_verify:
    engine: containerd
    level: gpu
    image: registry.example.com/cuda:12.6.3-base
  register: verified

- name: Show the GPUs
  ansible.builtin.debug:
    var: verified.output

- name: Verify the containerd of K3s
  gpufleet.nvidia.nvidia_runtime_verify:
    engine: containerd
    level: engine
    image: docker.io/rancher/mirrored-library-busybox:1.36.1
    service: k3s.service
    socket: /run/k3s/containerd/containerd.sock
    config_path: /var/lib/rancher/k3s/agent/etc/containerd/config.toml
"""

RETURN = r"""
checks:
  description:
    - The results of the checks, in the order in which they depend on each other.
    - The checks are C(driver), C(device nodes), C(toolkit), C(config.toml), C(engine file), C(live engine), C(CDI), and
      C(container).
  returned: unless the request is refused
  type: list
  elements: dict
  contains:
    name:
      description: The name of the check.
      type: str
      sample: live engine
    ok:
      description: Whether the check passed. Null if it could not be made, and a warning says so.
      type: bool
      sample: true
    detail:
      description: What was found.
      type: str
      sample: The running docker 26.1.5 has nvidia.
  sample:
    - name: engine file
      ok: true
      detail: /etc/docker/daemon.json registers nvidia as /usr/bin/nvidia-container-runtime.
    - name: live engine
      ok: true
      detail: The running docker 26.1.5 has nvidia.
    - name: container
      ok: true
      detail: "`true` in a container of busybox:1.36 with the runtime nvidia exited with status 0."
failed_check:
  description: The name of the first failed check, which the message describes. Null if no check failed.
  returned: unless the request is refused
  type: str
  sample: device nodes
output:
  description: The end of the container's output, on both streams. Empty if no container was started.
  returned: unless the request is refused
  type: str
  sample: "GPU 0: NVIDIA L4 (UUID: GPU-2f1c5b1e-4a3d-8f0e-6f3a-0b1f4a5e7c9d)"
"""

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import verify as verify_verify

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule


def verify(module: AnsibleModule) -> dict[str, object]:
    """Check the host from the driver to the container. Return the result as documented."""
    params = module.params
    _module.load_bundled_packages(module)
    given = {name: params[name] for name in verify_verify.VerifyOptions._fields}
    options = verify_verify.VerifyOptions(**{**given, "command": tuple(params["command"] or ())})
    host, run = _module.host_from_params(module), _module.command_runner(module)
    return verify_verify.Verification(options, host, run).execute(module.check_mode)


def main() -> None:
    module = _module.new_module(
        {
            "engine": {"type": "str", "choices": list(flavors.ENGINES), "required": True},
            **flavors.TARGET_OPTIONS,
            "level": {"type": "str", "choices": list(verify_verify.LEVELS), "default": "config"},
            "runtime_name": {"type": "str", "default": "nvidia"},
            "image": {"type": "str"},
            "command": {"type": "list", "elements": "str"},
            "runtime_dir": {"type": "path"},
            "config_path": {"type": "path"},
            "service": {"type": "str"},
            "socket": {"type": "path"},
            "timeout": {"type": "int", "default": 60},
            **_module.HOST_ROOT_OPTIONS,
            **_module.BUNDLED_OPTIONS,
        },
        required_if=[("level", "engine", ("image",)), ("level", "gpu", ("image",))],
    )
    _module.run_module(module, lambda: verify(module))


if __name__ == "__main__":
    main()
