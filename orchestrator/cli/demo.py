"""``everstep demo``: a run that is disturbed five times on this machine, and the proof that nothing changed."""

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from orchestrator.backends.local import drills
from orchestrator.cli import controllers, demo_files, render, submission
from orchestrator.cli.errors import BadInput, DoesNotHold
from orchestrator.cli.identity import person
from orchestrator.cli.output import print_lines, print_table
from orchestrator.cli.run_file import read_run
from orchestrator.cli.stores import make_store
from orchestrator.cli.watch import Watch
from orchestrator.contract.attempt import HostRef
from orchestrator.reports.certificate import Certificate, certificate
from orchestrator.reports.claims import Claim
from orchestrator.reports.episodes import Episode
from orchestrator.reports.status import Status
from orchestrator.store.objects import NotFound, ObjectStore
from orchestrator.store.run_store import RunStore

MARK = ".everstep-demo"
"""A file that says that a folder is a demo's and may be made anew."""
CONTROLLER_SECONDS = 10.0
"""For a controller to end after SIGTERM."""
DRAIN_SECONDS = 5.0
"""The least that the planner leaves a drain before maintenance; the announcement comes a few steps earlier."""
PRETRAIN_STEPS, ANNEAL_STEPS = 180, 30
"""Enough for all five acts on a machine that does 20 steps a second."""
LOOK_EVERY = 0.25


@dataclass(frozen=True, kw_only=True)
class Act:
    """A disturbance: when it comes, and what is done."""

    title: str
    ready: Callable[[Status], bool]
    do: Callable[[Status], str]


def acts(fleet: Path) -> tuple[Act, ...]:
    """The five disturbances; the fifth, the move to another generation for stage 2, comes by itself."""

    def host(name: str) -> HostRef:
        return HostRef(pool="main", host=name)

    def announce(row: Status) -> str:
        now = time.time()
        at = now + DRAIN_SECONDS + 15 * (row.step_seconds or 0.0)
        return drills.announce_maintenance(fleet, host("h3"), at=at, now=now)

    return (
        Act(
            title="a host is killed with SIGKILL in mid-step",
            ready=lambda row: _training(row, "full") and row.next_step >= 25,
            do=lambda _: drills.kill_host(fleet, host("h2"), now=time.time()),
        ),
        Act(
            title="three quarters of the capacity go away",
            ready=lambda row: _training(row, "full") and row.next_step >= 50,
            do=lambda _: drills.shrink(fleet, "main", keep=1, now=time.time()),
        ),
        Act(
            title="the capacity comes back",
            ready=lambda row: _training(row, "quarter") and row.next_step >= 70,
            do=lambda _: drills.grow(fleet, "main"),
        ),
        Act(
            title="maintenance of a host is announced",
            ready=lambda row: _training(row, "full") and row.next_step >= 95,
            do=announce,
        ),
    )


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs/demo"),
    show_default=True,
    help="Made anew each time; afterwards every command works on its store.",
)
def demo(folder: Path) -> None:
    """Disturb a small run five times on this machine, and prove that nothing changed.

    A small Olmo 3 learns from the Python library's own sources on 4 hosts x 2 devices (processes of this machine). A
    host is killed, three quarters of the capacity go and come back, maintenance is announced, and stage 2 moves to
    another pool. Then an undisturbed run of the same recipe is compared with it. About five minutes on two cores.

    \b
    Examples:
      everstep demo
      everstep demo --folder /tmp/demo && everstep why demo --store /tmp/demo/store

    Exit codes: 0 every claim held; 1 one did not; 2 the folder cannot be used; 130 interrupted.
    """
    began = time.monotonic()
    _fresh(folder)
    click.echo("tokenising the Python library's own sources …")
    run_yaml = demo_files.write(folder.absolute(), pretrain_steps=PRETRAIN_STEPS, anneal_steps=ANNEAL_STEPS)
    fleet = run_yaml.parent / "fleet"
    sizes = [path.stat().st_size // 4 for path in sorted((run_yaml.parent / "data").glob("*.tokens"))]
    click.echo(f"{sum(sizes):,} tokens in {len(sizes)} files; a live view follows")
    with _cleaned_up(fleet):
        objects = _submit(run_yaml, "demo")
        _play(objects, acts(fleet))
        click.echo("\nthe undisturbed run of the same recipe, on one host, for comparison")
        drills.clear_maintenance(fleet, HostRef(pool="main", host="h3"))
        _submit(_reference_yaml(run_yaml), "reference")
        Watch(objects, "reference").until(_over)
    found = certificate(RunStore(objects, "demo"), reference=RunStore(objects, "reference"))
    expected = scenario_claims(found)
    _show(found, expected, store=objects.address, seconds=time.monotonic() - began)
    if not found.held or not all(claim.held for claim in expected):
        raise DoesNotHold("a claim did not hold; it is marked above")


def _training(row: Status, placement: str) -> bool:
    return row.placement == placement and row.phase == "train"


def _over(row: Status) -> bool:
    return row.state in ("complete", "stopped", "held") and not row.live


def _fresh(folder: Path) -> None:
    """An empty folder that is marked as a demo's. Raises BadInput: it holds something else."""
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / MARK).is_file():
            raise BadInput(f"{folder} is not empty and not a demo's; name another one: everstep demo --folder FOLDER")
        if (folder / "fleet" / "fleet.yaml").is_file():
            drills.end_everything(folder / "fleet")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()


