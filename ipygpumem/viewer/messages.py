"""Custom messages between a widget and its page.

What a widget synchronizes is saved in notebooks, including its script. Widgets therefore synchronize only a loader of
two kilobytes; the loader requests everything else by custom messages, which are not saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable

    Answer = tuple[dict[str, Any], list[memoryview]]

__all__ = ["MAX_BYTES", "answer_request", "slice_of"]

MAX_BYTES = 4_000_000
"""Limit of one message: some servers reject messages of more than 5 MB."""


def answer_request(widget: Any, request: Any, buffers: Any, answer: Callable[[dict[str, Any]], Answer]) -> None:
    """Send the answer to a request with the request's id, or an ``"error"`` if it cannot be answered."""
    del buffers
    request = request if isinstance(request, dict) else {}
    try:
        content, parts = answer(request)
    except Exception as error:
        content, parts = {"error": first_line(error)}, []
    widget.send({"id": request.get("id"), **content}, buffers=parts)


def slice_of(name: str, data: bytes, start: Any) -> Answer:
    """Return the total size of the data and at most `MAX_BYTES` of it from ``start`` on.

    Raises:
        OptionError: ``start`` is not a position in the data.
    """
    if not isinstance(start, int) or not 0 <= start <= len(data):
        raise OptionError(f"{name!r} has no byte {start!r}: its size is {len(data)} bytes")
    return {"size": len(data)}, [memoryview(data)[start : start + MAX_BYTES]]
