"""A pack of a few objects that we made ourselves, with its index, as git reads them.

Invariant: the objects are whole, none is a delta of another. Not promised: durability.
"""

import hashlib
import os
import struct
import zlib
from collections.abc import Sequence

from hub.checkpoint.files import write_plainly
from hub.checkpoint.stores.objects import Object

KINDS = {"commit": 1, "tree": 2, "blob": 3}
STORED = 0
"""Not compressed: such a pack is read a moment later and then goes."""
MAGIC = b"\xfftOc"


def write_pack(folder: bytes, objects: Sequence[Object], algorithm: str) -> tuple[bytes, bytes]:
    """Write a pack of these objects into a folder; return the paths of pack and index."""
    ordered = sorted({one.oid: one for one in objects}.values(), key=lambda one: one.oid)
    body = bytearray(b"PACK" + struct.pack(">II", 2, len(ordered)))
    offsets: list[int] = []
    sums: list[int] = []
    for one in ordered:
        entry = _head(one) + zlib.compress(one.content, STORED)
        offsets.append(len(body))
        sums.append(zlib.crc32(entry))
        body += entry
    end = hashlib.new(algorithm, body, usedforsecurity=False).digest()
    index = _index([bytes.fromhex(one.oid) for one in ordered], sums, offsets, end)
    index += hashlib.new(algorithm, index, usedforsecurity=False).digest()
    base = os.path.join(folder, b"pack-" + end.hex().encode())
    write_plainly(base + b".pack", bytes(body) + end)
    write_plainly(base + b".idx", index)  # the last: git looks for it
    return base + b".pack", base + b".idx"


def _index(oids: Sequence[bytes], sums: Sequence[int], offsets: Sequence[int], end: bytes) -> bytes:
    counts = [0] * 256
    for oid in oids:
        counts[oid[0]] += 1
    fan = [sum(counts[: first + 1]) for first in range(256)]
    numbers = struct.pack(f">{len(oids)}I{len(oids)}I", *sums, *offsets)
    return MAGIC + struct.pack(">I256I", 2, *fan) + b"".join(oids) + numbers + end


def _head(one: Object) -> bytes:
    size = len(one.content)
    head = bytearray([KINDS[one.kind] << 4 | size & 15])
    size >>= 4
    while size:
        head[-1] |= 0x80
        head.append(size & 0x7F)
        size >>= 7
    return bytes(head)
