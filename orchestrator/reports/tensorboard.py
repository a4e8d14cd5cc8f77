"""The loss curve as TensorBoard events: the only place that imports tensorboardX."""

from collections.abc import Iterable
from pathlib import Path

from orchestrator.contract.ledger import float_of
from orchestrator.reports.curve import Point
from orchestrator.reports.table import ExportError

EVENT_FILES = "events.out.tfevents.*"


def write_tensorboard(points: Iterable[Point], folder: Path, *, force: bool = False) -> int:
    """Write a curve into a folder as one event file; returns the number of steps.

    Each step is written once, at the time at which the record that counts was begun. ``force`` first deletes the event
    files in the folder: TensorBoard would merge them with the new one.

    Raises:
        ExportError: tensorboardX is not installed, or the folder has event files and ``force`` is not given.
    """
    try:
        from tensorboardX import SummaryWriter  # type: ignore[import-untyped]
    except ImportError as error:
        raise ExportError("TensorBoard export needs tensorboardX: pip install 'everstep[export]'") from error
    there = sorted(folder.glob(EVENT_FILES))
    if there and not force:
        raise ExportError(f"{folder}: has event files of another export; choose another folder, or pass --force")
    for file in there:
        file.unlink()
    written = 0
    with SummaryWriter(logdir=str(folder)) as writer:
        for point in points:
            for tag, value in _scalars(point).items():
                writer.add_scalar(tag, value, global_step=point.step, walltime=point.started)
            written += 1
    return written


def _scalars(point: Point) -> dict[str, float]:
    """The numbers of a step by tag; the loss also when it is not finite."""
    optional = {
        "loss/ce": point.ce,
        "loss/z_loss": point.z_loss,
        "optimizer/grad_norm": point.grad_norm,
        "optimizer/learning_rate": point.learning_rate,
    }
    known = {tag: value for tag, value in optional.items() if value is not None}
    run = {"run/attempt": float(point.attempt), "run/replays": float(point.replays), "run/step_seconds": point.seconds}
    return {"loss/total": float_of(point.loss_bits), **known, **run}
