"""Exceptions that strata raises.

A wrong argument raises ``ValueError``, ``TypeError`` or ``IndexError`` as everywhere in Python; everything
that goes wrong while strata works raises a `StrataError`. All of them can be pickled, so that a worker
process may hand them to its parent.
"""

from __future__ import annotations

import errno as _errno
import os
from typing import Any

__all__ = [
    "CheckpointError",
    "HipError",
    "RequestAborted",
    "RuntimeNotFound",
    "SettingsError",
    "SourceReadError",
    "StallError",
    "StrataError",
]


class StrataError(Exception):
    """Base of every error that is strata's own."""


class HipError(StrataError):
    """A HIP call returned a status other than success.

    Parameters
    ----------
    call : str
        The function that failed, e.g. ``"hipMemcpyAsync"``.
    status : int
        The status it returned.
    name : str
        HIP's own name for the status, e.g. ``"hipErrorInvalidValue"``.
    entry : int, optional
        The entry of the request that the call was made for.
    slot : int, optional
        The GPU slot (its index in the ring) that the call was made for.
    detail : str, optional
        What else helps to understand the failure; appended to the message.

    Attributes
    ----------
    call, status, name, entry, slot, detail
        As given.
    """

    def __init__(
        self,
        call: str,
        status: int,
        name: str,
        entry: int | None = None,
        slot: int | None = None,
        *,
        detail: str | None = None,
    ) -> None:
        super().__init__(call, status, name, entry, slot)
        self.call = call
        self.status = status
        self.name = name
        self.entry = entry
        self.slot = slot
        self.detail = detail

    def __str__(self) -> str:
        places = []
        if self.entry is not None:
            places.append(f"entry {self.entry}")
        if self.slot is not None:
            places.append(f"slot {self.slot}")
        text = f"{self.call} failed with {self.name} ({self.status})"
        if places:
            text += " at " + ", ".join(places)
        if self.detail:
            text += f": {self.detail}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the class with the arguments alone; `detail` and notes travel as state.
        return type(self), (self.call, self.status, self.name, self.entry, self.slot), self.__dict__


class SettingsError(StrataError, ValueError):
    """An environment variable holds a value that it may not hold."""


class SourceReadError(StrataError, OSError):
    """A worker could not read an entry's bytes from their file: an error of the system, or the file has shrunk.

    Parameters
    ----------
    code : int
        The system's error code; 0 where the file ended before the bytes did.
    filename : str or None
        The file, as it was opened.
    offset : int
        Where the read began, bytes.
    entry : int
        The entry of the request.
    got, wanted : int
        Bytes that came, and that were asked for.

    Attributes
    ----------
    errno : int
        `code`, or ``errno.EIO`` where the file ended.
    filename, offset, entry, got, wanted
        As given.
    """

    def __init__(self, code: int, filename: str | None, offset: int, entry: int, got: int, wanted: int) -> None:
        super().__init__(code, filename, offset, entry, got, wanted)
        self.code = code
        self.errno = code or _errno.EIO
        self.strerror = os.strerror(code) if code else "the file has shrunk since it was opened"
        self.filename = filename
        self.offset = offset
        self.entry = entry
        self.got = got
        self.wanted = wanted

    def __str__(self) -> str:
        return (f"reading {self.wanted} bytes of entry {self.entry} at offset {self.offset} of {self.filename!r}: "
                f"{self.strerror} (errno {self.errno}); {self.got} bytes came")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.filename, self.offset, self.entry, self.got, self.wanted)


class StallError(StrataError, TimeoutError):
    """A wait saw no progress for as long as the caller allowed; the message names who waits for what."""


class RequestAborted(StrataError):
    """The request was aborted or cancelled, so what was asked of it cannot be done any more."""


class RuntimeNotFound(StrataError):
    """No HIP runtime of the wanted kind is there, or it lacks a function that strata needs."""


class CheckpointError(StrataError, ValueError):
    """A checkpoint's files are not what they should be; the message names file and tensor."""
