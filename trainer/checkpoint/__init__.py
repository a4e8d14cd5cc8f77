"""Writing the state, committing it with a manifest, and reading it back onto any mesh."""
