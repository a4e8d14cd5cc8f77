"""The parts of a decoder that are not attention.

Every weight says, beside its value, how the rest of the trainer may treat it (``Weight``). Matrices of the model have
d_model first, the axis that is cut over devices, whichever side of the product it is on.

Two rules hold in all arithmetic here, since the compiler's freedom must not show in the bits: no division by a
broadcast value (reciprocals are written out; XLA rewrites ``x / broadcast(s)`` on one device and leaves it on two),
and sums over tokens accumulate in fp32. Backward passes are written by hand where the derived ones divide, and because
they are shorter programs.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

Init = Literal["normal", "ones"]
Wire = Literal["compute", "float32"]

PRODUCTS = ("joined", "mixed", "attended", "gate_up", "down")
"""Names of what costs matrix products to compute again: those of a layer, and its attention."""


@dataclass(frozen=True, kw_only=True)
class Weight:
    """What is known of a parameter besides its value."""

    shape: tuple[int, ...]
    cut: int
    """The axis that is cut over devices, counted from the end so that stacking layers does not move it."""
    init: Init
    wire: Wire
    """What travels when it is gathered, and the dtype of its gradient leaf: the compute dtype, or always fp32."""
    decay: bool
    """Whether weight decay applies."""

    @property
    def cut_length(self) -> int:
        return self.shape[self.cut]

    @property
    def of_one_layer(self) -> "Weight":
        """Without the leading axis of stacked layers."""
        return replace(self, shape=self.shape[1:])


def parameter(
    shape: tuple[int, ...], *, cut: int, init: Init = "normal", wire: Wire = "compute", decay: bool = True
) -> nnx.Param[Array]:
    """A parameter that carries its ``Weight``; the value is a placeholder (``trainer.model.init`` draws it)."""
    return nnx.Param(jnp.zeros(shape, jnp.float32), cut=cut, init=init, wire=wire, decay=decay)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def project(spec: str, x: Array, weight: Array, out: DTypeLike) -> Array:
    """``einsum(spec, x, weight)`` in x's dtype with fp32 accumulation, result in ``out``.

    The gradient of ``weight`` accumulates in fp32 and leaves in the dtype in which the weight came, so an fp32 weight
    gets a gradient that was never rounded to the compute dtype.
    """
    return jnp.einsum(spec, x, weight.astype(x.dtype), preferred_element_type=out)


def _project_forward(spec: str, x: Array, weight: Array, out: DTypeLike) -> tuple[Array, tuple[Array, Array]]:
    return project(spec, x, weight, out), (x, weight)


def _project_backward(spec: str, out: DTypeLike, saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, weight = saved
    operands, result = spec.split("->")
    left, right = operands.split(",")
    grad = grad.astype(x.dtype)
    x_grad = jnp.einsum(f"{result},{right}->{left}", grad, weight.astype(x.dtype), preferred_element_type=x.dtype)
    weight_grad = jnp.einsum(f"{left},{result}->{right}", x, grad, preferred_element_type=weight.dtype)
    return x_grad, weight_grad


project.defvjp(_project_forward, _project_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm(x: Array, scale: Array, eps: float) -> Array:
    """x · scale / sqrt(mean(x²) + eps) over the last axis, in fp32; the result has x's dtype."""
    wide = x.astype(jnp.float32)
    return (wide * _inverse_rms(wide, eps) * scale).astype(x.dtype)


def _inverse_rms(wide: Array, eps: float) -> Array:
    mean_square = jnp.sum(wide * wide, axis=-1, keepdims=True) * (1.0 / wide.shape[-1])
    return jax.lax.rsqrt(mean_square + eps)


def _rms_norm_forward(x: Array, scale: Array, eps: float) -> tuple[Array, tuple[Array, Array]]:
    return rms_norm(x, scale, eps), (x, scale)


def _rms_norm_backward(eps: float, saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    """With n = x / rms: dn = grad · scale, dx = (dn - n · mean(dn · n)) / rms, d scale = Σ grad · n."""
    x, scale = saved
    wide, grad = x.astype(jnp.float32), grad.astype(jnp.float32)
    inverse = _inverse_rms(wide, eps)
    normed, normed_grad = wide * inverse, grad * scale
    along = jnp.sum(normed_grad * normed, axis=-1, keepdims=True) * (1.0 / wide.shape[-1])
    x_grad = (normed_grad - normed * along) * inverse
    return x_grad.astype(x.dtype), jnp.sum(grad * normed, axis=tuple(range(x.ndim - 1)))


rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)


class RMSNorm(nnx.Module):
    """``rms_norm`` with a learned scale."""

    def __init__(self, width: int, *, eps: float) -> None:
        self.eps = eps
        self.scale = parameter((width,), cut=-1, init="ones", wire="float32")

    def __call__(self, x: Array) -> Array:
        return rms_norm(x, self.scale[...], self.eps)


class SwiGLU(nnx.Module):
    """down(silu(gate(x)) · up(x)); x: [batch, length, d_model]. ``gate_up`` holds both matrices side by side."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        self.gate_up = parameter((d_model, 2 * d_ff), cut=-2)
        self.down = parameter((d_model, d_ff), cut=-2)

    def __call__(self, x: Array) -> Array:
        both = checkpoint_name(project("bsd,df->bsf", x, self.gate_up[...], x.dtype), "gate_up")
        gate, up = jnp.split(both, 2, axis=-1)
        down = project("bsf,df->bsd", jax.nn.silu(gate) * up, self.down[...], x.dtype)
        return jnp.asarray(checkpoint_name(down, "down"))


class Embedding(nnx.Module):
    """Rows of an fp32 table, in the compute dtype.

    The table stays fp32 when it is gathered and so does its gradient: a token that fills a sequence adds thousands of
    small terms to one row, which bf16 would lose.
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        self.table = parameter((vocab_size, d_model), cut=-1, wire="float32", decay=False)

    def __call__(self, tokens: Array, *, dtype: DTypeLike) -> Array:
        return jnp.take(self.table[...], tokens, axis=0, mode="clip").astype(dtype)


class Head(nnx.Module):
    """Logits in fp32, [batch, length, vocab]; its weights are not those of the embedding."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        self.kernel = parameter((d_model, vocab_size), cut=-2)

    def __call__(self, x: Array) -> Array:
        return project("bsd,dv->bsv", x, self.kernel[...], jnp.float32)


def metadata_of(variable: Any) -> Weight:
    """The ``Weight`` of a variable that ``parameter`` made."""
    known = variable.get_metadata()
    return Weight(
        shape=tuple(variable.get_value().shape),
        cut=known["cut"],
        init=known["init"],
        wire=known["wire"],
        decay=known["decay"],
    )
