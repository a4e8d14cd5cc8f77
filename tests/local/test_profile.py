"""A profile of real trainer processes: the files are there, and every bit is as without it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.contract.attempt import ExitCode, ProfileOrder
from tests.local.attempts import REPOSITORY, SmallRun, small_recipe, stage_of, write_tokens
from tests.local.warm import Warm, zygote

ORDER = ProfileOrder(attempt=1, first_step=2, last_step=3, by="ada", reason="slow", at=0.0)
HOSTS = 2


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    with zygote("tests.local.stand_in_trainer", preload="tests.local.stand_in", repository=REPOSITORY) as forks:
        yield forks


def trained(folder: Path, warm: Warm, *, order: ProfileOrder | None) -> SmallRun:
    """A run of six steps on two hosts, to its end."""
    folder.mkdir()
    run = SmallRun(folder, small_recipe(stage_of(write_tokens(folder / "tokens.u32"), steps=6)), warm=warm)
    if order is not None:
        run.store.put_profile_order(order, after=None)
    try:
        attempt = run.launch(hosts=HOSTS)
        assert attempt.wait() == [ExitCode.LAST_STEP_COMMITTED] * HOSTS, attempt.output()
    finally:
        run.stop_all()
    return run


def test_profiled_steps_have_the_same_bits_and_leave_a_trace_of_each_host_and_the_program(
    tmp_path: Path, warm: Warm
) -> None:
    with_it, without = (trained(tmp_path / name, warm, order=order) for name, order in (("a", ORDER), ("b", None)))
    (profiled,), (plain,) = with_it.attempts, without.attempts
    differing = {step: record.differs_from(plain.ledger()[step]) for step, record in profiled.ledger().items()}
    assert differing == dict.fromkeys(range(6), ())
    folder = Path(with_it.store.address) / ORDER.folder
    for host in range(HOSTS):
        assert "everstep: profiled steps 2..3" in profiled.output(host)
        assert any(folder.glob(f"host-{host:03d}/**/*.xplane.pb")), sorted(folder.rglob("*"))
    before, _, after = profiled.output().partition("everstep: profiled steps 2..3")  # not only when it leaves
    assert ("committed 000000000004" in before, "committed 000000000004" in after) == (False, True)
    assert "HloModule" in (folder / "program.hlo.txt").read_text()
    assert not (Path(without.store.address) / "profiles").exists()
