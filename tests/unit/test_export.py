"""The merged curve and its exports: each step once, by the record that counts, never half a file."""

import csv
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.contract.ledger import float_of
from orchestrator.reports.curve import Point, curve
from orchestrator.reports.table import ExportError, write_csv
from orchestrator.reports.tensorboard import write_tensorboard
from tests.unit.run_documents import true_record
from tests.unit.run_factory import RunFactory


def moved() -> RunFactory:
    run = RunFactory(steps=12)
    run.launch("full").train(4).commit().train(7).die()
    run.launch("quarter").train(9).commit().train(10)
    return run


# ---- which record counts
def test_each_step_comes_once_and_by_the_attempt_whose_state_was_committed() -> None:
    points = list(curve(moved().store))
    assert [point.step for point in points] == list(range(10))
    assert [point.attempt for point in points] == [1] * 4 + [2] * 6
    assert [point.placement for point in points] == ["full"] * 4 + ["quarter"] * 6
    assert [point.replays for point in points] == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert [point.committed for point in points] == [True] * 9 + [False]
    assert points[5].loss == float_of(true_record(5).total)
    assert points[5].loss_bits == true_record(5).total


def test_beyond_head_the_newest_attempt_counts() -> None:
    run = RunFactory(steps=12)
    run.launch("full").train(6).die()
    run.launch("quarter").train(3)
    assert [(point.step, point.attempt) for point in curve(run.store)] == [
        (0, 2),
        (1, 2),
        (2, 2),
        (3, 1),
        (4, 1),
        (5, 1),
    ]


def test_steps_that_a_revision_gave_up_are_not_in_the_curve() -> None:
    run = RunFactory(steps=8)
    run.launch().train(4).drain(witness=2, then="amend")
    run.amend(seed=3)
    run.launch().train(8).commit()
    points = list(curve(run.store))
    assert [(point.step, point.revision) for point in points] == [(step, 1 if step < 4 else 2) for step in range(8)]
    assert points[4].loss_bits == true_record(4, seed=3).total


def test_a_committed_step_whose_own_record_is_missing_is_shown_by_another_but_not_as_committed() -> None:
    run = RunFactory(steps=8)
    run.launch().train(6).die()
    second = run.launch().train(2)
    second.next_step = 3
    second.train(8).commit()
    points = list(curve(run.store))
    assert (points[2].attempt, points[2].committed) == (1, False)
    assert (points[3].attempt, points[3].committed) == (2, True)


def test_a_loss_that_is_not_a_number_keeps_its_bits() -> None:
    run = RunFactory(steps=2)
    run.launch().train(1, change={0: {"total": "7fc00001"}})
    (point,) = curve(run.store)
    assert (point.loss, point.loss_bits) == (None, "7fc00001")


# ---- CSV
def test_a_csv_file_reads_back_to_the_same_numbers(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    points = list(curve(moved().store))
    assert write_csv(points, path) == 10
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [Point.model_validate(row) for row in rows] == points
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_exists_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    path.write_text("mine")
    with pytest.raises(ExportError, match=r"curve\.csv: the file exists; .* --force"):
        write_csv(curve(moved().store), path)
    assert path.read_text() == "mine"
    write_csv(curve(moved().store), path, force=True)
    assert path.read_text().startswith("step,revision,")


def test_a_refused_export_does_not_read_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    path.write_text("mine")
    points = curve(moved().store)
    with pytest.raises(ExportError):
        write_csv(points, path)
    assert next(points).step == 0, "nothing was taken from it"


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"

    def points() -> Iterator[Point]:
        yield from curve(moved().store)
        path.write_text("mine")

    with pytest.raises(ExportError, match="the file exists"):
        write_csv(points(), path)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("force", [False, True])
def test_an_export_that_fails_half_way_leaves_nothing(tmp_path: Path, force: bool) -> None:
    def points() -> Iterator[Point]:
        yield next(curve(moved().store))
        raise RuntimeError("the store went away")

    with pytest.raises(RuntimeError, match="went away"):
        write_csv(points(), tmp_path / "curve.csv", force=force)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"nowhere/curve\.csv: its folder does not exist"):
        write_csv([], tmp_path / "nowhere" / "curve.csv")


# ---- TensorBoard
def scalars_of(folder: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """(value, wall time) by tag and step, read back from the event file."""
    from tensorboardX.proto.event_pb2 import Event  # type: ignore[import-untyped]

    (file,) = folder.glob("events.out.tfevents.*")
    data, found = file.read_bytes(), {}
    while data:
        length = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]
        for value in event.summary.value:
            assert (value.tag, event.step) not in found, "a step was written twice"
            found[value.tag, event.step] = (value.simple_value, event.wall_time)
    return found


def test_tensorboard_gets_each_step_once_at_the_time_it_was_computed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    points = list(curve(moved().store))
    assert write_tensorboard(points, tmp_path) == 10
    found = scalars_of(tmp_path)
    for point in points:
        assert found["loss/total", point.step] == (point.loss, point.started)
        assert found["run/attempt", point.step][0] == point.attempt
        assert found["run/replays", point.step][0] == point.replays


def test_tensorboard_is_told_of_a_loss_that_is_not_a_number(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    run = RunFactory(steps=2)
    run.launch().train(1, change={0: {"total": "7fc00000", "grad_norm": "7f800000"}})
    write_tensorboard(curve(run.store), tmp_path)
    found = scalars_of(tmp_path)
    assert math.isnan(found["loss/total", 0][0])
    assert ("optimizer/grad_norm", 0) not in found


def test_event_files_of_another_export_are_kept_unless_forced(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    points = list(curve(moved().store))
    old = tmp_path / "events.out.tfevents.1.host"
    old.write_bytes(b"old")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match="has event files of another export"):
        write_tensorboard(points, tmp_path)
    assert old.read_bytes() == b"old"
    write_tensorboard(points, tmp_path, force=True)
    assert not old.exists()
    assert (tmp_path / "notes.txt").exists()
    assert len(scalars_of(tmp_path)) == 10 * 8


def test_without_tensorboardx_the_remedy_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ExportError, match=r"^TensorBoard export needs tensorboardX: pip install 'everstep\[export\]'$"):
        write_tensorboard([], tmp_path)
