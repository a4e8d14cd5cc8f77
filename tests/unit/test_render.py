"""What a person reads in a terminal says what the report says."""

from datetime import UTC

import pytest
from rich.console import Console, RenderableType

from orchestrator.cli import render
from orchestrator.contract.ledger import bits_of
from orchestrator.reports.certificate import certificate
from orchestrator.reports.episodes import episodes
from orchestrator.reports.goodput import goodput
from orchestrator.reports.logs import logs
from orchestrator.reports.status import status
from orchestrator.reports.verify import verify
from orchestrator.reports.why import why
from tests.unit.run_documents import RANKS
from tests.unit.run_factory import RunFactory


def moved() -> RunFactory:
    run = RunFactory(steps=12)
    run.launch("full").train(4).commit().train(7).die(host=3)
    run.launch("quarter").train(12).commit(proven=True).finish()
    return run.complete()


def text_of(renderable: RenderableType) -> list[str]:
    console = Console(width=250, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return [" ".join(line.split()) for line in capture.get().splitlines()]


def test_status_is_one_row_a_run() -> None:
    run = RunFactory(steps=1200)
    run.launch("full").train(1100)
    heading, row = text_of(render.status_table([status(run.store, now=run.now)]))
    assert heading == "RUN STAGE STEP PLACEMENT ATTEMPT LOSS GOODPUT ETA STATE"
    assert row == "demo pretrain 1,100/1,200 full a1 -13.0469 87.1 % 100 s running"


def test_status_says_why_nothing_runs() -> None:
    run = RunFactory(steps=12)
    run.launch().train(4).drain(then="pause")
    _, row = text_of(render.status_table([status(run.store, now=run.now)]))
    assert row.endswith("- paused: a1 ended: return")


def test_why_marks_the_event_that_opened_an_episode() -> None:
    run = RunFactory(steps=12)
    run.launch().train(4).die()
    assert render.why_lines(why(run.store, count=2), zone=UTC) == [
        "22:13:30  process 0 died; kill the rest  episode 2, cause died",
        "22:13:30  a1 ended: died",
    ]


def test_why_has_dates_when_it_spans_days() -> None:
    run = RunFactory(steps=12)
    run.now += 86_400
    run.launch()
    lines = render.why_lines(why(run.store, count=9), zone=UTC)
    assert [line[:19] for line in lines] == ["2023-11-14 22:13:20", "2023-11-15 22:13:21"]


def test_a_difference_is_named_by_step_field_and_virtual_rank() -> None:
    run = RunFactory(steps=12)
    run.launch("full").train(4).commit().train(7).die()
    by_rank = tuple(bits_of(float(rank)) for rank in range(RANKS))
    run.launch("quarter").train(12, change={5: {"ce_by_rank": by_rank}}).commit()
    lines = render.verification_lines(verify(run.store))
    assert lines[0].startswith("demo: differs: ")
    assert lines[2] == "first difference: step 5, a2 against a1: ce_by_rank, virtual ranks 0, 1, 2, 3; |Δ loss| 0"
    assert lines[3] == "move a1 on full -> a2 on quarter: witnessed by 3 replayed steps"


def test_checkpoints_show_their_hash_and_state() -> None:
    found = verify(moved().store)
    rows = text_of(render.checkpoint_table(found))
    assert rows[-1] == f"12 000000000012-a0002 quarter {found.checkpoints[-1].params_sha256[:12]} committed, proven"


def test_an_episode_is_a_row_of_seconds() -> None:
    rows = text_of(render.episode_table(episodes(moved().store)))
    assert rows[1].startswith("1 submit - a1 full - - - - - 0.75 0.25 2.00 ")
    assert rows[2] == "2 died a1 full a2 quarter 0.25 0.06 0.38 0.25 - 0.75 0.25 2.00 1.00 3.00 1.00 8.94 3/3"
    assert text_of(render.episode_table([]))[0].startswith("EPISODE CAUSE FROM TO DETECT")


def test_goodput_shows_what_is_not_empty_and_the_sum() -> None:
    rows = text_of(render.goodput_table(goodput(moved().store, now=None)))
    assert rows[-1].endswith("100.00 %")
    assert not [row for row in rows if row.startswith("HELD")]
    assert any(row.startswith("PRODUCTIVE 10.500 s") for row in rows)


def test_a_certificate_shows_every_claim_and_its_hash() -> None:
    found = certificate(moved().store)
    lines = render.certificate_lines(found)
    assert lines[0] == found.statement
    assert sum(line.startswith("holds   ") for line in lines) == len(found.claims)
    assert lines[-1] == f"certificate_sha256 {found.certificate_sha256}"
    half = RunFactory(steps=12)
    half.launch().train(4).commit()
    failed = [line for line in render.certificate_lines(certificate(half.store)) if line.startswith("FAILED")]
    assert failed[0] == "FAILED  every step of the recipe was committed (4 of 12 steps)"


def test_logs_show_the_cause_with_its_lines_first() -> None:
    lines = render.log_lines(logs(moved().store, attempt=1))
    assert lines[:2] == ["a1 process 3 on pool/h3: cause, signal 9 in phase train after step 6", "  host 3 dies"]
    assert lines[2] == "a1 process 0 on pool/h0: killed, signal 9 in phase train after step 6"
    assert render.log_lines(logs(RunFactory().store)) == ["demo: no process of any attempt has ended"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.4, "0 s"), (119, "119 s"), (720, "12 min"), (14_400, "4 h"), (31 * 86_400, "31 d")],
)
def test_durations_are_in_the_unit_a_person_would_use(seconds: float | None, text: str) -> None:
    assert render.duration(seconds) == text
