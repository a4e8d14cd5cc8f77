"""``everstep profile``: a trace of some steps of a live run, without a change of bits."""

import re
import time
from collections.abc import Callable
from typing import ClassVar

import click

from orchestrator.cli.errors import BadInput, DoesNotHold, Unreachable
from orchestrator.cli.identity import person
from orchestrator.cli.options import json_option, reason_option, run_argument, store_option, wait_option
from orchestrator.cli.output import print_document, print_lines
from orchestrator.cli.requests import LOOK_EVERY
from orchestrator.cli.stores import open_run, open_store
from orchestrator.contract.attempt import AttemptSpec, ProfileOrder
from orchestrator.contract.base import Document
from orchestrator.reports.facts import read_facts
from orchestrator.store.run_store import RunStore

MOST_STEPS = 100
"""Of one profile: a trace of a large program is some hundred megabytes a step and host."""


class ProfileAsked(Document):
    """What ``everstep profile --json`` says."""

    KIND: ClassVar[str] = "profile-asked"

    run: str
    order: ProfileOrder
    folder: str
    """``host-NNN/`` of each process, and the compiled program's text."""
    written: bool
    """False: it was not waited for."""


@click.command()
@run_argument
@click.option("--steps", required=True, metavar="A..B", help="The first and the last step, both to come.")
@store_option
@reason_option
@wait_option
@json_option(schema="profile-asked")
def profile(run: str, steps: str, store: str | None, reason: str, wait: bool, timeout: float, as_json: bool) -> None:
    """Trace steps A to B of the live attempt on each host, and write the compiled program's text.

    The trainer reads the order beside its progress and computes the same bits; traced steps are slower. Files are in
    the run's folder: profiles/A-B-aATTEMPT/host-NNN, for TensorBoard or Perfetto.

    \b
    Example:
      everstep profile demo --steps 1200..1204 --reason "why are steps slower since the move?"

    Exit codes: 0 written, 1 the attempt ended before that, 2 the steps have passed, 3 not written in time.
    """
    run_store = open_run(open_store(store), run)
    order = ordered(run_store, *_parsed(steps), reason=reason)
    if wait:
        see_through(run_store, order, timeout=timeout, sleep=time.sleep)
    folder = f"{run_store.address}/{order.folder}"
    if as_json:
        print_document(ProfileAsked(run=run, order=order, folder=folder, written=wait))
    else:
        print_lines([f"steps {order.steps} of a{order.attempt}: {folder}" + ("" if wait else "; not waiting")])


def _parsed(steps: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)\.\.(\d+)", steps)
    first, last = (int(part) for part in match.groups()) if match else (1, 0)
    if first > last:
        raise BadInput(f"--steps {steps}: name the first and the last step, such as 1200..1204")
    if last - first >= MOST_STEPS:
        raise BadInput(f"--steps {steps}: {last - first + 1} steps are too many; trace at most {MOST_STEPS}")
    return first, last


def ordered(store: RunStore, first: int, last: int, *, reason: str) -> ProfileOrder:
    """Write the order for the live attempt.

    Raises:
        BadInput: there is none, it does not come to these steps, or has passed them, or traces others.
    """
    facts = read_facts(store)
    spec = facts.specs.get(facts.head.attempt)
    if spec is None or not facts.changes[-1].live:
        raise BadInput(f"run {store.name} has no live attempt; see everstep status {store.name}")
    done = _last_steps(store, spec)
    to_come = max(done) + 2 if done else facts.head.next_step or 0
    if first < to_come:
        now = f"computes step {to_come - 1:,} now" if done else f"begins at step {to_come:,}"
        raise BadInput(f"--steps {first}..{last}: step {first:,} has passed: run {store.name} {now}; name later steps")
    if last >= spec.until_step:
        raise BadInput(
            f"--steps {first}..{last}: a{spec.attempt} ends before step {spec.until_step:,}; name earlier ones"
        )
    before = store.profile_order(spec.attempt)
    if before is not None and before.last_step >= to_come - 1:
        raise BadInput(f"steps {before.steps} are to be traced already ({before.by} asked); repeat this after them")
    order = ProfileOrder(
        attempt=spec.attempt, first_step=first, last_step=last, by=person(), reason=reason, at=time.time()
    )
    store.put_profile_order(order, after=before)
    return order


def see_through(store: RunStore, order: ProfileOrder, *, timeout: float, sleep: Callable[[float], None]) -> None:
    """Wait until each process has written its trace: it says so by the step that it has done.

    Raises:
        DoesNotHold: the attempt ended before.
        Unreachable: it took longer than ``timeout`` seconds.
    """
    spec = store.attempt(order.attempt)
    waited = 0.0
    while True:
        done = _last_steps(store, spec)
        if len(done) == len(spec.hosts) and min(done) >= order.last_step:
            return
        facts = read_facts(store)
        if facts.head.attempt != order.attempt or not facts.changes[-1].live:
            raise DoesNotHold(f"a{order.attempt} ended before step {order.last_step:,}; name steps of its successor")
        if waited >= timeout:
            raise Unreachable(
                f"step {order.last_step:,} was not done within {timeout:.0f} s; the order stays, and the files will be "
                f"in {store.address}/{order.folder}"
            )
        sleep(LOOK_EVERY)
        waited += LOOK_EVERY


def _last_steps(store: RunStore, spec: AttemptSpec) -> list[int]:
    """Of each process that has done a step."""
    return [entry.step for entry in store.progress(spec.attempt).values() if entry.step is not None]
