# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Fetches the key of a package repository. It does not check the key. apt and nvidia_toolkit_install do.

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_toolkit_key
short_description: Fetch the signing key of the NVIDIA Container Toolkit's repository
version_added: 1.0.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Internal, for the role P(gpufleet.nvidia.nvidia_toolkit#role).
  - Does not put the password of a proxy on a command line, where every user of the host could read it.
    M(ansible.builtin.get_url), which gets a proxy through C(environment), does.
  - Does not check the key. C(apt) does, and for C(dnf) and C(zypper) the module
    M(gpufleet.nvidia.nvidia_toolkit_install).
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.bundled
attributes:
  check_mode:
    details: The key is fetched and compared, but not written.
  diff_mode:
    support: none
options:
  url:
    description: Address of the key.
    type: str
    required: true
  dest:
    description: File to write, with the mode 0644.
    type: path
    required: true
  proxy:
    description:
      - Address of a proxy, with user and password if it needs them. When left out, the proxy of the environment.
    type: str
"""

EXAMPLES = r"""
- name: Fetch the key of the repository
  gpufleet.nvidia.nvidia_toolkit_key:
    url: https://nvidia.github.io/libnvidia-container/gpgkey
    dest: /var/cache/nvidia-container-toolkit.asc
    proxy: http://proxy.example.com:3128
"""

RETURN = r"""
code:
  description:
    - V(repository-unreachable) if the host cannot connect to the server or the proxy. The message names the host, the
      proxy, and the settings for hosts without access.
  returned: failure, for this reason
  type: str
  sample: repository-unreachable
dest:
  description: The file with the key.
  returned: success
  type: str
  sample: /var/cache/nvidia-container-toolkit.asc
"""

import os
import tempfile
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import connection as packages_connection

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

# The maximum size of a key, in bytes. NVIDIA's has 2 KiB.
_SIZE = 1 << 20
# What fetch_url returns instead of an HTTP status if there is no answer.
_NO_ANSWER = -1
# Seconds to fetch a key.
_TIME = 60
_ADVICE = "Check nvidia_toolkit_key_url (url), or set nvidia_toolkit_key to the text of the key."


def fetch_key(module: AnsibleModule) -> dict[str, object]:
    """Fetch the key, and write it if it differs from the existing file. Return the result as documented.

    Raises HostError if the key cannot be fetched.
    """
    dest = module.params["dest"]
    _module.require_trusted_options(module, hostfs.HostFS())
    if module.params["proxy"]:
        os.environ.update(dict.fromkeys(("http_proxy", "https_proxy"), module.params["proxy"]))
    key = _fetched(module, module.params["url"])
    changed = not os.path.isfile(dest)
    if not changed:
        with open(dest, "rb") as file:
            changed = file.read(_SIZE + 1) != key
    if changed and not module.check_mode:
        handle, path = tempfile.mkstemp(dir=module.tmpdir)
        with open(handle, "wb") as file:
            file.write(key)
        module.atomic_move(path, dest)
    mode_changed = os.path.exists(dest) and module.set_mode_if_different(dest, "0644", changed=False)
    return {"changed": changed or mode_changed, "dest": dest}


def _fetched(module: AnsibleModule, url: str) -> bytes:
    # Only a task with an address needs this large import.
    from ansible.module_utils.urls import fetch_url  # noqa: PLC0415

    start = time.monotonic()
    response, info = fetch_url(module, url, force=True, timeout=_TIME)
    # A file: URL has no status.
    if response is None or info["status"] not in (200, None):
        failure = errors.HostError(
            f"The key cannot be fetched from {url}: {info['msg'].rstrip('.')}. {_ADVICE}"
            f" {packages_connection.access_advice(url, module.params['proxy'])}".rstrip()
        )
        failure.details = {"code": packages_connection.UNREACHABLE} if info["status"] == _NO_ANSWER else {}
        raise failure
    key = b""
    try:
        for block in iter(lambda: response.read(1 << 14), b""):
            key += block
            if len(key) > _SIZE or time.monotonic() - start > _TIME:
                raise errors.HostError(
                    f"The key at {url} has more than {_SIZE} bytes, or takes more than {_TIME} seconds. {_ADVICE}"
                )
    except (OSError, ValueError) as error:
        raise errors.HostError(f"The key cannot be fetched from {url}: {error}. {_ADVICE}") from None
    return key


def main() -> None:
    module = _module.new_module(
        {
            "url": {"type": "str", "required": True},
            "dest": {"type": "path", "required": True},
            "proxy": {"type": "str", "no_log": True},
            **_module.BUNDLED_OPTIONS,
        }
    )
    _module.run_module(module, lambda: fetch_key(module))


if __name__ == "__main__":
    main()
