"""The worker as a process: it dies, rests, is ended and left behind, and the hub's side never hangs or is misled.

Most tests put a small module in litellm's place, which takes seconds to import; kill -9 is tried with the real one.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from hub.agent.model import ModelError, Notice, TextDelta
from hub.agent.remote import LitellmModel, ModelSettings, WorkerProcess, worker_environment
from hub.agent.retry import ask
from hub.agent.worker_protocol import Ask, Target, encode
from hub.settings import Secret
from tests.agent.given import request
from tests.agent.stand_in import STAND_IN, stand_in_environment
from tests.stub_openai import Hold, StubServer, delta, stream, text

KEY = Secret("sk-loopback-0123456789")


@pytest.fixture
def stand_in(tmp_path: Path) -> dict[str, str]:
    """An environment in which another module is found as litellm."""
    return stand_in_environment(tmp_path)


@pytest.fixture
async def worker(stand_in: dict[str, str], tmp_path: Path) -> AsyncIterator[WorkerProcess]:
    process = WorkerProcess(stand_in, [KEY], cwd=tmp_path, back_off_s=(0.01, 0.05))
    yield process
    await process.close()


def model(worker: WorkerProcess, name: str = "plain", **limits: float) -> LitellmModel:
    return LitellmModel(worker, ModelSettings(name=name, api_key=KEY, **limits))  # type: ignore[arg-type]


async def words_of(asked: LitellmModel) -> str:
    """Return the text of one attempt. Raises ModelError."""
    return "".join([part.text async for part in asked.stream(request()) if isinstance(part, TextDelta)])


async def until(condition: object, seconds: float = 20) -> None:
    """Wait until a condition, a callable, holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


async def begin(asked: LitellmModel) -> "asyncio.Task[str]":
    """Ask, and return when the first words are there."""
    first = asyncio.Event()

    async def go() -> str:
        shown = ""
        async for part in asked.stream(request()):
            if isinstance(part, TextDelta):
                shown += part.text
                first.set()
        return shown

    task = asyncio.create_task(go())
    waiting = asyncio.create_task(first.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=30)
    assert first.is_set()
    return task


