"""Settings: file < environment < flags. The only reader of the environment and of `config.toml`.

A setting that is wrong is refused as a whole, with file, line and what was expected; nothing is guessed.
Values that are secret stand in the file as references (`env:NAME`, `file:PATH`) and are read when the hub starts.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import platformdirs

from hub.domain.values import CheckpointMode
from hub.errors import UsageError

CONFIG_NAME = "config.toml"
HOME_VARIABLE = "TURNBACK_HOME"
MODEL_VARIABLE = "TURNBACK_MODEL"
PORT_VARIABLE = "TURNBACK_PORT"

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Pattern = Annotated[str, msgspec.Meta(pattern=r"^(?!/)(?!(.*/)?\.\.(/|$)).+$")]
"""A path or glob below a worktree's top: neither absolute nor with `..`."""


class Secret:
    """A credential. Its text is read only where it is used; printing it shows stars."""

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the credential itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ModelSection(_Section, frozen=True, kw_only=True):
    """`[model]`: which model runs use by default. `api_key` is a reference, never the key."""

    name: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    api_base: Annotated[str, msgspec.Meta(pattern=r"^https?://")] | None = None
    api_key: Annotated[str, msgspec.Meta(pattern=r"^(env|file):.+")] | None = None
    first_token_s: Seconds = 120.0
    total_s: Seconds = 600.0


class HubSection(_Section, frozen=True, kw_only=True):
    """`[hub]`: a port that is set here is kept or refused; without it the hub chooses one and keeps it."""

    port: Port | None = None
    log_level: Annotated[str, msgspec.Meta(pattern=r"^(debug|info|warning|error)$")] = "info"


class RunsSection(_Section, frozen=True, kw_only=True):
    """`[runs]`: bounds of every run and of all together. `max_cost` is in US dollars."""

    max_parallel: Count = 8
    max_turns: Count = 200
    max_tool_calls: Count = 2000
    max_wall_s: Seconds = 4 * 3600.0
    max_cost: Annotated[float, msgspec.Meta(gt=0)] | None = None
    queue_limit: Count = 20


class ApprovalsSection(_Section, frozen=True, kw_only=True):
    """`[approvals]`: how long a question stays open; then it counts as no."""

    expires_s: Seconds = 24 * 3600.0


class CheckpointSection(_Section, frozen=True, kw_only=True):
    """`[checkpoint]`: whether a run needs one, and the seconds a capture may take (the first of a workspace, more).

    `required`: no complete checkpoint, no run. `best_effort`: the person is told. `off` shows in every report.
    `store` auto: in the repository, if there is one; shadow: always among the hub's own files.
    `steps`: captures within a run; auto leaves them out where one takes over half a second. `include`: files, folders
    or patterns of ignored files that are captured always, relative to the worktree.
    `keep_runs` a session, `keep_days` and `keep_bytes` limit what is kept.
    """

    mode: CheckpointMode = "best_effort"
    store: Literal["auto", "shadow"] = "auto"
    steps: Literal["auto", "on", "off"] = "auto"
    include: tuple[Pattern, ...] = ()
    budget_s: Seconds = 30.0
    first_budget_s: Seconds = 120.0
    keep_runs: Count = 50
    keep_days: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    keep_bytes: Count = 5 << 30


class HooksSection(_Section, frozen=True, kw_only=True):
    """`[hooks]`: shell commands that save and bring back what files don't cover, and the seconds each may take."""

    checkpoint_before: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    restore_after: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    timeout_s: Seconds = 60.0


class EventsSection(_Section, frozen=True, kw_only=True):
    """`[events]`: how much of the event log is kept."""

    max_rows: Count = 1_000_000
    max_age_days: Count = 90


class Config(_Section, frozen=True, kw_only=True):
    """The whole of `config.toml`."""

    model: ModelSection = ModelSection()
    hub: HubSection = HubSection()
    runs: RunsSection = RunsSection()
    approvals: ApprovalsSection = ApprovalsSection()
    checkpoint: CheckpointSection = CheckpointSection()
    hooks: HooksSection = HooksSection()
    events: EventsSection = EventsSection()


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a hub is started with. `environ` is what the process was given, without GIT_*."""

    home: Path
    config: Config
    environ: Mapping[str, str]
    port: int | None = None

    def model_key(self) -> Secret | None:
        """Return the key of the configured model, None when it needs none. Raises UsageError code secret_missing."""
        reference = self.config.model.api_key
        return resolve_secret(reference, self.environ, "model.api_key") if reference else None

    @property
    def secret_names(self) -> frozenset[str]:
        """The variables that hold a credential by the settings' word; no tool's process gets them."""
        reference = self.config.model.api_key or ""
        return frozenset({reference.removeprefix("env:")}) if reference.startswith("env:") else frozenset()

    @property
    def database(self) -> Path:
        return self.home / "hub.db"

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints of folders without git lie, a store for each folder."""
        return self.home / "checkpoints"

    @property
    def outputs(self) -> Path:
        """Where the whole output of calls lies whose result was cut; by session, readable by its runs."""
        return self.home / "outputs"

    @property
    def hooks(self) -> Path:
        """Where hooks put what they save, by checkpoint."""
        return self.home / "hooks"

    @property
    def logs(self) -> Path:
        return self.home / "logs"


