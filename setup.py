"""Builds strata's Cython core and the two HIP runtimes that it ships.

A compile that fails, fails the installation: there is no pure-Python core to fall back to.
"""
from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import Cython
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
WINDOWS = sys.platform == "win32"

# STRATA_BUILD_FLAGS adds flags to every C++ compile and link, e.g. "-fsanitize=thread -g -O1".
EXTRA = os.environ.get("STRATA_BUILD_FLAGS", "").split()
CXX_FLAGS = ["/std:c++17", "/O2", "/EHsc"] if WINDOWS else ["-std=c++17", "-O2", "-g0", "-fvisibility=hidden", "-pthread"]
LINK_FLAGS = ([] if WINDOWS else ["-pthread"]) + EXTRA

CORE = ["_hip", "_planner", "capi", *(f"engine.{name}" for name in (
    "threads", "host_functions", "control", "gpu_ring", "host_ring", "issuer", "pipeline", "consumption", "teardown", "core",
    "running", "slot", "span", "request", "begin", "stager", "dlpack", "batch_probe"))]
#: Classes for Python, mostly: they compile in two thirds of the time at -O1, and what they call is at -O2.
FACES = {f"engine.{name}" for name in ("core", "slot", "span", "request", "begin", "stager")}
DIRECTIVES = {
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "binding": True,
    "embedsignature": True,
    "freethreading_compatible": False,
    "emit_code_comments": False,  # a sixth of the C++
}
RUNTIMES = {
    "strata.runtime.software.libstrata_hip_software": "strata/runtime/software/native",
    "strata.runtime.cuda.libstrata_hip_cuda": "strata/runtime/cuda/native",
}


