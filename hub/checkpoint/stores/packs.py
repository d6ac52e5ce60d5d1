"""Packs of objects with their indexes: ours are written, as git reads them, and put together; git's own are read, too.

Invariant: in packs of ours the objects are whole, none is a delta of another. Not promised: durability; packs whose
deltas have their base elsewhere are not read. Format: git's `gitformat-pack`, version 2 of both files.
"""

import hashlib
import itertools
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Sequence

import msgspec

from hub.checkpoint.files import write_plainly
from hub.checkpoint.stores.deltas import rebuilt
from hub.checkpoint.stores.objects import Object

KINDS = {"commit": 1, "tree": 2, "blob": 3}
WORDS = {number: kind for kind, number in KINDS.items()}
STORED = 0
"""Not compressed: for a pack that is read a moment later and then goes."""
BEGINNING = 4096
"""So many bytes of an entry are read at first, enough for most."""
NEAR_DELTA, FAR_DELTA = 6, 7
"""An object told as a delta of one that stands so many bytes before it, or of one with an id."""
CHAIN = 50
"""So many deltas deep an object may lie; git's own packs go as far (pack.depth)."""
FAR = 1 << 31
"""An offset from here on stands in a table of its own."""
FEW = 4096
"""The ids of so many objects are kept at hand."""
SMALL_BYTES = 16 << 10
"""Up to here a compression with small tables is as good, and takes a fraction of the time."""
FAN_BYTES = 8 + 1024
MAGIC = b"\xfftOc"


class Entry(msgspec.Struct, frozen=True):
    """An object as it stands in a pack: its id, its bytes there with their head, and the CRC-32 of these."""

    oid: bytes
    content: bytes
    crc: int


def write_pack(folder: bytes, objects: Sequence[Object], algorithm: str, level: int = STORED) -> tuple[bytes, bytes]:
    """Write a pack of these objects into a folder; return the paths of pack and index.

    Trees are not compressed: nearly all of a tree are ids.
    """
    distinct = {one.oid: one for one in objects}.values()
    return write_entries(folder, [_entry(one, level) for one in distinct], algorithm)


def write_entries(folder: bytes, entries: Sequence[Entry], algorithm: str) -> tuple[bytes, bytes]:
    """Write a pack of these entries into a folder; return the paths of pack and index."""
    ordered = sorted(entries, key=lambda entry: entry.oid)
    body = bytearray(b"PACK" + struct.pack(">II", 2, len(ordered)))
    offsets: list[int] = []
    for entry in ordered:
        offsets.append(len(body))
        body += entry.content
    end = hashlib.new(algorithm, body, usedforsecurity=False).digest()
    index = _index([entry.oid for entry in ordered], [entry.crc for entry in ordered], offsets, end)
    index += hashlib.new(algorithm, index, usedforsecurity=False).digest()
    base = os.path.join(folder, b"pack-" + end.hex().encode())
    write_plainly(base + b".pack", bytes(body) + end)
    write_plainly(base + b".idx", index)  # the last: git looks for it
    return base + b".pack", base + b".idx"


def _entry(one: Object, level: int) -> Entry:
    content = _head(one) + squeezed(one.content, STORED if one.kind == "tree" else level)
    return Entry(bytes.fromhex(one.oid), content, zlib.crc32(content))


def squeezed(content: bytes, level: int) -> bytes:
    """Return content as zlib compresses it."""
    if len(content) > SMALL_BYTES:
        return zlib.compress(content, level)
    packer = zlib.compressobj(level, zlib.DEFLATED, 13, 6)
    return packer.compress(content) + packer.flush()


def _index(oids: Sequence[bytes], sums: Sequence[int], offsets: Sequence[int], end: bytes) -> bytes:
    counts = [0] * 256
    for oid in oids:
        counts[oid[0]] += 1
    numbers = struct.pack(f">{len(oids)}I{len(oids)}I", *sums, *offsets)
    return MAGIC + struct.pack(">I256I", 2, *itertools.accumulate(counts)) + b"".join(oids) + numbers + end


def _head(one: Object) -> bytes:
    size = len(one.content)
    head = bytearray([KINDS[one.kind] << 4 | size & 15])
    size >>= 4
    while size:
        head[-1] |= 0x80
        head.append(size & 0x7F)
        size >>= 7
    return bytes(head)


