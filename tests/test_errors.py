"""The exception tree: its drawing is true, messages are one line, and errors survive pickling."""

import pickle
import re
import textwrap

import pytest

from wager import errors

EXAMPLES = [
    errors.ConfigError("max_bet", 0, "an integer >= 1"),
    errors.InputError("no such file", "trace"),
    errors.TraceError("version 9"),
    errors.ModelError("no\nsuch model"),
    errors.WeightsError("shape [2] is not [3]", tensor="fc.weight"),
    errors.DrafterError("no features"),
    errors.CapacityError("9000 tokens in 4096 places"),
    errors.RequestError("must be >= 0", "temperature"),
]


def drawn_parents() -> dict[str, str]:
    """Child to parent, read from the drawing: a name's column says how deep it hangs."""
    [drawing] = re.findall(r"(?:^ {4}.*\n)+", errors.__doc__ or "", flags=re.MULTILINE)
    stack: list[str] = []
    parents = {}
    for line in textwrap.dedent(drawing).splitlines():
        if match := re.match(r"((?:[│├└─ ]{4})*)(WagerError$|(?<=── )\w+)", line):
            depth = len(match.group(1)) // 4
            stack[depth:] = [match.group(2)]
            parents[match.group(2)] = stack[depth - 1] if depth else "Exception"
    return parents


def real_parents() -> dict[str, str]:
    """Child to nearest public parent, for every exported class."""
    public = {name: getattr(errors, name) for name in errors.__all__}
    return {
        name: next(base.__name__ for base in cls.__mro__[1:] if not base.__name__.startswith("_"))
        for name, cls in public.items()
    }


def test_the_drawing_is_true() -> None:
    assert drawn_parents() == real_parents()


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_messages_are_one_line_and_survive_pickling(error: errors.WagerError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert str(error) and "\n" not in str(error)


def test_errors_name_what_is_at_fault() -> None:
    assert str(EXAMPLES[0]) == "max_bet = 0: expected an integer >= 1"
    assert str(EXAMPLES[1]) == "trace: no such file"
    assert str(EXAMPLES[4]) == "tensor fc.weight: shape [2] is not [3]"
