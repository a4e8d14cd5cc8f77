"""A small model of bytes: Olmo 3's architecture, trained on the Python files of the standard library that runs this.

Another version of Python has other files, so the weights that came out are committed, and are the input of what is
compared; nothing depends on making the same ones again.
"""

import math
import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import Olmo3Config, Olmo3ForCausalLM

SEED = 20_261_130
STEPS = 800
WARMUP = 40
BATCH = 2
LENGTH = 1024
LEARNING_RATE = 4e-3
NOT_READ = ("site-packages", "test", "tests", "idlelib", "lib2to3")


def config() -> Olmo3Config:
    """Bytes are tokens 0 to 255; the other 64 never occur."""
    return Olmo3Config(
        vocab_size=320,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=512,
        max_position_embeddings=8192,
        rms_norm_eps=1e-6,
        use_cache=False,
        pad_token_id=None,
        eos_token_id=None,
    )


def train(folder: Path) -> None:
    """Train, and save the weights in bfloat16 as Hugging Face does: config.json, model.safetensors."""
    torch.manual_seed(SEED)
    model = Olmo3ForCausalLM(config()).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, learning_rate_factor)
    text, generator = corpus(), np.random.default_rng(SEED)
    for step in range(STEPS):
        tokens = batch(text, generator)
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        if step % 50 == 0 or step == STEPS - 1:
            print(f"step {step}: {loss.item():.3f} nats a byte", flush=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink()


def learning_rate_factor(step: int) -> float:
    """Linear warm-up, then half a cosine to a tenth."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.55 + 0.45 * math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))


def corpus() -> np.ndarray:
    """All bytes of the files, in the order of their paths."""
    root = Path(sysconfig.get_path("stdlib"))
    files = (path for path in sorted(root.rglob("*.py")) if not set(NOT_READ) & set(path.relative_to(root).parts))
    return np.frombuffer(b"".join(path.read_bytes() for path in files), np.uint8)


def batch(text: np.ndarray, generator: np.random.Generator) -> Tensor:
    """Random pieces of the text, [BATCH, LENGTH]."""
    starts = generator.integers(0, len(text) - LENGTH, BATCH)
    return torch.from_numpy(np.stack([text[start : start + LENGTH] for start in starts]).astype(np.int64))
