"""Which interpreters of a process may have strata: the main one alone.

HIP's bindings take the GIL by ``PyGILState_Ensure``, which knows the main interpreter only: called from another one
they wait for ever. NumPy has one interpreter a process, too. So a subinterpreter is refused before anything native is
loaded, and whoever imports strata in the main one later finds nothing half-done.
"""

from __future__ import annotations

import importlib

__all__ = ["refuse_subinterpreter"]


def refuse_subinterpreter() -> None:
    """Raise `ImportError` in every interpreter but the process's first."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # since CPython 3.13; before that
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        if interpreters.get_current() != interpreters.get_main():
            raise ImportError("strata works in a process's main interpreter alone, and this is a subinterpreter: HIP's "
                              "bindings would wait for ever for the GIL here", name="strata")
        return
