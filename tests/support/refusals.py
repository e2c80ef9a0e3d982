"""Messages of refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pcopy.errors import RequestRefused


def refusal(action: Callable[[], object]) -> str:
    """Return the single line with which ``action`` is refused."""
    with pytest.raises(RequestRefused) as caught:
        action()
    text = str(caught.value)
    assert text.isprintable()
    return text
