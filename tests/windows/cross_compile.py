"""Compiles and links all native code of strata for Windows with MinGW, and runs under Wine what needs no Python.

    python tests/windows/cross_compile.py --headers Python-3.11.2 --out build/windows [--wine /usr/lib/wine/wine64]

``--headers`` is CPython's source tree: its ``Include`` and its ``PC/pyconfig.h``. The import library for CPython's DLL
is made here, of the symbols that the modules ask for; those are declared in CPython's headers, else nothing compiles.
docs/windows.md says what this shows and what it does not.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

from Cython.Build import cythonize

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
TARGET = "x86_64-w64-mingw32-"
COMPILER = f"{TARGET}g++-posix"
CACHE = ["ccache"] if shutil.which("ccache") else []
FLAGS = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]
#: What Cython's own code does, by name; our own has no exceptions.
CYTHON_FLAGS = ["-DMS_WIN64", "-Wno-unused-parameter", "-Wno-missing-field-initializers", "-Wno-cast-function-type",
                "-Wno-unused-function"]
#: What a module may import: CPython, and what every Windows 10 has.
ALLOWED = re.compile(r"(python3\d+|kernel32|msvcrt|ucrtbase|api-ms-win-crt-\w+(-l\d-\d-\d)?|advapi32)\.dll", re.IGNORECASE)


def run(command: Sequence[object], **options: object) -> str:
    """Run a command to its end and return what it printed; its errors end this program."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        print(done.stdout)
        raise SystemExit(f"status {done.returncode}: {' '.join(map(str, command))}")
    return str(done.stdout)


