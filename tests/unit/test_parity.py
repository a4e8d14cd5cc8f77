"""Our Olmo 3 against that of Hugging Face's ``transformers``, as ``tests/reference/make.py`` recorded it."""

from typing import Literal

import pytest

from tests.reference.parity import CHUNKED, DENSE, of_random_weights, of_trained
from trainer.model.olmo3 import LeafArithmetic


@pytest.mark.parametrize(("name", "arithmetic"), [("plain", DENSE), ("yarn", CHUNKED)])
def test_logits_loss_and_every_gradient_are_those_of_transformers(
    name: Literal["plain", "yarn"], arithmetic: LeafArithmetic
) -> None:
    figures = of_random_weights(name, arithmetic)
    assert [figure for figure in figures if not figure.held] == []
    assert len(figures) == 4


def test_a_trained_model_at_8192_tokens_is_as_near_in_bf16_as_the_bar_says() -> None:
    figures = of_trained()
    assert [figure for figure in figures if not figure.held and not figure.what.startswith("(")] == []
    assert len(figures) == 6
