"""The model's mathematics against plain formulas: backward passes, attention's reach, the stack of layers."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import Array
from numpy.typing import NDArray

from orchestrator.contract.recipe import Model
from trainer.model.attention import Attention, Core, Variant, chunked, core, dense, softmax, visible
from trainer.model.layers import Embedding, Weight, project, rms_norm
from trainer.model.losses import losses
from trainer.model.olmo3 import Block, LeafArithmetic, Skeleton, logits, skeleton
from trainer.model.rope import rotary_angles, rotate

Tree = Any
Numbers = NDArray[np.float32]

WINDOW = 3
MODEL = Model(
    vocab_size=16,
    d_model=8,
    n_layers=8,
    global_every=4,
    n_heads=4,
    n_kv_heads=2,
    head_dim=4,
    d_ff=12,
    sliding_window=WINDOW,
    rope_theta=100.0,
    compute_dtype="float32",
)
LENGTH = 8


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Numbers:
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


# --- hand-written backward passes ---


def value_and_grads(formula: Callable[..., Array], *inputs: Any, grad: Any) -> tuple[Array, tuple[Array, ...]]:
    value, back = jax.vjp(formula, *inputs)
    return value, back(jnp.asarray(grad, value.dtype))


def assert_like_float64(ours: Callable[..., Array], plain: Callable[..., Array], *inputs: Numbers) -> None:
    """Value and every gradient of ``ours`` in fp32 are those that JAX derives from the plain formula in float64."""
    value = jax.eval_shape(ours, *inputs)
    grad = normal(*value.shape, seed=99)
    found, grads = jax.jit(lambda *x: value_and_grads(ours, *x, grad=grad))(*map(jnp.asarray, inputs))
    with jax.enable_x64(True):
        wide = [jnp.asarray(array, jnp.float64) for array in inputs]
        expected, wide_grads = jax.jit(lambda *x: value_and_grads(plain, *x, grad=np.float64(grad)))(*wide)
        assert expected.dtype == jnp.float64
        reference = [np.asarray(array) for array in (expected, *wide_grads)]
    for name, got, wanted in zip(itertools.count(), (found, *grads), reference, strict=False):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max(), err_msg=f"result {name}")


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_rms_norm_and_its_gradients_are_those_of_the_formula(size: float) -> None:
    """At 1e-3 epsilon is as large as the mean square."""
    assert_like_float64(
        lambda x, scale: rms_norm(x, scale, 1e-6),
        lambda x, scale: x * scale / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6),
        normal(2, 5, 12, scale=size),
        normal(12, seed=1),
    )


def test_softmax_and_its_gradient_are_those_of_the_formula() -> None:
    assert_like_float64(softmax, lambda s: jnp.exp(s) / jnp.exp(s).sum(-1, keepdims=True), normal(3, 4, 7, scale=5.0))


def test_softmax_of_huge_scores_does_not_overflow_and_masked_ones_weigh_exactly_nothing() -> None:
    weights = softmax(jnp.array([1e4, 1e4, -1e30, -1e30]))
    assert np.asarray(weights).tolist() == [0.5, 0.5, 0.0, 0.0]


def plain_losses(scores: Array, tokens: NDArray[np.uint32], z_loss: float) -> Array:
    """Of the positions that have a target, and only those."""
    scores, targets = scores[:, :-1], tokens[:, 1:].astype(np.int64)
    log_z = jnp.log(jnp.exp(scores).sum(-1))
    picked = jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
    return jnp.stack([(log_z - picked).sum(), (z_loss * log_z**2).sum()])


def some_tokens(length: int = 6, *, vocab: int = 9) -> NDArray[np.uint32]:
    """Two sequences."""
    return np.random.default_rng(5).integers(0, vocab, (2, length)).astype(np.uint32)


def test_losses_and_their_gradients_are_those_of_the_formula() -> None:
    tokens = some_tokens()
    assert_like_float64(
        lambda scores: losses(scores, jnp.asarray(tokens), 1e-2),
        lambda scores: plain_losses(scores, tokens, 1e-2),
        normal(2, 6, 9, scale=5.0),
    )


@jax.jit
def losses_and_gradient(scores: Array, tokens: Array) -> tuple[Array, Array]:
    value, (gradient,) = value_and_grads(lambda scores: losses(scores, tokens, 1e-2), scores, grad=[1.0, 1.0])
    return value, gradient


def test_the_last_position_has_no_target_and_no_influence_not_even_by_nan() -> None:
    tokens, scores = some_tokens(), normal(2, 6, 9)
    value, gradient = (np.asarray(array) for array in losses_and_gradient(scores, tokens))
    assert not gradient[:, -1].any()
    assert gradient[:, :-1].all()
    for last in (0.0, 1e30, np.inf, np.nan):
        other = scores.copy()
        other[:, -1] = last
        found, found_gradient = (np.asarray(array) for array in losses_and_gradient(other, tokens))
        assert found.tobytes() == value.tobytes(), last
        assert found_gradient.tobytes() == gradient.tobytes(), last


def test_the_first_token_is_never_a_target() -> None:
    scores, tokens = normal(2, 6, 9), some_tokens()
    other = tokens.copy()
    other[:, 0] = (tokens[:, 0] + 1) % 9
    assert losses_and_gradient(scores, other)[0].tolist() == losses_and_gradient(scores, tokens)[0].tolist()


def test_equal_logits_cost_log_vocab_a_target_and_z_loss_its_square() -> None:
    """Of logits c: log Z = c + log(vocab). The sums are over 2 x 5 targets, not means."""
    (cross_entropy, z_loss), _ = losses_and_gradient(np.full((2, 6, 9), 0.5, np.float32), some_tokens())
    np.testing.assert_allclose(cross_entropy, 10 * np.log(9), rtol=1e-6)
    np.testing.assert_allclose(z_loss, 10 * 1e-2 * (0.5 + np.log(9)) ** 2, rtol=1e-6)


# --- sums over tokens ---


def exact_terms(*shape: int) -> NDArray[Any]:
    """bf16 numbers, multiples of 1/64 in 1 … 2, whose sums over 4096 tokens are exact in fp32."""
    return (np.random.default_rng(6).integers(64, 128, shape) / 64).astype(jnp.bfloat16)


@pytest.mark.parametrize("what", ["ones", "terms"])
def test_the_embedding_gradient_of_a_token_that_fills_a_sequence_loses_no_term(what: str) -> None:
    """In bf16 the sum of 4096 ones ends at 256, where adding one changes nothing."""
    length, vocab, width, token = 4096, 4, 3, 2
    terms = np.ones((1, length, width), jnp.bfloat16) if what == "ones" else exact_terms(1, length, width)
    graph = nnx.graphdef(nnx.eval_shape(lambda: Embedding(vocab, width)))
    tokens = jnp.full((1, length), token, jnp.uint32)

    def embedded(table: Array) -> Array:
        embedding: Embedding = nnx.merge(graph, {"table": table})
        return embedding(tokens, dtype=jnp.bfloat16)

    rows, (grad,) = jax.jit(lambda table: value_and_grads(embedded, table, grad=terms))(normal(vocab, width))
    expected = np.zeros((vocab, width))
    expected[token] = terms.astype(np.float64).sum((0, 1))
    assert (rows.dtype, grad.dtype) == (jnp.bfloat16, jnp.float32)
    assert np.asarray(grad, np.float64).tolist() == expected.tolist()


def test_the_embedding_is_gathered_in_fp32_or_its_gradient_would_travel_in_bf16() -> None:
    model = MODEL.model_copy(update={"compute_dtype": "bfloat16"})
    assert skeleton(model).weights["embedding"]["table"].wire == "float32"


def test_the_gradient_of_a_projection_loses_no_term_over_a_sequence() -> None:
    """An fp32 weight gets it as it was summed."""
    x = exact_terms(1, 4096, 2)
    grad = np.ones((1, 4096, 3), jnp.bfloat16)
    spec = "bsd,df->bsf"
    out, (_, weight_grad) = jax.jit(
        lambda x, weight: value_and_grads(lambda x, w: project(spec, x, w, jnp.bfloat16), x, weight, grad=grad)
    )(x, normal(2, 3))
    assert (out.dtype, weight_grad.dtype) == (jnp.bfloat16, jnp.float32)
    expected = np.einsum("bsd,bsf->df", x.astype(np.float64), grad.astype(np.float64))
    assert np.asarray(weight_grad, np.float64).tolist() == expected.tolist()


def test_norms_of_bf16_activations_are_computed_in_fp32_and_rounded_once() -> None:
    x, scale = normal(4, 64).astype(jnp.bfloat16), normal(64, seed=1)
    found = rms_norm(jnp.asarray(x), jnp.asarray(scale), 1e-6)
    wide = rms_norm(jnp.asarray(x, jnp.float32), jnp.asarray(scale), 1e-6)
    assert found.dtype == jnp.bfloat16
    assert np.asarray(found).tolist() == np.asarray(wide.astype(jnp.bfloat16)).tolist()


# --- positions ---


def test_rope_turns_pair_j_of_position_t_by_t_times_theta_to_the_minus_2j_over_head_dim() -> None:
    """The two halves of a head are the real and imaginary parts."""
    length, heads, head_dim, theta = 50, 2, 6, 500_000.0
    x = normal(2, length, heads, head_dim)
    found = rotate(jnp.asarray(x), *rotary_angles(length, head_dim, theta=theta))
    numbers = x[..., :3].astype(np.float64) + 1j * x[..., 3:]
    turned = numbers * np.exp(
        1j * np.arange(length)[:, None, None] * np.array([theta ** (-2 * j / head_dim) for j in range(3)])
    )
    np.testing.assert_allclose(found, np.concatenate([turned.real, turned.imag], axis=-1), rtol=1e-5, atol=1e-6)


def test_rope_turns_bf16_in_fp32_and_leaves_position_0_as_it_is() -> None:
    x = normal(1, 20, 2, 4).astype(jnp.bfloat16)
    angles = rotary_angles(20, 4, theta=100.0)
    found = rotate(jnp.asarray(x), *angles)
    wide = rotate(jnp.asarray(x, jnp.float32), *angles)
    assert np.asarray(found).tolist() == np.asarray(wide.astype(jnp.bfloat16)).tolist()
    assert np.asarray(found)[:, 0].tolist() == x[:, 0].tolist()


# --- attention ---


def test_a_position_sees_itself_and_those_before_it_window_of_them_in_all() -> None:
    positions = jnp.arange(5)
    assert np.asarray(visible(positions, positions, window=2)).astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1],
    ]
    assert np.asarray(visible(positions, positions, window=5)).tolist() == np.tri(5, dtype=bool).tolist()
    assert np.asarray(visible(positions[3:], positions[1:4], window=2)).tolist() == [
        [False, True, True],
        [False, False, True],
    ]


def drawn(weights: Tree, *, seed: int = 1) -> Tree:
    """Weights large enough for every part of the model to matter."""
    flat, structure = jax.tree.flatten(weights)
    assert all(isinstance(weight, Weight) for weight in flat)
    arrays = [
        jnp.asarray(normal(*weight.shape, seed=seed + number, scale=0.5) + (weight.init == "ones"))
        for number, weight in enumerate(flat)
    ]
    return jax.tree.unflatten(structure, arrays)


def reach(apply: Callable[[Array], Array]) -> NDArray[np.bool_]:
    """[t, s]: whether a bit of output t changes with input s; inputs [1, LENGTH, d_model]."""
    x = normal(1, LENGTH, MODEL.d_model, seed=8)
    inputs = np.repeat(x, LENGTH + 1, axis=0)
    for position in range(LENGTH):
        inputs[1 + position, position] += normal(MODEL.d_model, seed=9)
    still, *moved = np.asarray(apply(jnp.asarray(inputs)))
    return np.stack([(output != still).any(-1) for output in moved], axis=1)


@pytest.mark.parametrize("variant", ["dense", "chunked"])
def test_a_layer_attends_to_its_window_or_to_everything_before_and_never_to_later_tokens(variant: Variant) -> None:
    attend = core(variant, sliding_window=WINDOW, length=LENGTH, chunk=2)
    weights = jax.tree.map(lambda array: array[0], drawn(skeleton(MODEL).weights["layers"]["attention"]))
    graph = nnx.graphdef(nnx.eval_shape(lambda: Attention(MODEL)))

    @jax.jit
    def attention(x: Array, is_global: Array) -> Array:
        layer: Attention = nnx.merge(graph, weights)
        return layer(x, is_global, attend=attend)

    back = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
    for is_global, window in ((False, WINDOW), (True, LENGTH)):
        reached = reach(functools.partial(attention, is_global=jnp.bool_(is_global)))
        assert reached.astype(int).tolist() == ((back >= 0) & (back < window)).astype(int).tolist()


def heads(length: int) -> tuple[Array, Array, Array]:
    """Two sequences, two groups of three query heads."""
    query, key, value = normal(2, length, 2, 3, 4), normal(2, length, 2, 4, seed=1), normal(2, length, 2, 4, seed=2)
    return jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)


@pytest.mark.parametrize(("length", "window", "chunk"), [(8, 3, 2), (8, 9, 4), (12, 2, 12), (3, 1, 1)])
def test_chunked_attention_is_dense_attention(length: int, window: int, chunk: int) -> None:
    found = jax.jit(functools.partial(chunked, window=window, chunk=chunk))(*heads(length))
    expected = jax.jit(dense)(*heads(length), window=window)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_gradients_of_chunked_attention_are_those_of_dense_attention() -> None:
    length, window, chunk = 12, 5, 3
    grad = normal(2, length, 2, 3, 4, seed=3)

    def gradients(attend: Callable[..., Array]) -> tuple[Array, ...]:
        _, grads = jax.jit(lambda *inputs: value_and_grads(attend, *inputs, grad=grad))(*heads(length))
        return tuple(grads)

    found = gradients(functools.partial(chunked, window=window, chunk=chunk))
    expected = gradients(functools.partial(dense, window=window))
    for name, got, wanted in zip(("query", "key", "value"), found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-6, err_msg=name)


def test_dense_attention_is_the_softmax_of_scaled_products_with_its_groups_key_head() -> None:
    length, window = 5, 3
    query, key, value = (np.asarray(array, np.float64) for array in heads(length))
    expected = np.zeros(query.shape)
    for t, kv, group in itertools.product(range(length), range(2), range(3)):
        seen = slice(max(0, t - window + 1), t + 1)
        scores = np.einsum("bh,bsh->bs", query[:, t, kv, group], key[:, seen, kv]) / np.sqrt(4)
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        expected[:, t, kv, group] = np.einsum("bs,bsh->bh", weights, value[:, seen, kv])
    found = jax.jit(functools.partial(dense, window=window))(*heads(length))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# --- the stack of layers ---


@pytest.fixture(scope="module")
def bones() -> Skeleton:
    return skeleton(MODEL)


@pytest.fixture(scope="module")
def scores_of(bones: Skeleton) -> Callable[[Tree, Array], Array]:
    """Logits of parameters and tokens, compiled once."""

    @jax.jit
    def scores_of(params: Tree, tokens: Array) -> Array:
        ends = {name: tree for name, tree in params.items() if name != "layers"}
        return logits(bones, ends, params["layers"], tokens, gather=lambda tree: tree, arithmetic=LeafArithmetic())

    return scores_of


def batch() -> Array:
    return jnp.asarray(some_tokens(LENGTH, vocab=MODEL.vocab_size))


def with_another(tokens: Array, position: int) -> Array:
    """In all sequences."""
    return tokens.at[:, position].set((tokens[:, position] + 1) % MODEL.vocab_size)


def gradients_of_layers(bones: Skeleton, arithmetic: LeafArithmetic) -> list[Array]:
    params = drawn(bones.weights)
    ends = {name: tree for name, tree in params.items() if name != "layers"}

    def total(layers: Tree) -> Array:
        found = logits(bones, ends, layers, batch(), gather=lambda tree: tree, arithmetic=arithmetic)
        return jnp.sum(jnp.sin(found))

    return jax.tree.leaves(jax.jit(jax.grad(total))(params["layers"]))


@pytest.fixture(scope="module")
def gradients_in_layers(bones: Skeleton) -> list[Array]:
    """With the default leaf plan."""
    return gradients_of_layers(bones, LeafArithmetic())


@pytest.mark.parametrize(
    "arithmetic",
    [
        LeafArithmetic(scan="block", remat="elementwise"),
        LeafArithmetic(scan="block", remat="none", attention="chunked", attention_chunk=2),
    ],
    ids=lambda arithmetic: f"{arithmetic.scan}-{arithmetic.remat}-{arithmetic.attention}",
)
def test_loops_and_recomputation_change_nothing_but_the_cost(
    bones: Skeleton, gradients_in_layers: list[Array], arithmetic: LeafArithmetic
) -> None:
    for found, wanted in zip(gradients_of_layers(bones, arithmetic), gradients_in_layers, strict=True):
        scale = float(jnp.abs(wanted).max())
        np.testing.assert_allclose(found / scale, wanted / scale, rtol=0, atol=1e-4)


def test_the_scanned_stack_is_block_after_block(bones: Skeleton, scores_of: Callable[[Tree, Array], Array]) -> None:
    params = drawn(bones.weights)
    attend: Core = core("dense", sliding_window=WINDOW, length=LENGTH, chunk=0)
    tokens = batch()

    @jax.jit
    def block(weights: Tree, x: Array, is_global: Array) -> Array:
        whole: Block = nnx.merge(bones.block, weights)
        return whole(x, is_global, attend=attend)

    x = nnx.merge(bones.embedding, params["embedding"])(tokens, dtype=jnp.float32)
    for number in range(MODEL.n_layers):
        weights = jax.tree.map(lambda stacked, number=number: stacked[number], params["layers"])
        x = block(weights, x, jnp.bool_(number in (3, 7)))
    expected = nnx.merge(bones.head, params["head"])(nnx.merge(bones.norm, params["norm"])(x))
    found = scores_of(params, tokens)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_every_fourth_layer_is_global(bones: Skeleton, scores_of: Callable[[Tree, Array], Array]) -> None:
    """With the outputs of all layers but one zeroed, the first token reaches beyond the window only in global ones."""
    params = drawn(bones.weights)
    tokens = batch()
    other = with_another(tokens, 0)

    def alone(layer: int) -> Tree:
        kept = (jnp.arange(MODEL.n_layers) == layer)[:, None, None]
        attention, mlp = params["layers"]["attention"], params["layers"]["mlp"]
        return {
            **params,
            "layers": {
                **params["layers"],
                "attention": {**attention, "output": attention["output"] * kept},
                "mlp": {**mlp, "down": mlp["down"] * kept},
            },
        }

    seen_by = {}
    for layer in range(MODEL.n_layers):
        before, after = (np.asarray(scores_of(alone(layer), rows)) for rows in (tokens, other))
        seen_by[layer] = np.flatnonzero((before != after).any((0, 2))).tolist()
    near, everywhere = list(range(WINDOW)), list(range(LENGTH))
    assert seen_by == {layer: everywhere if layer in (3, 7) else near for layer in range(MODEL.n_layers)}


def test_no_logit_depends_on_a_later_token(bones: Skeleton, scores_of: Callable[[Tree, Array], Array]) -> None:
    params, tokens = drawn(bones.weights), batch()
    still = np.asarray(scores_of(params, tokens))
    for position in range(LENGTH):
        other = with_another(tokens, position)
        changed = (np.asarray(scores_of(params, other)) != still).any((0, 2))
        assert changed.tolist() == [t >= position for t in range(LENGTH)], position
