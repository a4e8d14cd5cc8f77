"""Ledger records for tests."""

from typing import Any

from orchestrator.contract.ledger import Record, bits_of


def record_of(step: int, *, attempt: int = 1, **changes: Any) -> Record:
    """A record whose losses depend on the step alone."""
    fields: dict[str, Any] = {
        "step": step,
        "attempt": attempt,
        "ce": bits_of(3.0 - step / 100),
        "z_loss": bits_of(0.0),
        "total": bits_of(3.0 - step / 100),
        "ce_by_rank": tuple(bits_of(3.0 - step / 100 + rank) for rank in range(4)),
        "grad_norm": bits_of(1.0),
        "gradient": "0" * 16,
        "tokens": "1" * 16,
        "learning_rate": bits_of(1e-3),
        "skipped": False,
        "finite": True,
        "fingerprint": "a",
        "started": float(step),
        "seconds": 1.0,
    }
    return Record(**{**fields, **changes})
