"""Weights of the reference models, drawn with numpy alone, so that both frameworks start from the same values."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEED = 20_261_130


def weights(config: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Every tensor of the model that a config.json of Hugging Face describes, by its names; matrices are [out, in].

    Drawn in the sorted order of names: 1 + 0.1 · normal for norms, normal for the embedding, else 0.05 · normal.
    """
    generator = np.random.default_rng(SEED)
    drawn = {}
    for name, shape in sorted(shapes(config).items()):
        normal = generator.standard_normal(shape)
        if len(shape) == 1:
            normal = 1.0 + 0.1 * normal
        elif name != "model.embed_tokens.weight":
            normal = 0.05 * normal
        drawn[name] = normal.astype(np.float32)
    return drawn


def shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of an Olmo 3's tensors."""
    width, vocab = config["hidden_size"], config["vocab_size"]
    found: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (vocab, width),
        "model.embed_tokens.weight": (vocab, width),
        "model.norm.weight": (width,),
    }
    for layer in range(config["num_hidden_layers"]):
        found |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in _of_a_layer(config).items()}
    return found


def _of_a_layer(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    width, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or width // config["num_attention_heads"]
    queries, keys = (config[f"num_{kind}_heads"] * head_dim for kind in ("attention", "key_value"))
    return {
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "self_attn.q_norm": (queries,),
        "self_attn.k_norm": (keys,),
        "post_attention_layernorm": (width,),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
        "post_feedforward_layernorm": (width,),
    }
