"""What `everstep plan` computes: parameters, kept checkpoints, how often to save."""

import math

import pytest

from orchestrator.cli import sizes
from orchestrator.contract.recipe import Model
from orchestrator.contract.run import CheckpointPolicy
from tests.unit.run_documents import recipe_of


def test_the_parameters_of_the_published_7b_model() -> None:
    """Olmo 2 and 3 7B have 7,298,617,344 with their vocabulary padded to 100,352."""
    model = Model(vocab_size=100_352, d_model=4096, n_layers=32, n_heads=32, n_kv_heads=32, head_dim=128, d_ff=11_008)
    assert sizes.parameters(model) == 7_298_617_344
    assert sizes.checkpoint_bytes(model) == 12 * 7_298_617_344


def test_grouped_queries_have_smaller_keys_and_values() -> None:
    model = {"vocab_size": 8, "d_model": 8, "n_layers": 4, "n_heads": 4, "head_dim": 2, "d_ff": 8}
    whole, grouped = Model(**model, n_kv_heads=4), Model(**model, n_kv_heads=2)
    assert sizes.parameters(whole) - sizes.parameters(grouped) == 4 * (2 * 8 * 4 + 4)


def test_kept_checkpoints_are_bounded_by_those_saved() -> None:
    recipe = recipe_of({"pretrain": 100, "anneal": 20})
    assert sizes.kept_checkpoints(recipe, CheckpointPolicy(every_steps=50)) == 4
    assert sizes.kept_checkpoints(recipe, CheckpointPolicy(every_steps=1)) == 7
    assert sizes.kept_checkpoints(recipe, CheckpointPolicy(every_steps=1, keep_every=10)) == 19


def test_the_interval_is_young_s_for_rare_failures() -> None:
    advice = sizes.interval(save_seconds=1.0, mtbf_seconds=1e8, step_seconds=1.0)
    assert advice.seconds == pytest.approx(math.sqrt(2e8), rel=1e-3)
    assert advice.steps == round(advice.seconds)
    assert advice.overhead_percent == pytest.approx(100 * math.sqrt(2e-8), rel=1e-2)


def test_saves_that_take_longer_than_failures_leave_are_made_once_a_failure() -> None:
    assert sizes.interval(save_seconds=50.0, mtbf_seconds=20.0, step_seconds=100.0).seconds == 20.0
    assert sizes.interval(save_seconds=50.0, mtbf_seconds=20.0, step_seconds=100.0).steps == 1


def test_times_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        sizes.interval(save_seconds=0.0, mtbf_seconds=1.0, step_seconds=1.0)
