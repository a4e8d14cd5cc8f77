"""Proof before a move: the real step, compiled by the real TPU compiler for placements that nobody holds yet."""
