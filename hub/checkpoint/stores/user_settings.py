"""The user's git settings that a capture takes over, read again only when a file that they come from has changed.

Invariant: what is told is what git would say now, as long as git was asked when all files of settings were as they are,
included ones and missing ones too. Not promised: settings in the environment; those are dropped.
"""

import os
from collections.abc import Iterable

from hub.checkpoint.capture.known import now_ns
from hub.checkpoint.capture.walk import Traits, traits_at
from hub.checkpoint.repository import Repository

TAKEN_OVER = ("core.ignorecase", "core.precomposeunicode", "core.sharedrepository", "core.excludesfile")
PATHS = {"core.excludesfile", "core.attributesfile"}
"""What the file system does to names, who else reads objects, own excludes."""
SHARED = {"group": 0o440, "true": 0o440, "1": 0o440, "all": 0o444, "world": 0o444, "everybody": 0o444, "2": 0o444}


class UserSettings:
    """The settings of one repository."""

    def __init__(self, user: Repository, git_dir: bytes, common_dir: bytes) -> None:
        self._user = user
        self._git_dir = git_dir
        self._fixed = [os.path.join(common_dir, b"config"), os.path.join(git_dir, b"config.worktree")]
        self._traits: dict[bytes, Traits | None] = {}
        self._all: dict[str, str] = {}

    def taken_over(self) -> dict[str, str]:
        """Return the settings that a capture takes over, by name."""
        if not self._traits or _looked(self._traits) != self._traits:
            self._read()
        return {key: self._all[key] for key in TAKEN_OVER if key in self._all}

    def excludes_file(self) -> bytes:
        """Return the file with the user's own ignore rules."""
        named = os.fsencode(self._all.get("core.excludesfile", ""))
        return named or os.path.join(settings_folder(), b"git", b"ignore")

    def attributes_files(self) -> tuple[bytes, ...]:
        """Return the files with the user's and the system's own attributes."""
        named = os.fsencode(self._all.get("core.attributesfile", ""))
        return named or os.path.join(settings_folder(), b"git", b"attributes"), b"/etc/gitattributes"

    def shared_bits(self) -> int:
        """Return the permission bits that others must have on objects, 0 where the umask alone decides."""
        value = self._all.get("core.sharedrepository", "").lower()
        if value.startswith("0") and value.isdigit():
            return int(value, 8) & 0o444
        return SHARED.get(value, 0)

    def has_ref_files(self) -> bool:
        """Return whether a new ref is a file that only we need to write: git keeps refs so, and nobody shares them."""
        return self._all.get("extensions.refstorage", "files") == "files" and not self.shared_bits()

    def _read(self) -> None:
        since_ns = now_ns()
        fields = self._user.run("config", "-z", "--list", "--show-origin").split(b"\0")[:-1]
        rows = [(origin, *_key_and_value(row)) for origin, row in zip(fields[::2], fields[1::2], strict=True)]
        files = {*self._fixed, *_usual_files()}
        for origin, key, value in rows:
            files |= _files_of(self._user.top, origin, key, value)
        if any(key.startswith(b"includeif.onbranch:") for _, key, _ in rows):
            files.add(os.path.join(self._git_dir, b"HEAD"))
        self._traits = _looked(files)
        if any(traits is not None and max(traits[1:3]) >= since_ns for traits in self._traits.values()):
            self._traits = {}  # so young that a further change might not show
        self._all = {os.fsdecode(key): os.fsdecode(value) for _, key, value in rows}
        for name in PATHS & self._all.keys():
            self._all[name] = self._user.line("config", "--type=path", "--get", name)


def _looked(files: Iterable[bytes]) -> dict[bytes, Traits | None]:
    return {path: traits_at(b"", path) for path in files}


def _key_and_value(row: bytes) -> tuple[bytes, bytes]:
    key, newline, value = row.partition(b"\n")
    return key, value if newline else b"true"


def settings_folder() -> bytes:
    """Return the folder of the user's settings files."""
    return os.environb.get(b"XDG_CONFIG_HOME") or os.path.join(os.path.expanduser(b"~"), b".config")


def _usual_files() -> set[bytes]:
    home = os.path.expanduser(b"~")
    return {os.path.join(home, b".gitconfig"), os.path.join(settings_folder(), b"git", b"config"), b"/etc/gitconfig"}


def _files_of(top: bytes, origin: bytes, key: bytes, value: bytes) -> set[bytes]:
    """Return the file that a setting stands in, and the one that it includes."""
    if not origin.startswith(b"file:"):
        return set()
    path = os.path.join(top, origin.removeprefix(b"file:"))
    included = key == b"include.path" or (key.startswith(b"includeif.") and key.endswith(b".path"))
    if not included:
        return {path}
    return {path, os.path.join(os.path.dirname(path), os.path.expanduser(value))}
