# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fixed list of host trees on which two versions of the collection are compared, and the tasks that run on each.

The files come from the tables and fixtures of the unit tests, so that both lists grow together. No row depends on the
code of the collection.
"""

from __future__ import annotations

import functools
import json
import typing as t

from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures import elf_programs
from ansible_collections.gpufleet.nvidia.tests.unit.helpers import (
    containerd_configs,
    driver_layouts,
    driver_trees,
    engine_trees,
    fake_crio,
    gpu_hosts,
    hook_hosts,
    k0s_hosts,
    leftovers,
    rancher_hosts,
    refresh_hosts,
    toolkit_configs,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.docker_files import REAL_FILES

if t.TYPE_CHECKING:
    from pathlib import Path

Arguments = t.Dict[str, t.Any]
Files = t.Mapping[str, t.Union[str, bytes, None]]


class Case(t.NamedTuple):
    """A tree and its tasks: one for each entry of ``present``, which can be empty, then one with ``state: absent``.

    ``common``: the arguments of all tasks. ``remains``: why ``absent`` does not restore all files, if it does not.
    """

    name: str
    module: str
    build: t.Callable[[Path], None]
    common: Arguments
    present: tuple[Arguments, ...]
    remains: str = ""


def lay(root: Path, files: Files) -> None:
    """Write files; a name that ends in @ is a symbolic link, and None is no file."""
    for name, content in files.items():
        path = root / name.lstrip("/").rstrip("@")
        if content is None:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("@"):
            path.symlink_to(content if isinstance(content, str) else content.decode())
            continue
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(0o755 if "/bin/" in name else 0o640 if name.endswith(".json") else 0o644)


def _laying(files: Files) -> t.Callable[[Path], None]:
    return lambda root: lay(root, files)


# -- engines ---------------------------------------------------------------------------------------------------------

# The programs of the runtimes. The files are empty, because the comparison does not start them.
_PROGRAMS: dict[str, str | bytes | None] = dict.fromkeys(
    (f"/usr/bin/nvidia-container-runtime{mode}" for mode in ("", ".cdi", ".legacy")), b""
)
_EVERYTHING: Arguments = {
    "set_as_default": True,
    "enable_cdi": True,
    "extra_modes": ["cdi", "legacy"],
    "runtime_dir": "/opt/nvidia",
}
_TOML_EVERYTHING: Arguments = {
    **_EVERYTHING,
    "container_annotations": ["cdi.k8s.io/*"],
    "runtime_options": {"options": {"SystemdCgroup": True}},
}
_CRIO_EVERYTHING: Arguments = {
    **_EVERYTHING,
    "container_annotations": ["io.kubernetes.cri-o.Devices"],
    "runtime_options": {"monitor_cgroup": "pod", "default_annotations": {"a.b/c": "d"}},
}
_NOT_DEFAULT: Arguments = {"set_as_default": False, "enable_cdi": False, "runtime_name": "gpu"}
_DOCKER_FILES: dict[str, str | None] = {
    **REAL_FILES,
    "comments, which Docker refuses": '{\n  // site\n  "debug": true\n}\n',
    "the same key twice": '{"debug": true, "debug": false}\n',
    "a list": "[]\n",
    "tabs and line ends of Windows": '{\r\n\t"features": {\r\n\t\t"cdi": false\r\n\t},\r\n\t"runtimes": {}\r\n}',
    "one line": '{"log-opts":{"a":"1"},"runtimes":{"crun":{"path":"/usr/bin/crun"}},"default-runtime":"crun"}',
    "escapes and large numbers": '{\n   "x": "\\u00e4\\/ \\ud83d\\ude00", "y": 1e400, "z": [ 1.50, -0 ]\n}\n',
    "a password": '{"proxies": {"http-proxy": "http://u:hunter2@p/"}, "default-runtime": "nvidia"}\n',
}
# These are compared with each release of containerd, the others with one of 1.x and one of 2.x.
_STOCK = (*(f"default of {release}" for release in ("1.7", "2.1", "2.3")), "missing", "kubeadm", "version 3")
_ALWAYS = ("1.7.24", "2.3.4")
_REMAINS = {
    "EKS with GPUs, 2.3.4, in_place": "The last task restores the file, so removal takes out runtimes without a record."
}
_CONTAINERD_VERSIONS = ("1.6.20", "1.7.24", "2.0.11", "2.1.4", "2.2.7", "2.3.4", "2.4.0")
_LEFTOVERS: dict[str, tuple[str, dict[str, str]]] = {
    "a copy of nvidia-ctk that is not read": (
        "containerd",
        {leftovers.MAIN: leftovers.main_file(), leftovers.STRAY: leftovers.snapshot()},
    ),
    "a copy of nvidia-ctk": (
        "containerd",
        {leftovers.MAIN: leftovers.main_file(), leftovers.DROP_IN: leftovers.snapshot("registry.k8s.io/pause:3.9")},
    ),
    "an older copy of nvidia-ctk": (
        "containerd",
        {leftovers.MAIN: leftovers.main_file(), leftovers.DROP_IN: leftovers.snapshot()},
    ),
    "a runtime of the GPU operator": (
        "containerd",
        {leftovers.MAIN: leftovers.main_file() + leftovers.runtime("nvidia", leftovers.OPERATOR)},
    ),
    "a small drop-in": (
        "containerd",
        {leftovers.MAIN: leftovers.main_file(), leftovers.STRAY: leftovers.small_drop_in(leftovers.OPERATOR)},
    ),
    "drop-ins of CRI-O": (
        "crio",
        {leftovers.CRIO_MAIN: fake_crio.DISTRIBUTION, leftovers.CRIO_STRAY: leftovers.CRIO_DROP_IN},
    ),
    "a drop-in of nvidia-ctk": (
        "crio",
        {leftovers.CRIO_MAIN: fake_crio.DISTRIBUTION, leftovers.CRIO_READ: leftovers.CRIO_CTK},
    ),
    "hooks": (
        "crio",
        {
            leftovers.CRIO_MAIN: fake_crio.DISTRIBUTION,
            leftovers.HOOK: leftovers.HOOK_FILE,
            leftovers.OWN_HOOK: leftovers.HOOK_FILE,
        },
    ),
    "a runtime": ("docker", {leftovers.DAEMON_JSON: REAL_FILES["nvidia-docker2"] or ""}),
}
_PODMAN_STOCK = """\
# The containers configuration file specifies all of the available configuration
[containers]
#annotations = []
log_driver = "journald"
[engine]
#cdi_spec_dirs = [
#  "/etc/cdi",
#]
runtime = "crun"
[engine.runtimes]
"""
_PODMAN_MAIN, _PODMAN_FOLDER = "/etc/containers/containers.conf", "/etc/containers/containers.conf.d"
_DIRECTORIES = '[engine]\ncdi_spec_dirs = ["/a"] # ours\n'
_PODMAN_FILES: dict[str, dict[str, str | bytes]] = {
    "nothing": {},
    "stock": {"/usr/share/containers/containers.conf": _PODMAN_STOCK},
    "other folders": {_PODMAN_MAIN: _DIRECTORIES},
    "other folders, line ends of Windows": {_PODMAN_MAIN: _DIRECTORIES.replace("\n", "\r\n")},
    "other folders in a drop-in": {_PODMAN_MAIN: _PODMAN_STOCK, f"{_PODMAN_FOLDER}/50-site.conf": _DIRECTORIES},
    "inline table": {_PODMAN_MAIN: 'engine = { runtime = "crun", cdi_spec_dirs = ["/etc/cdi"] }\n'},
    "packaged hook": {hook_hosts.HOOK: hook_hosts.PACKAGED},
    "hook in the first format": {hook_hosts.HOOK: hook_hosts.FIRST, hook_hosts.OVERRIDING: hook_hosts.GENERATED},
    "foreign hook": {f"{hook_hosts.USUAL}/oci-umount.json": hook_hosts.FOREIGN},
}


def _engine(engine: str, name: str, files: Files, *present: Arguments, remains: str = "", **common: t.Any) -> Case:
    common = {"engine": engine, **common}
    return Case(f"{engine}: {name}", "nvidia_runtime_config", _laying({**_PROGRAMS, **files}), common, present, remains)


def _docker() -> t.Iterator[Case]:
    for name, text in _DOCKER_FILES.items():
        yield _engine("docker", name, {"/etc/docker/daemon.json": text}, {}, _EVERYTHING, _NOT_DEFAULT)
    linked = {"/etc/docker/daemon.json@": "../site/docker.json", "/etc/site/docker.json": REAL_FILES["kubeadm guide"]}
    yield _engine("docker", "a link", linked, _EVERYTHING)
    unit = "[Service]\nExecStart=/usr/bin/dockerd -H fd:// --config-file=/srv/docker.json\n"
    named = {"/usr/lib/systemd/system/docker.service": unit, "/srv/docker.json": REAL_FILES["DGX"]}
    yield _engine("docker", "a file that the unit names", named, _EVERYTHING)


def _containerd() -> t.Iterator[Case]:
    for name, files in containerd_configs.FILES.items():
        for version in _CONTAINERD_VERSIONS if name in _STOCK else _ALWAYS:
            given = {"engine_version": version}
            yield _engine("containerd", f"{name}, {version}", files, {}, _TOML_EVERYTHING, _NOT_DEFAULT, **given)
            if version == _ALWAYS[-1]:
                # The case above writes a drop-in.
                mode = {"config_mode": "in_place"}
                title = f"{name}, {version}, in_place"
                remains = _REMAINS.get(title, "")
                yield _engine("containerd", title, files, {**_TOML_EVERYTHING, **mode}, mode, remains=remains, **given)
    files = {containerd_configs.MAIN: containerd_configs.EKS}
    legacy = {"set_as_default": True, "use_legacy_config": True}
    yield _engine("containerd", "default_runtime as a table", files, legacy, engine_version="1.6.20")


def _crio() -> t.Iterator[Case]:
    generated = (containerd_configs.FOLDER / "crio.conf").read_text(encoding="utf-8")
    for name, files in {**fake_crio.HOSTS, "generated": {fake_crio.MAIN: generated}}.items():
        yield _engine("crio", name, files, {}, _CRIO_EVERYTHING, _NOT_DEFAULT, engine_version="1.31.2")
        asked = {"config_mode": "in_place", "set_as_default": True}
        yield _engine("crio", f"{name}, in place", files, asked, {**asked, **_CRIO_EVERYTHING})
    hook: Files = {**fake_crio.HOSTS["bundled"], "/usr/bin/nvidia-container-runtime-hook": b""}
    yield _engine("crio", "hook", hook, {"config_mode": "hook"}, engine_version="1.31.2")


def _podman() -> t.Iterator[Case]:
    for name, files in _PODMAN_FILES.items():
        for version in ("4.9.3", "5.8.0"):
            yield _engine("podman", f"{name}, {version}", files, {}, {"enable_cdi": True}, engine_version=version)


def _leftovers() -> t.Iterator[Case]:
    for name, (engine, files) in _LEFTOVERS.items():
        known = {"containerd": {"engine_version": "1.7.24"}, "crio": {"engine_version": "1.31.2"}}.get(engine, {})
        remains = "what other tools wrote is removed for good"
        purge = {"purge_legacy": True}
        yield _engine(engine, f"{name}, purged", files, {}, remains=remains, **purge, **known)
        yield _engine(engine, f"{name}, unrecorded", files, remains=remains, unrecorded="remove", **known)


def _kubernetes() -> t.Iterator[Case]:
    for program in ("k3s", "rke2"):
        for role in ("server", "agent"):
            yield _built(
                f"{program} {role}",
                functools.partial(rancher_hosts.node_with, program=program, role=role),
                {"flavor": program},
            )
        settings = {f"/etc/rancher/{program}/config.yaml": "token: x # kept\r\n"}
        found = {"nvidia": engine_trees.NVIDIA}
        generated = rancher_hosts.generated(found, "nvidia", 3, f"/var/lib/rancher/{program}/x.d/*.toml")
        path = f"/var/lib/rancher/{program}/agent/etc/containerd/config.toml"
        template = path.replace("config.toml", "config-v3.toml.tmpl")
        files = {**settings, path: generated, template: '{{ template "base" . }}\n'}
        yield _engine("containerd", f"{program} with a template", files, {}, _EVERYTHING, flavor=program)
    main, imported = "etc/k0s/containerd.toml", "run/k0s/containerd-cri.toml"
    for name, texts in {
        "k0s, version 2": {},
        "k0s, version 3": {main: k0s_hosts.MAIN_3, imported: k0s_hosts.GENERATED_3},
        "k0s, native": {main: k0s_hosts.MAIN_NATIVE},
        "k0s, a file of its user": {main: containerd_configs.EKS},
    }.items():
        common = {"flavor": "k0s", "engine_version": "1.7.20" if name.endswith("2") else "2.1.4"}
        yield _built(name, functools.partial(k0s_hosts.k0s_tree, files=texts), common)
    for name, text in {
        "MicroK8s": k0s_hosts.TEMPLATE_TEXT,
        "MicroK8s, line ends of Windows": k0s_hosts.TEMPLATE_TEXT.replace("\n", "\r\n"),
    }.items():
        common = {"flavor": "microk8s", "engine_version": "1.7.20"}
        yield _built(name, functools.partial(k0s_hosts.microk8s_tree, text=text), common)


def _built(name: str, build: t.Callable[[Path], object], common: Arguments) -> Case:
    def make(root: Path) -> None:
        build(root)
        lay(root, {path: content for path, content in _PROGRAMS.items() if not (root / path[1:]).exists()})

    present: tuple[Arguments, ...] = ({}, {"set_as_default": True}, {**_EVERYTHING, "runtime_dir": "/usr/bin"})
    return Case(f"containerd: {name}", "nvidia_runtime_config", make, {"engine": "containerd", **common}, present)


# -- the toolkit -----------------------------------------------------------------------------------------------------


def _toolkit_config() -> t.Iterator[Case]:
    for name, content in toolkit_configs.VARIANTS.items():
        first, second = ({key: pair[place] for key, pair in toolkit_configs.SAMPLES.items()} for place in (0, 1))
        present: tuple[Arguments, ...] = (
            {"settings": first},
            {"settings": second, "exclusive": True},
            {"settings": dict.fromkeys(list(first)[:8])},
            {"profile": "kubernetes_hardened", "debug": True, "exclusive": True},
            {"settings": {"features": {"allow-cuda-compat-libs-from-container": True}}, "debug": False},
        )
        build = _laying({toolkit_configs.PATH: content})
        yield Case(f"config.toml: {name}", "nvidia_toolkit_config", build, {}, present)
    build = _laying({toolkit_configs.PATH: toolkit_configs.OLD})
    yield Case("config.toml: defaults alone", "nvidia_toolkit_config", build, {}, ({}, {"profile": "rootless"}))


def _toolkit_directory() -> t.Iterator[Case]:
    def build(root: Path, replaced: Files) -> None:
        for version in ("1.19.1", "1.20.0"):
            elf_programs.tree(root / "srv" / version, version)
        for folder in ("usr/bin", "var/lib", "usr/local"):
            (root / folder).mkdir(parents=True)
        lay(root, replaced)

    hosts: dict[str, Files] = {
        "nothing": {},
        "Docker and containerd": {
            "/etc/docker/daemon.json": REAL_FILES["kubeadm guide"],
            "/etc/containerd/config.toml": containerd_configs.AKS,
        },
        "another toolkit at dest": {"/usr/local/nvidia/toolkit/nvidia-ctk": b"older"},
    }
    for name, files in hosts.items():
        present: tuple[Arguments, ...] = (
            {"src": "/srv/1.19.1"},
            {"src": "/srv/1.20.0", "settings": {"nvidia-container-runtime.log-level": "debug"}},
            {"src": "/srv/1.20.0", "components": ["runtime", "ctk", "cdi_hook"], "driver_root": "/run/nvidia/driver"},
        )
        make = functools.partial(build, replaced=files)
        yield Case(f"directory: {name}", "nvidia_toolkit_install", make, {"source": "directory"}, present)


# -- CDI -------------------------------------------------------------------------------------------------------------

_HAND_WRITTEN = """\
# By hand.
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
  - name: "0"
    containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}
