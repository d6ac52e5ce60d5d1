"""Structured logs: one JSON object a line, rotated by size, private; secrets are struck out at the sink."""

import logging
import logging.handlers
import re
from collections.abc import Iterable
from pathlib import Path

from pythonjsonlogger.json import JsonFormatter

LOG_NAME = "hub.log"
FILE_BYTES = 5 << 20
FILES_KEPT = 5

_SHAPES = re.compile(
    r"\b(sk-[A-Za-z0-9_-]{16,}|xox[abposr]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}|\d{8,10}:[A-Za-z0-9_-]{35})"
)
STRUCK = "[redacted]"


class Redactor(logging.Filter):
    """Strikes out every known secret, and whatever has the shape of a token, wherever it stands in a record."""

    def __init__(self) -> None:
        super().__init__()
        self._known: set[str] = set()

    def learn(self, secrets: Iterable[str]) -> None:
        """Know these secrets from now on; very short ones are not secrets."""
        self._known.update(secret for secret in secrets if len(secret) >= 8)

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self.clean(record.getMessage()), None
        if record.exc_info:
            record.exc_text = self.clean(logging.Formatter().formatException(record.exc_info))
            record.exc_info = None
        for name, value in vars(record).items():
            if isinstance(value, str) and name != "msg":
                setattr(record, name, self.clean(value))
        return True

    def clean(self, text: str) -> str:
        """Return the text without secrets."""
        for secret in self._known:
            text = text.replace(secret, STRUCK)
        return _SHAPES.sub(STRUCK, text)


redactor = Redactor()


def set_up(folder: Path, level: str) -> None:
    """Log to `hub.log` in a folder, which is made private, and warnings to standard error as well."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / LOG_NAME
    path.touch(mode=0o600)
    file = logging.handlers.RotatingFileHandler(
        path, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8", delay=True
    )
    file.setFormatter(JsonFormatter("%(asctime)s %(levelname)s %(name)s %(message)s", rename_fields=_NAMES))
    file.addFilter(redactor)
    root = logging.getLogger()
    root.handlers[:] = [file]
    root.setLevel(level.upper())
    logging.getLogger("websockets").setLevel(logging.WARNING)


_NAMES = {"asctime": "at", "levelname": "level", "name": "room", "message": "text"}
