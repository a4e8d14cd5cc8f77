"""A short soak; `make soak` is the long one."""

from collections import Counter
from pathlib import Path

import pytest

from tests.soak.faults import KINDS, draw
from tests.soak.run_soak import soak

SEED, FAULTS = 209, 5
"""A shrink, a damaged checkpoint, a lost controller, a store outage and a lost agent."""


def test_a_soak_has_each_kind_of_fault_equally_often_and_the_same_ones_for_a_seed() -> None:
    drawn = draw(seed=1, count=50)
    assert Counter(fault.kind for fault in drawn) == dict.fromkeys(KINDS, 5)
    assert drawn == draw(seed=1, count=50)
    assert drawn[:FAULTS] == draw(seed=1, count=FAULTS)
    assert drawn != draw(seed=2, count=50)


@pytest.mark.timeout(1200)
def test_a_run_with_five_random_faults_ends_with_the_parameters_of_an_undisturbed_one(tmp_path: Path) -> None:
    found = soak(tmp_path / "soak", seed=SEED, count=FAULTS)
    assert found.held, found
    assert sum(found.faults.values()) == FAULTS
    assert found.params_sha256 == found.reference_params_sha256 is not None
    assert (found.verdict, found.steps_differing) == ("equal", 0)
    assert found.replayed_steps > 0
