# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_runtime_verify
short_description: Verify that containers see the GPUs of their host, or explain which GPUs one has
version_added: 1.0.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Checks whether a container engine can start a container through an NVIDIA runtime. The checks go from the driver to
    the container. If one fails, the module fails, names the first failed check, and says what to do.
  - Docker and Podman need no image. The module imports the shell of the host, with its loader and C library, as an
    image without other files. Everything of NVIDIA in the container then comes from the host's configuration.
  - The module needs no network, except with O(pull=true). The container has no network. Through containerd and CRI-O it
    has the network of the host, because that needs no network plugin.
  - The module changes nothing. It always removes the container, and the image that it imported or pulled. If a run is
    killed, the next run removes its container and its imported image, which it finds by the label
    C(gpufleet.nvidia.verify). A pulled image then stays.
  - With O(container), the module explains an existing container. It measures what the container has, and whether its
    first process may open the device nodes, without opening one. It starts no container, unless O(try_copy=true).
  - While the container runs, other tasks of this collection that change the engines of the host wait.
  - O(level=gpu) needs NVIDIA's driver for Linux on the host. WSL, and a Tegra whose GPU is not on the PCI bus, have
    other devices and are not supported yet.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.target
  - gpufleet.nvidia.host_root
  - gpufleet.nvidia.bundled
attributes:
  check_mode:
    details: The host is checked, but no container is started, and a warning says so. With O(container), only
      O(try_copy) has no effect.
  diff_mode:
    support: N/A
    details: This module changes nothing.
  idempotent:
    details: This module changes nothing.
  safe_file_operations:
    support: N/A
    details: This module leaves no file.
options:
  engine:
    description:
      - The container engine to verify.
      - Required unless O(container) is set. With O(container) it selects the engine to search. When left out, all
        engines of the host are searched.
    type: str
    choices: [docker, containerd, crio, podman]
  container:
    description:
      - Name or ID of an existing container to explain. The beginning of an ID is enough if it matches one container. A
        container of a pod can also be C(POD/NAME) or C(NAMESPACE/POD/NAME), which select the newest one if the kubelet
        has restarted it. The container may be stopped, or may never have started.
      - The module does not fail if the container lacks GPUs. RV(explanation.ok) is then V(false), and null if that
        could not be measured. Write C(failed_when) with C(is not true), or C(is false) to accept unknown answers.
      - Only root can measure whether a container may open its device nodes.
      - Of the other options only O(engine), O(flavor), O(user), O(service), O(socket), O(try_copy), O(image),
        O(timeout), O(host_root) and O(host_root_live) can be set with it. O(flavor), O(user), O(service) and O(socket)
        need O(engine).
    type: str
    version_added: 1.1.0
  try_copy:
    description:
      - With O(container), whether to start a copy of it, to measure what the copy has, and to remove the copy. This
        answers for a container that does not run, and shows the error of the engine.
      - The copy has what decides about devices, such as the runtime, the requests, the user and the variables in
        RV(explanation.asked.variables). It has no volume, network or command of the container, and only waits.
      - Docker and Podman make its image from the shell of the host. For a container of a pod, O(image) or the pause
        image of the engine is used.
      - In check mode no copy is started.
    type: bool
    default: false
    version_added: 2.0.0
  level:
    description:
      - What is verified. Each level includes the previous ones.
      - V(config) checks the engine. Its files and flags must register O(runtime_name) with a program that exists on the
        host, and the running daemon must report the runtime and run with the settings of the files.
      - V(engine) starts a container without a GPU through the runtime, which also works on hosts without a GPU.
        C(NVIDIA_VISIBLE_DEVICES) is V(void) in it.
      - V(gpu) checks the driver and its device nodes. If the runtime or the engine uses CDI, it also checks for a
        specification of C(nvidia.com/gpu) that engines load and that fits the host. V(gpu) then starts a container with
        all GPUs, and fails unless the container sees each GPU and MIG device of the host.
      - A container is only started if no previous check fails.
    type: str
    choices: [config, engine, gpu]
    default: config
  runtime_name:
    description: The name under which the runtime is registered.
    type: str
    default: nvidia
  method:
    description:
      - How containers get the GPUs. Podman always uses CDI.
      - V(runtime) uses the runtime O(runtime_name), and fails if the engine does not register it.
      - V(cdi) uses CDI. No runtime needs to be registered, O(level=config) checks that CDI is on in the engine, and the
        container of O(level=engine) has the default runtime of the engine.
      - V(auto) uses that runtime if it is registered. Otherwise, with O(level=gpu), it uses CDI if it is on and a
        specification describes the GPUs, or with Docker C(--gpus all) if the host has C(nvidia-container-runtime-hook).
        With other levels it fails.
      - With V(cdi) and V(auto), a containerd whose CRI is disabled is reported as not verified.
    type: str
    choices: [runtime, cdi, auto]
    default: runtime
  image:
    description:
      - Name of an image that the engine already has. For containerd it must be in the namespace C(k8s.io).
      - Docker and Podman need none. containerd and CRI-O need one for O(level=engine) and O(level=gpu). Without it no
        container is started, and a warning says so.
      - Any image that contains O(command) can be used. With O(try_copy), it needs C(/bin/sh).
      - Pods of containerd and CRI-O also need the pause image that the engine is configured with.
    type: str
  pull:
    description:
      - Whether containerd or CRI-O may pull O(image) if it is missing. The module removes such an image afterwards.
      - The engine may then pull its pause image too, which stays.
    type: bool
    default: false
  command:
    description:
      - The command of the container, program first, instead of the command of the image. It must exit with status 0.
      - When left out, C(true) with O(level=engine). With O(level=gpu) it is a script for C(/bin/sh), which lists the
        device nodes of GPUs and runs C(nvidia-smi -L) if the container has it. With a CDI specification without hooks,
        in which C(nvidia-smi) does not find its library, only the nodes are listed. With another command, the GPUs are
        not compared with those of the host.
    type: list
    elements: str
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
      - Seconds that the container may take from its creation to its end. A pull may take ten minutes more.
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

