"""Reports as a person reads them in a terminal: lines of text, and tables.

Nothing is computed here that a report does not say; ``--json`` prints the report itself.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo

from rich.table import Table

from orchestrator.reports.certificate import Certificate
from orchestrator.reports.episodes import Episode, EpisodePhases
from orchestrator.reports.goodput import Goodput
from orchestrator.reports.logs import ExitLog, Logs
from orchestrator.reports.status import Status
from orchestrator.reports.tokens import TokenDifference
from orchestrator.reports.verify import Verification
from orchestrator.reports.why import Why

HASH_DIGITS = 12
"""Of a hash in a line for a person; documents have all 64."""


def status_table(rows: Sequence[Status]) -> Table:
    """One row a run."""
    table = _table()
    for heading in ("RUN", "STAGE"):
        table.add_column(heading)
    table.add_column("STEP", justify="right")
    for heading in ("PLACEMENT", "ATTEMPT", "LOSS", "GOODPUT", "ETA"):
        table.add_column(heading)
    table.add_column("STATE", no_wrap=False, overflow="fold")
    for row in rows:
        table.add_row(
            row.run,
            row.stage or "-",
            f"{row.next_step:,}/{row.last_step:,}",
            row.placement or "-",
            f"a{row.attempt}" if row.attempt else "-",
            "-" if row.loss is None else f"{row.loss:.4f}",
            f"{row.goodput_percent:.1f} %",
            duration(row.eta_seconds),
            _state(row),
        )
    return table


def why_lines(found: Why, *, zone: tzinfo) -> list[str]:
    """A line an event: time in ``zone``, what was decided or seen, and what opened an episode."""
    times = [datetime.fromtimestamp(line.at, zone) for line in found.lines]
    several_days = len({time.date() for time in times}) > 1
    form = "%Y-%m-%d %H:%M:%S" if several_days else "%H:%M:%S"
    width = max((len(line.message) for line in found.lines if line.opens_episode), default=0)
    lines = []
    for line, time in zip(found.lines, times, strict=True):
        episode = f"  episode {line.episode}, cause {line.cause}" if line.opens_episode else ""
        message = f"{line.message:{width}}" if episode else line.message
        lines.append(f"{time.strftime(form)}  {message}{episode}")
    return lines


def verification_lines(found: Verification) -> list[str]:
    """The verdict, what it rests on, and every move and problem by name."""
    lines = [f"{found.run}: {found.verdict}: {found.sentence}"]
    lines.append(
        f"attempts {found.attempts:,}, steps committed {found.next_step:,}, replayed {found.replayed_steps:,}, "
        f"differing {found.steps_differing:,}, max |Δ loss| {_delta(found.max_abs_delta_loss)}, "
        f"recipe {found.recipe_sha256[:HASH_DIGITS]}"
    )
    lines += list(_difference(found))
    lines += [_other_tokens(entry) for entry in found.token_differences]
    for move in found.moves:
        where = f"a{move.from_attempt} on {move.from_placement} -> a{move.to_attempt} on {move.to_placement}"
        shown = f"witnessed by {move.steps_replayed:,} replayed steps" if move.witnessed else "not witnessed"
        lines.append(f"move {where}: {shown}" + (f": {move.why_not}" if move.why_not else ""))
    lines += [f"steps {gap.first:,} to {gap.last:,} are committed and have no record" for gap in found.missing_steps]
    lines += [f"{name} is gone; restore it from a copy" for name in found.lost_segments]
    lines += list(found.recipe_problems)
    for group in (group for group in found.witnesses if not group.equal):
        what = ", ".join(group.arrays_differing[:3]) or "params_sha256"
        lines.append(f"checkpoints {' and '.join(group.manifests)} differ in {what}")
    return lines


def checkpoint_table(found: Verification) -> Table:
    """Every checkpoint, with the hash of its parameters."""
    table = _table()
    table.add_column("STEP", justify="right")
    for heading in ("CHECKPOINT", "PLACEMENT", "PARAMS", "STATE"):
        table.add_column(heading)
    for entry in found.checkpoints:
        state = ["committed" if entry.committed else "witness only"]
        state += [word for word in ("proven", "quarantined", "deleted") if getattr(entry, word)]
        digest = entry.params_sha256[:HASH_DIGITS]
        table.add_row(f"{entry.next_step:,}", entry.manifest, entry.placement, digest, ", ".join(state))
    return table


def episode_table(found: Sequence[Episode]) -> Table:
    """One row an episode; seconds of its parts, ``-`` where they are not known."""
    table = _table()
    for heading in ("EPISODE", "CAUSE", "FROM", "TO"):
        table.add_column(heading)
    names = list(EpisodePhases.model_fields)
    for name in (*names, "total"):
        table.add_column(name.replace("_", " ").upper(), justify="right")
    table.add_column("REPLAYED", justify="right")
    for entry in found:
        seconds = [*(getattr(entry.phases, name) for name in names), entry.total_seconds]
        table.add_row(
            str(entry.number),
            entry.cause,
            _attempt(entry.from_attempt, entry.from_placement),
            _attempt(entry.to_attempt, entry.to_placement),
            *("-" if part is None else f"{part:.2f}" for part in seconds),
            "-" if entry.steps_lost is None else f"{entry.steps_replayed:,}/{entry.steps_lost:,}",
        )
    return table


def goodput_table(found: Goodput) -> Table:
    """Every bucket that is not empty; the shares sum to 100.00 %."""
    table = _table()
    table.add_column("BUCKET")
    table.add_column("TIME", justify="right")
    table.add_column("SHARE", justify="right")
    for bucket in found.buckets:
        if bucket.nanoseconds:
            table.add_row(bucket.name, f"{bucket.seconds:,.3f} s", f"{bucket.percent:.2f} %")
    table.add_row(
        "wall time", f"{found.wall_seconds:,.3f} s", f"{sum(b.hundredths for b in found.buckets) / 100:.2f} %"
    )
    return table


def certificate_lines(found: Certificate) -> list[str]:
    """The statement, every claim with its evidence, and the certificate's hash."""
    lines = [found.statement, ""]
    lines += [f"{'holds ' if claim.held else 'FAILED'}  {claim.claim} ({claim.evidence})" for claim in found.claims]
    lines += [
        "",
        f"{found.run}: {'certified' if found.held else 'NOT certified'}, goodput {found.goodput.goodput_percent:.2f} %",
    ]
    lines.append(f"certificate_sha256 {found.certificate_sha256}")
    return lines