class Pack:
    """A pack on disk; `base` is its path without an ending, `width` the bytes of an id.

    Raises OSError when it is not there, ValueError when it has another format.
    """

    def __init__(self, base: bytes, width: int) -> None:
        self._base = base
        self._width = width
        with open(base + b".idx", "rb") as stream:
            self._index = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        if self._index[:8] != MAGIC + struct.pack(">I", 2):
            raise ValueError(f"{os.fsdecode(base)}.idx is no index of a pack")
        self.count = self._number(8 + 255 * 4)
        self.bytes = os.path.getsize(base + b".pack")
        self._few = frozenset(map(self._oid, range(self.count))) if self.count <= FEW else None

    def __contains__(self, oid: bytes) -> bool:
        return oid in self._few if self._few is not None else self._place(oid) is not None

    @property
    def is_there(self) -> bool:
        """Whether it has not been deleted since."""
        return os.path.exists(self._base + b".pack") and os.path.exists(self._base + b".idx")

    def read(self, oid: bytes, most: int) -> tuple[str, bytes] | None:
        """Return kind and content of an object, None when the pack does not have it or it is larger than `most`.

        Raises OSError, ValueError or zlib.error where it cannot be read.
        """
        place = self._place(oid)
        if place is None:
            return None
        with open(self._base + b".pack", "rb", buffering=0) as stream:
            return self._read_at(stream.fileno(), self._offset(place), most)

    def _read_at(self, descriptor: int, offset: int, most: int) -> tuple[str, bytes] | None:
        deltas: list[bytes] = []
        while len(deltas) <= CHAIN:
            kind, content, base = self._entry_at(descriptor, offset, most)
            if content is None:
                return None
            if kind in WORDS:
                made = rebuilt(content, deltas, most)
                return None if made is None else (WORDS[kind], made)
            deltas.append(content)
            offset = base
        raise ValueError("an object lies too deep in its pack")

    def _entry_at(self, descriptor: int, offset: int, most: int) -> tuple[int, bytes | None, int]:
        """Return kind and content of an entry, no content when it is larger than `most`; of a delta also its base."""
        beginning = os.pread(descriptor, BEGINNING, offset)
        kind, size, start = _told(beginning)
        base = 0
        if kind == NEAR_DELTA:
            back, start = _distance(beginning, start)
            base = offset - back
        elif kind == FAR_DELTA:
            base = self._offset_of(beginning[start : start + self._width])
            start += self._width
        if size > most:
            return kind, None, base
        if _bound(size) + start > len(beginning) == BEGINNING:
            beginning = os.pread(descriptor, _bound(size) + start, offset)
        return kind, zlib.decompressobj().decompress(beginning[start:], size + 1), base

    def _offset_of(self, oid: bytes) -> int:
        place = self._place(oid)
        if place is None:
            raise ValueError("the base of a delta is in another pack")
        return self._offset(place)

    def entries(self) -> Iterator[Entry]:
        """Yield every object as it stands in the pack. Raises ValueError where its bytes are not what they were."""
        with open(self._base + b".pack", "rb") as stream:
            content = stream.read()
        offsets = [self._offset(place) for place in range(self.count)]
        ends = sorted([*offsets, len(content) - self._width])
        following = dict(itertools.pairwise(ends))
        for place, offset in enumerate(offsets):
            crc = self._number(FAN_BYTES + self.count * self._width + 4 * place)
            entry = Entry(self._oid(place), content[offset : following[offset]], crc)
            if zlib.crc32(entry.content) != crc:
                raise ValueError(f"{os.fsdecode(self._base)}.pack is damaged")
            yield entry

    def _place(self, oid: bytes) -> int | None:
        if self._few is not None and oid not in self._few:
            return None
        low = self._number(8 + 4 * (oid[0] - 1)) if oid[0] else 0
        high = self._number(8 + 4 * oid[0])
        while low < high:
            middle = (low + high) // 2
            found = self._oid(middle)
            if found == oid:
                return middle
            low, high = (middle + 1, high) if found < oid else (low, middle)
        return None

    def _oid(self, place: int) -> bytes:
        start = FAN_BYTES + place * self._width
        return self._index[start : start + self._width]

    def _offset(self, place: int) -> int:
        table = FAN_BYTES + self.count * (self._width + 4)
        near = self._number(table + 4 * place)
        if near < FAR:
            return near
        start = table + 4 * self.count + 8 * (near - FAR)
        return int.from_bytes(self._index[start : start + 8], "big")

    def _number(self, start: int) -> int:
        return int.from_bytes(self._index[start : start + 4], "big")


def _told(content: bytes) -> tuple[int, int, int]:
    """Return kind and size that an entry's head tells, and where its content begins."""
    kind, size, shift, at = content[0] >> 4 & 7, content[0] & 15, 4, 0
    while content[at] & 0x80:
        at += 1
        size |= (content[at] & 0x7F) << shift
        shift += 7
    if kind not in WORDS and kind not in (NEAR_DELTA, FAR_DELTA):
        raise ValueError("an entry of a pack has an unknown kind")
    return kind, size, at + 1


def _bound(size: int) -> int:
    """Return how many bytes `size` bytes have at most when they are compressed."""
    return size + (size >> 12) + (size >> 14) + (size >> 25) + 64


def _distance(content: bytes, at: int) -> tuple[int, int]:
    """Return how many bytes before a delta its base stands, and where the delta's content begins."""
    back = content[at] & 0x7F
    while content[at] & 0x80:
        at += 1
        back = (back + 1) << 7 | content[at] & 0x7F
    return back, at + 1
