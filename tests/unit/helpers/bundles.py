# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bundle of a container with NVIDIA's hook."""

from __future__ import annotations

import json
import typing as t

HOOK = "/usr/bin/nvidia-container-runtime-hook"
ALL = ("NVIDIA_VISIBLE_DEVICES=all",)


def bundle(
    hook: str = HOOK, environment: t.Sequence[str] = ALL, mounts: t.Sequence[str] = (), stage: str = "prestart"
) -> str:
    """Return the config.json of a container's bundle, with the hook as the runtime writes it."""
    return json.dumps(
        {
            "ociVersion": "1.1.0",
            "process": {"args": ["sleep"], "env": ["PATH=/bin", *environment]},
            "mounts": [{"destination": path, "type": "bind"} for path in ("/proc", *mounts)],
            "hooks": {
                "poststop": None,
                stage: [{"path": "/proc/191/exe", "args": ["libnetwork-setkey"]}, {"path": hook, "args": ["x"]}],
            },
        }
    )
