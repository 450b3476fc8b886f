"""On the controller: writes the play of docs/flavors.md for a rootless Docker to a directory: page.py DIRECTORY

The directory also gets an inventory, as the commands of the page name it. The output is these commands as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
import documentation

TREE = documentation.COLLECTION
PAGE, FILE = "docs/flavors.md", "rootless.yml"


def main() -> None:
    """Write the files, and print the commands."""
    folder = Path(sys.argv[1])
    (folder / "inventory").mkdir(parents=True, exist_ok=True)
    for scenario in ("shared", "flavors"):
        link = folder / f"inventory/{scenario}.yml"
        link.unlink(missing_ok=True)
        link.symlink_to(TREE / f"molecule/{scenario}/inventory/hosts.yml")
    blocks = documentation.blocks(PAGE)
    (play,) = [block for block in blocks if block.file == FILE]
    (folder / FILE).write_text(play.text, encoding="utf-8")
    here = [block for block in blocks if block.section == play.section and block.language == "console"]
    print(json.dumps([command for block in here for command in block.commands]))


if __name__ == "__main__":
    main()
