"""`expect_error` of the kit compares the fields of an error, and says which one differs."""

from __future__ import annotations

import pytest
from squish_testing import expect_error

from squish_core.errors import FormatError, TruncatedError


def truncated() -> TruncatedError:
    return TruncatedError("too short", tensor="w", offset=8, expected=4, found=3, code="bounds", hint="Fetch it again.")


def test_an_error_with_these_fields_is_expected() -> None:
    with expect_error(FormatError, code="bounds", tensor="w", offset=8, found=3, hint="again") as caught:
        raise truncated()
    assert caught.value.expected == 4


@pytest.mark.parametrize(
    ("field", "value"), [("code", "size"), ("tensor", None), ("offset", 9), ("part", "data"), ("hint", "Delete it")]
)
def test_another_field_fails_with_both_values(field: str, value: object) -> None:
    message = f"{field} is {getattr(truncated(), field)!r}, not {value!r}"
    with pytest.raises(AssertionError) as caught, expect_error(FormatError, **{field: value}):
        raise truncated()
    assert str(caught.value).startswith(message)


def test_no_error_fails() -> None:
    with pytest.raises(pytest.fail.Exception), expect_error(FormatError, code="bounds"):
        pass


def test_a_field_that_errors_lack_fails() -> None:
    with pytest.raises(AssertionError, match="no field row"), expect_error(FormatError, row=1):
        raise truncated()
