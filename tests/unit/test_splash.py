"""The TPU's attention kernels against our own attention, interpreted on a CPU."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from trainer.model.attention import dense
from trainer.model.splash import splash

LENGTH, BLOCK, HEAD = 256, 128, 32


@pytest.mark.parametrize("window", [100, LENGTH])
def test_the_kernels_and_their_gradients_are_dense_attention(window: int) -> None:
    """Two sequences, two groups of two query heads; a window that ends inside a block, and none."""
    keys = jax.random.split(jax.random.key(3), 4)
    query, grad = (jax.random.normal(key, (2, LENGTH, 2, 2, HEAD)) for key in keys[:2])
    key, value = (jax.random.normal(key, (2, LENGTH, 2, HEAD)) for key in keys[2:])
    kernels = functools.partial(splash, window=window, block=BLOCK, interpret=True)

    def scaled(query: Array, key: Array, value: Array) -> Array:
        return kernels(query * HEAD**-0.5, key, value)

    def results(attend: Callable[[Array, Array, Array], Array]) -> list[Array]:
        def run(*inputs: Array) -> tuple[Array, ...]:
            mixed, pull = jax.vjp(attend, *inputs)
            return (mixed, *pull(grad))

        return list(jax.jit(run)(query, key, value))

    expected = results(functools.partial(dense, window=window))
    for name, found, wanted in zip(("mixed", "query", "key", "value"), results(scaled), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5, err_msg=name)
    assert jnp.abs(expected[1]).max() > 0.1
