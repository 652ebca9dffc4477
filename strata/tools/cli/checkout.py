"""Commands whose code stays in the source tree: the wheel does not carry the harness."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from strata.errors import StrataError

__all__ = ["NotACheckout", "from_checkout"]


class NotACheckout(StrataError):
    """The command was run elsewhere than in a checkout of strata."""


def from_checkout(module: str, what: str) -> ModuleType:
    """Import a module of ``benchmarks`` from the checkout that the command was started in.

    Parameters
    ----------
    module : str
        Its dotted name.
    what : str
        The command, for the message.

    Raises
    ------
    NotACheckout
        If the current folder is none.
    """
    here = Path.cwd()
    if not (here / "benchmarks" / "ab" / "__init__.py").is_file():
        raise NotACheckout(f"{what} is run from a checkout of strata, since its code is no part of the installed "
                           f"package; {str(here)!r} is none")
    if str(here) not in sys.path:
        sys.path.insert(0, str(here))
    return importlib.import_module(module)
