# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The hosts of the comparison: their variables, and the answers of their modules or the files of their trees."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.tests.unit.helpers import toolkit_directories

if t.TYPE_CHECKING:
    from pathlib import Path

Values = t.Dict[str, t.Any]
FINGERPRINT = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"
_ID = FINGERPRINT[-16:].lower()
_NAME = f"gpufleet-nvidia-container-toolkit-{_ID}"
KEYS = [
    f"/usr/share/keyrings/{_NAME}.asc",
    f"/etc/pki/rpm-gpg/RPM-GPG-KEY-{_NAME}",
    f"/var/cache/gpufleet-nvidia-key-{_ID}.asc",
]
# No result or line may contain it.
SECRET = "p4ssw0rd-of-the-proxy"
MESSAGE = "/etc/docker/daemon.json cannot be read. Correct it."


class Host(t.NamedTuple):
    """A host that does not run its modules: its variables, and the answers that differ from an unchanged host's."""

    variables: Values
    answers: Values
    # rolling.yml ends when a host fails.
    fails: bool = False


def engine(name: str, **values: t.Any) -> Values:
    return {"engine": name, "flavor": "system", "target": name, "user": None, "installed": True, "running": True,
            "service": f"{name}.service", "recorded_files": [], "unfinished_restart": False, "inspected": True,
            "used_by_kubelet": False, "problems": [], "readable": True, **values}  # fmt: skip


def info(manager: str | None = "apt", *, gpu: bool | None = True, written: bool = True, **values: t.Any) -> Values:
    found = {"present": gpu, "kind": "driver" if gpu else None, "message": "/sys/bus/pci"}
    toolkit = {"package_manager": manager, "gpg": values.pop("gpg", "/usr/bin/gpg"), "gpu": found,
               "repository_files": KEYS if written else []}  # fmt: skip
    engines = [engine("docker"), engine("containerd", **values.pop("containerd", {}))]
    return {"changed": False, "engines": engines, "toolkit": toolkit, **values}


def configured(**values: t.Any) -> Values:
    row = {"changed": False, "service": "docker.service", "restart_required": False, "restart_action": "none",
           "pending_action": "none", "runtimes": {"nvidia": "/usr/bin/nvidia-container-runtime"},
           "default_runtime": "runc", "backup_files": [], "cdi": True, **values}  # fmt: skip
    engines = [{**row, "target": name} for name in ("docker", "containerd", "crio")]
    return {"changed": row["changed"], "engines": engines}


def _of(manager: str | None = "apt", of_info: Values | None = None, fails: bool = False, **variables: t.Any) -> Host:
    known = {f"nvidia_{name}": value for name, value in variables.items()}
    return Host(known, {"nvidia_container_info": info(manager, **(of_info or {}))}, fails)


def _repositories() -> dict[str, Host]:
    """Return hosts for each package manager and each kind of repository."""
    variants: dict[str, Values] = {
        "plain": {},
        "proxy": {"toolkit_proxy": f"http://me:{SECRET}@proxy.example:3128"},
        "open_proxy": {"toolkit_proxy": "http://proxy.example:3128", "toolkit_pin_priority": "900"},
        "pin": {"toolkit_pin_priority": 1001, "toolkit_channel": "experimental", "toolkit_repository_gpgcheck": False},
        "mirror": {"toolkit_repository_url": "https://mirror.example:8443/nvidia/", "toolkit_pin_priority": 500},
        "base": {"toolkit_base_url": "https://mirror.example/libnvidia", "toolkit_key_refresh": True},
        "key": {"toolkit_key": f" KEY {SECRET}\n\n",
                "toolkit_key_fingerprint": "c95b321b 61e88c18" + "09c4f759ddcae044f796ecb0"},
        "version": {"toolkit_version": "1.19.1", "toolkit_hold": True, "toolkit_minimum_version": "1.17.8",
                    "toolkit_profile": "rootless", "toolkit_debug": True,
                    "toolkit_settings": {"nvidia-container-cli.debug": "/x"}},
    }  # fmt: skip
    hosts = {}
    for manager in ("apt", "dnf", "zypper", None):
        for name, variables in variants.items():
            written = name in ("plain", "base", "version")
            hosts[f"{manager or 'none'}_{name}"] = _of(manager, {"written": written}, **variables)
    return {**hosts, "apt_fresh": _of("apt", {"written": False}), "dnf_fresh": _of("dnf", {"written": False}),
            "dnf_without_gpg": _of("dnf", {"written": False, "gpg": None})}  # fmt: skip


def _sources() -> dict[str, Host]:
    packages = ["/srv/a 1.deb", "/srv/b.deb"]
    directory: Values = {"toolkit_source": "directory", "toolkit_dest": "/opt/toolkit", "toolkit_files_on": "node"}
    return {
        "existing": _of(toolkit_source="existing"),
        "files_controller": _of(toolkit_source="files", toolkit_files=["FOLDER/a 1.deb", "FOLDER/b.deb"]),
        "files_node": _of("dnf", toolkit_source="files", toolkit_files=packages, toolkit_files_on="node"),
        "directory_node": _of(**directory, toolkit_src="/srv/toolkit", toolkit_driver_root="/run/driver"),
        "directory_files": _of(**directory, toolkit_files=packages, toolkit_proxy="http://proxy.example:1"),
        "tree_of_packages": _of(host_root="/tree", fails=True),
        "tree_of_directory": _of(**directory, toolkit_src="/srv/toolkit", host_root="/tree"),
        "live_root": _of(host_root="/tree", host_root_live=True, toolkit_source="existing"),
        # Only for the roles alone: the playbooks refuse this host.
        "role_other_root": _of(toolkit_host_root="/tree", runtime_host_root="/other", runtime_reuse_inspection=True,
                               toolkit_inspect_engines=True, runtime_state="absent"),
    }  # fmt: skip


