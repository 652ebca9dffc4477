"""Fail unless sdist and wheel carry what they must and nothing else: the wheel no sources, the sdist everything.

    python .ci/check_archives.py DIST/*.tar.gz DIST/*.whl

What a wheel must hold is read from the tree: its Python, declarations, stubs, headers and data, the modules and the
runtimes that setup.py builds. It prints each archive's size and what it holds by kind.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
#: Of the tree's files under strata/, those that a wheel holds as they are.
KEPT = {".py", ".pyi", ".pxd", ".h", ".hpp", ".json", ".typed"}
#: C++ headers of the runtimes: of their own sources alone.
NATIVE = re.compile(r"strata/runtime/(\w+/native/|\w+\.hpp$)")
LIBRARIES = {"strata/runtime/software/libstrata_hip_software.so", "strata/runtime/cuda/libstrata_hip_cuda.so"}
MODULE = re.compile(r"strata/[\w/]+\.cpython-\w+-[\w-]+\.so")
METADATA = re.compile(
    r"strata_moe-[\w.]+\.dist-info/(METADATA|RECORD|WHEEL|entry_points\.txt|top_level\.txt|licenses/LICENSE)")
#: Made by whoever builds an sdist.
MADE = re.compile(r"PKG-INFO|setup\.cfg|strata_moe\.egg-info(/.*)?")
#: Of the checkout alone.
UNSHIPPED = (".gitignore",)


def tracked() -> set[str]:
    """The checkout's files."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {name for name in listed.splitlines() if (ROOT / name).is_file()}


def wheel(names: set[str], tree: set[str]) -> list[str]:
    wanted = {name for name in tree if name.startswith("strata/") and PurePosixPath(name).suffix in KEPT
              and not NATIVE.match(name)} | LIBRARIES
    modules = {name.removesuffix(".pyx") for name in tree if name.startswith("strata/") and name.endswith(".pyx")}
    built = {name for name in names if MODULE.fullmatch(name)}
    metadata = {name for name in names if METADATA.fullmatch(name)}
    wrong = [f"no {name}" for name in sorted(wanted - names)]
    wrong += [f"no module {name}" for name in sorted(modules - {name.partition(".cpython-")[0] for name in built})]
    wrong += [f"{name} does not belong there" for name in sorted(names - wanted - built - metadata)]
    if len(metadata) != 6:
        wrong.append(f"metadata is {sorted(metadata)}")
    return wrong


def sdist(names: set[str], tree: set[str]) -> list[str]:
    wanted = {name for name in tree if name not in UNSHIPPED}
    wrong = [f"no {name}" for name in sorted(wanted - names)]
    wrong += [f"{name} does not belong there" for name in sorted(names - tree) if not MADE.fullmatch(name)]
    return wrong


def contents(path: str) -> dict[str, int]:
    """Names and sizes of the files of an archive."""
    if path.endswith(".whl"):
        with zipfile.ZipFile(path) as archive:
            return {entry.filename: entry.file_size for entry in archive.infolist()}
    with tarfile.open(path) as archive:
        return {entry.name.partition("/")[2]: entry.size for entry in archive.getmembers() if entry.isfile()}


def main(paths: list[str]) -> int:
    tree = tracked()
    failed = False
    for path in paths:
        files = contents(path)
        wrong = (wheel if path.endswith(".whl") else sdist)(set(files), tree)
        kinds: Counter[str] = Counter(PurePosixPath(name).suffix or "other" for name in files)
        print(f"{Path(path).name}: {Path(path).stat().st_size:,} bytes, {sum(files.values()):,} unpacked, {len(files)} "
              "files: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
        for line in wrong:
            print(f"  {line}")
        failed |= bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
