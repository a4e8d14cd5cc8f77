"""The files of the demo's run: real text as tokens, a small Olmo 3, a fleet of two pools, two stages."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

from orchestrator.cli.encoders import END_OF_DOCUMENT, ended, ids_of_bytes
from orchestrator.cli.errors import BadInput
from orchestrator.cli.whole_file import whole_file

ANNEAL_PACKAGES = ("asyncio", "concurrent", "email", "http", "json", "logging", "unittest", "xml")
"""Of the Python library; stage 2 reads these and stage 1 the rest."""
NOT_TEXT = ("site-packages", "dist-packages", "test", "tests", "__pycache__", "idlelib", "lib2to3")

FLEET = """\
# Eight processes of this machine that stand for TPU hosts; `next` stands for another generation.
pools:
  - {name: main, generation: local-a, hosts: 4, devices_per_host: 2}
  - {name: next, generation: local-b, hosts: 2, devices_per_host: 2}
"""

RECIPE = """\
# A small Olmo 3: the architecture of the 7B, only the sizes are small.
name: demo
seed: 12536
model:
  vocab_size: 320          # 256 bytes, the end of a document, and room
  d_model: 64
  n_layers: 4              # three sliding, one global
  n_heads: 4
  n_kv_heads: 4
  head_dim: 16
  d_ff: 176
  sliding_window: 32
stages:
  - name: pretrain
    steps: {pretrain_steps}
    virtual_ranks: 8
    sequence_length: 128
    data: {{files: [{{path: library.tokens}}], seed: 34521}}
    schedule: {{kind: cosine, peak: 3.0e-3, warmup_steps: 20}}
  - name: anneal           # other data, another schedule, another V
    steps: {anneal_steps}
    virtual_ranks: 4
    sequence_length: 128
    data: {{files: [{{path: packages.tokens}}], seed: 1337}}
    schedule: {{kind: linear, peak: 1.0e-3, final_fraction: 0.0}}
"""

RUN = """\
name: demo
store: store
fleet: fleet
data_root: data
recipe: recipe.yaml
leaf_plans:
  local-a: {}
  local-b: {attention: chunked, attention_chunk: 32}   # another order of sums: other bits, as on another generation
policy:
  placements:              # in order of preference
    - {name: full,    pool: main, generation: local-a, hosts: 4, devices_per_host: 2, stages: [pretrain]}
    - {name: half,    pool: main, generation: local-a, hosts: 2, devices_per_host: 2, stages: [pretrain]}
    - {name: quarter, pool: main, generation: local-a, hosts: 1, devices_per_host: 2, stages: [pretrain]}
    - {name: next,    pool: next, generation: local-b, hosts: 2, devices_per_host: 2, stages: [anneal]}
  checkpoint: {every_steps: 20, prove_after: 100, max_unproven: 1000, keep_newest: 3}
  moves: {hold_off: 1}     # seconds; ten minutes by default
  prepare: false           # nothing is compiled ahead: two cores have enough to do
"""


def write(folder: Path, *, pretrain_steps: int, anneal_steps: int) -> Path:
    """Write everything below ``folder``; returns the run.yaml.

    Raises:
        BadInput: the Python library's sources are not on this machine.
    """
    for name in ("data", "fleet"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "fleet" / "fleet.yaml").write_text(FLEET)
    recipe = RECIPE.format(pretrain_steps=pretrain_steps, anneal_steps=anneal_steps)
    (folder / "recipe.yaml").write_text(recipe)
    (folder / "run.yaml").write_text(RUN)
    library = Path(sysconfig.get_paths()["stdlib"])
    rest: list[Path] = []
    packages: list[Path] = []
    for path in sources(library):
        (packages if path.relative_to(library).parts[0] in ANNEAL_PACKAGES else rest).append(path)
    _tokenize(rest, folder / "data" / "library.tokens")
    _tokenize(packages, folder / "data" / "packages.tokens")
    return folder / "run.yaml"


def sources(library: Path) -> Iterator[Path]:
    """The library's own modules, without its tests and what was installed beside it."""
    for path in sorted(library.rglob("*.py")):
        if path.is_file() and not set(path.relative_to(library).parts) & set(NOT_TEXT):
            yield path


def _tokenize(files: list[Path], target: Path) -> None:
    """A document a file, in the order of their paths."""
    if not files:
        raise BadInput("the Python library's sources are not on this machine; install them, or try another Python")
    with whole_file(target) as out:
        for path in sorted(files):
            out.write(ended(ids_of_bytes(path.read_bytes()), END_OF_DOCUMENT).data)
