"""Our Olmo 3 against that of Hugging Face's ``transformers``, as ``tests/reference/make.py`` recorded it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from numpy.typing import NDArray
from safetensors.numpy import save_file

from orchestrator.contract.recipe import Model
from tests.reference.weights import weights
from trainer.convert.config import model_of
from trainer.convert.layout import pieces
from trainer.convert.weights import HuggingFaceWeights
from trainer.model.losses import losses
from trainer.model.olmo3 import LeafArithmetic, logits, skeleton
from trainer.parallel.state_checksums import by_path

Tree = Any
DATA = Path(__file__).parents[1] / "reference" / "data"
LOGITS, GRADIENTS = 1e-4, 1e-4
"""Largest difference in fp32; of gradients relative to the largest entry of the same tensor."""


def read(folder: Path, model: Model) -> Tree:
    """All parameters of a Hugging Face folder, as our tree."""
    described = skeleton(model).weights
    with HuggingFaceWeights(folder, model) as source:
        flat = [
            jnp.asarray(source.read(path, tuple(slice(None) for _ in weight.shape), weight.shape))
            for path, weight in by_path(described).items()
        ]
    return jax.tree.unflatten(jax.tree.structure(described), flat)


def scores_of(model: Model, params: Tree, tokens: Array, *, arithmetic: LeafArithmetic | None = None) -> Array:
    ends = {name: tree for name, tree in params.items() if name != "layers"}
    how = arithmetic or LeafArithmetic()
    return logits(skeleton(model), ends, params["layers"], tokens, gather=lambda tree: tree, arithmetic=how)


def tensors_of(model: Model, tree: Tree) -> Mapping[str, NDArray[Any]]:
    """By Hugging Face's names."""
    arrays = {path: np.asarray(value) for path, value in by_path(tree).items()}
    return {piece.tensor: piece.out_of(arrays[piece.path]) for piece in pieces(model)}


@pytest.mark.parametrize("arithmetic", [LeafArithmetic(), LeafArithmetic(attention="chunked", attention_chunk=32)])
@pytest.mark.parametrize("name", ["plain", "yarn"])
def test_logits_loss_and_every_gradient_are_those_of_transformers(
    tmp_path: Path, name: str, arithmetic: LeafArithmetic
) -> None:
    config = json.loads((DATA / f"{name}.json").read_text())
    expected = np.load(DATA / f"{name}.npz")
    save_file(
        {key: np.ascontiguousarray(value) for key, value in weights(config).items()}, tmp_path / "model.safetensors"
    )
    model = model_of(config, where=name, compute_dtype="float32")
    tokens = jnp.asarray(expected["tokens"])
    targets = tokens.shape[0] * (tokens.shape[1] - 1)

    @jax.jit
    def loss_of(params: Tree) -> tuple[Array, Array]:
        scores = scores_of(model, params, tokens, arithmetic=arithmetic)
        return losses(scores, tokens, 0.0)[0] / targets, scores

    (loss, found), gradient = jax.value_and_grad(loss_of, has_aux=True)(read(tmp_path, model))
    assert np.abs(np.asarray(found) - expected["logits"]).max() <= LOGITS
    assert (np.asarray(found).argmax(-1) == expected["logits"].argmax(-1)).all()
    assert abs(float(loss) - float(expected["cross_entropy"])) <= LOGITS
    for tensor, ours in tensors_of(model, gradient).items():
        theirs = expected[f"gradient/{tensor}"]
        assert np.abs(ours - theirs).max() <= GRADIENTS * np.abs(theirs).max(), tensor
