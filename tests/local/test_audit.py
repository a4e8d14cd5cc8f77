"""The audit on real trainer processes: an honest loader passes, one that shards twice is named with its first step."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orchestrator.cli.main import main
from orchestrator.contract.attempt import ExitCode
from orchestrator.contract.run import Run
from tests.local.attempts import REPOSITORY, SmallRun, small_recipe, stage_of, write_tokens
from tests.local.double_shard_trainer import HOSTS_VARIABLE
from tests.local.warm import Warm, zygote

HOSTS = 2
TWICE = {HOSTS_VARIABLE: str(HOSTS)}


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    with zygote("tests.local.double_shard_trainer", preload="tests.local.stand_in", repository=REPOSITORY) as forks:
        yield forks


def trained(folder: Path, warm: Warm, *, loader: dict[str, str]) -> SmallRun:
    """A run of six steps on two hosts, to its end."""
    folder.mkdir()
    recipe = small_recipe(stage_of(write_tokens(folder / "tokens.u32"), steps=6))
    run = SmallRun(folder, recipe, warm=warm)
    run.store.create_run(
        Run(
            name="small",
            recipe_sha256=run.store.revisions()[0].recipe_sha256,
            fleet="fleet",
            data_root=str(folder),
            trainer=("trainer",),
            submitted_at=0.0,
        )
    )
    try:
        attempt = run.launch(hosts=HOSTS, environment=loader)
        assert attempt.wait() == [ExitCode.LAST_STEP_COMMITTED] * HOSTS, attempt.output()
    finally:
        run.stop_all()
    return run


def verified(run: SmallRun) -> Result:
    return CliRunner().invoke(main, ["verify", "small", "--store", run.store.objects.address], catch_exceptions=False)


def test_a_loader_that_shards_twice_is_named_with_its_first_step_and_an_honest_one_passes(
    tmp_path: Path, warm: Warm
) -> None:
    honest, twice = trained(tmp_path / "honest", warm, loader={}), trained(tmp_path / "twice", warm, loader=TWICE)
    assert verified(honest).exit_code == 0, verified(honest).output
    refused = verified(twice)
    assert refused.exit_code == 1, refused.output
    assert "6 steps read other tokens than the recipe says, the first at step 0 by the loader of attempt 1" in (
        refused.stdout
    )
    assert "virtual rank 0 should have read tokens.u32 from token " in refused.stdout


def test_a_step_s_record_says_how_long_it_waited_for_its_batch(tmp_path: Path, warm: Warm) -> None:
    records = trained(tmp_path / "run", warm, loader={}).attempts[0].ledger().values()
    assert len(records) == 6
    assert all(0 < record.data_seconds < record.seconds for record in records)
