"""Everything Wager raises on purpose. Each message is one line, fit to be shown to a user as it is.

    WagerError
    ├── ConfigError       a setting has a value that is not allowed: names field, value and what is allowed
    ├── InputError        data or a path given by the user cannot be used: names the field
    │   └── TraceError    a recorded trace is missing, damaged or of another version
    ├── ModelError        a model cannot be loaded or run as asked
    │   └── WeightsError  a tensor is missing, left over or of the wrong shape: names the tensor
    ├── DrafterError      a drafter failed; its row goes on with a zero bet
    ├── CapacityError     the request can never fit into this machine's memory or limits
    │   └── OutOfPages    no room for it now: the scheduler waits or preempts, callers never see it
    ├── PageError         the page accounts contradict themselves: a fault in Wager, not in its input
    └── RequestError      a request asks for something malformed or refused: names the field

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
    """Fold any text into a single line."""
    return " ".join(str(text).split())


class WagerError(Exception):
    """The root of the tree: catch this to catch all that Wager raises on purpose."""

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
    """An error that may name the one field, path or tensor at fault; it shows as `field: message`."""

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
    """A model that cannot be loaded or run as asked."""


class WeightsError(ModelError):
    """A tensor that is missing, left over or of the wrong shape."""

    def __init__(self, message: object, tensor: str | None = None) -> None:
        super().__init__(message if tensor is None else f"tensor {tensor}: {message}")
        self.message = one_line(message)
        self.tensor = tensor

    def __reduce__(self) -> tuple[type["WeightsError"], tuple[str, str | None]]:
        return type(self), (self.message, self.tensor)


class DrafterError(WagerError):
    """A drafter that failed; its row goes on with a zero bet, and the failure is counted."""


class CapacityError(WagerError):
    """A request that can never fit, however long it waits."""


class OutOfPages(CapacityError):
    """Too few pages at this moment, counting those that could be evicted; says how many were asked for."""

    def __init__(self, num_wanted: int, num_available: int) -> None:
        super().__init__(f"{num_wanted} pages wanted, {num_available} available")
        self.num_wanted = num_wanted
        self.num_available = num_available

    def __reduce__(self) -> tuple[type["OutOfPages"], tuple[int, int]]:
        return type(self), (self.num_wanted, self.num_available)


class PageError(WagerError):
    """A page used against its count: released twice, retained while free, or stored under two names."""


class RequestError(_FieldError):
    """A request that asks for something malformed or refused."""
