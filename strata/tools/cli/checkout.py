"""Commands whose code stays in the source tree: the wheel does not carry the harness."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from strata.errors import StrataError
from strata.tools.files import check_ours

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
        The current folder is none, or one that others may have put there: in a shared folder, say.
    """
    here = Path.cwd()
    package = here / "benchmarks"
    if not (package / "ab" / "__init__.py").is_file():
        raise NotACheckout(f"{what} is run from a checkout of strata, since its code is no part of the installed "
                           f"package; {str(here)!r} is none")
    try:
        for place in (here, package, package / "__init__.py", package / "ab", package / "ab" / "__init__.py"):
            check_ours(place)
    except OSError as problem:
        raise NotACheckout(f"{what} does not run code from {str(here)!r}: {problem.filename} {problem.strerror}"
                           ) from None
    if str(here) not in sys.path:
        sys.path.insert(0, str(here))
    return importlib.import_module(module)
