"""What Hugging Face's Olmo 3 computes, in PyTorch on a CPU: the numbers that the tests of ours are held against.

    python tests/reference/make.py            make data/*.npz anew, from data/*.json and data/trained
    python tests/reference/make.py --check    make them in memory and compare with what is committed; 1 if they differ
    python tests/reference/make.py --train    train data/trained anew first (ten minutes on two cores)

``plain`` and ``yarn`` are models of random weights (``weights.py``), in fp32, with gradients. ``trained`` is a model of
bytes in bfloat16 weights: how far PyTorch's own bf16 is from its fp32 at 8,192 tokens is what ours may be off by.

YaRN, in transformers 5.24, is for layers of full attention alone; sliding layers turn by plain angles:
models/olmo3/configuration_olmo3.py:111 puts ``rope_scaling`` under "full_attention", models/olmo3/modeling_olmo3.py:428
computes the angles of each type of layer, and line 436 gives a layer those of its type. So did 4.57, and so Olmo 3 was
trained. Releases from 5.0 to the middle of 2026 scale every layer, by mistake (mended in their pull request 46911).
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import training
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import Olmo3Config, Olmo3ForCausalLM, logging
from weights import weights

DATA = Path(__file__).parent / "data"
TRAINED = DATA / "trained"
TOKENS_SEED = 48
HELD_OUT = Path(__file__).parents[2] / "orchestrator" / "agent" / "agent.py"
CONTEXT = 8192
KEPT = 512
"""Positions of the long context whose logits are stored."""
FP32_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4
"""Both relative to the largest value of the same tensor: another processor adds in another order."""

Arrays = dict[str, NDArray[Any]]


def of_random_weights(name: str) -> Arrays:
    """Logits [2, 160, vocab], mean cross entropy, and its gradient for each tensor, of data/``name``.json."""
    config = json.loads((DATA / f"{name}.json").read_text())
    tokens = torch.from_numpy(np.random.default_rng(TOKENS_SEED).integers(0, config["vocab_size"], (2, 160)))
    model = Olmo3ForCausalLM._from_config(Olmo3Config(**config), attn_implementation="eager").eval()
    values = {key: torch.from_numpy(value) for key, value in weights(config).items()}
    model.load_state_dict(values)
    logits = model(tokens).logits
    loss = cross_entropy(logits, tokens)
    loss.backward()
    made = {
        "tokens": tokens.numpy().astype(np.int32),
        "logits": logits.detach().numpy(),
        "cross_entropy": loss.detach().numpy(),
    }
    made |= {f"gradient/{key}": value.grad.numpy() for key, value in sorted(model.named_parameters())}
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        apart = float((model(tokens).logits - logits).abs().max())
    print(f"{name}: cross entropy {loss:.6f}; eager and sdpa differ by {apart:.1e} at most")
    assert apart < FP32_TOLERANCE, "the two implementations of attention disagree"
    return made


def cross_entropy(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean over the tokens that have one before them, in nats."""
    return functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten())