class BuildExt(build_ext):
    """Builds the runtimes, too: shared libraries with a C interface and a name of their own."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if self.parallel is None:
            self.parallel = os.cpu_count()
        # What another compiler or other flags made is not taken for this build's.
        compiler = " ".join(os.environ.get(name, "") for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS"))
        self.asked = f"{sys.version} {CXX_FLAGS} {EXTRA} {sorted(FACES)} {compiler} {self.inplace}"
        self.kept = Path(self.build_temp) / "flags"
        self.force = self.force or not self.kept.exists() or self.kept.read_text() != self.asked

    def run(self) -> None:
        # Only what builds may say so: pip finalizes this command for the metadata, too, in a process before.
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        if self.force:
            self.kept.unlink(missing_ok=True)
        super().run()
        self.kept.write_text(self.asked)

    def build_extension(self, ext: Extension) -> None:
        # A runtime is one translation unit: apart, its files spend two thirds of their time in the same headers. (They
        # are compiled apart for Windows, and windows.h is nothing to share.)
        if ext.name in RUNTIMES and not WINDOWS:
            unit = Path(self.build_temp) / f"{ext.name.rpartition('.')[2]}.cpp"
            folder = os.path.realpath(unit.parent)  # the compiler goes up from there, not from a link to it
            text = "".join(f'#include "{os.path.relpath(os.path.realpath(source), folder)}"\n' for source in ext.sources)
            if not unit.exists() or unit.read_text() != text:  # a new file would be compiled again
                unit.write_text(text)
            ext.depends, ext.sources = [*ext.depends, *ext.sources], [str(unit)]
        super().build_extension(ext)

    def get_ext_filename(self, ext_name: str) -> str:
        # Asked with the whole name or with its last part.
        if ext_name.rpartition(".")[2] in {name.rpartition(".")[2] for name in RUNTIMES}:
            return ext_name.replace(".", os.sep) + (".dll" if WINDOWS else ".so")
        return super().get_ext_filename(ext_name)

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return ext.export_symbols if ext.name in RUNTIMES else super().get_export_symbols(ext)


def core_extensions() -> list[Extension]:
    return [
        Extension(
            f"strata.{name}",
            [f"strata/{name.replace('.', '/')}.pyx"],
            language="c++",
            include_dirs=["strata/include"],
            depends=[*map(str, sorted(Path("strata/include").rglob("*.h*")))],
            extra_compile_args=[*CXX_FLAGS, *(["-O1"] if name in FACES and not WINDOWS else []), *EXTRA],
            extra_link_args=LINK_FLAGS,
        )
        for name in CORE
    ]


def runtime_extensions() -> list[Extension]:
    made = []
    for name, folder in RUNTIMES.items():
        sources = sorted(str(p.relative_to(ROOT)) for p in (ROOT / folder).glob("*.cpp"))
        headers = sorted(str(p.relative_to(ROOT)) for p in (ROOT / folder).glob("*.h*"))
        if not sources:
            raise SystemExit(f"{folder} has no C++ sources: this checkout is not whole")
        soname = name.rpartition(".")[2] + ".so"
        link = LINK_FLAGS if WINDOWS else [*LINK_FLAGS, f"-Wl,-soname,{soname}", "-Wl,-z,defs", "-ldl"]
        made.append(
            Extension(
                name,
                sources,
                language="c++",
                include_dirs=["strata/include", folder],
                depends=[*headers, "strata/runtime/hip_statuses.hpp",
                         *map(str, sorted(Path("strata/include").rglob("*.h*")))],
                extra_compile_args=[*CXX_FLAGS, *EXTRA],
                extra_link_args=link,
            )
        )
    return made


def whole(extensions: list[Extension]) -> None:
    """Refuse a tree with a file too few, or with a module too many: what is not listed above would not be built."""
    listed = {Path(path) for extension in extensions for path in (*extension.sources, *extension.depends)}
    missing = sorted(str(path) for path in listed if not path.exists())
    modules = {path.relative_to(ROOT) for path in (ROOT / "strata").rglob("*.pyx")}
    if missing or not modules <= listed:
        raise SystemExit(f"this checkout is not whole: missing are {missing}, "
                         f"not listed in setup.py are {sorted(map(str, modules - listed))}")


def generate(core: list[Extension]) -> list[Extension]:
    """Generate C++ from Cython, unless what stands in the tree was generated from just this.

    Times do not tell: pip builds in an environment of its own, where the declarations of HIP's bindings are always
    new, and a file or a Cython may come with an old time. So the key of what went into each module is kept, and Cython
    is told what to do. C++ that comes out as it was keeps its time, too. Declarations go into all keys: whom
    ``from strata cimport _hip`` concerns is not looked up.
    """
    from rocm.bindings import cyhip

    declarations = [*sorted((ROOT / "strata").rglob("*.pxd")), *sorted(Path(cyhip.__file__).parent.glob("*.pxd"))]
    shared = [Cython.__version__, repr(DIRECTIVES), *(f"{path.name}\n{path.read_text('utf-8')}" for path in declarations)]
    keys = []
    for extension in core:
        texts = [*shared, Path(extension.sources[0]).read_text("utf-8")]
        keys.append(f"{extension.name} " + hashlib.sha256("\0".join(texts).encode()).hexdigest())
    kept = ROOT / "build" / "generated.keys"
    was = set(kept.read_text().splitlines()) if kept.exists() else set()
    outputs = [Path(extension.sources[0]).with_suffix(".cpp") for extension in core]
    before = {path: (path.read_bytes(), path.stat()) for path in outputs if path.exists()}
    stale = [extension for extension, output, key in zip(core, outputs, keys, strict=True)
             if output not in before or key not in was]
    if stale:
        kept.unlink(missing_ok=True)
        cythonize(stale, force=True, language_level=3, compiler_directives=DIRECTIVES, include_path=["."],
                  nthreads=os.cpu_count() or 1)
        for path, (text, status) in before.items():
            if path.read_bytes() == text:
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        kept.parent.mkdir(exist_ok=True)
        kept.write_text("\n".join(keys) + "\n")
    for extension, output in zip(core, outputs, strict=True):
        extension.sources = [str(output)]
    return sorted(core, key=lambda extension: -Path(extension.sources[0]).stat().st_size)


if __name__ == "__main__":
    core, runtimes = core_extensions(), runtime_extensions()
    whole(core + runtimes)
    setup(
        ext_modules=runtimes + generate(core),  # those that take longest come first, so that no processor idles last
        cmdclass={"build_ext": BuildExt},
        package_data={
            "strata": ["py.typed", "*.pxd", "*.pyi", "include/hip/*.h", "include/strata/*.hpp", "data/*.json"],
            "strata.engine": ["*.pxd", "*.pyi"],
        },
    )