class Watch:
    """A record of children, as the hub keeps one."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []
        self.times: list[float] = []

    async def started(self, pid: int, start_time: float, group: int) -> None:
        assert os.getpgid(pid) == group == pid
        self.times.append(start_time)
        self.log.append(("started", pid))

    async def ended(self, pid: int) -> None:
        assert not psutil.pid_exists(pid)
        self.log.append(("ended", pid))


def test_the_hubs_side_does_not_load_the_library() -> None:
    code = "import sys, hub.agent.remote, hub.agent.scripted, hub.agent.retry; print('litellm' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


async def test_the_worker_starts_in_the_background_and_is_told_of(stand_in: dict[str, str], tmp_path: Path) -> None:
    watch = Watch()
    process = WorkerProcess(stand_in | {"LC_IMPORT_S": "0.5"}, [KEY], cwd=tmp_path, watch=watch)
    assert (process.state, process.pid) == ("off", None)
    process.start()
    process.start()
    assert (process.state, process.pid) == ("starting", None)
    await until(lambda: process.state == "loading")
    pid = process.pid
    assert pid is not None
    assert watch.log == [("started", pid)]
    assert watch.times == [psutil.Process(pid).create_time()]
    await until(lambda: process.state == "ready")
    await process.close()
    assert (process.state, watch.log) == ("off", [("started", pid), ("ended", pid)])


async def test_a_request_that_comes_early_waits_and_says_so(stand_in: dict[str, str], tmp_path: Path) -> None:
    process = WorkerProcess(stand_in | {"LC_IMPORT_S": "0.5"}, [KEY], cwd=tmp_path)
    parts = [part async for part in model(process).stream(request())]
    assert [part for part in parts if isinstance(part, Notice)] == [
        Notice("model worker is starting"),
        Notice("model is loading"),
    ]
    assert TextDelta("words") in parts
    await process.close()


async def test_kill_9_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    process = WorkerProcess({"PATH": "/usr/bin:/bin"}, [KEY], cwd=tmp_path, back_off_s=(0.01,))
    discarded: list[str] = []

    async def discard(reason: str) -> None:
        discarded.append(reason)

    async with StubServer([stream(delta(content="half"), Hold()), text("whole")]) as stub:
        asked = LitellmModel(process, ModelSettings(name="openai/x", api_base=stub.api_base, api_key=KEY))
        begun = asyncio.Event()

        def show(part: object) -> None:
            if part == TextDelta("half"):
                begun.set()

        task = asyncio.create_task(ask(asked, request(), show, on_discard=discard))
        await begun.wait()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        answer = await task
    assert (answer.text, answer.attempts) == ("whole", 2)
    assert discarded == ["The model worker ended while it was asked (signal 9)."]
    await process.close()


async def test_every_request_in_flight_is_told(worker: WorkerProcess) -> None:
    tasks = [await begin(model(worker, "hold")) for _ in range(3)]
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    for task in tasks:
        with pytest.raises(ModelError, match="signal 9") as caught:
            await task
        assert caught.value.kind == "retry"
    assert await words_of(model(worker)) == "words"


@pytest.mark.slow
async def test_killed_at_any_moment_each_question_is_answered_once(worker: WorkerProcess) -> None:
    """Kill -9 at 40 random instants: what is asked meanwhile ends in an answer or in a failure that passes."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance, kills = random.Random(seed), 0

    async def discard(_: str) -> None:
        return

    async def sleep(_: float) -> None:
        await asyncio.sleep(0.02)

    async def questions() -> list[str]:
        ended = []
        while kills < 40:
            try:
                answer = await ask(model(worker), request(), lambda part: None, on_discard=discard, sleep=sleep)
                ended.append(answer.text)
            except ModelError as error:
                ended.append(error.kind)
        return ended

    asking = [asyncio.create_task(questions()) for _ in range(4)]
    while kills < 40:
        await asyncio.sleep(chance.random() * 0.3)
        if worker.pid is not None:
            os.kill(worker.pid, signal.SIGKILL)
            kills += 1
    async with asyncio.timeout(60):
        ended = [entry for entries in await asyncio.gather(*asking) for entry in entries]
    assert set(ended) <= {"words", "retry"}
    assert "words" in ended
    assert await words_of(model(worker)) == "words"


async def test_it_is_started_again_without_being_asked(worker: WorkerProcess) -> None:
    worker.start()
    await until(lambda: worker.state == "ready")
    first = worker.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: worker.state == "ready" and worker.pid != first)


async def test_one_that_always_dies_is_left_until_it_is_wanted(worker: WorkerProcess, stand_in: dict[str, str]) -> None:
    library = Path(stand_in["PYTHONPATH"]) / "litellm.py"
    library.write_text("import os; os._exit(3)")
    worker.start()
    await until(lambda: worker.pid is None and worker.state == "exit code 3" and not worker._wanted.is_set())
    library.write_text(STAND_IN)
    assert await words_of(model(worker)) == "words"


async def test_a_request_that_kills_it_does_not_go_on_for_ever(worker: WorkerProcess) -> None:
    async def sleep(_: float) -> None:
        return

    with pytest.raises(ModelError, match=r"exit code 7.*asked 4 times") as caught:
        await ask(model(worker, "die"), request(), lambda part: None, sleep=sleep)
    assert caught.value.kind == "retry"
    assert await words_of(model(worker)) == "words"


async def test_a_library_that_cannot_be_loaded(worker: WorkerProcess, stand_in: dict[str, str]) -> None:
    (Path(stand_in["PYTHONPATH"]) / "litellm.py").write_text("raise OSError('no disk')")
    worker.start()
    await until(lambda: "no disk" in worker.state)
    with pytest.raises(ModelError, match="cannot be loaded: OSError: no disk") as caught:
        await words_of(model(worker))
    assert caught.value.kind == "unknown"


