"""New contents of a restore, written beside the worktree and durable before anything is renamed.

Invariant: what is staged is, byte for byte, the object that the plan names: a store that has lost or changed one is
found out here, while nothing in the worktree has been touched.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence

from hub.checkpoint.capture.walk import ancestors
from hub.checkpoint.files import PERMISSIONS, directory
from hub.checkpoint.restoring.journal import PRIVATE, Operation, made_slot
from hub.checkpoint.restoring.renames import Place
from hub.checkpoint.restoring.staged_files import stage_file, stage_link, sync_files
from hub.checkpoint.restoring.volumes import volume_of
from hub.checkpoint.stores.side import Store
from hub.checkpoint.values import INCOMPLETE, CheckpointError, Plan, Step
from hub.errors import RefusedError


def slot_name(number: int) -> bytes:
    """Return the name of the slot of the staged content with this number."""
    return b"s%d" % number


def check_file_system(top: bytes, names: Iterable[bytes]) -> None:
    """Raise RefusedError other_filesystem for a path on another mount: nothing can be renamed to there."""
    volume = volume_of(top)
    for folder in sorted({os.path.dirname(name) for name in names}):
        path = os.path.join(top, folder)
        if os.path.isdir(path) and not os.path.islink(path) and volume_of(path) != volume:
            raise RefusedError(
                f"{os.fsdecode(folder)} is on another file system than the worktree.",
                code="other_filesystem",
                hint="Restore the other paths with --paths, or open a session in that directory.",
            )


def stage(store: Store, slots: bytes, steps: Sequence[Step]) -> dict[bytes, int]:
    """Write the new contents into the slots; return each one's inode by path. Raises CheckpointError."""
    inodes = {}
    reading = contextlib.closing(store.reader.objects([step.new_oid or "" for step in steps]))
    with reading as objects, directory(store.top) as root, directory(slots) as folder:
        for number, (step, (_, size, chunks)) in enumerate(zip(steps, objects, strict=True)):
            checked = _checked(chunks, size, step, store.algorithm)
            inodes[step.name] = _stage(step, checked, (folder, slot_name(number)), root)
        sync_files(folder, [slot_name(n) for n, step in enumerate(steps) if stat.S_ISREG(step.new_mode or 0)])
    return inodes


def stage_made(slots: bytes, plan: Plan) -> dict[bytes, int]:
    """Make the directories that the plan makes, in their slots; return each one's inode by path."""
    inodes = {}
    for number, folder in enumerate(plan.made_dirs):
        path = os.path.join(slots, made_slot(number))
        os.mkdir(path)
        os.chmod(path, PRIVATE)  # whatever the umask is
        inodes[folder.name] = os.lstat(path).st_ino
    return inodes


def stage_folders(slots: bytes, plan: Plan) -> list[Operation]:
    """Stage a directory for each that must be there before something is put into it, in case it is not."""
    made = {folder.name for folder in plan.made_dirs}
    needed = {folder for step in (*plan.writes, *plan.creations) for folder in ancestors(step.name)} - made
    staged = []
    for number, name in enumerate(sorted(needed)):
        path = os.path.join(slots, b"c%d" % number)
        os.mkdir(path)
        staged.append(Operation(kind="clear", name=name, slot=os.path.basename(path), inode=os.lstat(path).st_ino))
    return staged


def _stage(step: Step, chunks: Iterator[bytes], place: Place, root: int) -> int:
    mode = step.new_mode or 0
    if stat.S_ISLNK(mode):
        return stage_link(place, b"".join(chunks))
    return stage_file(place, chunks, mode & PERMISSIONS, root, step.name)


def _checked(chunks: Iterator[bytes], size: int, step: Step, algorithm: str) -> Iterator[bytes]:
    """Pass an object's content on. Raises CheckpointError checkpoint_incomplete at its end when it is another."""
    digest = hashlib.new(algorithm, b"blob %d\0" % size, usedforsecurity=False)
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != step.new_oid:
        raise CheckpointError(
            f"The checkpoint is incomplete, nothing was touched: the content of {step.path} is damaged.",
            code="checkpoint_incomplete",
            hint=INCOMPLETE,
        )
