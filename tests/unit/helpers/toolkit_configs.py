# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variants of config.toml on hosts, before and after package scripts."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import OriginalFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config.configure import (
    ConfigPlan,
    SettingsRequest,
    ToolkitConfigFile,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config.settings import (
    NO_DEFAULTS,
    SETTINGS,
    effective,
)

PATH = "/etc/nvidia-container-runtime/config.toml"

# Two values for each setting, of which at least one is not the default.
SAMPLES: dict[str, tuple[t.Any, t.Any]] = {
    "accept-nvidia-visible-devices-as-volume-mounts": (True, False),
    "accept-nvidia-visible-devices-envvar-when-unprivileged": (False, True),
    "disable-require": (True, False),
    "supported-driver-capabilities": ("compute,utility", "all"),
    "swarm-resource": ("DOCKER_RESOURCE_GPU", "GPU,NIC"),
    "features.allow-cuda-compat-libs-from-container": (True, False),
    "features.allow-ldconfig-from-container": (True, False),
    "features.allow-unknown-oci-spec-fields": (True, False),
    "features.disable-cuda-compat-lib-hook": (True, False),
    "features.disable-imex-channel-creation": (True, False),
    "features.ignore-imex-channel-requests": (True, False),
    "features.no-additional-gids-for-device-nodes": (True, False),
    "nvidia-container-cli.debug": ("/var/log/nvidia-container-toolkit.log", "/tmp/cli.log"),
    "nvidia-container-cli.environment": (["A=1", "B="], []),
    "nvidia-container-cli.ldcache": ("/etc/ld.so.cache", "/opt/ld.so.cache"),
    "nvidia-container-cli.ldconfig": ("@/sbin/ldconfig.real", "@/opt/ldconfig"),
    "nvidia-container-cli.load-kmods": (False, True),
    "nvidia-container-cli.no-cgroups": (True, False),
    "nvidia-container-cli.no-pivot": (True, False),
    "nvidia-container-cli.path": ("nvidia-container-cli", "/opt/bin/nvidia-container-cli"),
    "nvidia-container-cli.root": ("/", "/run/nvidia/driver"),
    "nvidia-container-cli.user": ("root:video", "1000:44"),
    "nvidia-container-runtime.debug": ("/var/log/nvidia-container-runtime.log", "/tmp/runtime.log"),
    "nvidia-container-runtime.log-level": ("debug", "info"),
    "nvidia-container-runtime.mode": ("cdi", "legacy"),
    "nvidia-container-runtime.runtimes": (["/usr/libexec/crio/crun", "runc"], ["runc"]),
    "nvidia-container-runtime.modes.cdi.annotation-prefixes": (["cdi.k8s.io/", "example.com/"], []),
    "nvidia-container-runtime.modes.cdi.default-kind": ("management.nvidia.com/gpu", "nvidia.com/gpu"),
    "nvidia-container-runtime.modes.cdi.spec-dirs": (["/etc/cdi"], ["/etc/cdi", "/var/run/cdi", "/opt/cdi"]),
    "nvidia-container-runtime.modes.csv.compat-container-root": ("/usr/local/cuda/compat", "compat/575.57.08"),
    "nvidia-container-runtime.modes.csv.mount-spec-path": ("/opt/csv", "/etc/csv"),
    "nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks": (["enable-cuda-compat"], []),
    "nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags": (["disable-nvsandboxutils"], []),
    "nvidia-container-runtime.modes.legacy.cuda-compat-mode": ("hook", "disabled"),
    "nvidia-container-runtime-hook.path": ("/opt/hook", "nvidia-container-runtime-hook"),
    "nvidia-container-runtime-hook.skip-mode-detection": (True, False),
    "nvidia-ctk.path": ("/opt/bin/nvidia-ctk", "nvidia-ctk"),
}


