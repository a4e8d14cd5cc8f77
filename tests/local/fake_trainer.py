"""A trainer without JAX that keeps the contract: reads its spec, says where it is, drains on SIGTERM.

Standard library only, as anybody's trainer may be. ``python fake_trainer.py [options]``; without options it takes steps
until it is told to drain.
"""

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

STEP_SECONDS = 0.02


class FakeTrainer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.spec = json.loads(Path(os.environ["EVERSTEP_ATTEMPT"]).read_bytes())
        self.process = int(os.environ["EVERSTEP_PROCESS"])
        self.phases: list[dict[str, object]] = []
        self.counter = 0
        self.step: int | None = None
        self.terminated = 0

    def run(self) -> int:
        if self.options.deaf:  # still importing: no handler, no word
            signal.pause()
        signal.signal(signal.SIGTERM, self.on_terminate)
        self.enter("start")
        if self.options.junk:
            sys.stdout.buffer.write(b"\xff\xfe\x00\x80 junk \xc3\n" * 500 + b"the last line\n")
            sys.stdout.flush()
        if self.options.child:
            subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], close_fds=False)
        if self.options.own_error:
            return self.fail()
        if self.options.exit is not None:
            return int(self.options.exit)
        self.enter("train")
        while not self.terminated:
            self.take_step()
        return self.drain()

    def drain(self) -> int:
        self.enter("drain")
        for _ in range(self.options.witness):
            self.take_step()
        print(f"SIGTERM came {self.terminated} times", flush=True)
        return 80

    def fail(self) -> int:
        error = {"schema": "error/1", "type": "ValueError", "frame": "fake_trainer.py:fail", "message": "as asked"}
        Path(os.environ["EVERSTEP_ERROR"]).write_text(json.dumps(error))
        return 1

    def take_step(self) -> None:
        select.select([], [], [], STEP_SECONDS)
        self.step = 0 if self.step is None else self.step + 1
        self.say()

    def enter(self, phase: str) -> None:
        self.phases.append({"phase": phase, "at": time.time()})
        self.say()

    def say(self) -> None:
        self.counter += 1
        progress = {
            "schema": "progress/1",
            "attempt": self.spec["attempt"],
            "process": self.process,
            "pid": os.getpid(),
            "phase": self.phases[-1]["phase"],
            "step": self.step,
            "counter": self.counter,
            "phases": self.phases,
            "at": time.time(),
        }
        folder = Path(self.spec["store"], self.spec["run"], f"attempts/{self.spec['attempt']:04d}/hosts")
        temporary = Path(f"{os.environ['EVERSTEP_ATTEMPT']}.progress")
        temporary.write_text(json.dumps(progress))
        try:
            folder.mkdir(exist_ok=True)
            os.replace(temporary, folder / f"{self.process:03d}.json")
        except FileNotFoundError:
            return  # the store is away; the next step says it again

    def on_terminate(self, _number: int, _frame: object) -> None:
        self.terminated += 1


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deaf", action="store_true", help="hang before the first word")
    parser.add_argument("--junk", action="store_true", help="print bytes that are no text")
    parser.add_argument("--child", action="store_true", help="start a child that outlives this process")
    parser.add_argument("--own-error", action="store_true", help="leave an OwnError and exit 1")
    parser.add_argument("--exit", type=int, help="exit with this code after the first word")
    parser.add_argument("--witness", type=int, default=10, help="steps after SIGTERM")
    return parser.parse_args()


def main() -> int:
    return FakeTrainer(options()).run()


if __name__ == "__main__":
    sys.exit(main())
