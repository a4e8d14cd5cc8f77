"""Token files and the batches that the recipe makes of them."""