def load_setup() -> ModuleType:
    """The project's setup.py, which lists what is built."""
    spec = importlib.util.spec_from_file_location("strata_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def symbols(objects: Iterable[Path]) -> dict[str, str]:
    """CPython's symbols that these ask for, as lines of a definition file.

    Its headers declare them as a DLL's, by way of ``__imp_``; a function in a static table is asked for by its name.
    """
    found = re.findall(r" U (__imp_)?(_?Py\w+)$", run([f"{TARGET}nm", "-u", *objects]), re.MULTILINE)
    functions = {name for indirect, name in found if not indirect}
    return {name: name if name in functions else f"{name} DATA" for _, name in sorted(set(found), key=lambda one: one[1])}


def imports(library: Path) -> list[str]:
    return re.findall(r"DLL Name: (\S+)", run([f"{TARGET}objdump", "-p", library]))


def exports(library: Path) -> set[str]:
    table = run([f"{TARGET}objdump", "-p", library]).partition("[Ordinal/Name Pointer] Table")[2]
    return set(re.findall(r"\[ *\d+\]\S* (?:\+base\[ *\d+\] *\w+ )?(\w+)$", table, re.MULTILINE))


class Build:
    """One run: what is compiled goes below `out`."""

    def __init__(self, headers: Path, out: Path) -> None:
        self.out = out
        self.headers = headers
        version = re.search(r'PY_VERSION\s+"(\d+)\.(\d+)', (headers / "Include" / "patchlevel.h").read_text())
        assert version is not None
        self.python = f"python{version[1]}{version[2]}"
        self.setup = load_setup()

    def objects(self, jobs: list[tuple[Path, list[str]]]) -> list[Path]:
        """Compile each source with its flags; all that the machine has processors for at once."""

        def compile_one(job: tuple[Path, list[str]]) -> Path:
            source, flags = job
            target = self.out / "objects" / source.relative_to(ROOT).with_suffix(".o")
            target.parent.mkdir(parents=True, exist_ok=True)
            run([*CACHE, COMPILER, *FLAGS, *flags, "-c", source, "-o", target], cwd=ROOT)
            return target

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(compile_one, jobs))

    def modules(self) -> list[Path]:
        """Every Cython module of the package, linked against CPython's DLL."""
        made = cythonize(self.setup.core_extensions(), language_level=3, include_path=["."],
                         compiler_directives=self.setup.DIRECTIVES, nthreads=os.cpu_count() or 1, quiet=True)
        includes = [f"-I{self.headers / 'Include'}", f"-I{self.headers / 'PC'}", "-Istrata/include"]
        objects = self.objects([(ROOT / extension.sources[0], [*CYTHON_FLAGS, *includes]) for extension in made])
        wanted = symbols(objects)
        definition = self.out / f"{self.python}.def"
        definition.write_text(f"LIBRARY {self.python}.dll\nEXPORTS\n" + "".join(f"{line}\n" for line in wanted.values()))
        run([f"{TARGET}dlltool", "-d", definition, "-l", self.out / f"lib{self.python}.a"])
        linked = []
        for extension, compiled in zip(made, objects, strict=True):
            folders = extension.name.split(".")
            tag = self.python.replace("python", "cp")
            target = self.out.joinpath(*folders[:-1], f"{folders[-1]}.{tag}-win_amd64.pyd")
            self.link(target, [compiled], f"-L{self.out}", f"-l{self.python}")
            if f"PyInit_{folders[-1]}" not in exports(target):
                raise SystemExit(f"{target} exports no PyInit_{folders[-1]}: {exports(target)}")
            linked.append(target)
        print(f"{len(linked)} Cython modules linked, {len(wanted)} symbols of {self.python}.dll")
        return linked

    def runtimes(self) -> list[Path]:
        """The runtimes' libraries, under the names that strata looks for."""
        linked = []
        for extension in self.setup.runtime_extensions():
            includes = [f"-I{folder}" for folder in extension.include_dirs]
            objects = self.objects([(ROOT / source, includes) for source in extension.sources])
            target = self.out.joinpath(*extension.name.split(".")).with_suffix(".dll")
            self.link(target, objects)
            there = exports(target)
            missing = {name for name in self.needed() if name not in there}
            if missing:
                raise SystemExit(f"{target} exports no {sorted(missing)}")
            print(f"{target.name}: {len(objects)} sources, {len(there)} exports")
            linked.append(target)
        return linked

    def needed(self) -> list[str]:
        """The HIP functions that strata asks every runtime for."""
        text = (ROOT / "strata/runtime/_libraries.py").read_text()
        return re.findall(r'"(hip\w+)"', text.partition("NEEDED = (")[2].partition("\n)")[0])

    def link(self, target: Path, objects: Sequence[Path], *options: str) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        kind = [] if target.suffix == ".exe" else ["-shared"]
        # The compiler's own libraries are linked in: no machine but a developer's has their DLLs.
        run([COMPILER, *kind, "-static", *objects, "-o", target, *options])
        foreign = [name for name in imports(target) if not ALLOWED.fullmatch(name) and "strata" not in name]
        if foreign:
            raise SystemExit(f"{target} needs {foreign}")

    def programs(self, software: Path) -> list[tuple[Path, list[str]]]:
        """Programs that need no Python, with their arguments; the first ones use the runtime's own DLL."""
        native = ROOT / "strata/runtime/software/native"
        include = ["-Istrata/include", f"-I{native}"]
        runs = []
        stress, client, threads, platform = self.objects([
            (ROOT / "tests/software_runtime/stress.cpp", include), (HERE / "client.cpp", include),
            (HERE / "threads.cpp", include), (HERE / "platform.cpp", include)])
        beside = software.parent
        self.link(beside / "stress.exe", [stress], str(software))
        for schedule in ("eager", "lazy", "random", "copies-first", "compute-first"):
            runs += [(beside / "stress.exe", [schedule, str(seed)]) for seed in (1, 2, 3)]
        self.link(self.out / "client.exe", [client])
        runs.append((self.out / "client.exe", ["strata/runtime/software/libstrata_hip_software.dll",
                                               "strata/runtime/cuda/libstrata_hip_cuda.dll"]))
        self.link(self.out / "threads.exe", [threads])
        runs.append((self.out / "threads.exe", []))
        platform_of_runtime = self.out / "objects/strata/runtime/software/native/platform_windows.o"
        self.link(self.out / "platform.exe", [platform, platform_of_runtime])
        runs.append((self.out / "platform.exe", []))
        return runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--headers", type=Path, required=True, help="CPython's source tree")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wine", type=Path, help="runs the programs that need no Python")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    build = Build(arguments.headers.resolve(), arguments.out.resolve())
    software = build.runtimes()[0]
    runs = build.programs(software)
    build.modules()
    if arguments.wine is None:
        print(f"{len(runs)} runs of programs left out: no --wine")
        return 0
    prefix = {"WINEPREFIX": str(build.out / "wine"), "WINEDEBUG": "-all", "WINEDLLOVERRIDES": "mscoree,mshtml="}
    for program, options in runs:
        said = run([arguments.wine, program, *options], env={**os.environ, **prefix}, cwd=build.out, timeout=300)
        print(f"wine {program.name} {' '.join(options)}: {said.strip() or 'status 0'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
