"""A small module that is found in the place of litellm, which takes seconds to import."""

from pathlib import Path

STAND_IN = """
import asyncio, os, sys, time
print("noise on stdout", os.environ["TURNBACK_MODEL_KEY_0"])
time.sleep(float(os.environ.get("LC_IMPORT_S", "0")))

class _Chunk:
    def __init__(self, words, finish):
        delta = type("Delta", (), {"content": words, "tool_calls": None, "function_call": None})
        self.choices = [type("Choice", (), {"delta": delta, "finish_reason": finish})]
        self.usage = None

class _Stream:
    def __init__(self, model):
        self.model, self.chunks, self.number = model, [], 0
    async def __anext__(self):
        self.number += 1
        if self.number > 2:
            raise StopAsyncIteration
        if self.number == 2 and self.model == "hold":
            await asyncio.sleep(3600)
        return _Chunk("words", None) if self.number == 1 else _Chunk("", "stop")
    async def aclose(self):
        pass

async def acompletion(model, **_):
    if model == "block":
        time.sleep(3600)
    if model == "die":
        os._exit(7)
    if model == "secret":
        raise ValueError("the key is " + os.environ["TURNBACK_MODEL_KEY_0"])
    return _Stream(model)
"""


def stand_in_environment(folder: Path) -> dict[str, str]:
    """Return an environment in which the stand-in is found as litellm; it is written to `folder`."""
    (folder / "lib").mkdir()
    (folder / "lib" / "litellm.py").write_text(STAND_IN)
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder / "lib")}
