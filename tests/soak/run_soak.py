"""A run that is disturbed at random, and one that is not: both must end with the same parameters.

    python -m tests.soak.run_soak --seed 1 --faults 50
    make soak SEED=1 FAULTS=50

A fault is typed whenever the run trains on its preferred placement and has made some new steps since the one before.
Ends with 0 only if the run is complete, every step that was computed again has the same bits, and the final parameters
are those of the undisturbed run. The same seed gives the same faults, hosts and distances; what the run is just doing
then is chance.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.cli.watch import Watch
from orchestrator.reports.certificate import Certificate, certificate
from orchestrator.reports.status import Status
from orchestrator.store.local import LocalStore
from orchestrator.store.run_store import RunStore
from tests.local.person import Person
from tests.soak import files
from tests.soak.faults import KINDS, Command, Fault, draw

PATIENCE = 600.0
"""Seconds for the run to get from one fault to where the next is due."""
REFERENCE_PATIENCE = 3600.0
LOOK_EVERY = 0.25
FIRST_STEP = 40
"""No fault before: a checkpoint can be lost only when there is another one."""


class SoakFailed(Exception):
    """One line."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a soak showed."""

    held: bool
    seed: int
    steps: int
    faults: dict[str, int]
    """By kind."""
    attempts: int
    episodes: dict[str, int]
    """By cause."""
    replayed_steps: int
    steps_differing: int
    verdict: str
    params_sha256: str | None
    reference_params_sha256: str | None
    versions: tuple[dict[str, str], ...]
    seconds: float
    failed: tuple[str, ...]
    """Claims of the certificate that do not hold."""


class Soak:
    """A folder with a run in it."""

    def __init__(self, folder: Path) -> None:
        self._person = Person(folder, "soak")
        self._objects = LocalStore(folder / "store")
        self._store = RunStore(self._objects, "soak")
        self._watch = Watch(self._objects, "soak", every=LOOK_EVERY)

    def disturb(self, faults: Sequence[Fault]) -> None:
        """Submit the run, type all faults, and wait for its end."""
        self._type(("submit", "run.yaml"))
        reached = FIRST_STEP
        for number, fault in enumerate(faults, 1):
            due = reached + fault.after
            row = self._until(lambda row, due=due: _trains(row) and row.placement == "full" and row.next_step >= due)  # type: ignore[misc]
            print(f"\nfault {number} of {len(faults)}: {fault.kind} at step {row.next_step}", flush=True)
            reached = self._inject(fault, row)
        self._until(_over, seconds=REFERENCE_PATIENCE)

    def compare(self) -> Certificate:
        """Run it again undisturbed; what both show."""
        print("\nthe undisturbed run", flush=True)
        self._type(("submit", "run.yaml", "--name", "reference"))
        row = Watch(self._objects, "reference", every=LOOK_EVERY).until(_limited(_over, seconds=REFERENCE_PATIENCE))
        if row.state != "complete":
            raise SoakFailed(f"the undisturbed run is {row.state}: {row.because}")
        return certificate(self._store, reference=RunStore(self._objects, "reference"))

    def end(self) -> None:
        for name in ("reference", "soak"):
            if (self._person.folder / "store" / name / "run.json").is_file():
                Person(self._person.folder, name).leaves()

    def _inject(self, fault: Fault, row: Status) -> int:
        """Returns the step that the run had reached when the fault had its effect."""
        kind, hosts = KINDS[fault.kind], self._store.attempt(row.attempt).hosts
        names = {"host": str(hosts[fault.host % len(hosts)]), "run": "soak"}
        for command in kind.commands:
            self._type(command, names)
        if kind.relaunches:
            before = row.attempt
            row = self._until(lambda row: row.attempt > before and _trains(row))
        if kind.undone_by is not None:
            self._type(kind.undone_by, names)
        return row.next_step

    def _until(self, ready: Callable[[Status], bool], *, seconds: float = PATIENCE) -> Status:
        row = self._watch.until(_limited(lambda row: ready(row) or _over(row), seconds=seconds))
        if row.state != "complete" and _over(row):
            raise SoakFailed(f"the run is {row.state}: {row.because}")
        if not ready(row):
            raise SoakFailed("the run was complete before its last fault; give it more steps: --steps")
        return row

    def _type(self, command: Command, names: dict[str, str] | None = None) -> None:
        words = [word.format(**(names or {})) for word in command]
        print(f"$ everstep {' '.join(words)}", flush=True)
        print(self._person.types(*words), end="", flush=True)


def _trains(row: Status) -> bool:
    return row.live and row.phase == "train"


def _over(row: Status) -> bool:
    return row.state in ("complete", "stopped", "held") and not row.live


def _limited(ready: Callable[[Status], bool], *, seconds: float) -> Callable[[Status], bool]:
    """The same, and SoakFailed after so long."""
    deadline = time.monotonic() + seconds

    def look(row: Status) -> bool:
        if time.monotonic() > deadline:
            raise SoakFailed(f"not in {seconds:.0f} s: {row.run} is {row.state} at step {row.next_step}: {row.because}")
        return ready(row)

    return look


def soak(folder: Path, *, seed: int, count: int, steps: int | None = None) -> Result:
    """``steps``: of the run; None: enough for so many faults. Raises SoakFailed: it did not come to a comparison."""
    began, faults = time.monotonic(), draw(seed=seed, count=count)
    steps = steps or files.STEPS_A_FAULT * (count + 1)
    print(f"seed {seed}, {count} faults, {steps} steps, in {folder}", flush=True)
    files.write(folder, steps=steps)
    tried = Soak(folder)
    try:
        tried.disturb(faults)
        found = tried.compare()
    finally:
        tried.end()
    proof, compared = found.verification, found.reference
    assert compared is not None
    return Result(
        held=found.held,
        seed=seed,
        steps=steps,
        faults=dict(sorted(Counter(fault.kind for fault in faults).items())),
        attempts=proof.attempts,
        episodes=dict(sorted(Counter(episode.cause for episode in found.episodes).items())),
        replayed_steps=proof.replayed_steps,
        steps_differing=proof.steps_differing,
        verdict=proof.verdict,
        params_sha256=found.ending.params_sha256,
        reference_params_sha256=compared.ending.params_sha256,
        versions=found.versions,
        seconds=round(time.monotonic() - began, 1),
        failed=tuple(f"{claim.claim} ({claim.evidence})" for claim in found.claims if not claim.held),
    )


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    """An empty folder; one that was not named is deleted when all went well."""
    if given is not None:
        given.mkdir(parents=True)
        yield given.absolute()
        return
    made = Path(tempfile.mkdtemp(prefix="everstep-soak-"))
    yield made
    shutil.rmtree(made)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.run_soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=50, help="how many")
    parser.add_argument("--steps", type=int, help="of the run; by default enough for the faults")
    parser.add_argument("--folder", type=Path, help="a new one, which stays; by default a temporary one")
    parser.add_argument("--out", type=Path, help="write the result as JSON here")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever ends it, no process of the run stays
    with _folder(options.folder) as folder:
        try:
            result = soak(folder, seed=options.seed, count=options.faults, steps=options.steps)
        except SoakFailed as failed:
            print(f"soak: {failed}; look around: everstep why soak --store {folder / 'store'}", file=sys.stderr)
            sys.exit(1)
    text = json.dumps(asdict(result), indent=2)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")
    print(f"\n{text}")
    return 0 if result.held else 1


if __name__ == "__main__":
    sys.exit(main())
