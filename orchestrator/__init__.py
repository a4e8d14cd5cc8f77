"""Everstep's control plane: decides, acts and proves. It never imports jax."""
