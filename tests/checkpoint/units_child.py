"""A process that restores several units and kills itself at a step: `python units_child.py CALL STEP ROOT ...`."""

import os
import signal
import sys
from pathlib import Path

from hub.checkpoint.units import Units


def main(call: str, wanted: str, *roots: str) -> None:
    units = Units.open([Path(root) for root in roots])

    def hook(step: str) -> None:
        if step == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    units.hook = hook
    if call.startswith("recover"):
        units.recover(lambda _: call == "recover forward")
        return
    plan = units.plan("ses/1", undo_ref="ses/2u" if call == "restore2" else "ses/1u", labels={})
    units.apply(plan)
    if call == "abort":
        units.abort(plan.txid)
    else:
        units.finish(plan.txid)


if __name__ == "__main__":
    main(*sys.argv[1:])
