"""Inside a host: builds packages for apt and dnf, and serves them by https: mirror.py [serve]

They are at https://nvidia.github.io/libnvidia-container, as NVIDIA's are, and at https://mirror.example.com/nvidia,
which docs/getting-started.md names. The other hosts resolve both names to this host. /srv/mirror/needed.json contains
what they need: its address, its certificate, the fingerprint of the key, and a package of rpm, in base64.
"""

from __future__ import annotations

import base64
import functools
import http.server
import json
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

TOOLKIT = Path("/molecule/toolkit")
PACKAGES, REPOSITORY, ROOT = (Path("/srv") / name for name in ("packages", "repository", "mirror"))
NAMES = ("nvidia.github.io", "mirror.example.com")
PLACES = ("libnvidia-container", "nvidia")
KEY, CERTIFICATE = ROOT / "key.pem", ROOT / "certificate.pem"


def run(*argv: object) -> None:
    """Run a command. Raise an error if it fails."""
    subprocess.run([str(word) for word in argv], check=True)


def build() -> None:
    """Build the packages and their signed repositories."""
    for kind in ("deb", "rpm"):
        run(sys.executable, "-B", TOOLKIT / "packages/build.py", PACKAGES, "--kind", kind)
    run(sys.executable, "-B", TOOLKIT / "packages/repository.py", PACKAGES, REPOSITORY, "--kind", "deb", "rpm")
    for place in PLACES:
        (ROOT / "served").mkdir(parents=True, exist_ok=True)
        (ROOT / "served" / place).symlink_to(REPOSITORY)


def certify() -> None:
    """Create a certificate for both names, which is its own authority."""
    run(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=gpufleet test"),
        *("-addext", "keyUsage=critical,keyCertSign,digitalSignature"),
        *("-addext", "subjectAltName=" + ",".join(f"DNS:{name}" for name in NAMES)),
        *("-keyout", KEY, "-out", CERTIFICATE),
    )


class Handler(http.server.SimpleHTTPRequestHandler):
    """The client ends the connection: apt accepts no end of a TLS connection without a message."""

    protocol_version = "HTTP/1.1"


def serve() -> None:
    """Serve until the process is stopped."""
    handler = functools.partial(Handler, directory=str(ROOT / "served"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    with http.server.ThreadingHTTPServer(("", 443), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.serve_forever()


def address() -> str:
    """Return the address of this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # No packet is sent.
        probe.connect(("192.0.2.1", 443))
        return str(probe.getsockname()[0])


def main() -> None:
    """Prepare the mirror, or serve it."""
    if sys.argv[1:] == ["serve"]:
        serve()
        return
    build()
    certify()
    run("systemd-run", "--quiet", "--unit=gpufleet-mirror", sys.executable, "-B", __file__, "serve")
    (release,) = (PACKAGES / "other").glob("gpufleet-release-*.rpm")
    needed = {
        "hosts": f"{address()} {' '.join(NAMES)}",
        "certificate": CERTIFICATE.read_text(),
        "fingerprint": json.loads((REPOSITORY / "fingerprints.json").read_text())["gpgkey"],
        "release": base64.b64encode(release.read_bytes()).decode(),
    }
    (ROOT / "needed.json").write_text(json.dumps(needed))
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", 443)).close()
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    main()
