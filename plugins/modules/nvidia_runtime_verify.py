# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_runtime_verify
short_description: Prove that an engine can start a container through the NVIDIA runtime
version_added: 0.1.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Answers whether a container engine can really start a container through an NVIDIA runtime, and if it cannot, which
    link of the chain from the driver to the container is broken. A broken link fails the task, and the message says
    what to do about it.
  - No network is needed. Nothing is ever pulled, and the container has no network either, or, through containerd and
    CRI-O, its host's, for which no network plugin is asked.
  - Nothing is changed. The container is removed whatever happens, and what a run that was killed has left behind is
    removed by the next one, which finds it by the label C(gpufleet.nvidia.verify).
  - While a container runs, other tasks of this collection that would change the host's engines wait.
  - With O(level=gpu), hosts are expected to have NVIDIA's driver for Linux. WSL and Tegra have other devices and are
    not handled yet.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.target
  - gpufleet.nvidia.host_root
  - gpufleet.nvidia.shipped
  - gpufleet.nvidia.shipped_yaml
attributes:
  check_mode:
    support: full
    details: The host is looked at as ever, but no container is started, and a warning says so.
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
    details: This module writes no file that stays.
options:
  engine:
    description: The container engine to verify.
    type: str
    choices: [docker, containerd, crio, podman]
    required: true
  level:
    description:
      - How much is verified; each level includes those before it.
      - V(config) looks at the engine. Its files and flags have to register O(runtime_name) with a program that is on
        the host, and the running daemon has to know it and to run with what the files say.
      - V(engine) starts a container of O(image) without a GPU through the runtime, which works on hosts without a GPU
        too. C(NVIDIA_VISIBLE_DEVICES) is V(void) in it.
      - V(gpu) looks at the driver, its device nodes, the toolkit and its C(config.toml), and, where the runtime works
        with CDI, for a specification of C(nvidia.com/gpu) that engines load and that fits the host. It then starts a
        container with all GPUs.
      - A container is only started where nothing before it is broken.
    type: str
    choices: [config, engine, gpu]
    default: config
  runtime_name:
    description: The name under which the runtime is registered.
    type: str
    default: nvidia
  image:
    description:
      - Name of an image that the engine has already. For containerd it has to be in the namespace C(k8s.io).
      - Needed by V(engine) and V(gpu) of O(level). Any image will do that has O(command).
      - Pods of containerd and CRI-O begin with the pause image that the engine is configured with, which has to be
        there too.
    type: str
  command:
    description:
      - What the container runs in place of what its image names, program first. It has to end with status 0.
      - Where nothing is given, that is C(true) with O(level=engine), and C(nvidia-smi -L) with O(level=gpu).
    type: list
    elements: str
  runtime_dir:
    description:
      - Folder with the programs of the NVIDIA Container Toolkit, for O(level=gpu). They are looked for in the usual
        folders too.
      - Where nothing is given, it is the folder of the program that is registered as O(runtime_name).
      - C(.config/nvidia-container-runtime/config.toml) in it goes before the one in C(/etc).
    type: path
  config_path:
    description: The engine's configuration file. Where nothing is given, the one that its unit really uses.
    type: path
  service:
    description: The engine's systemd unit, where it is not the usual one, such as C(k3s.service).
    type: str
  socket:
    description: The socket that the engine listens on. Where nothing is given, the one that its unit or file names.
    type: path
  timeout:
    description:
      - Seconds that the container may take from its creation to its end.
      - On nodes of a Kubernetes cluster choose commands that end soon. The kubelet ends pods that it does not know
        within seconds; this is noticed, and such a pod is started up to three times.
    type: int
    default: 60
seealso:
  - module: gpufleet.nvidia.nvidia_container_info
  - module: gpufleet.nvidia.nvidia_runtime_config
"""

EXAMPLES = r"""
- name: Prove that the running Docker knows the runtime nvidia
  gpufleet.nvidia.nvidia_runtime_verify:
    engine: docker

- name: Prove that Docker starts containers through it
  gpufleet.nvidia.nvidia_runtime_verify:
    engine: docker
    level: engine
    image: busybox:1.36

- name: Prove that pods get all GPUs
  gpufleet.nvidia.nvidia_runtime_verify:
    engine: containerd
    level: gpu
    image: registry.example.com/cuda:12.6.3-base
  register: proof

- name: Show the GPUs
  ansible.builtin.debug:
    var: proof.output

- name: Verify the containerd of a k3s
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
    - The links of the chain that were looked at, in the order in which they depend on each other.
    - The links are C(driver), C(device nodes), C(toolkit), C(config.toml), C(engine file), C(live engine), C(CDI), and
      C(container).
  returned: always, but for parameters that do not fit
  type: list
  elements: dict
  contains:
    link:
      description: The link's name.
      type: str
      sample: live engine
    ok:
      description: Whether it holds. Null where it could not be judged, which a warning tells too.
      type: bool
      sample: true
    detail:
      description: What was found.
      type: str
      sample: The running docker 26.1.5 knows nvidia.
  sample:
    - link: engine file
      ok: true
      detail: /etc/docker/daemon.json registers nvidia as /usr/bin/nvidia-container-runtime.
    - link: live engine
      ok: true
      detail: The running docker 26.1.5 knows nvidia.
    - link: container
      ok: true
      detail: true in a container of busybox:1.36, started through nvidia, ended with status 0.
broken:
  description: The first broken link, which the message is about. Null where all hold.
  returned: always, but for parameters that do not fit
  type: str
  sample: device nodes
output:
  description: What the container said last, on both of its streams. Empty where none was started.
  returned: always, but for parameters that do not fit
  type: str
  sample: "GPU 0: NVIDIA L4 (UUID: GPU-2f1c5b1e-4a3d-8f0e-6f3a-0b1f4a5e7c9d)"
"""

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import verify as verify_verify

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule


def verify(module: AnsibleModule) -> dict[str, object]:
    """Look at the chain; the result as documented."""
    params = module.params
    _module.load_bundled_packages(module)
    wanted = verify_verify.VerifyOptions(
        engine=params["engine"],
        flavor=params["flavor"],
        user=params["user"],
        level=params["level"],
        runtime_name=params["runtime_name"],
        image=params["image"],
        command=tuple(params["command"] or ()),
        runtime_dir=params["runtime_dir"],
        config_path=params["config_path"],
        service=params["service"],
        socket=params["socket"],
        timeout=params["timeout"],
    )
    return verify_verify.Verification(wanted, _module.host_from_params(module), _module.command_runner(module)).execute(
        module.check_mode
    )


def main() -> None:
    module = _module.new_module(
        {
            "engine": {"type": "str", "choices": list(engines_registry.ENGINES), "required": True},
            **_module.TARGET_OPTIONS,
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
            **_module.SHIPPED_OPTIONS,
            **_module.SHIPPED_YAML_OPTIONS,
        },
        required_if=[("level", "engine", ("image",)), ("level", "gpu", ("image",))],
    )
    _module.run_module(module, lambda: verify(module))


if __name__ == "__main__":
    main()
