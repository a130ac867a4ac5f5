"""The most memory that was taken."""

import json
import subprocess
import sys

LARGE = 400  # MiB
CODE = f"""
import json, torch
from coset.core.memory import fresh_peak_gib, peak_mib
before = peak_mib()
torch.ones({LARGE} * 2**18)
print(json.dumps([before, peak_mib(), 1024 * fresh_peak_gib("cpu")]))
"""


def test_the_peak_stays_after_memory_is_let_go() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    before, after, again = json.loads(done.stdout)
    assert LARGE <= after - before < 1.5 * LARGE and again == after