@contextlib.contextmanager
def _cleaned_up(fleet: Path) -> Iterator[None]:
    """However it ends, SIGKILL apart, no controller, agent or trainer of the demo stays."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        _end_controllers(fleet)
        drills.end_everything(fleet)


def _end_controllers(fleet: Path) -> None:
    """First of all, since a controller would start again what is ended."""
    objects = make_store(str(fleet.parent / "store"))
    for name in ("demo", "reference"):
        try:
            leader = controllers.leader_of(RunStore(objects, name).run())
        except NotFound:
            continue
        if leader is None:
            continue
        handle = os.pidfd_open(leader)
        try:
            signal.pidfd_send_signal(handle, signal.SIGTERM)
            select.select([handle], [], [], CONTROLLER_SECONDS)
        finally:
            os.close(handle)


def _submit(run_yaml: Path, name: str) -> ObjectStore:
    description = read_run(run_yaml, name=name)
    objects = make_store(description.store)
    checked = submission.check(description, by=person(), now=time.time())
    submission.create(checked, objects)
    controllers.start_detached(checked.run, store_address=objects.address)
    return objects


def _play(objects: ObjectStore, scenes: tuple[Act, ...]) -> None:
    watch = Watch(objects, "demo", every=LOOK_EVERY)
    for number, act in enumerate(scenes, 1):
        row = watch.until(lambda row, act=act: act.ready(row) or _over(row))  # type: ignore[misc]
        if _over(row):
            raise DoesNotHold(f"the run ended ({row.state}) before act {number}: {row.because}")
        click.echo(f"\n{number}. {act.title}: {act.do(row)}")
    row = watch.until(_over)
    if row.state != "complete":
        raise DoesNotHold(f"the run is {row.state}: {row.because}")


def _reference_yaml(run_yaml: Path) -> Path:
    """The same run.yaml with a policy of one host in stage 1; the recipe is the same file."""
    text = run_yaml.read_text()
    lines = [line for line in text.splitlines() if "name: full" not in line and "name: half" not in line]
    path = run_yaml.with_name("reference.yaml")
    path.write_text("\n".join(lines) + "\n")
    return path


def scenario_claims(found: Certificate) -> tuple[Claim, ...]:
    """What the demo itself promises beyond the certificate: every disturbance left its trace, as it should."""
    episodes = found.episodes
    return (
        _episode(episodes, "the killed host cost a relaunch at full size", "host-lost", "full", "full"),
        _episode(episodes, "the run went on on a quarter", "host-lost", "full", "quarter"),
        _episode(episodes, "it came back to full size", "return", "quarter", "full"),
        _episode(episodes, "it left before the maintenance", "maintenance", "full", "half", lost=2),
        _episode(episodes, "stage 2 moved to the other generation", "stage-done", "half", "next"),
    )


def _episode(
    episodes: tuple[Episode, ...], claim: str, cause: str, before: str, after: str, *, lost: int | None = None
) -> Claim:
    """``lost``: at most that many steps were computed again: after a drain, the witness steps."""
    fitting = [
        one
        for one in episodes
        if (one.cause, one.from_placement, one.to_placement) == (cause, before, after)
        and (lost is None or (one.steps_lost or 0) <= lost)
    ]
    evidence = f"episode {fitting[0].number}, {fitting[0].total_seconds or 0:.1f} s" if fitting else "no such episode"
    return Claim(claim=claim, held=bool(fitting), evidence=evidence)


def _show(found: Certificate, expected: tuple[Claim, ...], *, store: str, seconds: float) -> None:
    click.echo("\nEpisodes: seconds by phase")
    print_table(render.episode_table(found.episodes))
    click.echo("\nReplayed steps")
    print_lines(render.verification_lines(found.verification))
    click.echo("\nWhere the time went")
    print_table(render.goodput_table(found.goodput))
    click.echo("\nCertificate")
    print_lines(render.certificate_lines(found))
    print_lines(f"{'holds ' if claim.held else 'FAILED'}  {claim.claim} ({claim.evidence})" for claim in expected)
    path = Path(store).parent / "certificate.json"
    path.write_bytes(found.to_bytes())
    click.echo(f"\n{path}; {seconds:.0f} s in all; look around: everstep why demo --store {store}")
    sys.stdout.flush()
