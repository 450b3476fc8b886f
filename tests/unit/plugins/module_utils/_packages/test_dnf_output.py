# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import itertools

from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import Candidate, Preview
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.dnf import (
    candidates_of,
    preview_of,
    version_order,
)

ABORTED = "Operation aborted.\n"
RULE = "=" * 80

# As dnf 4.23 writes it.
UPGRADE = f"""\
Last metadata expiration check: 0:00:01 ago on Sat Nov 21 20:00:50 2026.
Dependencies resolved.
{RULE}
 Package                       Arch   Version    Repository                Size
{RULE}
Upgrading:
 libnvidia-container-tools     x86_64 1.19.1-1   nvidia-container-toolkit 6.1 k
 libnvidia-container1          x86_64 1.19.1-1   nvidia-container-toolkit 5.5 k
     replacing  nvidia-container-runtime-hook.x86_64 1.4.0-1
Installing dependencies:
 a-package-with-a-name-that-is-longer-than-its-column
                               x86_64 2.0-3.el9  baseos                    11 k
Downgrading:
 libseccomp                    x86_64 2.5.2-2    baseos                    70 k
Removing dependent packages:
 gpufleet-bystander            x86_64 1.0-1      @nvidia-container-toolkit   0

Transaction Summary
{RULE}
Upgrade    2 Packages
Downgrade  1 Package

Total size: 24 k
"""

# As dnf 5 writes it.
UPGRADE_5 = """\
Updating and loading repositories:
Repositories loaded.
Package                 Arch   Version   Repository                    Size
Upgrading:
 libnvidia-container1   x86_64 1.19.1-1  nvidia-container-toolkit   5.5 KiB
   replacing libnvidia-container1
                        x86_64 1.18.2-1  nvidia-container-toolkit   5.4 KiB
Removing:
 nvidia-docker2         x86_64 2.13.0-1  nvidia-container-toolkit     70 B

Transaction Summary:
 Upgrading:          1 package
 Replacing:          1 package
 Removing:           1 package

Operation aborted by the user.
"""

OFFERS = """\
libnvidia-container1\t0\t1.9.0-1\tnvidia-container-toolkit

libnvidia-container1\t0\t1.19.10-1\tnvidia-container-toolkit
libnvidia-container1\t0\t1.19.9-1\tcuda
nvidia-docker2\t1\t2.13.0-1\tnvidia-container-toolkit
"""


def test_candidates() -> None:
    assert candidates_of(OFFERS) == {
        "libnvidia-container1": [
            Candidate("1.19.10-1", "nvidia-container-toolkit", preferred=True),
            Candidate("1.19.9-1", "cuda"),
            Candidate("1.9.0-1", "nvidia-container-toolkit"),
        ],
        "nvidia-docker2": [Candidate("1:2.13.0-1", "nvidia-container-toolkit", preferred=True)],
    }
    assert candidates_of("") == {}


def test_versions_in_their_order() -> None:
    ordered = [
        "1.9.0-1", "1.19.1~rc.1-1", "1.19.1~rc.2-1", "1.19.1-1", "1.19.1-2", "1.19.1-10", "1.19.1.1-1", "1.19.2-1",
        "1.19.10-1", "1.20.0-1", "1:1.0.0-1",
    ]  # fmt: skip
    for older, newer in itertools.combinations(ordered, 2):
        assert version_order(older) < version_order(newer), (older, newer)


def test_preview_of_dnf_4() -> None:
    assert preview_of(UPGRADE) == Preview(
        {
            "libnvidia-container-tools": "1.19.1-1",
            "libnvidia-container1": "1.19.1-1",
            "a-package-with-a-name-that-is-longer-than-its-column": "2.0-3.el9",
            "libseccomp": "2.5.2-2",
        },
        ("gpufleet-bystander", "nvidia-container-runtime-hook"),
        ("libseccomp",),
    )


def test_preview_of_dnf_5() -> None:
    assert preview_of(UPGRADE_5) == Preview({"libnvidia-container1": "1.19.1-1"}, ("nvidia-docker2",))
