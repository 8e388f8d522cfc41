"""HOW DO PYTHON PROGRAMS REACH IT? `LLM` for threads, `AsyncLLM` for event loops, and their results.

Both are a `LoadedModel` (loaded.py) and run the requests of all their callers on one engine, in the engine's
own thread (calls.py). prompts.py turns prompts of any kind into token ids, outputs.py has the results. May
import the engine's engine, assemble and thread, and levels 0 and 1. Read llm.py first.
"""

from wager.llm.async_llm import AsyncLLM
from wager.llm.llm import LLM
from wager.llm.outputs import Output, Stats, StreamEvent

__all__ = ["LLM", "AsyncLLM", "Output", "Stats", "StreamEvent"]
