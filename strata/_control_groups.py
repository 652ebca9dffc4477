"""What a container lets a process have of the host's memory (Linux: control groups, version 1 or 2).

Such a limit is not refused by an allocation: the kernel kills the process when it touches what it was given.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["memory_left"]

#: Limits beyond this are none: version 1 writes the largest multiple of a page that an int64 holds.
_NO_LIMIT = 2**62


def memory_left(process: Path = Path("/proc/self")) -> tuple[int, str] | None:
    """Bytes that the control groups of a process leave it, and whose limit that is; None without a limit.

    A limit of any group above the process's own counts, less what is in use there and cannot be given back (the page
    cache can).
    """
    least: tuple[int, str] | None = None
    for folder, names in _groups(process):
        limit = _number(folder / names["limit"])
        if limit is None or limit >= _NO_LIMIT:
            continue
        used = (_number(folder / names["usage"]) or 0) - _page_cache(folder / "memory.stat", names["cache"])
        left = max(0, limit - max(0, used))
        if least is None or left < least[0]:
            least = left, f"what is left of the control group's limit of {limit} bytes ({folder})"
    return least


_V1 = {"limit": "memory.limit_in_bytes", "usage": "memory.usage_in_bytes",
       "cache": ("total_active_file", "total_inactive_file")}
_V2 = {"limit": "memory.max", "usage": "memory.current", "cache": ("active_file", "inactive_file")}


def _groups(process: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Folders of the process's memory groups and of all above them, with the names of their files."""
    found = []
    mounts: dict[int, tuple[str, Path]] = {}
    for line in _lines(process / "mountinfo"):
        # number, parent, device, root, mount point, options, …, "-", type, source, options
        head, _, tail = line.partition(" - ")
        fields, kinds = head.split(" "), tail.split(" ")
        if len(fields) < 5 or len(kinds) < 3:
            continue
        version = 2 if kinds[0] == "cgroup2" else 1 if kinds[0] == "cgroup" and "memory" in kinds[2].split(",") else 0
        if version:
            mounts.setdefault(version, (_unescaped(fields[3]), Path(_unescaped(fields[4]))))
    for line in _lines(process / "cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        version = 2 if controllers == "" else 1 if "memory" in controllers.split(",") else 0
        if version not in mounts:
            continue
        root, folder = mounts[version]
        # In a container the mount shows a part of the tree, from `root` down.
        inside = path.removeprefix(root.rstrip("/")) if path.startswith(root.rstrip("/")) else ""
        parts = [part for part in inside.split("/") if part and part != ".."]
        found += [(folder.joinpath(*parts[:depth]), _V1 if version == 1 else _V2) for depth in range(len(parts) + 1)]
    return found


def _unescaped(field: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field


def _lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode(errors="surrogateescape").split("\n")
    except OSError:
        return []


def _number(path: Path) -> int | None:
    text = _lines(path)
    return int(text[0]) if text and text[0].isdigit() else None


def _page_cache(path: Path, names: tuple[str, ...]) -> int:
    total = 0
    for line in _lines(path):
        name, _, value = line.partition(" ")
        if name in names and value.isdigit():
            total += int(value)
    return total
