"""Inside a host: stands for nvidia-ctk of the toolkit 1.20: generator.py [--quiet] cdi generate FLAG...

generator.py system create-device-nodes creates the device nodes of the host.

It uses the collection's native generator, which has the same output. It accepts the flags of nvidia-ctk, and
begins a YAML file with a comment, so that its bytes differ from those of the collection. Other commands do nothing. If
the file HANG of the host's simulation exists, no command ends.

1.20 accepts an empty value in the form --output=. This program refuses it, as releases 1.18 and 1.19 do, because the
collection must not pass one.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import simulated_gpus
from engines import COLLECTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

sys.path.insert(0, COLLECTIONS)

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import modes as cdi_modes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import yaml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import inventory

# The flags of the command, and the field of a request that each one sets.
TEXTS = {
    "--vendor": "vendor",
    "--class": "class_",
    "--driver-root": "driver_root",
    "--dev-root": "dev_root",
    "--nvidia-cdi-hook-path": "cdi_hook_path",
    "--ldconfig-path": "ldconfig_path",
}
LISTS = {
    "--device-name-strategy": "device_name_strategies",
    "--library-search-path": "library_search_paths",
    "--config-search-path": "config_search_paths",
    "--disable-hook": "disabled_hooks",
    "--enable-hook": "enabled_hooks",
    "--feature-flag": "feature_flags",
    "--device-id": "device_ids",
}
HANG = simulated_gpus.HOME / "hang"
# The variables that the toolkit's refresh service sets instead of flags. A flag has precedence over its variable.
VARIABLES = {
    "--disable-hook": "NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS",
    "--feature-flag": "NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS",
    "--output": "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH",
}


def variable(flag: str) -> str:
    """Return the value of the variable for a flag."""
    return os.environ.get(VARIABLES.get(flag, ""), "")


def document(mode: str, request: Any) -> Any:
    """Return the specification of this host."""
    host = HostFS("/", live=True)
    found = inventory.read_inventory(host, request.driver_root, simulated_gpus.has_nvml(), request.library_search_paths)
    return cdi_modes.generate_all("nvml" if mode == "auto" else mode, request, found, host)[""]


def generate(words: Sequence[str]) -> None:
    """Print or write the specification."""
    empty = next((word for word in words if word.startswith("--") and word.endswith("=")), None)
    if empty is not None:
        sys.exit(f"Incorrect Usage: flag needs an argument: {empty}")
    parser = argparse.ArgumentParser()
    for flag, field in TEXTS.items():
        parser.add_argument(flag, dest=field)
    for flag, field in LISTS.items():
        parser.add_argument(flag, dest=field, action="append")
    parser.add_argument("--no-all-device", dest="all_device", action="store_false")
    parser.add_argument("--output", default=variable("--output"))
    parser.add_argument("--format", default="yaml")
    parser.add_argument("--mode", default="auto")
    fields = vars(parser.parse_args(words))
    path, form, mode = (fields.pop(name) for name in ("output", "format", "mode"))
    for flag, field in LISTS.items():
        if fields[field] is None:
            fields[field] = [value for value in variable(flag).split(",") if value]
    # What is not given has its default, as in nvidia-ctk.
    given = {name: value for name, value in fields.items() if value not in (None, [])}
    request = cdi_options.Request(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    )
    text = yaml_document.render(document(mode, request), form)
    if not path:
        sys.stdout.write(text.decode())
        return
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    new = place.with_name(f".{place.name}.tmp")
    new.write_bytes(text if form == "json" else b"# Written by generator.py.\n" + text)
    new.chmod(0o644)
    os.replace(new, place)


def main() -> None:
    """Run the command of the command line."""
    words = [word for word in sys.argv[1:] if word != "--quiet"]
    if HANG.exists():
        time.sleep(3600)
    if words == ["--version"]:
        print("NVIDIA Container Toolkit CLI version 1.20.0")
    elif words[:2] == ["system", "create-device-nodes"]:
        simulated_gpus.create_nodes(simulated_gpus.now())
    elif words[:2] == ["cdi", "generate"]:
        try:
            generate(words[2:])
        except NvidiaError as error:
            sys.exit(f'time="0" level=error msg="{error}"')


if __name__ == "__main__":
    main()
