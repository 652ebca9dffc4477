"""Runs first in a process of the tests here: takes away what Windows does not have, and says that this is Windows.

A mock: it shows that strata asks for nothing that only Unix has. It does not show that Windows gives what strata asks.
"""

import builtins
import codecs
import ctypes
import io
import os
import resource  # noqa: F401  # before it is taken away
import signal
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
import threading  # noqa: F401

# These look at the platform when they are imported, and Linux's are wanted.
import numpy  # noqa: F401
from rocm.bindings import cyhip  # noqa: F401

try:
    import psutil  # noqa: F401
except ImportError:
    pass

for name in ("register_at_fork", "fork", "forkpty", "sysconf", "sysconf_names", "confstr", "uname", "getuid", "geteuid",
             "getgid", "getegid", "getpgid", "setsid", "killpg", "nice", "getloadavg", "sched_getaffinity",
             "sched_setaffinity", "sched_yield", "chown", "fchown", "fchmod", "mkfifo", "statvfs", "fstatvfs",
             "pread", "preadv", "posix_fadvise", "posix_fallocate", "memfd_create", "eventfd", "sendfile", "wait4",
             "O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK", "O_DIRECT", "O_NOCTTY"):
    vars(os).pop(name, None)
for name in ("SIGHUP", "SIGKILL", "SIGQUIT", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGSTOP", "SIGTSTP", "SIGCONT",
             "SIGPIPE", "pthread_sigmask", "pthread_kill", "sigwait", "sigpending", "setitimer", "alarm", "pause"):
    vars(signal).pop(name, None)
for name in ("resource", "fcntl", "pwd", "grp", "termios", "tty", "pty", "syslog"):
    sys.modules[name] = None  # type: ignore[assignment]
sys.platform = "win32"

_open, _io_open, _os_open, _listdir = builtins.open, io.open, os.open, os.listdir


def _windows_has_it(path: object) -> None:
    if isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(("/proc", "/sys", "/dev/shm")):
        raise FileNotFoundError(2, "No such file or directory", path)


def _looking(function):  # type: ignore[no-untyped-def]
    def looked(path, *arguments, **options):  # type: ignore[no-untyped-def]
        _windows_has_it(path)
        return function(path, *arguments, **options)

    return looked


builtins.open = _looking(_open)
io.open = _looking(_io_open)
os.open = _looking(_os_open)
os.listdir = _looking(_listdir)

# The ANSI code page, here Latin 1.
codecs.register(lambda name: codecs.lookup("latin-1") if name == "mbcs" else None)


class _Kernel:
    """kernel32.dll, with 24 GiB of memory, and AMD's library loaded where STRATA_TEST_MODULES says so."""

    class _Function:
        def __init__(self, call):  # type: ignore[no-untyped-def]
            self._call = call

        def __call__(self, *arguments):  # type: ignore[no-untyped-def]
            return self._call(*arguments)

    modules = os.environ.get("STRATA_TEST_MODULES", "").split(";") if os.environ.get("STRATA_TEST_MODULES") else []

    def __init__(self) -> None:
        self.GlobalMemoryStatusEx = self._Function(self._memory)
        self.GetCurrentProcess = self._Function(lambda: 2**64 - 1)
        self.K32EnumProcessModules = self._Function(self._enumerate)
        self.GetModuleFileNameW = self._Function(self._name)

    @staticmethod
    def _memory(status) -> int:  # type: ignore[no-untyped-def]
        if status._obj.length != 64:
            return 0
        status._obj.total_physical, status._obj.available_physical = 24 << 30, 8 << 30
        return 1

    def _enumerate(self, process: int, modules, nbytes: int, needed) -> int:  # type: ignore[no-untyped-def]
        needed._obj.value = 8 * 2000  # more than a first guess has room for
        for index in range(min(nbytes // 8, 2000)):
            modules[index] = index + 1
        return 1

    def _name(self, module: int, name, length: int) -> int:  # type: ignore[no-untyped-def]
        paths = [*([r"C:\Windows\System32\kernel32.dll"] * (2000 - len(self.modules))), *self.modules]
        name.value = paths[module - 1]
        return len(name.value)


ctypes.WinDLL = lambda name: {"kernel32": _Kernel()}[name]  # type: ignore[attr-defined]
