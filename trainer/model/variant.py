"""The ways to compute attention's core, by name; without JAX, so that a name can be checked in no time."""

from typing import Literal

Variant = Literal["dense", "chunked", "library"]
"""See ``trainer.model.attention``."""
