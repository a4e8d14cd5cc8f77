"""The trainer: one process a host; obeys an AttemptSpec."""
