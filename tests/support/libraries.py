"""The software runtime as an older library: without one of its symbols."""

from __future__ import annotations

from pathlib import Path

from strata.runtime import software


def library_without(symbol: str, folder: Path) -> Path:
    """Copy the software runtime's library into `folder` with the symbol struck out of its string table.

    A process that is to use it sets ``strata.runtime.software.library_path`` before the runtime is chosen.
    """
    image = bytearray(software.library_path().read_bytes())
    name = b"\0" + symbol.encode() + b"\0"
    place = image.index(name)  # of the dynamic string table, which lies before all other text
    image[place + 1] ^= 0x20
    path = folder / software.library_path().name
    path.write_bytes(image)
    return path
