# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Docker's daemon.json with its record, and such files as distributions and other tools leave them."""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import OriginalFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.plan import DockerPlanner
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import Unit
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_files import FakeFiles

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Context, EnginePlan

DAEMON_JSON = "/etc/docker/daemon.json"
NVIDIA = "/usr/bin/nvidia-container-runtime"


class File:
    """A daemon.json with its record, as plans change it; no disk involved."""

    def __init__(
        self, content: str | bytes | None, flags: t.Sequence[str] = (), version: tuple[int, ...] | None = None
    ) -> None:
        self.version = version
        self.content = content.encode() if isinstance(content, str) else content
        self.record: OriginalFile | None = None
        self.unit = Unit("docker.service", "/lib/docker.service", arguments=("/usr/bin/dockerd", *flags))

    def context(self) -> Context:
        return (
            FakeFiles()
            .context(DAEMON_JSON, self.version)
            ._replace(content=self.content, record=self.record, unit=self.unit)
        )

    def present(self, **asked: t.Any) -> EnginePlan:
        plan = DockerPlanner(self.context()).present(RuntimeRequest(**asked))
        (file,) = plan.files
        if file.changed:
            record = self.record or OriginalFile("docker", DAEMON_JSON, file.before, 0, 0, 0o644)
            record = record.after_write(file.before, file.after, file.keys)
            self.record = OriginalFile.from_bytes("record", record.to_bytes())
        self.content = file.after
        return plan

    def absent(self) -> EnginePlan:
        plan = DockerPlanner(self.context()).absent()
        self.content, self.record = plan.files[0].after, None
        return plan

    @property
    def data(self) -> t.Any:
        return json.loads((self.content or b"").strip() or b"{}")

    def edit(self, **entries: t.Any) -> None:
        """Change the file as another program does. None removes an entry."""
        data = {**self.data, **entries}
        self.content = json.dumps({name: value for name, value in data.items() if value is not None}).encode()


def runtime(path: str = NVIDIA, **more: t.Any) -> dict[str, t.Any]:
    return {"path": path, **more}


# Files as distributions, cloud images, Kubernetes guides and NVIDIA's own tools leave them.
REAL_FILES = {
    "no file": None,
    "empty": "",
    "only a line end": "\n",
    "kubeadm guide": (
        '{\n  "exec-opts": ["native.cgroupdriver=systemd"],\n  "log-driver": "json-file",\n'
        '  "log-opts": {\n    "max-size": "100m"\n  },\n  "storage-driver": "overlay2"\n}\n'
    ),
    "nvidia-ctk": (
        '{\n    "default-runtime": "runc",\n    "runtimes": {\n        "nvidia": {\n            "args": [],\n'
        '            "path": "nvidia-container-runtime"\n        }\n    }\n}'
    ),
    "nvidia-docker2": (
        '{\n    "runtimes": {\n        "nvidia": {\n            "path": "nvidia-container-runtime",\n'
        '            "runtimeArgs": []\n        }\n    }\n}\n'
    ),
    "ECS GPU image": '{"default-runtime":"nvidia","runtimes":{"nvidia":{"path":"/etc/docker-runtimes.d/nvidia"}}}',
    "DGX": (
        '{\n\t"bip": "192.168.99.1/24",\n\t"default-shm-size": "1G",\n\t"default-ulimits": {\n\t\t"memlock": '
        '{ "name":"memlock", "soft": -1, "hard": -1 }\n\t}\n}\n'
    ),
    "buildkit, mirrors, kata": (
        '{ "features": { "buildkit": true, "containerd-snapshotter": true },\n'
        '  "registry-mirrors": [ "https://mirror.example/" ],\n'
        '  "runtimes": { "kata": { "runtimeType": "io.containerd.kata.v2" } } }\n'
    ),
    "Windows editor": '\ufeff{\r\n  "debug": true,\r\n  "hosts": ["unix:///var/run/docker.sock"]\r\n}\r\n',
    "nulls": '{"runtimes": null, "features": null, "default-runtime": null}',
}
