"""A trainer's log on a disk that is full."""

import os
from pathlib import Path

from trainer.train import log_to


def test_what_a_full_disk_does_not_take_is_lost_and_nothing_else_happens() -> None:
    handle = os.open("/dev/full", os.O_WRONLY)
    print("committed", file=log_to(handle), flush=True)
    os.close(handle)


def test_a_log_has_each_line_as_soon_as_it_ends(tmp_path: Path) -> None:
    handle = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    stream = log_to(handle)
    print("committed: Δ = 0", file=stream)
    assert (tmp_path / "log").read_text() == "committed: Δ = 0\n"
    os.close(handle)
