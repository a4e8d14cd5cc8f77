"""Many seeds, or one in detail.

    python -m tests.simulation.run_seeds --seeds 100000 --from 0 --processes 2
    python -m tests.simulation.run_seeds --seed 4711 --trace

Ends with 1 when a seed failed. Each failing seed is printed once with how to reproduce it.
"""

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tests.simulation.simulation import SimulationFailed, simulate

CHUNK = 50


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run_seeds", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first one")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--most-failures", type=int, default=10, help="stop after this many failing seeds")
    parser.add_argument("--seed", type=int, help="run this one only, and print its whole report")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happens")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _one(options.seed, trace=options.trace)
    return _many(range(options.first, options.first + options.seeds), options.processes, options.most_failures)


def failure_of(seed: int) -> str | None:
    """The report of a seed that fails."""
    try:
        simulate(seed)
    except SimulationFailed as failed:
        return str(failed)
    return None


def _one(seed: int, *, trace: bool) -> int:
    try:
        world = simulate(seed, trace=trace)
    except SimulationFailed as failed:
        print(failed)
        return 1
    print(f"seed {seed}: complete after {world.timeline.now:.0f} s and {len(world.watch.log.launches)} attempts")
    return 0


def _many(seeds: range, processes: int, most_failures: int) -> int:
    begun, done, failures = time.monotonic(), 0, Counter[str]()
    for failed in _results(seeds, processes):
        done += 1
        if failed is not None:
            failures[failed.split("\n")[0].split(": ", 1)[1]] += 1
            print(f"\n{failed}", file=sys.stderr)
        if done % CHUNK == 0 or done == len(seeds):
            rate = done / (time.monotonic() - begun)
            left = (len(seeds) - done) / rate
            line = (
                f"\r{done:,}/{len(seeds):,} seeds, {failures.total()} failed, {rate:.1f} a second, {left:.0f} s left  "
            )
            print(line, end="", file=sys.stderr, flush=True)
        if failures.total() >= most_failures:
            break
    print(file=sys.stderr)
    for what, count in failures.most_common():
        print(f"{count:5d}  {what}")
    seconds = time.monotonic() - begun
    print(f"{done} seeds, {failures.total()} failed, {seconds:.1f} s, {done / seconds:.1f} seeds a second")
    return 1 if failures else 0


def _results(seeds: Iterable[int], processes: int) -> Iterator[str | None]:
    if processes == 1:
        yield from map(failure_of, seeds)
        return
    with multiprocessing.Pool(processes) as pool:
        yield from pool.imap_unordered(failure_of, seeds, chunksize=10)


if __name__ == "__main__":
    sys.exit(main())
