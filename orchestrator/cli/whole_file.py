"""A file that appears whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(target: Path) -> Iterator[BinaryIO]:
    """Write into it; it takes its place when that ends well, on the disk by then. Others may read it."""
    number, partial = tempfile.mkstemp(dir=target.parent, prefix=".new-")
    try:
        with open(number, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.chmod(partial, 0o644)
        os.replace(partial, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(partial)
        raise
