"""Many cheap cases in one test: `each` loops where `pytest.mark.parametrize` would make a test per case.

A case of a millisecond costs several as a test of its own. `each` is for cases that need no fixture of their own; the
error of a case that fails carries a note that names it.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def each(names: str | tuple[str, ...], values: Iterable[Any] | Mapping[str, Any]) -> Callable[[Callable], Callable]:
    """Return a decorator that runs a test with each of the values, which a mapping may label.

    >>> @each(("base", "power", "result"), [(2, 3, 8), (3, 2, 9)])
    ... def test_powers(base, power, result):
    ...     assert base**power == result
    >>> test_powers()
    """
    cases = list(values.items()) if isinstance(values, Mapping) else [(repr(value), value) for value in values]
    arguments = (names,) if isinstance(names, str) else names

    def decorate(test: Callable) -> Callable:
        @functools.wraps(test)
        def looped(*args: Any, **options: Any) -> None:
            for label, value in cases:
                case = dict(zip(arguments, (value,) if isinstance(names, str) else value, strict=True))
                try:
                    test(*args, **options, **case)
                except BaseException as error:
                    error.add_note(f"with {', '.join(arguments)} = {label}")
                    raise

        signature = inspect.signature(test)
        assert set(arguments) <= set(signature.parameters), f"{test.__name__} takes no {arguments}"
        left = [parameter for name, parameter in signature.parameters.items() if name not in arguments]
        looped.__signature__ = signature.replace(parameters=left)  # pytest asks fixtures for these only
        return looped

    assert cases, "a loop over no cases checks nothing"
    return decorate
