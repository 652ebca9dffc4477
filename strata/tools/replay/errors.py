"""What is wrong with the input of a replay."""

from __future__ import annotations

__all__ = ["InputError"]


class InputError(ValueError):
    """The case, or an argument of the replay, cannot be used; nothing was streamed."""