def log_lines(found: Logs) -> list[str]:
    """The first failure with its last lines, then its echoes, then the rest in one line each."""
    if not found.exits:
        return [
            f"{found.run}: no process of {'any attempt' if found.attempt is None else f'a{found.attempt}'} has ended"
        ]
    lines = []
    for entry in found.exits:
        lines.append(f"a{found.attempt} process {entry.process} on {entry.pool}/{entry.host}: {_ending(entry)}")
        if entry.role in ("cause", "echo"):
            lines += [f"  {line}" for line in entry.lines]
    return lines


def duration(seconds: float | None) -> str:
    """``31 d``, ``4 h``, ``12 min`` or ``45 s``; ``-`` when it is not known."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold")


def _state(row: Status) -> str:
    if row.live and row.phase not in (None, "train"):
        return f"{row.state}, in phase {row.phase}"
    return row.state if row.state in ("running", "complete") else f"{row.state}: {row.because}"


def _delta(delta: float | None) -> str:
    return "-" if delta is None else f"{delta:.9g}"


def _attempt(number: int | None, placement: str | None) -> str:
    return "-" if number is None else f"a{number} {placement}"


def _difference(found: Verification) -> Iterator[str]:
    first = found.first_difference
    if first is None:
        return
    ranks = f", virtual ranks {', '.join(str(rank) for rank in first.virtual_ranks)}" if first.virtual_ranks else ""
    yield (
        f"first difference: step {first.step:,}, a{first.attempt} against a{first.first_attempt}: "
        f"{', '.join(first.fields)}{ranks}; |Δ loss| {_delta(first.delta_loss)}"
    )


def _other_tokens(found: TokenDifference) -> str:
    instead = "" if found.batch_of_step is None else f" (it read the batch of step {found.batch_of_step:,})"
    first = found.should_have_read[0]
    return (
        f"step {found.step:,}: the loader of a{found.attempt} read other tokens than recipe and token files "
        f"give{instead}; virtual rank {first.virtual_rank} should have read {first.file} from token {first.token:,} on "
        "(--json has every rank)"
    )


def _ending(entry: ExitLog) -> str:
    how = f"signal {entry.signal}" if entry.signal is not None else f"exit code {entry.code}"
    where = f" in phase {entry.phase}" if entry.phase else ""
    step = f" after step {entry.step:,}" if entry.step is not None else ""
    error = f"; {entry.error.type} in {entry.error.frame}: {entry.error.message}" if entry.error else ""
    return f"{entry.role}, {how}{where}{step}{error}"
