"""On a CUDA device nothing is compiled behind the start: whoever comes first waits no longer than others."""

import json
import subprocess
import sys

import pytest

_SCRIPT = """
import json, triton
from wager.llm import LLM
from wager.records import SamplingParams

llm = LLM(device="cuda", dtype="bfloat16", max_rows=24, calibrate=False)
compiled = []
triton.knobs.runtime.jit_cache_hook = lambda **what: compiled.append(what["repr"]) and None
text = "The quick brown fox jumps over the lazy dog, and the river runs past the old mill. "
filters = [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 5, "top_p": 0.9, "min_p": 0.1}]
for policy in ("auto", "tree:8", "fixed:6"):
    llm.engine.controller.set_policy(policy)
    for rows in (1, 2, 12, 17):
        llm.generate([text[at:] for at in range(rows)], SamplingParams(max_tokens=24, ignore_eos=True))
    llm.generate([text[at:] * 7 for at in range(8)], SamplingParams(max_tokens=8))  # more than any bucket
    for own in filters:
        llm.generate([text, text[5:]], SamplingParams(max_tokens=8, temperature=0.8, **own))
print(json.dumps({"compiled": compiled, "graphs": llm.engine.parts.notes["graphs"]["value"]}))
"""


@pytest.mark.gpu
def test_requests_compile_nothing() -> None:
    """In a process of its own: what other tests had compiled would hide it."""
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["graphs"] > 0, "the kernels are not in use"
    assert found["compiled"] == []
