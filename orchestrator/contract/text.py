"""Text for a person: whatever it quotes, it stays one line that a terminal shows as it is."""

LONGEST = 400
"""Characters of a line that quotes what somebody else wrote."""
_HEAD = 240
"""Of these, before what is left out; what is wrong stands there, and the remedy at the end."""


def one_line(text: str, *, longest: int | None = None) -> str:
    """The same text without line breaks and with other control characters written out; too long, without its middle."""
    line = " ".join(part.strip() for part in text.splitlines())
    shown = "".join(letter if letter.isprintable() else _written_out(letter) for letter in line)
    if longest is None or len(shown) <= longest:
        return shown
    return f"{shown[:_HEAD]} … {shown[_HEAD + 3 - longest :]}"


def _written_out(letter: str) -> str:
    return letter.encode("unicode_escape").decode()
