"""What is left of an error of a user's Python function, which Spark shows as pages of text: its line, itself, its causes."""

from __future__ import annotations

import traceback

from steadyworker.exports.spark.building import from_traceback


def shown(error: BaseException) -> str:
    """The text that Spark makes of an error in a Python worker."""
    pages = "".join(traceback.format_exception(error))
    return (
        f"\n  An exception was thrown from the Python worker:\n{pages}\n\tat org.apache.spark.api.python.PythonRunner\n"
    )


def raised(error: Exception, *causes: Exception, implicit: bool = False) -> Exception:
    """This error, raised from the first cause, which was raised from the next one."""
    try:
        if causes:
            try:
                raise raised(*causes, implicit=implicit)  # noqa: TRY301 - this is what is tested
            except Exception as cause:
                if implicit:
                    raise error  # noqa: B904 - this is what is tested
                raise error from cause
        raise error  # noqa: TRY301 - as above
    except Exception as found:  # noqa: BLE001 - with its traceback
        return found


def test_an_error_is_one_line_with_its_place_and_its_causes() -> None:
    error, cause = ValueError("no name\nsecond line"), KeyError(17)
    for implicit in (False, True):
        said = from_traceback(shown(raised(error, cause, OSError("gone\n\nfor good"), implicit=implicit)))
        assert said.startswith(f"a Python function failed at {__file__}:")
        assert said.endswith(" in raised: ValueError: no name (caused by KeyError: 17) (caused by OSError: gone)")


def test_a_text_without_a_traceback_is_none() -> None:
    assert from_traceback("[TABLE_OR_VIEW_NOT_FOUND] The table `x` cannot be found.\n  at line 1") == ""
    assert from_traceback("") == ""


def test_of_many_causes_three_are_shown() -> None:
    said = from_traceback(shown(raised(*(ValueError(number) for number in range(8, -1, -1)))))
    assert said.endswith("ValueError: 8 (caused by ValueError: 7) (caused by ValueError: 6) (caused by ValueError: 5)")
