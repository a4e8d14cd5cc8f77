"""Model FLOPs, by arithmetic alone."""

from orchestrator.contract.recipe import Model


def flops_a_token(model: Model, *, length: int) -> float:
    """Model FLOPs of training on one token of a sequence of this length: three times those of the forward pass.

    Counted are products with matrices and attention's two products, each layer's over the positions that it sees; what
    is computed again to save memory is not.
    """
    width, keys = model.n_heads * model.head_dim, model.n_kv_heads * model.head_dim
    matrices = model.d_model * (2 * width + 2 * keys + 3 * model.d_ff)
    return 6.0 * (model.n_layers * matrices + model.d_model * model.vocab_rows) + attention_flops_a_token(
        model, length=length
    )


def attention_flops_a_token(model: Model, *, length: int) -> float:
    """Those of attention's two products."""
    layers_global = model.n_layers // model.global_every
    seen = layers_global * _mean_seen(length, length)
    seen += (model.n_layers - layers_global) * _mean_seen(min(model.sliding_window, length), length)
    return 12.0 * model.n_heads * model.head_dim * seen


def _mean_seen(window: int, length: int) -> float:
    """Positions that a position sees, its own included, on average over a sequence."""
    return (window * (window + 1) / 2 + (length - window) * window) / length
