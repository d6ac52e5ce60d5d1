"""A process that carries out one restore and kills itself at a named step: `python child.py ROOT CALL STEP`."""

import os
import signal
import sys
from pathlib import Path

from hub.checkpoint.engine import Engine


def main(root: str, call: str, wanted: str) -> None:
    engine = Engine.open(Path(root))
    counted = 0

    def hook(step: str) -> None:
        nonlocal counted
        if wanted in (step, f"#{counted}"):
            os.kill(os.getpid(), signal.SIGKILL)
        counted += 1

    engine.hook = hook
    CALLS[call](engine)
    print(counted)


def restore(engine: Engine) -> None:
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    engine.apply(plan)
    engine.finish(plan.txid)


def apply_only(engine: Engine) -> None:
    engine.apply(engine.plan("ses/1", undo_ref="ses/1u", labels={}))
    os.kill(os.getpid(), signal.SIGKILL)


def abort(engine: Engine) -> None:
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    engine.apply(plan)
    engine.abort(plan.txid)


def recover(engine: Engine) -> None:
    engine.recover(lambda _: False)


CALLS = {"restore": restore, "apply_only": apply_only, "abort": abort, "recover": recover}

if __name__ == "__main__":
    main(*sys.argv[1:])
