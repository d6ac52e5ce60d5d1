"""Whole outputs: what a result had to leave out is kept in a private file that the model can read."""

import logging
import os
from pathlib import Path

from hub.agent.tools.base import ToolOutput
from hub.daemon.running import Running

log = logging.getLogger(__name__)


def outputs_of(running: Running) -> Path:
    """Return the folder of a session's kept outputs; it need not exist."""
    return running.services.settings.outputs / running.session_id


def keep_whole(running: Running, call_id: str, output: ToolOutput) -> str:
    """Return the text for the model; when it was cut, with the place where all of it can be read."""
    if output.full_text is None:
        return output.text
    folder = outputs_of(running)
    path = folder / f"{call_id}.txt"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(output.full_text)
    except OSError as error:
        log.warning("a whole output could not be kept", extra={"call_id": call_id, "reason": str(error)})
        return f"{output.text}\n\n(The whole output could not be kept: {error.strerror}.)"
    return f"{output.text}\n\n(Cut. The whole output can be read with read_files: {path})"
