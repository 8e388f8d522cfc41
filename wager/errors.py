"""Every error that Wager raises on purpose. Each message is one line that can be shown to a user.

    WagerError
    ├── ConfigError       a setting has a value that is not allowed: names field, value and what is allowed
    ├── InputError        data or a path given by the user cannot be used: names the field
    │   └── TraceError    a recorded trace is missing, damaged or of another version
    ├── ModelError        a model cannot be loaded or run as requested
    │   └── WeightsError  a tensor is missing, left over or of the wrong shape: names the tensor
    ├── DrafterError      a drafter failed; its row continues without guesses
    ├── CapacityError     the request can never fit into this machine's memory or limits
    │   └── OutOfPages    too few free pages now: the scheduler waits or preempts, callers never see it
    ├── PageError         the reference counts of pages are inconsistent: a fault in Wager, not in its input
    └── RequestError      a request has a malformed or refused field: names the field

This module does not know how errors are shown: the command line prints them, the server answers with them.
"""

__all__ = [
    "CapacityError",
    "ConfigError",
    "DrafterError",
    "InputError",
    "ModelError",
    "OutOfPages",
    "PageError",
    "RequestError",
    "TraceError",
    "WagerError",
    "WeightsError",
]


def one_line(text: object) -> str:
    """Joins the lines of a text to a single line."""
    return " ".join(str(text).split())


class WagerError(Exception):
    """Base class of every error that Wager raises on purpose."""

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(message))


class ConfigError(WagerError):
    """A setting whose value is not allowed."""

    def __init__(self, field: str, value: object, allowed: object) -> None:
        super().__init__(f"{field} = {value!r}: expected {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[str, object, object]]:
        return type(self), (self.field, self.value, self.allowed)


class _FieldError(WagerError):
    """An error that may name the field, path or tensor at fault; it is shown as `field: message`."""

    def __init__(self, message: object, field: str | None = None) -> None:
        super().__init__(message if field is None else f"{field}: {message}")
        self.message = one_line(message)
        self.field = field

    def __reduce__(self) -> tuple[type["_FieldError"], tuple[str, str | None]]:
        return type(self), (self.message, self.field)


class InputError(_FieldError):
    """Data or a path given by the user that cannot be used."""


class TraceError(InputError):
    """A recorded trace that is missing, damaged or of another version."""


class ModelError(WagerError):
    """A model that cannot be loaded or run as requested."""


class WeightsError(ModelError):
    """A tensor that is missing, left over or of the wrong shape."""

    def __init__(self, message: object, tensor: str | None = None) -> None:
        super().__init__(message if tensor is None else f"tensor {tensor}: {message}")
        self.message = one_line(message)
        self.tensor = tensor

    def __reduce__(self) -> tuple[type["WeightsError"], tuple[str, str | None]]:
        return type(self), (self.message, self.tensor)


class DrafterError(WagerError):
    """A drafter that failed; its row continues without guesses, and the failure is counted."""


class CapacityError(WagerError):
    """A request that can never fit, however long it waits."""


class OutOfPages(CapacityError):
    """Too few pages are free at this moment, including those that could be evicted."""

    def __init__(self, num_wanted: int, num_available: int) -> None:
        super().__init__(f"{num_wanted} pages wanted, {num_available} available")
        self.num_wanted = num_wanted
        self.num_available = num_available

    def __reduce__(self) -> tuple[type["OutOfPages"], tuple[int, int]]:
        return type(self), (self.num_wanted, self.num_available)


class PageError(WagerError):
    """A page was used against its reference count: released twice, retained while free, or stored twice."""


class RequestError(_FieldError):
    """A request with a malformed or refused field."""
