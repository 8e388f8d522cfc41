"""THE HTTP SERVER: how do clients reach a running engine?

Read bridge.py first (the engine's thread and how requests and updates cross it), then generation_request.py
and generation.py (what was asked and what is answered, for all APIs), then answer_writer.py and one API:
chat.py, completions.py, responses.py or messages.py. app.py puts them together; middleware.py checks every
request; api_errors.py makes every error answer.

May import `wager.engine.engine`, `wager.engine.assemble` and levels 0 and 1; no torch. FastAPI and related
packages are optional: only this package and `wager serve` need them.
"""
