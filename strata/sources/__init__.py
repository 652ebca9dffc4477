"""Where the bytes of experts come from."""

from strata.sources.files import File

__all__ = ["File"]
