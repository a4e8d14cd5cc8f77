"""Asking the controller: a request is written, and the event that answers it is waited for and shown."""

import time
from collections.abc import Callable, Mapping
from typing import ClassVar

import click

from orchestrator.cli.controllers import how_to_start, leader_of, start_detached
from orchestrator.cli.errors import DoesNotHold, Unreachable
from orchestrator.cli.identity import person
from orchestrator.cli.look import event_line
from orchestrator.cli.output import note, print_document, print_lines
from orchestrator.contract.base import Document
from orchestrator.contract.event import Event, Request, RequestKind
from orchestrator.planner.history import History, fold
from orchestrator.store.run_store import RunStore

LOOK_EVERY = 0.2
"""Seconds between two looks for the answer."""


class Answer(Document):
    """What a command that asks for something says with ``--json``."""

    KIND: ClassVar[str] = "answer"

    run: str
    name: str
    """Of the request."""
    request: Request
    answer: Event | None
    """The event that answered it; None: it was not waited for."""


def ask(
    store: RunStore,
    kind: RequestKind,
    *,
    reason: str,
    arguments: Mapping[str, str] | None = None,
    wait: bool,
    timeout: float,
    as_json: bool,
) -> Answer:
    """Write a request against the newest attempt, wait for its answer and show it.

    Raises:
        DoesNotHold: it was refused.
        Unreachable: nobody answered within ``timeout`` seconds; the request stays.
    """
    history = fold(store.events())
    request = Request(
        kind=kind,
        by=person(),
        reason=reason,
        attempt_seen=history.attempt,
        arguments=dict(arguments or {}),
        at=time.time(),
    )
    name = store.create_request(request)
    if leader_of(store.run()) is None:
        _see_to_a_controller(store, history)
    answer = None
    if wait:
        answer = answer_to(store, name, after=history.last_number, timeout=timeout, sleep=time.sleep)
    found = Answer(run=store.name, name=name, request=request, answer=answer)
    show(found, as_json=as_json)
    return found


def _see_to_a_controller(store: RunStore, history: History) -> None:
    """The controller of a complete or stopped run has left, as it should: start another. A missing one is only told."""
    if history.state in ("complete", "stopped") and history.ended:
        pid = start_detached(store.run(), store_address=store.objects.address)
        note(f"started a controller for run {store.name} (process {pid})")
        return
    note(
        f"no controller of this machine leads run {store.name}, so nobody may answer; start one: "
        + how_to_start(store.name, store.objects.address)
    )


def answer_to(store: RunStore, name: str, *, after: int, timeout: float, sleep: Callable[[float], None]) -> Event:
    """The event that answers a request, sought among those with numbers above ``after``. Raises Unreachable."""
    waited = 0.0
    while True:
        for event in store.events(after=after):
            after = event.number
            if event.request == name:
                return event
        if waited >= timeout:
            raise Unreachable(
                f"request {name} of run {store.name} was not answered within {timeout:.0f} s; it stays in the store, "
                f"and may still be answered: everstep events {store.name} --follow"
            )
        sleep(LOOK_EVERY)
        waited += LOOK_EVERY


def show(found: Answer, *, as_json: bool) -> None:
    """Print an answer.

    Raises:
        DoesNotHold: it is a refusal.
    """
    answer = found.answer
    if as_json:
        print_document(found)
        if answer is not None and answer.kind == "refused":
            click.get_current_context().exit(DoesNotHold.exit_code)
    elif answer is None:
        print_lines([f"asked for {found.request.kind} of run {found.run} (request {found.name}); not waiting"])
    elif answer.kind == "refused":
        raise DoesNotHold(answer.message)
    else:
        print_lines([event_line(answer).strip()])
