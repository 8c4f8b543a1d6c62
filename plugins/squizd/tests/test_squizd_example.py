"""The example in the specification."""

from __future__ import annotations

import squish_core as squish


def test_the_specified_example_reads_despite_its_misprint() -> None:
    head = bytes.fromhex("53515a44 0100 04000000 0200 0000 5a2b0000 0000000000000000").ljust(256, b"\0")
    block = b"INT4" + bytes.fromhex("01000000 02000000 21")
    index = b"".join(
        number.to_bytes(4, "little")
        + (384 + 64 * number).to_bytes(8, "little")
        + (13).to_bytes(8, "little")
        + (512).to_bytes(8, "little")
        + bytes(4)
        for number in range(2)
    )
    table = (
        b"SCZT"
        + (2).to_bytes(4, "little")
        + bytes.fromhex("0100000000000000 0000803f 00000000 0200000000000000 0000803f 00000000")
    )
    data = (head + index).ljust(384, b"\0") + block.ljust(64, b"\0") + block.ljust(64, b"\0") + table
    opened = squish.open(data, strict=True)
    assert {problem.severity for problem in opened.problems} == {"note"}  # the CRC, and ids of another hash
    assert opened["layers.1.w0"].numpy().tolist() == [[1.0, 2.0]]
