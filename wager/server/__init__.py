"""THE HTTP FACE: how do clients reach a running engine?

Read bridge.py first (the engine's thread and how requests get there and back), then answers.py (one request,
whatever its dialect), then a dialect: chat.py, completions.py, responses.py, messages.py. app.py puts them
together; doors.py is what every request passes on its way in; problems.py is how anything is refused.

May import `wager.engine.engine` and levels 0 and 1; no torch. FastAPI and its kin are optional: only this
room and `wager serve` need them.
"""