def toml(value: t.Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "[" + ", ".join(map(toml, value)) + "]" if isinstance(value, list) else f'"{value}"'


def written(explicit: t.Mapping[str, t.Any] | None = None, faulty: bool = False, gap: str = "") -> str:
    """Return the file as ``nvidia-ctk config`` writes it, with ``explicit`` values.

    ``faulty``: as before 1.20.0, which replaced a value by a comment if it was equal to the default in the comment.
    """
    explicit = explicit or {}
    lines: list[str] = []
    table = ""
    for setting in SETTINGS:
        *tables, name = setting.path
        outer = ".".join(tables)
        if setting.default is None and setting.key not in explicit:
            continue
        if outer != table:
            if outer.startswith("nvidia-container-runtime.modes.cdi"):
                lines += ["", "[nvidia-container-runtime.modes]"]
            lines += ["", f"[{outer}]"]
            table = outer
        value = explicit.get(setting.key, setting.default)
        off = setting.commented and (setting.key not in explicit or (faulty and value == setting.default))
        lines.append((f"#{gap}" if off else "") + f"{name} = {toml(value)}")
    return "\n".join(lines) + "\n"


DEFAULT = written()

# From packages before 1.14.
OLD = """\
disable-require = false
#swarm-resource = "DOCKER_RESOURCE_GPU"
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
#accept-nvidia-visible-devices-as-volume-mounts = false

[nvidia-container-cli]
#root = "/run/nvidia/driver"
#path = "/usr/bin/nvidia-container-cli"
environment = []
#debug = "/var/log/nvidia-container-toolkit.log"
#ldcache = "/etc/ld.so.cache"
load-kmods = true
#no-cgroups = false
#user = "root:video"
ldconfig = "@/sbin/ldconfig.real"

[nvidia-container-runtime]
#debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"

# Specify the runtimes to consider. This list is processed in order and the PATH
# searched for matching executables unless the entry is an absolute path.
runtimes = [
    "docker-runc",
    "runc",
]

mode = "auto"

    [nvidia-container-runtime.modes.csv]

    mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"
"""

BY_HAND = """\
# Managed by the GPU team, ask before you change it!
disable-require = false # CUDA 12 images

  [nvidia-container-cli]
    # debug = "/data/cli.log"   # big!
    #  no-cgroups = false
    ldconfig = "@/sbin/ldconfig"
    # user = the one who may open /dev/nvidia0
    environment = [
      "HTTP_PROXY=http://proxy",
    ]

  #[nvidia-container-runtime]
  #mode = "cdi"
  ## log-level = "debug"
    our-own = { keep = [1, 2.50, 0x1F] }

#[features]
# disable-cuda-compat-lib-hook = true # until 1.17.8
#
# [nvidia-ctk]
# path = "/usr/bin/nvidia-ctk"
"""

DOTTED = """\
nvidia-container-cli.no-cgroups = true
#nvidia-container-cli.debug = "/var/log/cli.log"
nvidia-container-cli.ldconfig = "@/sbin/ldconfig"
nvidia-container-runtime = { mode = 'legacy', log-level = 'warning' }
features.disable-cuda-compat-lib-hook = true
"""

VARIANTS: dict[str, bytes | None] = {
    "packages": DEFAULT.encode(),
    "packages, blank behind #": written(gap=" ").encode(),
    "packages, Windows line ends": DEFAULT.replace("\n", "\r\n").encode(),
    "packages, byte order mark": b"\xef\xbb\xbf" + DEFAULT.encode(),
    "packages, no final newline": DEFAULT.rstrip().encode(),
    "packages, indented": "".join(
        ("  " if "=" in line else "") + line for line in DEFAULT.splitlines(keepends=True)
    ).encode(),
    "packages, with values": written({key: values[0] for key, values in SAMPLES.items()}).encode(),
    "old packages": OLD.encode(),
    "by hand": BY_HAND.encode(),
    "dotted and inline": DOTTED.encode(),
    "empty": b"",
    "no file": None,
}


class Config:
    """The file in memory and its record. Planned changes are applied as by `ChangeWriter`."""

    def __init__(self, content: str | bytes | None = DEFAULT, defaults: t.Mapping[str, str] = NO_DEFAULTS) -> None:
        self.content = content.encode() if isinstance(content, str) else content
        self.record: OriginalFile | None = None
        self.defaults = defaults

    @property
    def file(self) -> ToolkitConfigFile:
        return ToolkitConfigFile(PATH, self.content, self.record, self.defaults)

    @property
    def text(self) -> str:
        return (self.content or b"").decode()

    @property
    def settings(self) -> dict[str, t.Any]:
        return effective(TomlDocument.from_bytes(PATH, self.content or b"").data, self.defaults)

    def present(self, settings: t.Mapping[str, t.Any] | None = None, **request: t.Any) -> ConfigPlan:
        return self._carry_out(self.file.present(SettingsRequest(settings or {}, **request)), removal=False)

    def absent(self) -> ConfigPlan:
        return self._carry_out(self.file.absent(), removal=True)

    def rewrite(self, faulty: bool = False) -> None:
        """Change the file like the packages' scripts."""
        there = TomlDocument.from_bytes(PATH, self.content or b"")
        explicit = {s.key: there.value(*s.path) for s in SETTINGS if there.has(*s.path)}
        self.content = written(explicit, faulty).encode()

    def _carry_out(self, plan: ConfigPlan, removal: bool) -> ConfigPlan:
        file = plan.file
        if file.changed:
            record = self.record or OriginalFile("toolkit", PATH, file.before, 0, 0, 0o644, main=PATH)
            record = record.after_write(file.before, file.after, file.keys)
            self.record = OriginalFile.from_bytes("record", record.to_bytes())
            self.content = file.after
        if removal or (file.changed and not file.keys):
            self.record = None
        return plan
