"""``everstep doctor``: whether this installation, a store and a fleet can carry a run, and what to do where not."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import click

from orchestrator.cli.doctor_finding import Finding, Machine, warning
from orchestrator.cli.doctor_fleet import fleet_findings, run_findings, working_hosts
from orchestrator.cli.doctor_installation import installation
from orchestrator.cli.doctor_store import examined, opened
from orchestrator.cli.errors import DOES_NOT_HOLD
from orchestrator.cli.fleets import DEFAULT_FLEET
from orchestrator.cli.options import fleet_option, json_option, store_option
from orchestrator.cli.output import print_document, print_lines
from orchestrator.cli.stores import DEFAULT_STORE, run_names
from orchestrator.contract.base import ContractError, Document
from orchestrator.contract.run import Run
from orchestrator.store.objects import ObjectStore, StoreError
from orchestrator.store.run_store import RunStore


class Diagnosis(Document):
    """What ``everstep doctor --json`` says."""

    KIND: ClassVar[str] = "diagnosis"

    sound: bool
    """There is no problem; warnings may be."""
    findings: tuple[Finding, ...]


@click.command()
@store_option
@fleet_option
@json_option(schema="diagnosis")
@click.pass_context
def doctor(ctx: click.Context, store: str | None, fleet: str | None, as_json: bool) -> None:
    """Check what a run needs, a line each: ok, warning or problem, and the remedy.

    Python, packages (also of the runs' own trainers), limits; the store: whether it refuses what it must, space, clock;
    the fleet: hosts, locks, CPUs, compile cache; whether each run is led. What is tried in the store is deleted again.

    \b
    Examples:
      everstep doctor
      everstep doctor --store ./store --fleet ./fleet

    Exit codes: 0 no problem; 1 a problem.
    """
    findings = tuple(_findings(Machine(), store=store, fleet=fleet))
    found = Diagnosis(sound=all(finding.outcome != "problem" for finding in findings), findings=findings)
    if as_json:
        print_document(found)
    else:
        width = max(len(finding.check) for finding in findings)
        print_lines(_line(finding, width=width) for finding in findings)
    ctx.exit(0 if found.sound else DOES_NOT_HOLD)


def _findings(machine: Machine, *, store: str | None, fleet: str | None) -> Iterator[Finding]:
    objects, seen = _store(store)
    runs = _runs(objects) if objects else []
    yield from installation(machine, trainers=[run.trainer for run in runs])
    yield seen
    if objects is not None:
        yield from examined(objects, machine)
        yield from run_findings(objects, run_names(objects))
    fleets = [Path(fleet).absolute()] if fleet else _fleets(runs)
    if not fleets:
        yield warning("fleet", "none was named, and no run has one", remedy="pass --fleet FOLDER")
    for folder in fleets:
        working = working_hosts(objects, [run.name for run in runs], fleet=folder) if objects else {}
        yield from fleet_findings(folder, machine, working=working)


def _store(given: str | None) -> tuple[ObjectStore | None, Finding]:
    if given is None and not os.path.isdir(DEFAULT_STORE):
        return None, warning("store", "none was named, and there is no ./store", remedy="pass --store FOLDER")
    return opened(given)


def _runs(store: ObjectStore) -> list[Run]:
    """Those whose document can be read; of the others ``run_findings`` says what is wrong."""
    found = []
    for name in run_names(store):
        try:
            found.append(RunStore(store, name).run())
        except (ContractError, StoreError):
            continue
    return found


def _fleets(runs: Sequence[Run]) -> list[Path]:
    folders = sorted({Path(run.fleet) for run in runs})
    if not folders and os.path.isdir(DEFAULT_FLEET):
        return [Path(DEFAULT_FLEET).absolute()]
    return folders


def _line(finding: Finding, *, width: int) -> str:
    remedy = f"; {finding.remedy}" if finding.remedy else ""
    return f"{finding.outcome:7}  {finding.check:{width}}  {finding.found}{remedy}"
