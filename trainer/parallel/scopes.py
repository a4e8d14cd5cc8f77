"""Scopes that say what an operation belongs to. They are names only: no bit depends on them, but preflight reads them
in a compiled program, where everything outside of them is the leaf or computes the step's figures."""

REDUCTION = "everstep_reduction"
"""The adds of the fixed tree, whose shapes are the placement's."""
SHARD = "everstep_shard"
"""Element by element over whatever part of an array a device holds."""
