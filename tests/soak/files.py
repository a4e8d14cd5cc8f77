"""The files of a soak's run: three hosts of which it wants two, a small Olmo 3, random tokens."""

from pathlib import Path

import numpy as np

STEPS_A_FAULT = 100
"""Enough that the run is not over before the last fault, also on a fast machine, where one that lasts takes more."""

FLEET = "pools: [{name: main, generation: local-a, hosts: 3, devices_per_host: 2}]\n"
RUN = """\
name: soak
store: store
fleet: fleet
data_root: data
recipe: recipe.yaml
policy:
  placements:
    - {name: full, pool: main, generation: local-a, hosts: 2, devices_per_host: 2}
    - {name: half, pool: main, generation: local-a, hosts: 1, devices_per_host: 2}
  checkpoint: {every_steps: 20, prove_after: 100, max_unproven: 1000}
  deadlines: {stall_floor: 15, kill: 5}
  budgets: {host_failures: 1000}            # hosts fail on purpose: none is left alone for it
  moves: {hold_off: 0.5, failed_within: 0, per_day: 1000}
  prepare: false                            # what it would compile is in the cache after the first faults
"""
RECIPE = """\
name: soak
model: {{vocab_size: 64, d_model: 32, n_layers: 2, global_every: 2, n_heads: 2, n_kv_heads: 2, head_dim: 16, d_ff: 64,
        sliding_window: 16, compute_dtype: float32}}
stages:
  - name: only
    steps: {steps}
    virtual_ranks: 8
    sequence_length: 64
    data: {{files: [{{path: some.tokens}}]}}
    schedule: {{peak: 3.0e-3}}
"""


def write(folder: Path, *, steps: int) -> None:
    """Everything that ``everstep submit run.yaml`` needs."""
    for name in ("data", "fleet"):
        (folder / name).mkdir(parents=True)
    (folder / "fleet" / "fleet.yaml").write_text(FLEET)
    (folder / "run.yaml").write_text(RUN)
    (folder / "recipe.yaml").write_text(RECIPE.format(steps=steps))
    np.random.default_rng(7).integers(0, 64, 64 * 500).astype("<u4").tofile(folder / "data" / "some.tokens")
