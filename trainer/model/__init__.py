"""Olmo 3 in Flax NNX."""
