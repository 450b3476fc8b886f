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
  - With O(container), the module starts no container. It explains which GPUs an existing container has, and the first
    reason why it does not have more. It then only reads, takes no lock, and opens no file of the container.
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
    support: full
    details: The host is checked, but no container is started, and a warning says so. O(container) does the same as
      without check mode.
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
      - The module does not fail if the container lacks GPUs. RV(explanation.ok) is then V(false), and null if a fact
        that decides is not known. Write C(failed_when) with C(is not true), or C(is false) to accept unknown facts.
      - Of the other options only O(engine), O(flavor), O(user), O(service), O(socket), O(runtime_dir), O(host_root) and
        O(host_root_live) can be set with it. O(flavor), O(user), O(service) and O(socket) need O(engine).
    type: str
    version_added: 1.1.0
  level:
    description:
      - What is verified. Each level includes the previous ones.
      - V(config) checks the engine. Its files and flags must register O(runtime_name) with a program that exists on the
        host, and the running daemon must report the runtime and run with the settings of the files.
      - V(engine) starts a container without a GPU through the runtime, which also works on hosts without a GPU.
        C(NVIDIA_VISIBLE_DEVICES) is V(void) in it.
      - V(gpu) checks the driver, its device nodes, the toolkit, and its C(config.toml). If the runtime or the engine
        uses CDI, it also checks for a specification of C(nvidia.com/gpu) that engines load and that fits the host. If
        the engine uses CDI without the runtime, the toolkit is not checked. V(gpu) then starts a container with all
        GPUs, and fails unless the container sees each GPU and MIG device of the host.
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
      - How containers get the GPUs. Podman always uses CDI. V(cdi) was added in version 1.2.0.
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
      - Any image that contains O(command) can be used.
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
    - The checks are C(driver), C(device nodes), C(toolkit), C(config.toml), C(engine file), C(live engine), C(CDI), and
      C(container).
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
  description: Which GPUs the container has, and why it does not have more.
  returned: with O(container), if the container is found
  type: dict
  contains:
    ok:
      description:
        - V(true) if each step that decides was checked and passed, V(false) if one failed.
        - Null if none failed and a fact that decides is not known. RV(explanation.message) names it. Before 1.2.0, it
          was V(true) then.
        - Of a container that does not run, it is about the next start.
      type: bool
      sample: false
    code:
      description:
        - The code of the first failed step, otherwise of the first step whose result is not known, otherwise V(ok). It
          stays the same over versions.
      type: str
      sample: runtime-not-nvidia
    message:
      description: The result in one sentence with remarks, or the cause of the first step that failed or is not known.
      type: str
      sample: "training (docker, 3a3a3ce6c3f0): Its runtime is runc, which is not a runtime of NVIDIA and ignores
        NVIDIA_VISIBLE_DEVICES."
    advice:
      description: What to do about that step, or about the remarks. Empty if there is nothing to do.
      type: str
      sample: Create it again with `--runtime nvidia`, or with `--gpus all`.
    steps:
      description:
        - The steps in the order in which they depend on each other. After a step that leaves nothing to compare, only
          C(start) follows.
        - The steps are C(request), C(injection), C(mode), C(settings), C(driver), C(devices), C(features),
          C(capabilities), C(requirements), C(start), C(contents), and C(access).
      type: list
      elements: dict
      contains:
        name:
          description: The name of the step.
          type: str
          sample: injection
        ok:
          description: Whether the step passed. Null if that is not known, or does not apply to this container yet.
          type: bool
          sample: false
        code:
          description: A code for the result.
          type: str
          sample: runtime-not-nvidia
        message:
          description: What was found.
          type: str
          sample: Its runtime is runc, which is not a runtime of NVIDIA and ignores NVIDIA_VISIBLE_DEVICES.
        advice:
          description: What to do if the step failed. With a passed step, what to do about a limit that it names.
          type: str
          sample: Create it again with `--runtime nvidia`, or with `--gpus all`.
      sample:
        - name: request
          ok: true
          code: gpus-requested
          message: It requests all by NVIDIA_VISIBLE_DEVICES.
          advice: ""
        - name: injection
          ok: false
          code: runtime-not-nvidia
          message: Its runtime is runc, which is not a runtime of NVIDIA and ignores NVIDIA_VISIBLE_DEVICES.
          advice: Create it again with `--runtime nvidia`, or with `--gpus all`.
    container:
      description: The container as its engine reports it.
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
        privileged:
          description: Whether the toolkit regards it as privileged.
          type: bool
          sample: false
    environment:
      description:
        - The variables of the container that the toolkit reads, before the engine or the runtime changes them.
        - All other variables are left out, because they may contain secrets.
      type: dict
      sample: {"NVIDIA_VISIBLE_DEVICES": "all"}
    requested:
      description: The devices that it requests, whether or not that is permitted.
      type: list
      elements: str
      sample: [all]
    injection:
      description:
        - What adds the devices. V(engine) is the engine itself by CDI, V(runtime) a runtime of NVIDIA, V(hook) is
          C(nvidia-container-runtime-hook), and V(none) stands for nothing.
      type: str
      sample: none
    mode:
      description: The mode of the toolkit. Null if neither its runtime nor its hook adds the devices.
      type: str
      sample: jit-cdi
    cdi_devices:
      description: The CDI devices that are added from specifications.
      type: list
      elements: dict
      contains:
        name:
          description: The qualified name.
          type: str
          sample: nvidia.com/gpu=all
        path:
          description: The specification that defines it. Null if none does.
          type: str
          sample: /etc/cdi/nvidia.yaml
      sample: []
    capabilities:
      description: The driver capabilities.
      type: dict
      contains:
        requested:
          description: Those in C(NVIDIA_DRIVER_CAPABILITIES).
          type: list
          elements: str
          sample: [compute, utility]
        granted:
          description: Those that the container gets in mode V(legacy). Null in other modes, which ignore them.
          type: list
          elements: str
          sample: [compute, utility]
    requirements:
      description: The requirements of the image.
      type: list
      elements: dict
      contains:
        variable:
          description: The variable that contains the requirement.
          type: str
          sample: NVIDIA_REQUIRE_CUDA
        requirement:
          description: The requirement.
          type: str
          sample: cuda>=12.6
        met:
          description: Whether the host meets it. Null if that is not known.
          type: bool
          sample: true
      sample: []
    requirements_checked:
      description:
        - Whether the toolkit checks the requirements. Only the modes V(legacy) and V(csv) do. Those of V(csv) are not
          evaluated here.
      type: bool
      sample: false
    devices:
      description: The device nodes of GPUs and of the driver in the container.
      type: list
      elements: str
      sample: []
    missing_devices:
      description: The device nodes that it should have and does not have. Empty if it does not run.
      type: list
      elements: str
      sample: []
    files:
      description: The driver's files in the container.
      type: list
      elements: str
      sample: []
    missing_files:
      description: The driver's files that it should have and does not have. Empty if it does not run.
      type: list
      elements: str
      sample: []
    toolkit:
      description: The toolkit of the host.
      type: dict
      contains:
        version:
          description: The version that C(nvidia-ctk) prints. Null if it is unknown. Then the rules of the newest apply.
          type: str
          sample: 1.20.0
        config_path:
          description: Its C(config.toml). If the file does not exist, the defaults apply.
          type: str
          sample: /etc/nvidia-container-runtime/config.toml
        settings:
          description: The settings that decide about containers, by their keys.
          type: dict
          sample: {"nvidia-container-runtime.mode": "auto", "disable-require": false}
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
_WITH_CONTAINER = ("container", "engine", "flavor", "user", "service", "socket", "runtime_dir")


