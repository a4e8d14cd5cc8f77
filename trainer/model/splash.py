"""The attention core of JAX's TPU kernels (splash attention), for sequences of a whole number of blocks.

It never holds a matrix of scores, and skips blocks of keys that no query of a block sees. Elsewhere than on a TPU its
kernels are interpreted, which is slow: for tests.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask


def splash(query: Array, key: Array, value: Array, *, window: int, block: int, interpret: bool) -> Array:
    """Of queries that are scaled already; shapes as of any core. ``block`` queries and keys at a time."""
    batch, length, _, _, head_dim = query.shape
    heads = query.reshape(batch, length, -1, head_dim)
    mask: splash_attention_mask.Mask = splash_attention_mask.CausalMask((length, length))
    if window < length:
        mask = splash_attention_mask.LocalMask((length, length), window_size=(window - 1, 0), offset=0)
    kernel = splash_attention_kernel.make_splash_mha_single_device(
        splash_attention_mask.MultiHeadMask([mask] * heads.shape[2]),
        block_sizes=splash_attention_kernel.BlockSizes(
            block_q=block,
            block_kv=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            use_fused_bwd_kernel=True,
        ),
        residual_checkpoint_name="mixed",
        interpret=interpret,
    )
    mixed = jax.vmap(kernel)(*(jnp.swapaxes(array, 1, 2) for array in (heads, key, value)))
    return jnp.swapaxes(mixed, 1, 2).reshape(query.shape).astype(value.dtype)