- name: Check that containers of Docker see all GPUs, however they get them
  gpufleet.nvidia.nvidia_runtime_verify:
    engine: docker
    level: gpu
    method: auto

- name: Check that pods see all GPUs
  gpufleet.nvidia.nvidia_runtime_verify:
    engine: containerd
    level: gpu
    image: registry.example.com/cuda:12.6.3-base
    pull: true
  register: verified

- name: Show the GPUs
  ansible.builtin.debug:
    var: verified.gpus

- name: Explain why a container does not see the GPUs
  gpufleet.nvidia.nvidia_runtime_verify:
    container: training
  register: explained

- name: Explain a container that does not run, by a copy of it
  gpufleet.nvidia.nvidia_runtime_verify:
    container: training
    try_copy: true

- name: Show the reason and what to do
  ansible.builtin.debug:
    msg: "{{ explained.explanation.message }} {{ explained.explanation.advice }}"

- name: Fail unless a container of a pod has what it requests
  gpufleet.nvidia.nvidia_runtime_verify:
    engine: containerd
    container: default/training-0/main
  register: explained
  failed_when: explained is failed or explained.explanation.ok is not true

- name: Verify the containerd of K3s
  gpufleet.nvidia.nvidia_runtime_verify:
    engine: containerd
    flavor: k3s
    level: engine
    image: docker.io/rancher/mirrored-library-busybox:1.36.1
"""

RETURN = r"""
checks:
  description:
    - The results of the checks, in the order in which they depend on each other.
    - The checks are C(driver), C(device nodes), C(engine file), C(live engine), C(CDI), and C(container).
  returned: without O(container), unless the request is refused
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
  returned: without O(container), unless the request is refused
  type: str
  sample: device nodes
gpus:
  description:
    - The GPUs and MIG devices of the host that a container can use. A GPU in MIG mode is not in the list, only its MIG
      devices.
    - Empty if the container was not started, failed, or ran another O(command).
  returned: without O(container), unless the request is refused
  type: list
  elements: dict
  contains:
    name:
      description:
        - The number of the GPU, or its PCI address if the number is unknown. The number of the MIG device follows.
      type: str
      sample: GPU 0
    uuid:
      description: Its UUID. Empty if the host does not know it.
      type: str
      sample: GPU-2f1c5b1e-4a3d-8f0e-6f3a-0b1f4a5e7c9d
    nodes:
      description: Its device nodes. Empty if they are unknown.
      type: list
      elements: str
      sample: [/dev/nvidia0]
    seen:
      description:
        - Whether the container sees it. The UUIDs of C(nvidia-smi -L) decide, or the device nodes if a UUID is unknown
          or the container has no C(nvidia-smi).
      type: bool
      sample: true
  sample:
    - name: GPU 0
      uuid: GPU-2f1c5b1e-4a3d-8f0e-6f3a-0b1f4a5e7c9d
      nodes: [/dev/nvidia0]
      seen: true
injection:
  description:
    - How the container gets the GPUs. Null if O(level) is not V(gpu), in check mode, without a required O(image), and
      if the CRI of containerd is disabled.
  returned: without O(container), unless the request is refused
  type: str
  sample: --runtime nvidia
output:
  description: The end of the container's output, on both streams. Empty if no container was started.
  returned: without O(container), unless the request is refused
  type: str
  sample: "GPU 0: NVIDIA L4 (UUID: GPU-2f1c5b1e-4a3d-8f0e-6f3a-0b1f4a5e7c9d)"
