# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of fuzzed formats: a row for each format that the collection reads, except key files."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import STATE_DIR
from ansible_collections.gpufleet.nvidia.tests.fuzz import configuration, containers, reading, sockets
from ansible_collections.gpufleet.nvidia.tests.fuzz.mutators import BINARY, JSON, TEXT, TOML, UNIT, YAML, Files, Syntax

if t.TYPE_CHECKING:
    import random
    from pathlib import Path


class Format(t.NamedTuple):
    """A format: its name, the syntax of its files, valid files (``seeds``), and the code to test (``target``).

    ``target`` gets an empty directory, the mutated files and a random generator. Only files whose paths begin with
    ``mutable`` are mutated. If ``kinds`` is true, a mutation may also replace a file by a pipe, a directory, a link or
    a sparse file.
    """

    name: str
    syntax: Syntax
    seeds: t.Callable[[], t.Sequence[Files]]
    target: t.Callable[[Path, Files, random.Random], t.Any]
    mutable: str = ""
    kinds: bool = True


FORMATS = (
    Format("docker", JSON, configuration.docker_seeds, configuration.docker.check),
    Format("containerd", TOML, configuration.containerd_seeds, configuration.containerd),
    Format("crio", TOML, configuration.crio_seeds, configuration.crio.check),
    Format("toolkit-config", TOML, configuration.toolkit_config_seeds, configuration.toolkit_config.check),
    Format("records", JSON, configuration.record_seeds, configuration.records, STATE_DIR),
    Format("journal", JSON, configuration.journal_seeds, configuration.journal, STATE_DIR),
    Format("cdi-json", JSON, reading.cdi_json_seeds, reading.cdi),
    Format("cdi-yaml", YAML, reading.cdi_yaml_seeds, reading.cdi),
    Format("units", UNIT, reading.units_seeds, reading.units),
    Format("procfs", TEXT, reading.procfs_seeds, reading.procfs),
    Format("kubelet", JSON, reading.kubelet_seeds, reading.kubelet, reading.KUBELET_FILES),
    Format("archives", BINARY, reading.archives_seeds, reading.archives, kinds=False),
    Format("elf", BINARY, reading.elf_files_seeds, reading.elf_files),
    Format("ld-cache", BINARY, reading.linker_caches_seeds, reading.linker_caches, kinds=False),
    Format("docker-api", JSON, sockets.docker_seeds, sockets.docker, kinds=False),
    Format("docker-http", TEXT, sockets.raw_http_seeds, sockets.raw_http, kinds=False),
    Format("cri", BINARY, sockets.cri_seeds, sockets.cri, kinds=False),
    Format("pod-resources", BINARY, sockets.pod_resources_seeds, sockets.pod_resources, kinds=False),
    Format("grpc", BINARY, sockets.grpc_seeds, sockets.grpc, kinds=False),
    Format("containers", JSON, containers.containers_seeds, containers.containers, kinds=False),
    Format("answers", JSON, sockets.answers_seeds, sockets.answers, kinds=False),
)
