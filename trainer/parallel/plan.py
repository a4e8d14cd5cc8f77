"""The step plan: what decides the bits of a step, of the recipe and of the leaf plan. Without JAX."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from orchestrator.contract.recipe import Model, Stage
from trainer.model.variant import Remat, Scan, Variant

LeafDtype = Literal["compute", "float32"]
Reduction = Literal["a2a", "tree", "native", "native-once"]


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """What decides the bits of a step."""

    model: Model
    stage: Stage
    remat: Remat = "layer"
    scan: Scan = "layer"
    attention: Variant = "dense"
    """``dense``, ``chunked``, ``splash``: other orders of sums, so other bits. ``library``: negative control."""
    attention_chunk: int = 512
    """Queries a block of chunked attention and of splash attention, whose blocks of keys are as large."""
    leaf_dtype: LeafDtype = "compute"
    """Dtype of gradient leaves; ``float32`` keeps them unrounded at twice the bytes on the wire."""
    reduction: Reduction = "a2a"
    """``a2a`` or ``tree``: the same bits. ``native`` and ``native-once`` (over micro-steps first, then over devices in
    one go) are what others do, and their bits depend on P: negative controls, and what the exact step is timed against.
    """
    barriers: bool = True
    """False: negative control."""

    def __post_init__(self) -> None:
        if self.attention in ("chunked", "splash") and self.stage.sequence_length % self.attention_chunk:
            raise ValueError(
                f"attention_chunk {self.attention_chunk} does not divide sequence_length "
                f"{self.stage.sequence_length} of stage {self.stage.name}; choose a divisor in the leaf plan"
            )
        if self.attention == "splash" and self.scan == "layer":
            raise ValueError("attention splash needs to know a layer's kind: set scan to block in the leaf plan")

    @classmethod
    def from_leaf_settings(cls, model: Model, stage: Stage, *, settings: Mapping[str, Any]) -> Self:
        """The plan of a stored leaf plan.

        Raises:
            ValueError: a setting that is unknown, or a value it cannot have.
        """
        for name, value in settings.items():
            if name not in SETTINGS:
                raise ValueError(f"leaf plan: unknown setting {name!r}; known: {', '.join(SETTINGS)}")
            allowed = SETTINGS[name]
            fits = type(value) is allowed if isinstance(allowed, type) else value in allowed
            if not fits or (allowed is int and value < 1):
                wanted = allowed.__name__ if isinstance(allowed, type) else " or ".join(allowed)
                raise ValueError(f"leaf plan: {name} must be {wanted}, not {value!r}")
        return cls(model=model, stage=stage, **settings)


SETTINGS: dict[str, type | tuple[str, ...]] = {
    "remat": get_args(Remat),
    "scan": get_args(Scan),
    "attention": ("dense", "chunked", "splash"),
    "attention_chunk": int,
    "leaf_dtype": get_args(LeafDtype),
    "reduction": ("a2a", "tree"),
}
"""Settings that a leaf plan may have, and their type or values."""
