"""``everstep decide --dry-run``: what the controller would do now, and why."""

import json
from datetime import datetime
from typing import Any, ClassVar

import click
from pydantic import TypeAdapter

from orchestrator.cli.errors import BadInput
from orchestrator.cli.options import json_option, run_argument, store_option
from orchestrator.cli.output import print_document, print_lines
from orchestrator.cli.stores import open_run, open_store
from orchestrator.contract.base import Document
from orchestrator.contract.event import Action
from orchestrator.planner.decision import Decision, Wait


class DryRun(Document):
    """What ``everstep decide --dry-run --json`` says."""

    KIND: ClassVar[str] = "dry-run"

    run: str
    decides: bool
    """False: there is nothing to do now."""
    text: str
    """The decision's message, or the reason to wait."""
    cause: str
    evidence: tuple[str, ...]
    action: Action | None
    until: float | None
    """Of a wait: seconds since the epoch at which it ends by itself; None: only something new ends it."""
    state: str
    attempt: int
    step: int | None
    """Committed."""


@click.command()
@run_argument
@store_option
@click.option("--dry-run", is_flag=True, help="Needed: the controller alone decides, this only looks.")
@json_option(schema="dry-run")
def decide(run: str, store: str | None, dry_run: bool, as_json: bool) -> None:
    """Show what would be decided about a run now; nothing is written.

    Times that the controller measures itself (for how long nothing moved, or a better placement has been whole) begin
    with this look.

    \b
    Example:
      everstep decide demo --dry-run
    """
    if not dry_run:
        raise BadInput(f"only the controller decides; to see what it would: everstep decide {run} --dry-run")
    from orchestrator.cli.run_controller import wired
    from orchestrator.controller.clock import SystemClock
    from orchestrator.planner.decide import decide as decide_on

    run_store = open_run(open_store(store), run)
    with wired(run_store, clock=SystemClock()) as controller:
        facts = controller.facts()
    answer = decide_on(facts)
    found = _dry_run(
        run, answer, state=facts.history.state, attempt=facts.history.attempt, step=facts.seen.head.next_step
    )
    if as_json:
        print_document(found)
    else:
        print_lines(_lines(found))


def _dry_run(run: str, answer: Decision | Wait, **known: Any) -> DryRun:
    if isinstance(answer, Wait):
        return DryRun(
            run=run, decides=False, text=answer.reason, cause="", evidence=(), action=None, until=answer.until, **known
        )
    return DryRun(
        run=run,
        decides=True,
        text=answer.message,
        cause=answer.cause,
        evidence=answer.evidence,
        action=answer.action,
        until=None,
        **known,
    )


def _lines(found: DryRun) -> list[str]:
    lines = [f"run {found.run} is {found.state}, attempt a{found.attempt}, step {found.step or 0:,} committed"]
    if not found.decides:
        until = f", until {datetime.fromtimestamp(found.until).astimezone():%H:%M:%S}" if found.until else ""
        return [*lines, f"would wait: {found.text}{until}"]
    lines.append(f"would decide: {found.text}")
    lines += [f"  evidence: {text}" for text in found.evidence if text]
    if found.action is not None:
        action = TypeAdapter(Action).dump_python(found.action, mode="json")
        lines.append(f"  action: {json.dumps(action, ensure_ascii=False)}")
    return lines
