"""The runtime's own sources under the sanitizers: `stress.cpp` in every schedule that moves bytes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.software_runtime.conftest import SCHEDULES

#: An installed package has no sources.
CHECKOUT = Path(__file__).resolve().parents[2] / "strata"
NATIVE = CHECKOUT / "runtime" / "software" / "native"
INCLUDE = CHECKOUT / "include"
STRESS = Path(__file__).with_name("stress.cpp")
COMPILER = shutil.which("g++") or shutil.which("c++")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def compile_all(folder: Path, sanitizer: str) -> Path:
    """Sources, as one translation unit, and stress program in one executable, instrumented."""
    unit, program = folder / "runtime.cpp", folder / "stress"
    unit.write_text("".join(f'#include "{source}"\n' for source in sorted(NATIVE.glob("*.cpp"))))
    flags = ["-std=c++17", "-O1", "-g", "-pthread", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    subprocess.run([COMPILER, *flags, f"-I{INCLUDE}", f"-I{NATIVE}", str(unit), str(STRESS), "-ldl", "-o", str(program)],
                   check=True)
    return program


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_stress_is_clean(sanitizer: str, tmp_path: Path) -> None:
    """Odd seeds check happens-before, some log the calls or cost time. One test: compiling takes longer than all runs."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    probe = tmp_path / "probe.cpp"
    probe.write_text("int main() {}\n")
    works = subprocess.run(
        [COMPILER, f"-fsanitize={sanitizer}", str(probe), "-o", str(tmp_path / "probe")], capture_output=True
    )
    if works.returncode != 0:
        pytest.skip(f"the compiler has no -fsanitize={sanitizer}")
    stress = compile_all(tmp_path, sanitizer)
    for schedule in SCHEDULES:
        for seed in (1, 2, 3, 11):
            result = subprocess.run([stress, schedule, str(seed)], capture_output=True, text=True, timeout=300)
            assert (result.returncode, result.stderr) == (0, ""), (schedule, seed)
