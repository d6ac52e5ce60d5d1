"""Whether something can be renamed from one directory to another: both must be seen through the same mount.

Invariant: a pure question; nothing is written. Not promised: more than the device where the system does not tell mounts
apart (elsewhere than on Linux).
"""

import os
import re

_MOUNT = re.compile(rb"^mnt_id:\s*([0-9]+)", re.MULTILINE)
DESCRIPTIONS = "/proc/self/fdinfo"


def volume_of(directory: bytes) -> tuple[int, int]:
    """Return the device of a directory and the id of the mount through which it is seen (0: not told)."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return os.fstat(descriptor).st_dev, _mount_of(descriptor)
    finally:
        os.close(descriptor)


def _mount_of(descriptor: int) -> int:
    try:
        with open(f"{DESCRIPTIONS}/{descriptor}", "rb") as stream:
            found = _MOUNT.search(stream.read())
    except FileNotFoundError:
        return 0
    return int(found[1]) if found else 0
