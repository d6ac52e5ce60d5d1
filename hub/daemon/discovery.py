"""One hub per home: a lock that dies with its process, a token that stays, and the record by which clients find it."""

import fcntl
import hashlib
import os
import secrets
from pathlib import Path
from typing import IO

import msgspec

from hub.errors import ConflictError, UnavailableError, UsageError
from hub.protocol.discovery import DiscoveryRecord, decode_record, record_path

LOCK_NAME = "hub.lock"
TOKEN_NAME = "token"
PORT_NAME = "port"
TOKEN_BYTES = 32


class HomeLock:
    """Held for the life of the hub. The kernel lets go of it when the process ends, however it ends."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    @classmethod
    def take(cls, home: Path) -> "HomeLock":
        """Make the home (0700) and lock it. Raises ConflictError code already_running, UsageError home_unwritable."""
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(home / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            file = os.fdopen(descriptor, "a+", encoding="utf-8")  # held for the life of the process
        except OSError as error:
            raise UsageError(
                f"The home {home} cannot be used: {error.strerror}.",
                code="home_unwritable",
                hint="Choose another with --home DIR or TURNBACK_HOME, or correct its permissions.",
            ) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise ConflictError(
                f"A hub already runs for {home} (pid {holder}).", code="already_running", hint="See `hubctl status`."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        return cls(file)

    def release(self) -> None:
        """Let go."""
        self._file.close()


def load_token(home: Path) -> str:
    """Return the home's token, made at first start, 256 random bits, kept 0600."""
    path = home / TOKEN_NAME
    try:
        token = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        token = ""
    if len(token) < TOKEN_BYTES:
        token = secrets.token_urlsafe(TOKEN_BYTES)
        write_private(path, token.encode())
    path.chmod(0o600)
    return token


def token_digest(token: str) -> str:
    """Return the SHA-256 (hex) under which a token is stored and looked up."""
    return hashlib.sha256(token.encode()).hexdigest()


def load_port(home: Path) -> int | None:
    """Return the port that this home's hub chose at its first start."""
    try:
        text = (home / PORT_NAME).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and 0 < int(text) < 65536 else None


def store_port(home: Path, port: int) -> None:
    """Keep the port for the next starts."""
    write_private(home / PORT_NAME, str(port).encode())


def publish(home: Path, record: DiscoveryRecord) -> None:
    """Write the discovery record, atomically and private."""
    write_private(record_path(home), msgspec.json.encode(record))


def withdraw(home: Path, boot_id: str) -> None:
    """Delete the record if this process wrote it."""
    path = record_path(home)
    try:
        mine = decode_record(path.read_bytes()).boot_id == boot_id
    except (OSError, msgspec.DecodeError):
        return
    if mine:
        path.unlink(missing_ok=True)


def write_private(path: Path, data: bytes) -> None:
    """Replace a file atomically with mode 0600; it is on disk when this returns. Raises UnavailableError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be written: {error.strerror}.", code="home_unwritable") from None


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
