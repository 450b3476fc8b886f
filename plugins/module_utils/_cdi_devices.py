# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: device nodes for a CDI specification: those of GPUs and of their MIG devices, of DRM, and
# others by pattern.  As in NVIDIA's generator of specifications (1.20).

from __future__ import annotations

import os
import posixpath
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_edits import DeviceNode, Edits, merged, node_edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_lookup import Lookup, under, without
from ansible_collections.gpufleet.nvidia.plugins.module_utils._mig_capabilities import Capabilities

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import Hooks
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_machine import Gpu, MigDevice

_PCI = "/sys/bus/pci/devices"
_DRI, _CAPABILITIES = "/dev/dri", "/dev/nvidia-caps"
_BY_PATH = f"{_DRI}/by-path"
# Folders that crun once made unreachable for others than root.
_FOLDERS = frozenset({_DRI, _CAPABILITIES})


class DeviceNodes:
    """The nodes in the folder ``dev`` of ``root``; a node that is not there is left out.

    Methods raise HostError where something is there but may not be looked at.
    """

    def __init__(self, lookup: Lookup, root: str, hooks: Hooks, with_gids: bool) -> None:
        self._lookup = lookup
        self.root = root
        self._hooks = hooks
        self._with_gids = with_gids
        self._capabilities = Capabilities(lookup.host)

    def named(self, paths: t.Iterable[str]) -> list[DeviceNode]:
        """The character devices among ``paths``, which are given as the container sees them."""
        return [node for node in map(self._node, paths) if node is not None]

    def matching(self, *patterns: str) -> list[DeviceNode]:
        """The character devices that match patterns of their paths, each once."""
        found = [path for pattern in patterns for path in self._lookup.glob(self.root, pattern.lstrip("/"))]
        return self.named(dict.fromkeys(without(self.root, path) for path in found))

    def edits(self, nodes: t.Iterable[DeviceNode]) -> Edits:
        return node_edits(nodes, self._with_gids)

    def gpu(self, gpu: Gpu) -> Edits:
        """A GPU as a whole: its node, those of DRM, and their links."""
        nodes = self.named([f"/dev/nvidia{gpu.minor}", *self._drm_paths(gpu.bus)])
        return merged(self.edits(nodes), self._links(gpu.bus, nodes), self.folders(nodes))

    def mig(self, gpu: Gpu, part: MigDevice) -> Edits:
        """A MIG device: the node of its GPU, and what its instances are reached by.

        Raises HostError or ConfigurationError where the driver does not tell the numbers of the latter.
        """
        paths = [f"/dev/nvidia{gpu.minor}", *self._capabilities.nodes(gpu.minor, part.gi, part.ci)]
        nodes = self.named([*paths, *(self._drm_paths(gpu.bus) if part.gfx else [])])
        return merged(self.edits(nodes), self._links(gpu.bus, nodes))

    def folders(self, nodes: t.Iterable[DeviceNode]) -> Edits:
        """The hook that opens their folders to all users."""
        folders = dict.fromkeys(posixpath.dirname(node.path) for node in nodes)
        return self._hooks.chmod(folder for folder in folders if folder in _FOLDERS)

    def _node(self, path: str) -> DeviceNode | None:
        host_path = under(self.root, path)
        status = self._lookup.own_status(host_path)
        if status is None or not stat.S_ISCHR(status.st_mode):
            return None
        return DeviceNode(
            path,
            host_path if host_path != path else "",
            os.major(status.st_rdev),
            os.minor(status.st_rdev),
            stat.S_IMODE(status.st_mode) & 0o777,
            gid=status.st_gid,
        )

    def _drm_paths(self, bus: str) -> list[str]:
        return [f"{_DRI}/{name}" for name in self._lookup.names(f"{_PCI}/{bus}/drm")]

    def _links(self, bus: str, nodes: t.Iterable[DeviceNode]) -> Edits:
        places = {under(self.root, node.path) for node in nodes}
        links = []
        for kind in ("card", "render"):
            path = under(self.root, f"{_BY_PATH}/pci-{bus}-{kind}")
            target = self._lookup.link(path)
            if target is not None and posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) in places:
                links.append(f"{target}::{path}")
        return self._hooks.symlinks(links)
