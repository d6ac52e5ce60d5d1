"""Models by name: which one a run uses, whether it can be had, and the worker process behind all but scripted ones."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from hub.agent.model import Model
from hub.agent.remote import LitellmModel, ModelSettings, WorkerProcess
from hub.daemon.children import Children
from hub.daemon.logs import redactor
from hub.errors import UsageError
from hub.settings import Secret, Settings

if TYPE_CHECKING:
    from hub.agent.scripted import Scenario

log = logging.getLogger(__name__)

SCRIPTED = "scripted:"
NONE = "none"
"""What a run's spec says when no model was named anywhere; opening it fails with the three ways to get going."""

THREE_WAYS = (
    'Set one in config.toml ([model] name = "openai/NAME", api_base = "…", api_key = "env:NAME"), '
    "name one with --model or TURNBACK_MODEL, or try the hub without any: --model scripted:FILE.yaml."
)
"""The three ways to get going."""


class Models:
    """Opens models by name. The worker starts in the background and only when a model needs it."""

    def __init__(self, settings: Settings, children: Children) -> None:
        self._settings = settings
        self._children = children
        self._worker: WorkerProcess | None = None
        self._key: Secret | None = None
        self._scenarios: dict[str, tuple[tuple[int, int, int], Scenario]] = {}

    @property
    def state(self) -> str:
        """off without a configured model, else idle (not started, or ended for lack of work), starting or ready."""
        if self._worker is not None:
            return self._worker.state
        return "idle" if self._settings.config.model.name else "off"

    def choose(self, asked: str | None, before: str | None) -> str:
        """Return the name a run's spec gets: what was asked for, else the session's own, else what is configured."""
        return asked or before or self._settings.config.model.name or NONE

    def check(self, name: str) -> None:
        """Refuse a model that cannot be had. Raises UsageError: no_model, unknown_model, scenario_invalid …"""
        if name == NONE:
            raise UsageError("No model is configured and none was named.", code="no_model", hint=THREE_WAYS)
        if name.startswith(SCRIPTED):
            self._scenario(name)
        elif "/" not in name or name.startswith("/") or name.endswith("/"):
            raise UsageError(
                f"{name!r} is not a model: a name is PROVIDER/MODEL, such as openai/gpt-5.",
                code="unknown_model",
                hint=THREE_WAYS,
            )
        else:
            self._settings.model_key()

    def open(self, name: str) -> Model:
        """Return a model. Raises UsageError as `check` does."""
        self.check(name)
        if name.startswith(SCRIPTED):
            from hub.agent.scripted import ScriptedModel

            return ScriptedModel(self._scenario(name), f"{SCRIPTED}{scenario_path(name).name}")
        return LitellmModel(self._the_worker(), self._model_settings(name))

    def _scenario(self, name: str) -> Scenario:
        """Return a scenario, read again only when its file has changed."""
        from hub.agent.scripted import load_scenario

        path = scenario_path(name)
        try:
            found = path.stat()
        except OSError:
            return load_scenario(path)  # tells what is wrong
        mark = (found.st_mtime_ns, found.st_size, found.st_ino)
        if self._scenarios.get(name, (None, None))[0] != mark:
            self._scenarios = {name: (mark, load_scenario(path))}
        return self._scenarios[name][1]

    def warm(self) -> None:
        """Start the worker in the background if a configured model will need it."""
        name = self._settings.config.model.name
        if name and not name.startswith(SCRIPTED):
            self._start_worker()

    def _start_worker(self) -> None:
        try:
            self._the_worker().start()
        except UsageError as error:
            log.warning("the model worker is not started", extra={"reason": error.message})

    async def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            await self._worker.close()

    def _the_worker(self) -> WorkerProcess:
        if self._worker is None:
            key = self._settings.model_key()
            if key is not None:
                redactor.learn([key.reveal()])
            self._key = key
            self._worker = WorkerProcess(
                self._settings.environ,
                [key] if key is not None else [],
                cwd=self._settings.home,
                watch=self._children.watch("", "", kind="model worker"),
            )
        return self._worker

    def _model_settings(self, name: str) -> ModelSettings:
        """Return how a model is asked: the configured address and key serve every model of the same provider."""
        section = self._settings.config.model
        ours = section.name is not None and section.name.partition("/")[0] == name.partition("/")[0]
        return ModelSettings(
            name=name,
            api_base=section.api_base if ours else None,
            api_key=self._key if ours else None,
            first_token_s=section.first_token_s,
            total_s=section.total_s,
        )


def scenario_path(name: str) -> Path:
    """Return the file of a scripted model's name."""
    return Path(name.removeprefix(SCRIPTED))
