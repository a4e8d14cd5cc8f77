"""A store whose disk gets full under a trainer that lives."""

import json
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.contract.attempt import ExitCode
from tests.local.attempts import REPOSITORY
from tests.local.full_disk import EVERY
from trainer.ledger import CLOSE_AT


def test_saves_fail_on_a_full_disk_while_training_goes_on_and_succeed_once_it_is_freed(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("a small file system needs a user namespace, which this machine does not allow")
    command = ["unshare", "-rm", sys.executable, "-m", "tests.local.full_disk", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(done.stdout)
    output = seen["output"]
    assert len(seen["failed"]) > CLOSE_AT // EVERY, output
    assert seen["failures"] == len(seen["failed"]), "each is shown in the progress of the process"
    assert "No space left on device" in output
    recorded = seen["recorded"]
    assert recorded == list(range(len(recorded))), "all records that waited are there"
    assert recorded[-1] > seen["failed"][-1]
    assert seen["ended"] == [-9], "it had to be killed"
    assert seen["resume"] > seen["failed"][-1]
    assert set(seen["failed"]).isdisjoint(seen["committed"])
    steps = sorted({*seen["failed"], *seen["committed"]} - {0})
    assert all(later - earlier == EVERY for earlier, later in pairwise(steps)), "every interval was tried"
    assert seen["second"] == [ExitCode.LAST_STEP_COMMITTED], output
    assert seen["replayed"] == list(range(seen["resume"], recorded[-1] + 1)), "bit for bit, or it had ended with 83"
