"""``everstep schemas --out`` this folder; ``--check`` compares only."""

import sys
from pathlib import Path

from orchestrator.cli.main import main

if __name__ == "__main__":
    main(["schemas", "--out", str(Path(__file__).resolve().parent), *sys.argv[1:]])
