"""Where each tensor of a Hugging Face checkpoint lies in our arrays.

Ours are stacked over layers and have matrices side by side (queries, keys and values; gate and up), d_model first; a
Hugging Face matrix is [out, in]. Rows and columns of padding belong to no tensor.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from orchestrator.contract.recipe import Model


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A tensor, and the part of one of our matrices that holds it; a vector is a matrix of one row."""

    tensor: str
    path: str
    """Of our array."""
    layer: int | None
    """Of the stack; None: the array is not stacked."""
    rows: range
    columns: range
    transposed: bool
    vector: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor."""
        if self.vector:
            return (len(self.columns),)
        ours = (len(self.rows), len(self.columns))
        return ours[::-1] if self.transposed else ours

    @property
    def dimensions(self) -> int:
        """Of our array."""
        return (self.layer is not None) + (1 if self.vector else 2)

    @property
    def index(self) -> tuple[int | slice, ...]:
        """Where it lies in our array."""
        rows, columns = (slice(part.start, part.stop) for part in (self.rows, self.columns))
        matrix = (columns,) if self.vector else (rows, columns)
        return matrix if self.layer is None else (self.layer, *matrix)

    def out_of(self, array: NDArray[Any]) -> NDArray[Any]:
        """The tensor, out of our array; a view."""
        found: NDArray[Any] = array[self.index]
        return found.T if self.transposed else found


def pieces(model: Model) -> Iterator[Piece]:
    """All of a model, in the order in which Hugging Face writes them."""
    yield _matrix("model.embed_tokens.weight", "embedding/table", model.vocab_size, model.d_model)
    for layer in range(model.n_layers):
        yield from _layer(model, layer)
    yield _vector("model.norm.weight", "norm/scale", model.d_model)
    yield _transposed("lm_head.weight", "head/kernel", model.d_model, model.vocab_size)


def _layer(model: Model, layer: int) -> Iterator[Piece]:
    width, keys, wide = model.n_heads * model.head_dim, model.n_kv_heads * model.head_dim, model.d_model
    name, own = f"model.layers.{layer}", "layers"
    joined = f"{own}/attention/query_key_value"
    yield _transposed(f"{name}.self_attn.q_proj.weight", joined, wide, width, layer=layer)
    yield _transposed(f"{name}.self_attn.k_proj.weight", joined, wide, keys, after=width, layer=layer)
    yield _transposed(f"{name}.self_attn.v_proj.weight", joined, wide, keys, after=width + keys, layer=layer)
    yield _matrix(f"{name}.self_attn.o_proj.weight", f"{own}/attention/output", wide, width, layer=layer)
    yield _vector(f"{name}.self_attn.q_norm.weight", f"{own}/attention/query_norm/scale", width, layer=layer)
    yield _vector(f"{name}.self_attn.k_norm.weight", f"{own}/attention/key_norm/scale", keys, layer=layer)
    gate_up = f"{own}/mlp/gate_up"
    yield _transposed(f"{name}.mlp.gate_proj.weight", gate_up, wide, model.d_ff, layer=layer)
    yield _transposed(f"{name}.mlp.up_proj.weight", gate_up, wide, model.d_ff, after=model.d_ff, layer=layer)
    yield _matrix(f"{name}.mlp.down_proj.weight", f"{own}/mlp/down", wide, model.d_ff, layer=layer)
    yield _vector(f"{name}.post_attention_layernorm.weight", f"{own}/attention_norm/scale", wide, layer=layer)
    yield _vector(f"{name}.post_feedforward_layernorm.weight", f"{own}/mlp_norm/scale", wide, layer=layer)


def _matrix(tensor: str, path: str, rows: int, columns: int, *, layer: int | None = None) -> Piece:
    return Piece(tensor=tensor, path=path, layer=layer, rows=range(rows), columns=range(columns), transposed=False)


def _transposed(tensor: str, path: str, rows: int, columns: int, *, after: int = 0, layer: int | None = None) -> Piece:
    """``after``: the first column."""
    place = range(after, after + columns)
    return Piece(tensor=tensor, path=path, layer=layer, rows=range(rows), columns=place, transposed=True)


def _vector(tensor: str, path: str, length: int, *, layer: int | None = None) -> Piece:
    return Piece(
        tensor=tensor, path=path, layer=layer, rows=range(1), columns=range(length), transposed=False, vector=True
    )
