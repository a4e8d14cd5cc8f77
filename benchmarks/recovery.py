"""Seconds from a kill to the first new step: Everstep, and a shell loop around a plain JAX and Orbax script.

    python benchmarks/recovery.py --trials 5

A fleet of processes on this machine, the same model, batch and checkpoint interval on both sides, killed in the same
ways when the newest checkpoint is committed and the same number of steps lie beyond it. The loop is the best that a
shell can do: when one process dies, all are killed and started again at once (``shell_loop/fleet.sh``), and where only
one host is left, somebody starts it for one host at once. It runs twice: as JAX comes, and with a compile cache that
works for several processes. Trials of the three are interleaved. A step is new when it had not been computed before
the kill, recorded or not; all times are those that the processes write down themselves.

Bars: the ratio of the medians, Everstep to the loop as JAX comes, is at most 0.2 where as many hosts go on as before
and 0.1 where one goes on alone. Against the loop with a cache: the ratio of each phase.

Exit 0: all bars are held; 1: one is missed; 130: interrupted, and nothing that was started is left.
"""

import argparse
import json
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from benchmarks.recovery_everstep import Everstep
from benchmarks.recovery_job import CASES, PHASES, Job, Outcome, median_phases
from benchmarks.shell_loop.loop import ShellLoop

BARS = {"trainer": 0.2, "host": 0.2, "shrink": 0.1}
SIDES = ("everstep", "loop", "loop + cache")


class Side(Protocol):
    """What a trial is made with."""

    def trial(self, case: str, number: int) -> Outcome: ...


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever ends it, no process stays
    job = Job(hosts=asked.hosts, every=asked.every, after=asked.after)
    with _folder(asked.folder) as folder:
        sides: tuple[Side, ...] = (
            Everstep(folder / "everstep", job),
            ShellLoop(folder / "loop", job, cached=False),
            ShellLoop(folder / "cached", job, cached=True),
        )
        try:
            outcomes = list(_measure(sides, cases=asked.cases, trials=asked.trials))
        except KeyboardInterrupt:
            return 130
    verdicts = [verdict(case, outcomes) for case in asked.cases]
    if asked.json:
        outcomes_out = [asdict(one) for one in outcomes]
        print(json.dumps({"job": asdict(job), "cases": verdicts, "outcomes": outcomes_out}, indent=2))
    else:
        for found in verdicts:
            _print(found)
    return 0 if all(found["held"] for found in verdicts) else 1


def _measure(sides: Sequence[Side], *, cases: Sequence[str], trials: int) -> Iterator[Outcome]:
    for case in cases:
        for number in range(trials):
            for side in sides:
                found = side.trial(case, number)
                again = f", {found.launches} launches" if found.launches > 1 else ""
                print(
                    f"{case}, trial {number + 1} of {trials}, {found.side}: {found.seconds:.2f} s, "
                    f"{found.replayed} steps again{again}",
                    file=sys.stderr,
                    flush=True,
                )
                yield found


def verdict(case: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What the trials of a case show, by side."""
    by_side = {side: [one for one in outcomes if (one.case, one.side) == (case, side)] for side in SIDES}
    medians = {side: statistics.median(one.seconds for one in found) for side, found in by_side.items()}
    ratio = medians["everstep"] / medians["loop"]
    return {
        "case": case,
        "ratio": ratio,
        "bar": BARS[case],
        "held": ratio <= BARS[case],
        "seconds": {
            side: {"median": medians[side], "all": [one.seconds for one in found]} for side, found in by_side.items()
        },
        "replayed": {side: statistics.median(one.replayed for one in found) for side, found in by_side.items()},
        "phases": {side: median_phases(found) for side, found in by_side.items()},
    }


def _print(found: dict[str, Any]) -> None:
    case, seconds, phases = found["case"], found["seconds"], found["phases"]
    print(f"\n{case}: {CASES[case]}")
    print(f"{'median seconds':16}" + "".join(f"{side:>14}" for side in SIDES) + f"{'everstep / loop + cache':>25}")
    for phase in PHASES:
        row = [phases[side][phase] for side in SIDES]
        print(f"{phase:16}" + "".join(f"{value:14.2f}" for value in row) + f"{_ratio(row[0], row[2]):>25}")
    row = [seconds[side]["median"] for side in SIDES]
    print(f"{'kill to new step':16}" + "".join(f"{value:14.2f}" for value in row) + f"{_ratio(row[0], row[2]):>25}")
    for label, best in (("fastest", min), ("slowest", max)):
        print(f"{label:16}" + "".join(f"{best(seconds[side]['all']):14.2f}" for side in SIDES))
    print(f"{'steps again':16}" + "".join(f"{found['replayed'][side]:14.0f}" for side in SIDES))
    held = "held" if found["held"] else "MISSED"
    print(f"everstep / loop: {found['ratio']:.3f}; bar: {found['bar']}, {held}")


def _ratio(mine: float, other: float) -> str:
    return f"{mine / other:.2f}" if other >= 0.005 else "-"


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    """An empty folder; one that was not named is deleted at the end."""
    if given is not None:
        given.mkdir(parents=True)
        yield given.absolute()
        return
    made = Path(tempfile.mkdtemp(prefix="everstep-recovery-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _cases(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5, help="of each case and side (default 5)")
    parser.add_argument("--cases", type=_cases, default=list(CASES), help=f"some of {','.join(CASES)} (default all)")
    parser.add_argument("--hosts", type=int, default=4, choices=(2, 4), help="of 2 devices each (default 4)")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints (default 50)")
    parser.add_argument("--after", type=int, default=15, help="steps beyond a checkpoint when killed (default 15)")
    parser.add_argument("--folder", type=Path, help="a new one, which stays with all logs; default: a temporary one")
    parser.add_argument("--json", action="store_true", help="one document instead of tables")
    return parser


if __name__ == "__main__":
    sys.exit(main())
