"""Token files: headerless little-endian uint32, mapped into memory."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orchestrator.contract.base import ContractError
from orchestrator.contract.recipe import TokenFile

BYTES_A_TOKEN = 4


def count_tokens(path: Path) -> int:
    """Tokens in a file, by its size.

    Raises:
        ContractError: it is missing, empty, or not a whole number of tokens; one line.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ContractError(f"{path}: {error.strerror or error}; correct data_root or the recipe's path") from error
    if size % BYTES_A_TOKEN or not size:
        raise ContractError(
            f"{path}: {size:,} bytes is not a whole, positive number of uint32 tokens; it is torn or has another "
            "format: write it again as little-endian uint32 without a header"
        )
    return size // BYTES_A_TOKEN


def mapped(file: TokenFile, *, data_root: Path) -> NDArray[np.uint32]:
    """The tokens of a recipe's file, not read yet.

    Raises:
        ContractError: the file is missing, or is not as long as the recipe says; one line.
    """
    path = data_root / file.path
    found = count_tokens(path)
    if found != file.tokens:
        said = "nothing" if file.tokens is None else f"{file.tokens:,}"
        raise ContractError(
            f"{path}: holds {found:,} tokens, the recipe says {said}; restore the file that the run was "
            "submitted with, or give the data_root that it was submitted with"
        )
    try:
        return np.memmap(path, dtype="<u4", mode="r")
    except OSError as error:
        raise ContractError(f"{path}: {error.strerror or error}; make it readable") from error
