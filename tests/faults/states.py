"""A state, and what is done to it, so that a restore needs every kind of operation."""

import shutil
from pathlib import Path

from tests.checkpoint.world import World


def make(w: World) -> None:
    """Files, folders, a link, an empty folder, an odd name, something staged."""
    w.base()
    w.put("file", "a file\n")
    w.put("folder/x/y", "y\n")
    w.put("blocked", "a file, later a directory with an ignored file\n")
    w.put("empty/keep", "")
    w.remove("empty/keep")
    w.link("link", "file")
    w.put("odd\n\xe9", "an odd name\n", 0o600)
    w.git("add", "file")


def change(w: World) -> None:
    """Edit, delete, create, make one kind of path another, stage all; put an ignored file where a file was."""
    w.agent()
    w.remove("file")
    w.put("file/inside", "inside\n")
    shutil.rmtree(w.path("folder"))
    w.put("folder", "a file now\n")
    w.remove("blocked")
    w.put(".git/info/exclude", "*.ign\n")
    w.put("blocked/left.ign", "ignored\n")
    shutil.rmtree(w.path("empty"))
    w.remove("link")
    Path(w.root, "dir").chmod(0o700)
    w.git("add", "-A")
