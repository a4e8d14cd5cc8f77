"""Text to token ids: bytes, for demonstrations, or any tokenizer.json through Hugging Face's library."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from orchestrator.cli.errors import BadInput

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTES = "bytes"
END_OF_DOCUMENT = 256
"""After the ids of bytes."""
END_OF_TEXT = "<|endoftext|>"
"""What dolma2, and most other tokenizers for pretraining, call the token that ends a document."""

Ids = NDArray[np.uint32]


class Encoder(Protocol):
    """What turns documents into ids."""

    @property
    def sha256(self) -> str | None:
        """Of its file; None: bytes."""
        ...

    @property
    def largest_id(self) -> int:
        """That it can give, the end of a document included."""
        ...

    @property
    def end(self) -> int | None:
        """The id that ends a document; None: none."""
        ...

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, without its end."""
        ...


def ended(ids: Ids, end: int | None) -> Ids:
    """The ids with the end of a document, as dolma adds it: not to an empty one, and not twice."""
    if end is None or not len(ids) or ids[-1] == end:
        return ids
    return np.append(ids, np.uint32(end))


def ids_of_bytes(data: bytes) -> Ids:
    """A token for each byte."""
    return np.frombuffer(data, np.uint8).astype("<u4")


@dataclass(frozen=True)
class ByteEncoder:
    """id = byte: the same everywhere, and enough for a demonstration."""

    end: int | None = END_OF_DOCUMENT
    sha256: None = None
    largest_id: int = END_OF_DOCUMENT

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        return [ids_of_bytes(text.encode()) for text in texts]


@dataclass(frozen=True)
class FileEncoder:
    """A tokenizer.json; special tokens that are written out in a text become their ids, as in dolma."""

    tokenizer: "Tokenizer"
    sha256: str
    largest_id: int
    end: int | None

    @classmethod
    def read(cls, path: Path, *, end: str | None) -> "FileEncoder":
        """``end`` is the token that ends a document.

        Raises:
            BadInput: the library or the file is missing, it is no tokenizer, or has no such token.
        """
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise BadInput(
                f"{path}: reading it needs tokenizers, which is not installed; pip install 'everstep[data]'"
            ) from error
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror or error}; name a tokenizer.json, or {BYTES}") from error
        try:
            tokenizer = Tokenizer.from_str(data.decode())
        except Exception as error:  # the library raises no class of its own
            raise BadInput(f"{path}: is no tokenizer ({error!s:.200}); name a tokenizer.json, or {BYTES}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        number = None if end is None else tokenizer.token_to_id(end)
        if end is not None and number is None:
            raise BadInput(f"{path}: has no token {end!r:.60}; name the one that ends a document: --end-of-text TOKEN")
        largest = max(tokenizer.get_vocab(with_added_tokens=True).values())
        return cls(tokenizer, hashlib.sha256(data).hexdigest(), largest, number)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        found = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, "<u4") for one in found]
