# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.grpc import header

# Headers as containerd 1.6.20 and 2.1.9 send them after a call that failed, with Huffman codes.
START = "885f8b1d75d0620d263d4c4d656440889acac8b21234da8f01"
NO_RUNTIME_1_6 = START + (
    "3240899acac8b5254207317fb49466a0b22893a93152a20754919fca965b524d496e2951d4b2da926a4aa4a7b14fe6a56f32add72b2ff2a1"
    "90a10f54a69adb0b27"
)
NO_RUNTIME_2_1 = START + (
    "3240899acac8b5254207317feab6a1c7415449d498a95355ec8a596d4935255253d8a20754919fca9fccaf362134f3e17003211a70446651"
    "10849642bf28dc78807237a408091bf1b657c124a4924238cb6595995f1bbfcdc52a3a965b524d495494f629fcd4ade655bae565fe54321"
    "421ea94d35b6164"
)
NO_CONTAINER = START + (
    "3540899acac8b5254207317fb21d4a16cb0f6287212db2c2c8a789cb5289b3d2893a929aa91421ea48cd516c53f9a95bccab75cacbfcdc52"
    "a3a5494f6d527f"
)


@pytest.mark.parametrize(
    ("block", "status", "message"),
    [
        (
            NO_RUNTIME_1_6,
            "2",
            'failed to get sandbox runtime: no runtime for "n%C3%B6pe" is configured',
        ),
        (
            NO_RUNTIME_2_1,
            "2",
            (
                "unable to get OCI runtime for sandbox"
                ' "f8522489160acc462c3f2cccfde9fa68c06b8d10cb9b5e90dfcddc635ef3f9a7":'
                ' no runtime for "n%C3%B6pe" is configured'
            ),
        ),
        (NO_CONTAINER, "5", 'an error occurred when try to find container "n%C3%B6pe": not found'),
    ],
)
def test_real_headers(block: str, status: str, message: str) -> None:
    assert header(bytes.fromhex(block), "grpc-status") == status
    assert header(bytes.fromhex(block), "grpc-message") == message
    assert header(bytes.fromhex(block), "grpc-other") is None


LITERAL = b"\x01a\x03b c"


@pytest.mark.parametrize(
    "block",
    [
        b"\x40" + LITERAL,
        b"\x00" + LITERAL,
        b"\x10" + LITERAL,
        # Known by its number, a new size of the table, a known name with a value.
        b"\x88" + b"\x3f\x09" + b"\x5f\x01x" + b"\x0f\x10\x01y" + b"\x40" + LITERAL,
        b"\x40\x01b\x00" + b"\x40" + LITERAL,
        b"\x40\x01b\x7f\x01" + b"x" * 128 + b"\x40" + LITERAL,
    ],
)
def test_forms_of_headers(block: bytes) -> None:
    assert header(block, "a") == "b c"


def test_no_headers() -> None:
    assert header(b"", "a") is None
    assert header(b"\x88", ":status") is None


@pytest.mark.parametrize(
    "block",
    [
        b"\x40",
        b"\x40\x01",
        b"\x40\x01a",
        b"\x40\x01a\x02b",
        b"\x7f",
        b"\x7f\xff\xff\xff\xff\xff\xff",
        b"\x40\x01a\x84\xff\xff\xff\xff",
    ],
    ids=["nothing", "no name", "no value", "cut", "number cut", "endless number", "end in a string"],
)
def test_broken_headers(block: bytes) -> None:
    with pytest.raises(ValueError):
        header(block, "b")
