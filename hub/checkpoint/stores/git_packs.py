"""The packs that git has made in a store, for reading; they are looked up again when their folder has changed.

Not promised: that all are known; what is not found here git may have all the same.
"""

import contextlib
import os

from hub.checkpoint.stores.packs import Pack

MOST = 50
"""With more packs than git itself leaves (gc.autoPackLimit) looking into each takes longer than to ask git."""
INDEX = b".idx"


class GitPacks:
    """The packs in a folder."""

    def __init__(self, folder: bytes, algorithm: str) -> None:
        self._folder = folder
        self._width = 32 if algorithm == "sha256" else 20
        self._seen: tuple[int, int] | None = None
        self._packs: dict[bytes, Pack] = {}

    def packs(self) -> list[Pack]:
        """Return the packs that can be read, the largest first."""
        seen = self._look()
        if seen != self._seen:
            self._packs = self._found()
            self._seen = seen
        return list(self._packs.values())

    def _look(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._folder)
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _found(self) -> dict[bytes, Pack]:
        try:
            names = sorted(name for name in os.listdir(self._folder) if name.endswith(INDEX))
        except OSError:
            return {}
        packs: dict[bytes, Pack] = {}
        for name in names if len(names) <= MOST else ():
            base = os.path.join(self._folder, name.removesuffix(INDEX))
            with contextlib.suppress(OSError, ValueError):
                packs[name] = self._packs.get(name) or Pack(base, self._width)
        return dict(sorted(packs.items(), key=lambda row: -row[1].count))
