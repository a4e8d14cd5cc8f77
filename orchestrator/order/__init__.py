"""The global order of samples, a pure function of the recipe; the trainer reads by it and audit recomputes it."""
