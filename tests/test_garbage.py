"""A process that serves does not look for garbage among what it has loaded."""

import subprocess
import sys

_SCRIPT = """
import gc
from wager.garbage import settle_garbage, use_idle_moment

held = [[] for _ in range(1000)]
before = gc.get_threshold()
settle_garbage()
assert gc.get_freeze_count() > 1000 and not any(one is held for one in gc.get_objects())
assert gc.get_threshold()[:2] == before[:2] and gc.get_threshold()[2] > before[2]
loop = []
loop.append(loop)
del loop
assert gc.collect() > 0, "what comes later is still found"
for looks, collects in ((0, False), (50, False), (60, True)):
    for _ in range(looks):
        gc.collect(1)
    seen = gc.get_stats()[2]["collections"]
    use_idle_moment()
    assert (gc.get_stats()[2]["collections"] > seen) is collects, looks
"""


def test_what_is_loaded_is_left_alone() -> None:
    """In a process of its own: it holds for the whole of one."""
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