async def test_a_worker_that_cannot_be_started(tmp_path: Path) -> None:
    process = WorkerProcess({}, [KEY], cwd=tmp_path / "gone", back_off_s=(0.01,))
    with pytest.raises(ModelError, match=r"has not started.*gone") as caught:
        await words_of(model(process, first_token_s=0.5))
    assert caught.value.kind == "retry"
    await process.close()


async def test_it_rests_when_nobody_asks_and_comes_back(stand_in: dict[str, str], tmp_path: Path) -> None:
    watch = Watch()
    process = WorkerProcess(stand_in, [KEY], cwd=tmp_path, watch=watch, idle_s=0.2)
    assert await words_of(model(process)) == "words"
    await until(lambda: len(watch.log) == 2)
    assert (process.state, process.pid) == ("idle", None)
    holding = await begin(model(process, "hold"))
    second = process.pid
    await asyncio.sleep(0.5)  # longer than it may be idle
    assert (process.state, process.pid) == ("ready", second)
    holding.cancel()
    await until(lambda: process.state == "idle")
    await process.close()


@pytest.mark.parametrize("name", ["hold", "block"])
async def test_closing_ends_it_whatever_it_does(worker: WorkerProcess, name: str) -> None:
    worker.start()
    await until(lambda: worker.state == "ready")
    task = asyncio.create_task(words_of(model(worker, name)))
    await asyncio.sleep(0.1)
    assert worker.pid is not None
    process = psutil.Process(worker.pid)
    await worker.close()
    assert not process.is_running()
    with pytest.raises(ModelError):
        await task
    with pytest.raises(ModelError, match="stopping") as caught:
        await words_of(model(worker))
    assert caught.value.kind == "cancelled"


async def test_closing_ends_one_that_is_stopped(worker: WorkerProcess) -> None:
    worker.start()
    await until(lambda: worker.state == "ready")
    assert worker.pid is not None
    process = psutil.Process(worker.pid)
    process.suspend()
    await worker.close()
    assert not process.is_running()


async def test_one_that_hangs_is_ended(worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.agent.worker_link.PING_S", 0.05)
    monkeypatch.setattr("hub.agent.worker_link.SILENCE_S", 0.5)
    with pytest.raises(ModelError, match="signal 9"):
        await words_of(model(worker, "block"))


async def test_a_failure_that_nobody_foresaw_hides_the_key(worker: WorkerProcess) -> None:
    with pytest.raises(ModelError, match=r"the key is \*\*\*") as caught:
        await words_of(model(worker, "secret"))
    assert caught.value.kind == "unknown"


async def test_what_it_prints_is_logged_without_the_key(
    worker: WorkerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "hub.agent.worker_link"):
        assert await words_of(model(worker)) == "words"
        await until(lambda: "noise on stdout ***" in caplog.text)
    assert KEY.reveal() not in caplog.text


async def test_the_key_is_in_its_environment_and_nowhere_else(worker: WorkerProcess) -> None:
    worker.start()
    await until(lambda: worker.state == "ready")
    process = psutil.Process(worker.pid)
    assert process.environ()["TURNBACK_MODEL_KEY_0"] == KEY.reveal()
    assert KEY.reveal() not in " ".join(process.cmdline())
    assert KEY.reveal().encode() not in encode(Ask(1, Target("x", None, "TURNBACK_MODEL_KEY_0"), request()))


def test_what_is_passed_on_of_the_environment() -> None:
    kept = {"PATH": "p", "HOME": "h", "LC_ALL": "C", "https_proxy": "x", "OPENAI_API_KEY": "k", "AWS_REGION": "r"}
    dropped = {"TURNBACK_HOME": "t", "TURNBACK_MODEL_KEY_0": "old", "GIT_DIR": "g", "SSH_AUTH_SOCK": "s", "FOO": "f"}
    assert worker_environment(kept | dropped, [Secret("a"), Secret("b")]) == kept | {
        "TURNBACK_MODEL_KEY_0": "a",
        "TURNBACK_MODEL_KEY_1": "b",
    }
