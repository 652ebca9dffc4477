"""What is wrong with the user's input: printed as one line, exit status 2."""

from __future__ import annotations

__all__ = ["InputError"]


class InputError(ValueError):
    """A size, a checkpoint or a prompt that cannot be used. Nothing was changed when it is raised."""
