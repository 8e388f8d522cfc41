"""The messages of one chat: turns, what the model still sees of them, and their file.

A turn is a question and its answer. When the context is full, the oldest turns are no longer sent to the
model, but stay in the conversation and in its file. It knows no model; chat_session.py uses it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wager.errors import InputError

__all__ = ["Conversation", "read_conversation", "write_conversation"]

Message = dict[str, str]
_ROLES = ("user", "assistant")


@dataclass
class Conversation:
    """Questions and answers in turns, behind an optional system text."""

    system: str = ""
    messages: list[Message] = field(default_factory=list)
    """A question and an answer in turns; the last question may have no answer yet."""
    num_dropped: int = 0
    """Messages at the beginning that the model no longer sees."""

    @property
    def prompt(self) -> list[Message]:
        """The messages that are sent to the model."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages[self.num_dropped :]]

    @property
    def num_turns(self) -> int:
        return (len(self.messages) + 1) // 2

    @property
    def is_waiting(self) -> bool:
        """Whether the last question has no answer yet."""
        return len(self.messages) % 2 == 1

    def ask(self, text: str) -> None:
        assert not self.is_waiting
        self.messages.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        assert self.is_waiting
        self.messages.append({"role": "assistant", "content": text})

    def take_back_answer(self) -> bool:
        """Removes the last answer; returns whether there was one."""
        if not self.messages or self.is_waiting:
            return False
        self.messages.pop()
        return True

    def take_back_turn(self) -> bool:
        """Removes the last question and its answer; returns whether there was one."""
        self.take_back_answer()
        if not self.messages:
            return False
        self.messages.pop()
        self.num_dropped = min(self.num_dropped, len(self.messages))
        return True

    def drop_oldest_turn(self) -> bool:
        """Hides the oldest visible turn from the model; returns False if only the last question is left."""
        if self.num_dropped + 2 >= len(self.messages):
            return False
        self.num_dropped += 2
        return True

    def clear(self) -> None:
        self.messages.clear()
        self.num_dropped = 0


def write_conversation(conversation: Conversation, path: Path, model: str) -> None:
    """Writes a conversation as JSON. Raises InputError."""
    values = {"model": model, "system": conversation.system, "messages": conversation.messages}
    try:
        path.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", str(path)) from error


def read_conversation(path: Path) -> Conversation:
    """Reads a conversation, with all of its turns visible to the model. Raises InputError."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", str(path)) from error
    except ValueError as error:
        raise InputError(f"is not JSON: {error}", str(path)) from error
    if not isinstance(values, dict) or not isinstance(values.get("system", ""), str):
        raise InputError("is not a conversation", str(path))
    found = Conversation(values.get("system", ""))
    listed = values.get("messages")
    if not isinstance(listed, list):
        raise InputError("has no messages", str(path))
    for place, message in enumerate(listed):
        found.messages.append(_checked(message, place, path))
    return found


def _checked(message: Any, place: int, path: Path) -> Message:
    role = _ROLES[place % 2]
    if not isinstance(message, Mapping) or message.get("role") != role:
        raise InputError(f"messages[{place}] is not a message of the role {role}", str(path))
    content = message.get("content")
    if not isinstance(content, str):
        raise InputError(f"messages[{place}] has no text", str(path))
    return {"role": role, "content": content}