def verify(module: AnsibleModule) -> dict[str, object]:
    """Check the host from the driver to the container. Return the result as documented."""
    params = module.params
    _module.load_bundled_packages(module)
    if params["container"] is not None:
        return explain(module)
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
        find as explain_find,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (  # noqa: PLC0415
        host as explain_host,
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
    paths = {
        name: None if params[name] is None else host.check_path(name, params[name])
        for name in ("socket", "runtime_dir")
    }
    selector = explain_find.Selector(
        params["engine"], params["flavor"], params["user"], params["service"], paths["socket"]
    )
    found = explain_find.find(params["container"], selector, host, run)
    facts = explain_host.read_host(found.container, found.engine, paths["runtime_dir"], host, run)
    return {"changed": False, "explanation": explain_explain.explain(found.container, facts)}


_OPTIONS: dict[str, dict[str, t.Any]] = {
    "engine": {"type": "str", "choices": list(flavors.ENGINES)},
    "container": {"type": "str"},
    **flavors.TARGET_OPTIONS,
    "level": {"type": "str", "choices": list(verify_verify.LEVELS), "default": "config"},
    "runtime_name": {"type": "str", "default": "nvidia"},
    "method": {"type": "str", "choices": list(injection.METHODS), "default": injection.RUNTIME},
    "image": {"type": "str"},
    "pull": {"type": "bool", "default": False},
    "command": {"type": "list", "elements": "str"},
    "runtime_dir": {"type": "path"},
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