def of_trained(tokens: NDArray[np.int32]) -> Arrays:
    """What both precisions make of tokens [length]: logits at ``KEPT`` even positions, cross entropy over all."""
    positions = np.arange(1, KEPT + 1) * (len(tokens) // KEPT) - 1
    fp32, fp32_loss = outputs(torch.float32, tokens, positions, attention="eager")
    bf16, bf16_loss = outputs(torch.bfloat16, tokens, positions, attention="eager")
    kl, agreement = distance(fp32, bf16)
    print(f"trained: cross entropy {fp32_loss:.6f} in fp32, {bf16_loss:.6f} in bf16")
    print(f"trained: KL of bf16 from fp32 {kl:.3e} nats, top-1 agreement {agreement:.4f}")
    sdpa, _ = outputs(torch.bfloat16, tokens, positions, attention="sdpa")
    print("trained: with sdpa in bf16, KL {:.3e}, top-1 agreement {:.4f}".format(*distance(fp32, sdpa)))
    return {
        "tokens": tokens,
        "positions": positions.astype(np.int32),
        "logits_float32": fp32.numpy(),
        "logits_bfloat16": bf16.numpy(),
        "cross_entropy_float32": np.float32(fp32_loss),
        "cross_entropy_bfloat16": np.float32(bf16_loss),
        "kl": np.float32(kl),
        "top1_agreement": np.float32(agreement),
    }


def held_out() -> NDArray[np.int32]:
    """The tokens that are committed; where nothing is, bytes of a file of this project: the model read Python's own."""
    stored = DATA / "trained.npz"
    if stored.exists():
        with np.load(stored) as file:
            return np.asarray(file["tokens"])
    return np.frombuffer(HELD_OUT.read_bytes()[:CONTEXT], np.uint8).astype(np.int32)


def outputs(
    dtype: torch.dtype, tokens: NDArray[np.int32], positions: NDArray[np.int64], *, attention: str
) -> tuple[Tensor, float]:
    """Logits at ``positions`` in fp32, and the cross entropy over all.

    The model is loaded in its dtype: ``model.to(bfloat16)`` would round the frequencies of RoPE as well, which are
    off by whole turns then at this length.
    """
    model = Olmo3ForCausalLM.from_pretrained(TRAINED, dtype=dtype, attn_implementation=attention).eval()
    batch = torch.from_numpy(tokens.astype(np.int64))[None]
    with torch.no_grad():
        logits = model(batch, use_cache=False).logits
        return logits[0, positions].float(), float(cross_entropy(logits, batch))


def distance(reference: Tensor, other: Tensor) -> tuple[float, float]:
    """KL(reference ‖ other), mean over positions, in nats; at which part of them the likeliest token is the same."""
    expected, found = (functional.log_softmax(logits.double(), dim=-1) for logits in (reference, other))
    kl = functional.kl_div(found, expected, log_target=True, reduction="batchmean")
    return float(kl), float((reference.argmax(-1) == other.argmax(-1)).double().mean())


def agrees(name: str, made: Arrays) -> bool:
    """Whether what was made is what is committed, within the tolerances; prints how far it is off."""
    with np.load(DATA / f"{name}.npz") as file:
        stored = dict(file)
    if made.keys() != stored.keys():
        print(f"{name}.npz: other arrays than are committed: {sorted(made.keys() ^ stored.keys())}")
        return False
    checks = []
    if "kl" in stored:
        bf16 = (torch.from_numpy(arrays.pop("logits_bfloat16")) for arrays in (stored, made))
        checks.append(("bf16 logits: KL", distance(*bf16)[0], float(stored["kl"])))
        for figure in ("cross_entropy_bfloat16", "kl", "top1_agreement"):
            del stored[figure]
    apart = {key: float(np.abs(made[key] - value).max()) / float(np.abs(value).max()) for key, value in stored.items()}
    gradients = [value for key, value in apart.items() if key.startswith("gradient/")]
    others = [value for key, value in apart.items() if not key.startswith("gradient/")]
    checks.append(("fp32, of the largest", max(others), FP32_TOLERANCE))
    if gradients:
        checks.append(("gradients, of the largest", max(gradients), GRADIENT_TOLERANCE))
    for what, found, allowed in checks:
        print(f"{name}.npz: {what}: {found:.1e} apart ({allowed:.1e} allowed)")
    return all(found <= allowed for _, found, allowed in checks)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with what is committed; write nothing")
    parser.add_argument("--train", action="store_true", help="train data/trained anew first")
    options = parser.parse_args(arguments)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a tenth of the time, and nothing here reads any
    torch.set_num_threads(2)
    logging.disable_progress_bar()
    if options.train:
        training.train(TRAINED)
    made = {name: of_random_weights(name) for name in ("plain", "yarn")}
    made["trained"] = of_trained(held_out())
    if options.check:
        verdicts = [agrees(name, arrays) for name, arrays in made.items()]
        return 0 if all(verdicts) else 1
    for name, arrays in made.items():
        np.savez_compressed(DATA / f"{name}.npz", **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