summary:
  description: The result in a few words.
  returned: without O(container), unless the request is refused
  type: str
  sample: 8 of 8 GPUs (--runtime nvidia)
explanation:
  description: What the container has, what it requested, and why it does not have more.
  returned: with O(container), if the container is found
  type: dict
  contains:
    ok:
      description:
        - V(true) if the container may open all device nodes that it needs, and has libraries of the loaded driver.
        - V(false) if a measurement shows that something is missing or denied, or if the last start failed.
        - Null if that could not be measured. Of a container that does not run, it is about its copy (O(try_copy)).
      type: bool
      sample: false
    code:
      description: The code of the reason, or V(ok). It stays the same over versions.
      type: str
      sample: cgroup-denied
    message:
      description: The result in one or two sentences.
      type: str
      sample: "training (docker, 3a3a3ce6c3f0): Its device cgroup does not permit it to open /dev/nvidia0."
    advice:
      description: What to do, from the first cause that has advice. Empty if there is nothing to do.
      type: str
      sample: Create it again with the runtime of NVIDIA, or with a CDI device.
    has:
      description: What the container has. Null if it does not run.
      type: dict
      contains:
        gpus:
          description: The GPUs and MIG devices of the host whose device nodes it has.
          type: list
          elements: str
          sample: [GPU 0]
        nodes:
          description: The driver's paths in its C(/dev).
          type: list
          elements: dict
          contains:
            path:
              description: The path in the container.
              type: str
              sample: /dev/nvidia0
            kind:
              description: V(node) for a character device, V(link), or V(other). Links are not followed.
              type: str
              sample: node
            major:
              description: The major number.
              type: int
              sample: 195
            minor:
              description: The minor number.
              type: int
              sample: 0
            mode:
              description: The permission bits.
              type: int
              sample: 438
            uid:
              description: The owner, as the host sees it.
              type: int
              sample: 0
            gid:
              description: The group, as the host sees it.
              type: int
              sample: 0
            usable:
              description: Whether the first process of the container may open it. Null if that is unknown.
              type: bool
              sample: false
            denied_by:
              description: V(cgroup), V(mode), V(nodev) or V(selinux). Empty if nothing is known to deny it.
              type: str
              sample: cgroup
          sample: []
        files:
          description: The files of the driver that are mounted into it.
          type: list
          elements: dict
          contains:
            path:
              description: The path in the container.
              type: str
              sample: /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05
            version:
              description: The version in its name. Null if the name has none.
              type: str
              sample: 580.95.05
          sample: []
        user:
          description: The user and group of its first process, as the host sees them.
          type: str
          sample: "0:0"
        problem:
          description: Why RV(explanation.has.nodes) may be incomplete. Empty if it is complete.
          type: str
          sample: ""
        access_problem:
          description: Why C(usable) of a node is null. Empty if it is known.
          type: str
          sample: ""
    asked:
      description: The record of the engine about the container.
      type: dict
      contains:
        engine:
          description: The engine.
          type: str
          sample: docker
        id:
          description: The full ID.
          type: str
          sample: 3a3a3ce6c3f00fc605aa026e31f56bf724cdc75aaf35e34d8a2bddabe47dc9ec
        name:
          description: The name. Empty if the engine knows none.
          type: str
          sample: training
        state:
          description: V(created), V(running) or V(exited).
          type: str
          sample: running
        pid:
          description: The first process of the container. Null if it does not run.
          type: int
          sample: 488
        error:
          description: Why the engine could not start it. Empty if it reports nothing.
          type: str
          sample: ""
        runtime:
          description: The name of its runtime.
          type: str
          sample: runc
        program:
          description: The program of its runtime.
          type: str
          sample: /usr/bin/runc
        requests:
          description: All requests for GPUs, as the engine recorded them.
          type: list
          elements: dict
          contains:
            kind:
              description: V(gpus) for C(--gpus), V(cdi), V(variable), V(mount), V(annotation) or V(device).
              type: str
              sample: variable
            value:
              description: The request, verbatim.
              type: str
              sample: NVIDIA_VISIBLE_DEVICES=all
            source:
              description: Where it is recorded.
              type: str
              sample: Config.Env
            gpus:
              description: The GPUs that it names. Empty if it names none.
              type: list
              elements: str
              sample: [all]
          sample: []
        variables:
          description:
            - The variables of the container that the toolkit or CUDA reads.
            - All other variables are left out, because they may contain secrets.
          type: dict
          sample: {"NVIDIA_VISIBLE_DEVICES": "all"}
    tried:
      description: The result of the copy. Null without O(try_copy=true).
      type: dict
      contains:
        ok:
          description: As RV(explanation.ok), for the copy.
          type: bool
          sample: true
        code:
          description: As RV(explanation.code), for the copy.
          type: str
          sample: ok
        message:
          description: As RV(explanation.message), for the copy.
          type: str
          sample: A copy of it was measured. It does not have GPU 0 (/dev/nvidia0).
        advice:
          description: As RV(explanation.advice), for the copy.
          type: str
          sample: ""
        error:
          description: The error of the engine if the copy did not start.
          type: str
          sample: ""
        has:
          description: What the copy has, as RV(explanation.has). Null if it was not measured.
          type: dict
    causes:
      description: Possible causes, if RV(explanation.ok) is not V(true).
      type: list
      elements: dict
      contains:
        code:
          description:
            - The id of a finding of the audit, the code of a known error, or V(start-failed).
            - V(runtime-not-nvidia) if its runtime reads none of its requests.
            - V(copy-has-gpus) if only the copy has its GPUs.
          type: str
          sample: driver-not-loaded
        message:
          description: The cause.
          type: str
          sample: The host has a GPU, but NVIDIA's driver is not loaded.
        advice:
          description: What to do. Empty if that is unknown.
          type: str
          sample: Load it with modprobe nvidia.
      sample: []
