"""Who finds what in the compile cache."""

import subprocess
import sys
from pathlib import Path

from tests.local.attempts import REPOSITORY

PROGRAM = """
import sys, jax
from pathlib import Path
from trainer import versions
from trainer.compile_cache import CompileCache
versions.cpu_kind = lambda: sys.argv[2]
cache = CompileCache(Path(sys.argv[1]), processes=1)
jax.jit(lambda x: x + 1)(1.0)
print(cache.outcome())
"""


def test_executables_of_another_kind_of_cpu_are_not_found(tmp_path: Path) -> None:
    """JAX does not ask for the CPU: an instruction that this one has not would end the trainer by signal 4."""

    def outcome(kind: str) -> str:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), kind]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()

    assert [outcome(kind) for kind in ("old", "old", "new", "new")] == ["miss", "hit", "miss", "hit"]
