"""``python -m tests.local.double_shard_trainer``: ``stand_in_trainer`` with a loader that shards twice if told to."""

import os
from functools import partial
from typing import NoReturn

from tests.double_shard import OrderedTwice
from tests.local import stand_in_trainer
from trainer import train

HOSTS_VARIABLE = "DOUBLE_SHARD_HOSTS"
"""Environment variable: how many hosts sample again, each inside its own shard; unset: the loader is as it is."""


def load_story() -> train.RunAttempt:
    from trainer.data import token_files

    if HOSTS_VARIABLE in os.environ:
        hosts = int(os.environ[HOSTS_VARIABLE])
        token_files.GlobalOrder = partial(OrderedTwice, hosts=hosts, again="drawn")  # type: ignore[assignment,misc]
    return stand_in_trainer.load_story()


def main() -> NoReturn:
    train.main(load_story)


if __name__ == "__main__":
    main()
