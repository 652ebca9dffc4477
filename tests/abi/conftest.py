from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import strata

HEADER = Path(strata.get_include()) / "hip" / "hip_runtime.h"


@pytest.fixture(scope="session")
def ask_compiler(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, list[str]], list[int]]:
    """Return a function that has a C compiler say what integer expressions are, given strata's own header."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler to ask")
    folder = tmp_path_factory.mktemp("abi")

    def ask(name: str, expressions: list[str]) -> list[int]:
        program = folder / f"{name}.c"
        lines = "".join(f'  printf("%lld\\n", (long long)({expression}));\n' for expression in expressions)
        program.write_text(
            "#include <stddef.h>\n#include <stdio.h>\n#define STRATA_HIP_DECLARE_FUNCTIONS\n"
            f"#include <hip/hip_client.h>\nint main(void) {{\n{lines}  return 0;\n}}\n"
        )
        binary = folder / name
        subprocess.run(
            [compiler, "-Wall", "-Werror", "-I", str(HEADER.parents[1]), str(program), "-o", str(binary)], check=True
        )
        printed = subprocess.run([str(binary)], check=True, capture_output=True, text=True).stdout.split()
        return [int(word) for word in printed]

    return ask


@pytest.fixture(scope="session")
def header() -> str:
    """The header without its comments."""
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
