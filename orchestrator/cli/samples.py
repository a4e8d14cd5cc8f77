"""Computing a run's samples again from its token files, where they are at hand."""

from collections.abc import Callable
from pathlib import Path

from orchestrator.cli.errors import BadInput
from orchestrator.reports.tokens import SAMPLE, TokenCheck, TokenFiles
from orchestrator.store.objects import StoreUnavailable
from orchestrator.store.opening import is_bucket, open_ranges, split_address
from orchestrator.store.run_store import RunStore


def token_check(
    store: RunStore, data_root: str | None, *, say: Callable[[str], None], sample: int = SAMPLE
) -> TokenCheck | None:
    """How to compute them; None, and said so, where the files are not and nobody named their place.

    Raises:
        BadInput: ``data_root`` is no folder.
        StoreUnavailable: ``data_root`` is in a bucket that cannot be asked.
    """
    root = data_root or store.run().data_root
    try:
        if _is_there(root):
            return TokenCheck(source=TokenFiles(root), sample=sample)
    except StoreUnavailable as error:
        if data_root is not None:
            raise
        say(str(error))
    if data_root is not None:
        raise BadInput(f"--data-root {root}: no such folder; name the one with the token files")
    say(f"token files are not at {root}, so samples are not computed again; --data-root says where they are")
    return None


def _is_there(root: str) -> bool:
    """Raises StoreUnavailable: it is in a bucket that cannot be asked, or is not there."""
    if not is_bucket(root):
        return Path(root).is_dir()
    open_ranges(split_address(root)[0]).check()
    return True