"""
# Path, major and minor number of the nodes that the modes other than nvml look for.
_NODES = (
    ("/dev/nvidia-fs0", 505, 0),
    ("/dev/nvidia-fs1", 505, 1),
    ("/dev/gdrdrv", 506, 0),
    ("/dev/infiniband/rdma_cm", 10, 121),
    ("/dev/infiniband/uverbs0", 231, 192),
    ("/dev/nvidia-nvswitch0", 507, 0),
    ("/dev/nvidia-nvswitchctl", 507, 255),
    ("/dev/nvidia-caps-imex-channels/channel0", 508, 0),
    ("/dev/nvidia-caps-imex-channels/channel10", 508, 10),
)


def _gpu_host(root: Path, name: str, files: Files) -> None:
    """A host with a driver, whose GPUs are known from /proc."""
    tree = driver_trees.NodeTree(root)
    devices = driver_layouts.LAYOUTS[name].make(tree)
    for path, major, minor in _NODES:
        tree.node(path, major, minor)
    tree.program("/usr/bin/nvidia-cdi-hook")
    fakes = [gpu_hosts.FakeGpu(gpu.bus, gpu.minor, gpu.name, uuid=gpu.uuid) for gpu in devices]
    gpu_hosts.gpu_host(root, fakes, version=driver_trees.VERSION)
    (root / "var/lib").mkdir(parents=True, exist_ok=True)
    lay(root, files)


def _cdi() -> t.Iterator[Case]:
    def case(name: str, layout: str, *present: Arguments, files: Files | None = None, **common: t.Any) -> Case:
        if driver_layouts.LAYOUTS[layout].root:
            common = {"driver_root": driver_layouts.LAYOUTS[layout].root, **common}
        return Case(
            f"CDI: {name}", "nvidia_cdi_spec", lambda root: _gpu_host(root, layout, files or {}), common, present
        )

    for layout in driver_layouts.LAYOUTS:
        moved = {"path": "/etc/cdi/nvidia.json", "hooks": "none", "device_name_strategies": ["uuid"]}
        yield case(layout, layout, {}, {"format": "json"}, moved)
        options = {"disabled_hooks": ["enable-cuda-compat"], "for_engines": ["containerd:1.7.24", "podman:4.9.3"]}
        yield case(f"{layout}, for old engines", layout, {"for_engines": ["docker:25.0.0"]}, options)
    for mode in ("management", "gds", "gdrcopy", "mofed", "nvswitch", "imex"):
        kind: Arguments = {"mode": mode, "class": mode}
        yield case(mode, "flat", {}, {"format": "json"}, {"all_device": False}, **kind)
    other = json.dumps({"cdiVersion": "0.5.0", "kind": "a.b/c"})
    site = {"/etc/cdi/by-hand.yaml": _HAND_WRITTEN, "/etc/cdi/other.json": other}
    yield case("other files", "flat", {}, {"path": "/etc/cdi/gpu.yaml"}, files=site)
    yield case("exclusive", "flat", {"exclusive": True}, {"path": "/etc/cdi/by-hand.yaml"}, files=site)
    yield case("some devices", "debian", {"device_ids": ["0"]}, {"device_ids": ["7"]}, vendor="site.example")


def _refresh() -> t.Iterator[Case]:
    def case(name: str, build: t.Callable[[refresh_hosts.RefreshTree], None], *present: Arguments) -> Case:
        def make(root: Path) -> None:
            (root / "etc/systemd/system").mkdir(parents=True)
            build(refresh_hosts.RefreshTree(root))

        return Case(f"refresh: {name}", "nvidia_cdi_refresh", make, {}, present)

    def edited(tree: refresh_hosts.RefreshTree) -> None:
        tree.toolkit()
        tree.write(refresh_hosts.ENVIRONMENT, "# Ours:\r\nNVIDIA_CTK_DEBUG=true \\", 0o640)
        tree.link(f"{refresh_hosts.WANTS}/{refresh_hosts.SERVICE}", f"{refresh_hosts.VENDOR}/{refresh_hosts.SERVICE}")

    def masked(tree: refresh_hosts.RefreshTree) -> None:
        tree.toolkit()
        tree.link(f"{refresh_hosts.LOCAL}/{refresh_hosts.SERVICE}", "/dev/null")

    def own_files(tree: refresh_hosts.RefreshTree) -> None:
        tree.generator()
        tree.write(f"{refresh_hosts.LOCAL}/{refresh_hosts.OWN_SERVICE}", "[Unit]\n")

    options = {"path": "/etc/cdi/nvidia.json", "hooks": "none"}
    more = {"disabled_hooks": ["enable-cuda-compat"], "for_engines": ["podman:4.9.3"], "driver_root": "/driver"}
    everything: tuple[Arguments, ...] = ({}, options, more, {"before_engines": False})
    yield case("no toolkit", lambda _tree: None, {})
    yield case("toolkit", lambda tree: tree.toolkit(), *everything)
    yield case("toolkit in /etc", lambda tree: tree.toolkit(folder=refresh_hosts.LOCAL), *everything)
    yield case("edited environment", edited, *everything)
    yield case("masked", masked, *everything)
    yield case("nvidia-ctk without units", lambda tree: tree.generator(), *everything)
    yield case("files of that name", own_files, *everything)


def cases() -> list[Case]:
    """All trees."""
    tables = (_docker, _containerd, _crio, _podman, _leftovers, _kubernetes, _toolkit_config, _toolkit_directory, _cdi)
    return [case for table in (*tables, _refresh) for case in table()]
