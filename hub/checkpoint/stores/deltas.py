"""Objects that git tells as what differs from another one: put together again. Pure.

Format: git's `gitformat-pack`, "Deltified representation". Invariant: what does not fit is an error, never a guess.
"""

from collections.abc import Sequence


def rebuilt(content: bytes, deltas: Sequence[bytes], most: int) -> bytes | None:
    """Return what deltas, the last one first, make of a content; None when it gets too large. Raises as `patched`."""
    for delta in reversed(deltas):
        changed = patched(content, delta, most)
        if changed is None:
            return None
        content = changed
    return content


def patched(base: bytes, delta: bytes, most: int) -> bytes | None:
    """Return what a delta makes of its base, None when it is larger than `most`. Raises ValueError, IndexError."""
    old, at = _length(delta, 0)
    new, at = _length(delta, at)
    if old != len(base):
        raise ValueError("a delta is of another base")
    if new > most:
        return None
    made = bytearray()
    while at < len(delta):
        step = delta[at]
        at += 1
        if step & 0x80:
            start, at = _sparse(delta, at, step, 4)
            size, at = _sparse(delta, at, step >> 4, 3)
            made += base[start : start + (size or 0x10000)]
        elif step:
            made += delta[at : at + step]
            at += step
        else:
            raise ValueError("a delta has an unknown step")
    if len(made) != new:
        raise ValueError("a delta does not make what it tells")
    return bytes(made)


def _length(delta: bytes, at: int) -> tuple[int, int]:
    size, shift = delta[at] & 0x7F, 7
    while delta[at] & 0x80:
        at += 1
        size |= (delta[at] & 0x7F) << shift
        shift += 7
    return size, at + 1


def _sparse(delta: bytes, at: int, present: int, width: int) -> tuple[int, int]:
    """Return a number of which only the bytes that `present` marks are told, the lowest first."""
    number = 0
    for byte in range(width):
        if present >> byte & 1:
            number |= delta[at] << 8 * byte
            at += 1
    return number, at