def resolve_home(flag: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """Return the absolute home: the flag, else TURNBACK_HOME, else the platform's user data folder."""
    environ = os.environ if environ is None else environ
    chosen = flag or environ.get(HOME_VARIABLE) or platformdirs.user_data_dir("turnback", appauthor=False)
    return Path(chosen).expanduser().absolute()


def model_from_environment(environ: Mapping[str, str] | None = None) -> str | None:
    """Return TURNBACK_MODEL, None when it is unset or empty. Resolved by the caller and sent with the run."""
    environ = os.environ if environ is None else environ
    return environ.get(MODEL_VARIABLE) or None


def environment() -> dict[str, str]:
    """Return a copy of the process environment."""
    return dict(os.environ)


def drop_git_environment() -> None:
    """Remove GIT_* from this process for good, so that no caller's repository can be meant by mistake."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        del os.environ[name]


def load(home: Path, *, port: int | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of a home. Raises UsageError with code config_invalid."""
    environ = dict(os.environ if environ is None else environ)
    config = read_config(home / CONFIG_NAME)
    chosen = port or _port_from(environ) or config.hub.port
    return Settings(home=home, config=config, environ=environ, port=chosen)


def read_config(path: Path) -> Config:
    """Return the settings in a file, defaults when there is none. Raises UsageError with code config_invalid."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return Config()
    except (OSError, UnicodeDecodeError) as error:
        raise _invalid(path, None, f"cannot be read: {error}") from None
    return parse_config(text, path)


def parse_config(text: str, path: Path) -> Config:
    """Return the settings in a text; `path` is for the message. Raises UsageError with code config_invalid."""
    try:
        return msgspec.convert(tomllib.loads(text), Config)
    except tomllib.TOMLDecodeError as error:
        raise _invalid(path, _line_in(str(error)), f"not TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise _invalid(path, line_of(text, str(error)), str(error)) from None


def line_of(text: str, problem: str) -> int | None:
    """Return the line (from 1) of the setting that a validation text names by path, such as `$.model.name`."""
    place = re.search(r"`\$\.?([\w.]*)`?", problem)
    unknown = re.search(r"unknown field `(\w+)`", problem)
    names = [name for name in (place.group(1).split(".") if place else []) if name]
    names += [unknown.group(1)] if unknown else []
    lines = text.splitlines()
    at: int | None = None
    start = 0
    for name in names:
        pattern = re.compile(rf"^\s*(\[\s*{name}\s*\]|{name}\s*[=.])")
        found = next((index for index in range(start, len(lines)) if pattern.match(lines[index])), None)
        if found is None:
            return at
        start, at = found, found + 1
    return at


def resolve_secret(reference: str, environ: Mapping[str, str], setting: str) -> Secret:
    """Return what a reference stands for. Raises UsageError with code secret_missing."""
    scheme, _, name = reference.partition(":")
    if scheme == "env":
        value = environ.get(name)
        if not value:
            raise UsageError(
                f"{setting} = {reference!r}, but {name} is not set in the environment the hub was started with.",
                code="secret_missing",
                hint=f"Export {name} and run `hubctl restart`, or use file:PATH.",
            )
        return Secret(value)
    try:
        return Secret(Path(name).expanduser().read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{setting} = {reference!r} cannot be read: {error}", code="secret_missing") from None


def _port_from(environ: Mapping[str, str]) -> int | None:
    text = environ.get(PORT_VARIABLE, "")
    if not text:
        return None
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise UsageError(
            f"{PORT_VARIABLE}={text!r} is not a port; give a number from 1 to 65535.", code="config_invalid"
        )
    return int(text)


def _line_in(problem: str) -> int | None:
    found = re.search(r"at line (\d+)", problem)
    return int(found.group(1)) if found else None


def _invalid(path: Path, line: int | None, problem: str) -> UsageError:
    where = f"{path}:{line}" if line else str(path)
    return UsageError(f"{where}: {problem}", code="config_invalid", hint="Correct the file; nothing was changed.")
