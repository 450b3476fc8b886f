# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the text and the advice of a finding."""

from __future__ import annotations

import re
from pathlib import Path

MODULES = sorted(path.stem for path in (Path(__file__).parents[3] / "plugins/modules").glob("*.py"))


def problems_of(text: str, advice: str) -> list[str]:
    """Return what is wrong with the texts of a finding."""
    whole = f"{text} {advice}"
    paths = re.findall(r"(?<![\w/.])/[\w.+-]+(?:/[\w.+@:=-]*[\w-])+", whole.partition(" This also causes: ")[0])
    return [
        *(f"{path} is there twice" for path in set(paths) if paths.count(path) > 1),
        *(f"the module {name} is named" for name in MODULES if re.search(rf"\b{name}\b(?!:)", whole)),
        *(f"{found!r} is in it" for found in re.findall(r"[.,;:]\s*[.,;:]|[.;]\s*,|  ", whole.replace("...", ""))),
        *(["it claims that nothing was changed"] if re.search("nothing was changed", whole, re.IGNORECASE) else []),
        *(["the advice points to the message"] if re.search(r"\bthe (message|text)\b", advice) else []),
        *(["modprobe is advised twice"] if whole.count("modprobe nvidia") > 1 else []),
        *(["the text is no sentence"] if not text.endswith((".", ")")) else []),
        *(["the advice is no sentence"] if not advice.endswith(".") else []),
    ]
