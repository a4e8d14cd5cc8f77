"""A model's ``config.json``, both ways."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.contract.base import ContractError
from orchestrator.contract.recipe import Model, Yarn

CONFIG = "config.json"
SLIDING, GLOBAL = "sliding_attention", "full_attention"
MUST_BE = {
    "model_type": "olmo3",
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}
"""What our model is, and a configuration may not say otherwise."""
SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "d_ff",
    "sliding_window": "sliding_window",
    "rms_norm_eps": "norm_eps",
    "initializer_range": "init_std",
}
"""Theirs and ours."""


def config_of(model: Model, *, context: int, dtype: str) -> dict[str, Any]:
    """What ``transformers`` needs to load the model.

    Args:
        context: the longest sequence that it is meant for, in tokens.
        dtype: of the weights beside it.
    """
    config = {
        "architectures": ["Olmo3ForCausalLM"],
        **MUST_BE,
        **{theirs: getattr(model, ours) for theirs, ours in SIZES.items()},
        "attention_dropout": 0.0,
        "dtype": dtype,
        "layer_types": _kinds(model.n_layers, global_every=model.global_every),
        "max_position_embeddings": context,
    }
    plain = {"rope_type": "default", "rope_theta": model.rope_theta}
    if model.rope_scaling is None:
        return {**config, "rope_parameters": {SLIDING: plain, GLOBAL: plain}}
    stretched = {**plain, **_scaling_of(model.rope_scaling)}
    everywhere = model.rope_scaling.layers == "all"
    return {**config, "rope_parameters": {SLIDING: stretched if everywhere else plain, GLOBAL: stretched}}


def model_of(config: Mapping[str, Any], *, where: str, compute_dtype: str = "bfloat16") -> Model:
    """The model that a configuration describes.

    Raises:
        ContractError: names the field and what this model would need it to be.
    """
    config = dict(config)
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    for field, value in MUST_BE.items():
        if config.get(field, value) != value:
            raise ContractError(f"{where}: {field} is {config[field]!r}; an Olmo 3 has {value!r}")
    missing = [field for field in SIZES if field not in config and field not in ("head_dim", "initializer_range")]
    if missing:
        raise ContractError(f"{where}: {missing[0]} is missing; take the config.json that came with the weights")
    config.setdefault("initializer_range", 0.02)
    if config.get("head_dim") is None:
        config["head_dim"] = config["hidden_size"] // max(1, int(config["num_attention_heads"]))
    fields = {ours: config[theirs] for theirs, ours in SIZES.items()}
    fields |= {"global_every": _global_every(config, where=where), "compute_dtype": compute_dtype}
    try:
        return Model(**fields, **_rope(config, where=where))
    except ValidationError as error:
        problem = error.errors()[0]
        raise ContractError(f"{where}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error


def read_config(folder: Path) -> Model:
    """Of a folder with weights. Raises ContractError."""
    file = folder / CONFIG
    try:
        found = json.loads(file.read_text())
    except OSError as error:
        raise ContractError(f"{file}: {error.strerror or error}; name a folder with a Hugging Face model") from error
    except ValueError as error:
        raise ContractError(f"{file}: no JSON ({error}); download it again") from error
    if not isinstance(found, dict):
        raise ContractError(f"{file}: not a configuration; download it again")
    return model_of(found, where=str(file))


def _global_every(config: Mapping[str, Any], *, where: str) -> int:
    layers = int(config["num_hidden_layers"])
    kinds = config.get("layer_types") or _kinds(layers, global_every=4)
    every = kinds.index(GLOBAL) + 1 if GLOBAL in kinds else 0
    if not every or kinds != _kinds(layers, global_every=every):
        raise ContractError(f"{where}: layer_types is not every n-th layer {GLOBAL} and the others {SLIDING}")
    return every


def _kinds(layers: int, *, global_every: int) -> list[str]:
    return [GLOBAL if (layer + 1) % global_every == 0 else SLIDING for layer in range(layers)]


def _rope(config: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Of a file of transformers 5, which has parameters a kind of layer, or of an earlier one."""
    parameters = config.get("rope_parameters") or {}
    if "rope_type" in parameters:  # for all layers; transformers 5.24 loads it without YaRN and says nothing
        parameters = {GLOBAL: parameters}
    stretched = parameters.get(GLOBAL, config.get("rope_scaling")) or {}
    plain = parameters.get(SLIDING, {})
    theta = float(stretched.get("rope_theta", config.get("rope_theta", 500_000.0)))
    if float(plain.get("rope_theta", theta)) != theta:
        raise ContractError(f"{where}: sliding and global layers have different rope_theta, which no recipe can say")
    kinds = [str(part.get("rope_type", part.get("type", "default"))) for part in (stretched, plain)]
    if kinds == ["default", "default"]:
        return {"rope_theta": theta}
    if kinds[0] != "yarn" or kinds[1] not in ("default", "yarn"):
        raise ContractError(f"{where}: rope_type {' and '.join(kinds)}; known are default and yarn")
    yarn = Yarn(
        factor=stretched["factor"],
        original_length=stretched["original_max_position_embeddings"],
        beta_fast=stretched.get("beta_fast") or 32.0,
        beta_slow=stretched.get("beta_slow") or 1.0,
        attention_factor=stretched.get("attention_factor"),
        truncate=stretched.get("truncate", True),
        layers="all" if kinds[1] == "yarn" else "global",
    )
    return {"rope_theta": theta, "rope_scaling": yarn}


def _scaling_of(yarn: Yarn) -> dict[str, Any]:
    found = {
        "rope_type": "yarn",
        "factor": yarn.factor,
        "original_max_position_embeddings": yarn.original_length,
        "beta_fast": yarn.beta_fast,
        "beta_slow": yarn.beta_slow,
        "truncate": yarn.truncate,
    }
    return found if yarn.attention_factor is None else {**found, "attention_factor": yarn.attention_factor}
