"""The zygote without JAX, so that tests of its life need not wait for imports."""

import sys

from trainer import zygote

if __name__ == "__main__":
    sys.exit(zygote.main([*sys.argv[1:], "--preload", "json"]))
