"""JAX's persistent compile cache, made to work for several CPU processes.

JAX lets process 0 alone write it, but on CPU each process has keys of its own, so the others would compile again at
every start. Until JAX changes that, every process writes (two private names, of which a test sees when they go).
"""

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import jax
from jax._src import compiler, distributed

from trainer import versions

HIT = "/jax/compilation_cache/cache_hits"
MISS = "/jax/compilation_cache/cache_misses"


class CompileCache:
    """The cache of this process; ``folder`` None: off. Make one before anything compiles.

    Hosts may share the folder. An executable for another kind of CPU can have instructions that this one has not, and
    JAX would run it, so each kind has a folder of its own below.
    """

    def __init__(self, folder: Path | None, *, processes: int) -> None:
        self._on = folder is not None
        self._seen: Counter[str] = Counter()
        if folder is None:
            return
        own = folder / f"cpu-{versions.cpu_kind()}"
        own.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(own))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        jax.monitoring.register_event_listener(self._count)
        if processes > 1:
            _write_from_every_process()

    def outcome(self) -> Literal["hit", "miss", "off"]:
        """``hit``: everything that was compiled so far came from the cache."""
        if not self._on:
            return "off"
        return "hit" if self._seen[HIT] and not self._seen[MISS] else "miss"

    def _count(self, event: str, **_: Any) -> None:
        if event in (HIT, MISS):
            self._seen[event] += 1


def _write_from_every_process() -> None:
    original = compiler._cache_write

    def write(*arguments: Any, **named: Any) -> Any:
        state = distributed.global_state
        process, state.process_id = state.process_id, 0
        try:
            return original(*arguments, **named)
        finally:
            state.process_id = process

    compiler._cache_write = write
