"""Opening a file that is meant to be read as one: regular, of bounded size, and exactly the one that was located."""

import errno
import os
import stat
from typing import BinaryIO

from hub.agent.tools.base import ToolFailure
from hub.agent.tools.paths import Location

# NONBLOCK: opening a FIFO must not wait for a writer. NOFOLLOW: the path is resolved, so a link here is a swapped one.
FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def open_regular(location: Location, most: int) -> BinaryIO:
    """Return the file opened for reading bytes. Raises ToolFailure when it is missing, unreadable, not a regular file
    or larger than `most` bytes."""
    try:
        descriptor = os.open(location.path, FLAGS)
    except OSError as error:
        raise ToolFailure(_reason(location, error)) from error
    try:
        _check(location, os.fstat(descriptor), most)
    except ToolFailure:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def _check(location: Location, status: os.stat_result, most: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ToolFailure(f"{location.shown} is a folder, not a file.")
    if not stat.S_ISREG(status.st_mode):
        raise ToolFailure(f"{location.shown} is not a regular file.")
    if status.st_size > most:
        raise ToolFailure(f"{location.shown} has {status.st_size} bytes, more than the limit of {most}.")


def _reason(location: Location, error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"{location.shown} does not exist."
    if error.errno == errno.ELOOP:
        return f"{location.shown} is a symlink that leads nowhere."
    if error.errno == errno.ENXIO:
        return f"{location.shown} is not a regular file."
    return f"{location.shown} cannot be opened: {error.strerror}."
