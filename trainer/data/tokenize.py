"""Bytes as tokens: id = byte, 256 ends a document. Enough for a demonstration, and the same everywhere."""

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from orchestrator.contract.recipe import TokenFile

END_OF_DOCUMENT = 256
VOCABULARY = 257
BLOCK = 1 << 20
"""Bytes that are held in memory at a time."""

ReportProgress = Callable[[int, int], None]
"""(files done, tokens written)."""


def tokenize_bytes(files: Iterable[Path], target: Path, progress: ReportProgress) -> TokenFile:
    """Write the files, in the order of their paths, to ``target`` as little-endian uint32; one document a file.

    ``target`` appears when it is whole.

    Raises:
        ValueError: no file, or all are empty.
        OSError: a file cannot be read, or the target written.
    """
    digest, tokens = hashlib.sha256(), 0
    partial = target.with_name(target.name + ".partial")
    try:
        with partial.open("wb") as out:
            for done, path in enumerate(sorted(set(files)), 1):
                for block in _tokens_of(path):
                    out.write(block)
                    digest.update(block)
                    tokens += len(block) // 4
                progress(done, tokens)
        if not tokens:
            raise ValueError(f"{target}: there is nothing to tokenize; name files that are not empty")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return TokenFile(path=target.name, sha256=digest.hexdigest(), tokens=tokens)


def _tokens_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        found = False
        while block := file.read(BLOCK):
            found = True
            yield np.frombuffer(block, np.uint8).astype("<u4").tobytes()
    if found:
        yield np.array([END_OF_DOCUMENT], "<u4").tobytes()


def main() -> int:
    """``python -m trainer.data.tokenize TARGET``: paths on standard input, the TokenFile on standard output."""
    if len(sys.argv) != 2:
        print("usage: python -m trainer.data.tokenize TARGET < paths", file=sys.stderr)
        return 2
    files = [Path(line) for line in sys.stdin.read().splitlines() if line]
    try:
        written = tokenize_bytes(files, Path(sys.argv[1]), lambda done, tokens: None)
    except (OSError, ValueError) as error:
        print(f"everstep: {error}", file=sys.stderr)
        return 2
    print(written.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