def _gpus() -> dict[str, Host]:
    lacks: Values = {"gpu": False, "written": False}
    hosts = {f"no_gpu_{policy}": _of("apt", lacks, policy == "fail", toolkit_when_no_gpu=policy)
             for policy in ("fail", "skip", "install_only", "configure")}  # fmt: skip
    unknown = _of("apt", {"gpu": None}, toolkit_when_no_gpu="fail")
    files: Values = {"toolkit_source": "files", "toolkit_files": ["FOLDER/b.deb"], "toolkit_when_no_gpu": "configure"}
    return {**hosts, "gpu_unknown": unknown, "no_gpu_files": _of("apt", {"gpu": False}, **files)}


def _engines() -> dict[str, Host]:
    """Return hosts whose engines change or fail."""
    verified = {"changed": False, "verified": True}
    changed = {
        "nvidia_runtime_config": configured(
            changed=True, restart_required=True, pending_action="restart", restart_action="restart"
        ),
        "nvidia_runtime_restart": {"changed": True},
        "nvidia_runtime_verify": verified,
    }
    broken = {"failed": True, "msg": MESSAGE}
    unchanged = {"nvidia_container_info": info()}
    installed = {"changed": True, "version": "1.19.1", "predicted": {"version": "1.19.1"}}
    settings = {"features": {"disable-cuda-compat-lib-hook": True}}
    hosts = {
        "restart": Host({"nvidia_runtime_verify": "gpu"}, {**unchanged, **changed}),
        "verify": Host({"nvidia_runtime_verify": "engine"}, {**unchanged, "nvidia_runtime_verify": verified}),
        "kubelet": _of(of_info={"containerd": {"used_by_kubelet": True}}, runtime_engines=["docker"]),
        "absent_engine": _of(runtime_engines=["docker", "crio"], fails=True),
        "cdi_off": Host({}, {**unchanged, "nvidia_runtime_config": configured(cdi=False)}),
        "installed": Host({}, {**unchanged, "nvidia_toolkit_install": installed}),
        "leftovers": Host({}, {**unchanged, "nvidia_toolkit_install": {"changed": False, "unrecorded": ["a", "b"]}}),
        "inspection": Host({}, {"nvidia_container_info": broken}, True),
        "refused": Host({}, {**unchanged, "nvidia_runtime_config": broken}, True),
        "not_restarted": Host({}, {**unchanged, **changed, "nvidia_runtime_restart": broken}, True),
        "no_specification": Host({}, {**unchanged, "nvidia_cdi_spec": broken}, True),
        "without_hook": Host({"nvidia_toolkit_settings": settings}, unchanged),
    }  # fmt: skip
    last = {f"{name}_last": host._replace(variables={**host.variables, "nvidia_runtime_fail_last": True})
            for name, host in hosts.items() if name in ("refused", "not_restarted", "restart")}  # fmt: skip
    return {**hosts, **last}


def hosts() -> dict[str, Host]:
    """Return all hosts that have answers, by name."""
    found = {**_repositories(), **_sources(), **_gpus(), **_engines()}
    common = {"nvidia_runtime_config": configured(), "nvidia_toolkit_install": {"changed": False, "version": "1.19.1"}}
    return {name: host._replace(answers={**common, **host.answers}) for name, host in found.items()}


def trees(folder: Path) -> dict[str, Values]:
    """Make the trees of the hosts that run the modules, and return the variables of these hosts."""
    common: Values = {"nvidia_toolkit_when_no_gpu": "configure", "nvidia_cdi_when_no_driver": "ignore"}
    found: dict[str, Values] = {
        "tree_node": {**common, "nvidia_toolkit_source": "directory", "nvidia_toolkit_files_on": "node",
                      "nvidia_toolkit_dest": toolkit_directories.DEST, "nvidia_runtime_enable_cdi": True},
        "tree_controller": {**common, "nvidia_toolkit_source": "directory", "nvidia_runtime_set_as_default": True},
        "tree_no_gpu": {"nvidia_toolkit_source": "existing"},
        "tree_broken": {**common, "nvidia_toolkit_source": "existing"},
    }  # fmt: skip
    for name, variables in found.items():
        root = folder / name
        variables["nvidia_host_root"] = str(root)
        host = toolkit_directories.Host(root)
        if variables["nvidia_toolkit_source"] == "directory":
            source = host.source(toolkit_directories.NEW)
            variables["nvidia_toolkit_src"] = source if "nvidia_toolkit_files_on" in variables else f"{root}{source}"
        for program in ("dockerd", "containerd"):
            (root / "usr/bin").mkdir(parents=True, exist_ok=True)
            (root / "usr/bin" / program).write_text("#!/bin/sh\n", encoding="utf-8")
            (root / "usr/bin" / program).chmod(0o755)
        (root / "etc/docker").mkdir(parents=True)
        content = '{\n  "log-driver": json-file\n}\n' if name == "tree_broken" else '{"log-driver": "json-file"}\n'
        (root / "etc/docker/daemon.json").write_text(content, encoding="utf-8")
    return found