verified:
  description: Whether a container ran successfully. With O(level=gpu) it must also have seen all GPUs.
  returned: without O(container), unless the request is refused
  type: bool
  sample: true
"""

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import injection
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import verify as verify_verify

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule


# The options that apply to an existing container. flavor, user, service and socket select its engine.
_WITH_CONTAINER = (
    "container", "engine", "flavor", "user", "service", "socket",
    "try_copy", "image", "timeout",
)  # fmt: skip


def verify(module: AnsibleModule) -> dict[str, object]:
    """Check the host from the driver to the container. Return the result as documented."""
    params = module.params
    _module.load_bundled_packages(module)
    if params["container"] is not None:
        return explain(module)
    if params["try_copy"]:
        raise errors.NvidiaError(
            f"The option {errors.option:try_copy} needs the option {errors.option:container}. Add"
            f" {errors.option:container}."
        )
    given = {name: params[name] for name in verify_verify.VerifyOptions._fields}
    options = verify_verify.VerifyOptions(**{**given, "command": tuple(params["command"] or ())})
    host, run = _module.host_from_params(module), _module.command_runner(module)
    return verify_verify.Verification(options, host, run).execute(module.check_mode)


def explain(module: AnsibleModule) -> dict[str, object]:
    """Return the explanation of an existing container. Raises NvidiaError for options that do not apply to it."""
    # Only this option needs the imports.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (  # noqa: PLC0415
        explain as explain_explain,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (  # noqa: PLC0415
        search as explain_search,
    )

    params = module.params
    for name, option in _OPTIONS.items():
        if name not in _WITH_CONTAINER and params[name] != option.get("default"):
            raise errors.NvidiaError(
                f"The option {errors.option:{name}} does not apply to an existing container. Remove it."
            )
    if params["engine"] is None and params["flavor"] != core_constants.AUTO:
        raise errors.NvidiaError(
            f"The option {errors.option:flavor} needs the option {errors.option:engine}. Add {errors.option:engine}."
        )
    host, run = _module.host_from_params(module), _module.command_runner(module)
    socket = None if params["socket"] is None else host.check_path("socket", params["socket"])
    selector = explain_search.Selector(params["engine"], params["flavor"], params["user"], params["service"], socket)
    found = explain_search.find(params["container"], selector, host, run)
    is_tried = params["try_copy"] and not module.check_mode
    copy = explain_explain.CopyOptions(is_tried, params["image"], params["timeout"])
    return explain_explain.explain(found, copy, host, run)


_OPTIONS: dict[str, dict[str, t.Any]] = {
    "engine": {"type": "str", "choices": list(flavors.ENGINES)},
    "container": {"type": "str"},
    "try_copy": {"type": "bool", "default": False},
    **flavors.TARGET_OPTIONS,
    "level": {"type": "str", "choices": list(verify_verify.LEVELS), "default": "config"},
    "runtime_name": {"type": "str", "default": "nvidia"},
    "method": {"type": "str", "choices": list(injection.METHODS), "default": injection.RUNTIME},
    "image": {"type": "str"},
    "pull": {"type": "bool", "default": False},
    "command": {"type": "list", "elements": "str"},
    "config_path": {"type": "path"},
    "service": {"type": "str"},
    "socket": {"type": "path"},
    "timeout": {"type": "int", "default": 60},
}


def main() -> None:
    module = _module.new_module(
        {**_OPTIONS, **_module.HOST_ROOT_OPTIONS, **_module.BUNDLED_OPTIONS},
        required_one_of=[("engine", "container")],
        required_by={"user": "engine", "service": "engine", "socket": "engine"},
    )
    _module.run_module(module, lambda: verify(module))


if __name__ == "__main__":
    main()
