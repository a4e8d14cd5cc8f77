"""``everstep controller``: the controller of a run, put together, in this terminal."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import FrameType

import click

from orchestrator.backends.local.backend import LocalBackend
from orchestrator.backends.local.preparer import LocalPreparer
from orchestrator.backends.local.prover import LocalProver
from orchestrator.cli.controllers import how_to_start, leader_of, leading
from orchestrator.cli.errors import INTERRUPTED
from orchestrator.cli.identity import person
from orchestrator.cli.options import run_argument, store_option
from orchestrator.cli.output import note
from orchestrator.cli.stores import open_run, open_store
from orchestrator.contract.base import ContractError
from orchestrator.contract.run import Run
from orchestrator.controller.clock import SystemClock
from orchestrator.controller.effects import Effects
from orchestrator.controller.loop import Controller
from orchestrator.controller.observe import Observer
from orchestrator.controller.sweep import Sweeper
from orchestrator.store.objects import StoreError
from orchestrator.store.opening import is_bucket
from orchestrator.store.run_store import RunStore

Say = Callable[[str], None]
LOOK_AT_FOLDER, LOOK_AT_BUCKET = 0.2, 1.0
"""Seconds between two looks."""


@contextlib.contextmanager
def wired(store: RunStore, *, clock: SystemClock, say: Say = lambda line: None) -> Iterator[Controller]:
    """A controller for a run on its local fleet; what it started beside the run ends with it.

    Raises:
        ContractError: the fleet's description is missing or wrong.
    """
    run = store.run()
    backend = LocalBackend(fleet=Path(run.fleet), store_address=store.objects.address, run=run.name, zygote=run.zygote)
    observer = Observer(store, backend, clock)
    logs = Path(run.fleet) / "controllers"
    prover = LocalProver(
        command=run.scrub,
        store_address=store.objects.address,
        run=run.name,
        log=logs / f"{run.name}-scrub.log",
        monotonic=clock.monotonic,
    )
    preparer = LocalPreparer(
        command=run.prepare,
        store_address=store.objects.address,
        run=run.name,
        fleet=Path(run.fleet),
        log=logs / f"{run.name}-prepare.log",
        monotonic=clock.monotonic,
    )
    effects = Effects(
        run=run,
        store=store,
        backend=backend,
        prover=prover,
        preparer=preparer,
        certify=lambda complete: certify(complete, say=say),
        clock=clock,
    )
    name = f"{person()}:{os.getpid()}"
    try:
        yield Controller(
            name=name, store=store, observer=observer, effects=effects, sweeper=Sweeper(store), clock=clock
        )
    finally:
        preparer.close()
        prover.close()


def certify(store: RunStore, *, say: Say) -> None:
    """Write the certificate of a complete run, once for each final checkpoint."""
    from orchestrator.cli.samples import token_check
    from orchestrator.reports.certificate import certificate

    head = store.head().value
    assert head.manifest is not None, "a complete run has a checkpoint"
    if store.has_certificate(head.manifest):
        return
    try:
        found = certificate(store, tokens=token_check(store, None, say=say))
    except ContractError as error:
        say(f"the certificate was not written: {error}; then: everstep certificate {store.name}")
        return
    store.create_certificate(head.manifest, found)
    say(found.statement)


class Commentary(SystemClock):
    """The machine's clocks; before each wait it says what the controller recorded since the last one."""

    def __init__(self, store: RunStore, *, say: Say) -> None:
        super().__init__()
        self._store = store
        self._say = say
        self._said = 0
        self._reason = ""
        self.controller: Controller | None = None
        self.ended_by: int | None = None
        """The signal that ended it."""

    def wait(self, seconds: float) -> bool:
        self.comment()
        return super().wait(seconds)

    def comment(self) -> None:
        """New events, and a new reason to wait."""
        if self.controller is None:
            return
        if self.controller.history.last_number > self._said:
            try:
                events = self._store.events(after=self._said)
            except (StoreError, ContractError):
                return  # the controller itself says that it cannot see
            for event in events:
                self._say(event.message)
                self._said = event.number
        waiting = self.controller.waiting
        if waiting is not None and waiting.key != self._reason:
            self._say(f"now: {waiting.reason}")
            self._reason = waiting.key

    def end(self, number: int, frame: FrameType | None) -> None:
        """A signal's handler."""
        self.ended_by = number
        self.stop()


@click.command()
@run_argument
@store_option
@click.option(
    "--every",
    type=click.FloatRange(min=0.01),
    metavar="SECONDS",
    help="Between two looks when there is nothing to do; default 0.2 for a folder, 1 for a bucket.",
)
@click.pass_context
def controller(ctx: click.Context, run: str, store: str | None, every: float | None) -> None:
    """Lead a run in this terminal until it is complete or stopped.

    Ctrl-C or SIGTERM end the controller, not the run: trainers go on, and the next controller adopts them. Two
    controllers of one run are safe.

    \b
    Example:
      everstep controller demo --store ./store

    Exit codes: 0 complete, stopped, or ended by SIGTERM; 130 ended by Ctrl-C.
    """
    run_store = open_run(open_store(store), run)
    document = run_store.run()
    other = leader_of(document)
    if other is not None:
        note(f"process {other} leads run {run} too; that is safe, and one is enough")
    clock = Commentary(run_store, say=_say)
    with _roused_by_signals(clock), leading(document), wired(run_store, clock=clock, say=_say) as led:
        clock.controller = led
        _say(f"leading run {run} in {run_store.address}")
        led.run(every=every or (LOOK_AT_BUCKET if is_bucket(run_store.address) else LOOK_AT_FOLDER))
        clock.comment()
    ctx.exit(_farewell(document, clock, led, run_store.objects.address))


@contextlib.contextmanager
def _roused_by_signals(clock: Commentary) -> Iterator[None]:
    before = {number: signal.signal(number, clock.end) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    # an agent is its child, if this controller started it: its death is looked at without waiting for the next look
    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: clock.wake())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _farewell(run: Run, clock: Commentary, led: Controller, address: str) -> int:
    if clock.ended_by is None:
        _say(f"run {run.name} is {led.history.state}; it needs no controller any more")
        return 0
    _say(f"stopped; run {run.name} goes on without a controller. Start one: {how_to_start(run.name, address)}")
    return INTERRUPTED if clock.ended_by == signal.SIGINT else 0


def _say(line: str) -> None:
    click.echo(f"{datetime.now().astimezone():%H:%M:%S}  {line}")
