"""Fail unless sdist and wheel carry what they must: declarations, stubs, headers, data, the runtimes."""

from __future__ import annotations

import sys
import tarfile
import zipfile

BOTH = [
    "strata/py.typed", "strata/__init__.pxd", "strata/capi.pxd", "strata/_hip.pxd", "strata/_planner.pyi",
    "strata/engine/request.pyi", "strata/include/hip/hip_runtime.h", "strata/include/strata/threads.hpp",
    "strata/data/reference_request.json",
]
SDIST = ["setup.py", "pyproject.toml", "README.md", "LICENSE", "strata/_planner.pyx", "tests/", "examples/"]
WHEEL = [
    "strata/runtime/software/libstrata_hip_software.so", "strata/runtime/cuda/libstrata_hip_cuda.so",
    "strata/_planner.", "strata/_hip.", "licenses/LICENSE",
]


def names(path: str) -> list[str]:
    if path.endswith(".whl"):
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    with tarfile.open(path) as archive:
        return [name.partition("/")[2] for name in archive.getnames()]


def main(paths: list[str]) -> int:
    missing = 0
    for path in paths:
        there = names(path)
        for wanted in BOTH + (WHEEL if path.endswith(".whl") else SDIST):
            if not any(name == wanted or wanted in name for name in there):
                print(f"{path}: no {wanted}")
                missing += 1
    print(f"{len(paths)} archives checked, {missing} files missing")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
