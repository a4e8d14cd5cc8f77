"""The recipe: everything that decides bits, and nothing of hardware.

A recipe is frozen at submit. Its hash is taken over the bytes that were stored then; it is in every checkpoint,
ledger and launch, and a mismatch is refused. Steps count optimizer updates over all stages and never restart.
"""

from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, StringConstraints, model_serializer, model_validator

from orchestrator.contract import names
from orchestrator.contract.base import Document, Part
from orchestrator.contract.names import TokenFilePath, TokenPath

Positive = Annotated[int, Field(gt=0)]
Name = names.Name
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Crc32c = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]{6}==$")]
"""As Cloud Storage says it: base64 of its four bytes in big-endian order."""
Generation = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}$")]
"""Of an object in a bucket: another one has other bytes, or may."""


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


class Yarn(Part):
    """YaRN: rotary frequencies stretched for a context ``factor`` times as long (Peng et al., 2023).

    A pair that turns more than ``beta_fast`` times within ``original_length`` keeps its frequency, one that turns less
    than ``beta_slow`` times has it divided by ``factor``, and those between are blended; cosines and sines are scaled
    by ``attention_factor``.
    """

    factor: Annotated[float, Field(gt=1)]
    original_length: Positive
    """Context, in tokens, that the model was trained on before."""
    beta_fast: Annotated[float, Field(gt=0)] = 32.0
    beta_slow: Annotated[float, Field(gt=0)] = 1.0
    attention_factor: Annotated[float, Field(gt=0)] | None = None
    """None: 0.1 · ln(factor) + 1."""
    truncate: bool = True
    """Round the two bounds outwards to whole pairs."""
    layers: Literal["global", "all"] = "global"
    """``all``: sliding layers too, as a port of Olmo 3 does; OLMo-core and transformers stretch global ones only."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.beta_fast <= self.beta_slow:
            raise ValueError(f"beta_fast {self.beta_fast} must be above beta_slow {self.beta_slow}")
        return self


class Model(Part):
    """An Olmo 3 decoder: reordered norm, QK-norm over all heads, sliding attention with every n-th layer global."""

    vocab_size: Positive
    padded_vocab_size: Positive | None = None
    """Rows of the embedding and columns of the head; None: vocab_size. No token has an id beyond vocab_size."""
    padding_in_softmax: bool = False
    """Whether logits of the padding count in the softmax's denominator, as OLMo-core lets them."""
    d_model: Positive
    n_layers: Positive
    n_heads: Positive
    n_kv_heads: Positive
    head_dim: Positive
    d_ff: Positive
    sliding_window: Positive = 4096
    """Positions that a sliding layer sees, its own included."""
    global_every: Positive = 4
    """Layers g - 1, 2 g - 1, … attend to everything before them."""
    rope_theta: Annotated[float, Field(gt=0)] = 500_000.0
    rope_scaling: Yarn | None = None
    norm_eps: Annotated[float, Field(gt=0)] = 1e-6
    init_std: Annotated[float, Field(gt=0)] = 0.02
    compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """What a leaf computes in; master parameters, norms, logits and sums are always fp32."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}")
        if self.n_layers % self.global_every:
            raise ValueError(f"n_layers {self.n_layers} is not a multiple of global_every {self.global_every}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} must be even: rotary embeddings turn pairs")
        if self.vocab_rows < self.vocab_size:
            raise ValueError(f"padded_vocab_size {self.padded_vocab_size} is below vocab_size {self.vocab_size}")
        return self

    @property
    def vocab_rows(self) -> int:
        """Of the embedding, padding included."""
        return self.padded_vocab_size or self.vocab_size


class TokenFile(Part):
    """One headerless little-endian uint32 token file."""

    path: TokenFilePath
    """Relative to the run's ``data_root``, so that moving the data does not change the recipe; or ``gs://bucket/path``."""
    sha256: Sha256 | None = None
    """Of a file in a folder. Filled in at submit."""
    tokens: Positive | None = None
    """Filled in at submit."""
    crc32c: Crc32c | None = None
    """The service's own, of a file in a bucket. Filled in at submit."""
    generation: Generation | None = None
    """Of a file in a bucket, which is read at no other. Filled in at submit."""

    @property
    def frozen(self) -> bool:
        """Whether length and content are fixed."""
        return self.tokens is not None and (self.sha256 is not None or None not in (self.crc32c, self.generation))

    @model_serializer(mode="wrap")
    def _without_empty(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What only a file in a bucket has is left out of others, so that recipes of before keep their bytes."""
        fields: dict[str, Any] = write(self)
        return {name: value for name, value in fields.items() if value is not None or name in ("sha256", "tokens")}


class Data(Part):
    """Which instances a stage reads and in which order: a permutation per epoch, seeded by ``seed + epoch``."""

    files: tuple[TokenFile, ...] = ()
    mix: TokenPath | None = None
    """A list of token files below ``data_root``, as OLMo-core's mixes are: ``label,path`` a line. Submit reads it into
    ``files``."""
    tokenizer: str = ""
    """What {TOKENIZER} in a mix's paths stands for."""
    seed: Annotated[int, Field(ge=0)] = 0
    orders: tuple[TokenFile, ...] = ()
    """Instance numbers of epoch 0, 1, … in their order, as `everstep data index` writes them, so that no process needs
    to compute, or to hold, those of a large corpus. They say nothing that the seed does not say."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.files and self.mix is None:
            raise ValueError("files: name at least one token file, or a mix")
        return self


Decay = Literal["cosine", "half-cosine", "linear", "constant"]


class Continuation(Part):
    """How the learning rate goes on beyond an update, of the same peak."""

    after: Positive
    """The last update, counted in the stage, before it."""
    kind: Decay
    decay_steps: Positive
    """From ``after``; the rate is flat beyond."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1


class Schedule(Part):
    """Learning rate as a pure function of the stage's step count u = 1, 2, … (the update being made).

    warm-up: peak · u / warmup_steps while u < warmup_steps; then ``cosine`` or ``linear`` from peak to
    peak · final_fraction at u = warmup_steps + decay_steps, and flat after it. ``half-cosine`` is the second half of a
    cosine: it starts half way between the two. ``continuations`` replace it beyond their updates, as in a pretraining
    that was planned for fewer tokens than it got.
    """

    kind: Decay = "cosine"
    peak: Annotated[float, Field(gt=0)]
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    decay_steps: Positive | None = None
    """None: the rest of the stage."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    continuations: tuple[Continuation, ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        starts = [self.warmup_steps, *(part.after for part in self.continuations)]
        if any(later <= earlier for earlier, later in pairwise(starts)):
            raise ValueError("continuations: each begins after the one before it, and after the warm-up")
        return self


class Optimizer(Part):
    """SkipStepAdamW: AdamW that leaves out a step whose loss or gradient norm is a far outlier of the last ones."""

    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Not applied to the embedding."""
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    z_loss: Annotated[float, Field(ge=0)] = 1e-5
    skip_window: Annotated[int, Field(ge=2)] = 128
    skip_sigma: Annotated[float, Field(gt=0)] = 6.0
    skip_after: Annotated[int, Field(ge=2)] = 64
    """No step before the one of this number is skipped; it has one entry less before it."""


class Stage(Part):
    """A part of a recipe with its own data, schedule, optimizer state and end."""

    name: Name
    steps: Positive
    virtual_ranks: Positive
    """V: the fixed units of data parallelism; a power of two. Placements have P ≤ V devices, P a power of two."""
    sequences_per_rank: Positive = 1
    sequence_length: Annotated[int, Field(ge=2)]
    """Tokens of one instance; it has sequence_length - 1 targets."""
    data: Data
    schedule: Schedule
    optimizer: Optimizer = Optimizer()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not is_power_of_two(self.virtual_ranks):
            raise ValueError(f"virtual_ranks {self.virtual_ranks} is not a power of two; the reduction tree needs one")
        return self

    @property
    def global_batch(self) -> int:
        """Sequences a step."""
        return self.virtual_ranks * self.sequences_per_rank

    @property
    def tokens_a_step(self) -> int:
        return self.global_batch * self.sequence_length


class WeightFile(Part):
    """A file of a folder with weights."""

    name: TokenPath
    sha256: Sha256


class InitialWeights(Part):
    """Weights that a run starts from instead of drawing them: a folder as Hugging Face writes one."""

    folder: TokenPath
    """Relative to the run's ``data_root``."""
    files: tuple[WeightFile, ...] = ()
    """All in the folder; filled in at submit."""


class Recipe(Document):
    """What is trained, on what, in which order, to which step."""

    KIND: ClassVar[str] = "recipe"

    name: Name
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Of the initial parameters."""
    initial: InitialWeights | None = None
    """None: they are drawn."""
    model: Model
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise ValueError(f"two stages have the same name: {', '.join(names)}")
        model = self.model
        widths = {"d_model": model.d_model, "n_heads x head_dim": model.n_heads * model.head_dim}
        widths["n_kv_heads x head_dim"] = model.n_kv_heads * model.head_dim
        for stage in self.stages:
            for what, width in widths.items():
                if width % stage.virtual_ranks:
                    raise ValueError(
                        f"stage {stage.name}: virtual_ranks {stage.virtual_ranks} does not divide {what} = {width}; "
                        "every parameter is cut into that many blocks"
                    )
        return self

    @property
    def last_step(self) -> int:
        """``next_step`` of the final checkpoint: updates over all stages."""
        return sum(stage.steps for stage in self.stages)

    @property
    def resolved(self) -> bool:
        """Whether every token file has its hash and length, and the initial weights have theirs."""
        weights = self.initial is None or bool(self.initial.files)
        files = [file for stage in self.stages for file in stage.data.files]
        return weights and all(stage.data.files for stage in self.stages) and all(file.frozen for file in files)

    def first_step_of(self, stage: Stage) -> int:
        """The step count at which ``stage`` starts."""
        return sum(other.steps for other in self.stages[: self.stages.index(stage)])

    def stage_at(self, next_step: int) -> Stage | None:
        """The stage that takes step ``next_step``; None when the recipe is finished."""
        first = 0
        for stage in self.stages:
            if next_step < first + stage.steps:
                return stage
            first += stage.steps
        return None

    def stage_named(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)
