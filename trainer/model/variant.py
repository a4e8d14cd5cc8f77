"""The ways to compute a leaf, by name; without JAX, so that a name can be checked in no time."""

from typing import Literal

Variant = Literal["dense", "chunked", "splash", "library"]
"""See ``trainer.model.attention``."""

Remat = Literal["layer", "elementwise", "none"]
"""What the backward pass computes again instead of keeping it: all of a layer; what stands between its matrix products
and its attention, and the gathering of its weights; nothing."""

Scan = Literal["layer", "block"]
"""What the loop over layers has as its body: a layer, whose kind is a value; or a block of the pattern, which loops
over its sliding layers and ends with its global one."""
