"""A process that serves does not look for garbage among what it has loaded."""

import subprocess
import sys

_SCRIPT = """
import gc
from wager.garbage import settle_garbage

held = [[] for _ in range(1000)]
before = gc.get_threshold()
settle_garbage()
assert gc.get_freeze_count() > 1000 and not any(one is held for one in gc.get_objects())
assert gc.get_threshold()[:2] == before[:2] and gc.get_threshold()[2] > before[2]
loop = []
loop.append(loop)
del loop
assert gc.collect() > 0, "what comes later is still found"
"""


def test_what_is_loaded_is_left_alone() -> None:
    """In a process of its own: it holds for the whole of one."""
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
