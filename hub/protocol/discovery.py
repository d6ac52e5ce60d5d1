"""The discovery record: how a client finds the hub of a home. Written by the hub, 0600, as `hub.json` in the home."""

from pathlib import Path

import msgspec

RECORD_NAME = "hub.json"


class DiscoveryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where the hub listens and the token that opens it. `boot_id` names the process that wrote the record."""

    pid: int
    url: str
    token: str
    version: str
    hub_id: str
    boot_id: str
    started_at: str
    protocol_min: int
    protocol_max: int


def record_path(home: Path) -> Path:
    """Return where the record of a home lies."""
    return home / RECORD_NAME


def decode_record(data: bytes) -> DiscoveryRecord:
    """Return the record. Raises ValueError when the bytes are not one."""
    return msgspec.json.decode(data, type=DiscoveryRecord)
