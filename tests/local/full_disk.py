"""A trainer whose store has a small file system of its own, which gets full and is freed again.

    unshare -rm python -m tests.local.full_disk FOLDER

Prints what there is to see of it, as JSON. The second attempt starts from the first checkpoint that was saved after
the disk was freed, and replays what the first recorded beyond it.
"""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from orchestrator.backends.local.lasting_drills import full_disk
from tests.local.attempts import Attempt, SmallRun, small_recipe, stage_of, write_tokens
from trainer.ledger import CLOSE_AT

EVERY = 20
"""Steps between saves: a save is over before the next one."""


def main(folder: Path) -> dict[str, Any]:
    store = folder / "store"
    store.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", store], check=True)
    recipe = small_recipe(stage_of(write_tokens(folder / "tokens.u32"), steps=100_000))
    run = SmallRun(folder, recipe, every_steps=EVERY, cache=folder / "cache")
    try:
        return _disturbed(run, store)
    finally:
        run.stop_all()


def _disturbed(run: SmallRun, store: Path) -> dict[str, Any]:
    first = run.launch()
    first.until(lambda progress: bool(progress.step) and bool(run.head.next_step))
    full_disk(store, seconds=1, wait=lambda _: _until_records_wait(first))
    first.until(lambda progress: progress.save_error is None and (run.head.next_step or 0) > _failed(first)[-1])
    progress = first.progress()
    first.until(lambda _: max(first.ledger(), default=0) > (run.head.next_step or 0) + 5)
    first.send(signal.SIGKILL)
    ended = first.wait()
    recorded = sorted(first.ledger())
    resume = run.head.next_step or 0
    second = run.launch(until_step=recorded[-1] + 5)
    return {
        "failed": _failed(first),
        "failures": progress.save_failures,
        "ended": ended,
        "recorded": recorded,
        "committed": [manifest.next_step for manifest in run.store.lineage(run.head.manifest)],
        "resume": resume,
        "second": second.wait(),
        "replayed": sorted(first.ledger().keys() & second.ledger().keys()),
        "output": first.output() + second.output(),
    }


def _until_records_wait(attempt: Attempt) -> None:
    """So many steps were taken on a full disk that a segment of the ledger was due."""
    attempt.until(lambda _: max(_failed(attempt), default=0) >= min(_failed(attempt), default=0) + CLOSE_AT)


def _failed(attempt: Attempt) -> list[int]:
    """Steps whose save failed, as the trainer's log says."""
    return [int(step) for step in re.findall("the save of step ([0-9]+) failed: ", attempt.output())]


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
