from collections.abc import Sequence
from contextlib import AbstractContextManager

def refuse_child() -> int:
    """Raise in the child of a fork that came after the first use of HIP, or in the midst of it."""
def choosing() -> AbstractContextManager[None]:
    """While a library is looked for, asked and opened: a child that is forked meanwhile has half of it."""
def is_forked() -> bool:
    """Whether this is the child of a fork that came after the first use of HIP."""
def loaded_runtime() -> tuple[str | None, str | None]:
    """Name and library path of the runtime that the bindings opened, or ``(None, None)``."""
def has_batch_copy() -> tuple[bool, str]:
    """Whether the opened library serves batches; and why not, or not as they should be (else an empty text)."""
def load(name: str, path: str) -> None:
    """Bind hip-python's bindings to the library at `path`, once and for good.

    Parameters
    ----------
    name : str
        The runtime's name, for messages: ``rocm``, ``software`` or ``cuda``.
    path : str
        The library, absolute. It must open: the bindings keep the first path that they were given,
        also when it does not, so the caller has opened it once by itself.

    Raises
    ------
    StrataError
        If the bindings were used before and hold another library.
    RuntimeNotFound
        If the library has no device, or lacks a symbol that strata needs; the symbol is named. The same library may be
        tried again.
    """
def device_count() -> int:
    """Number of devices of the chosen runtime."""
def current_device() -> int:
    """The calling thread's current device."""
def use_device(device: int) -> None:
    """Make `device` the calling thread's current one."""
def device_name(device: int) -> str:
    """HIP's name of a device."""
def versions() -> tuple[int, int]:
    """``(runtime, driver)`` version numbers as HIP reports them."""
def memory_info() -> tuple[int, int]:
    """``(free, total)`` bytes of the current device."""
def range_is_pinned(address: int, nbytes: int) -> bool:
    """Whether every page of host memory ``[address, address + nbytes)`` is page-locked for the runtime.

    One question a page of 4 KiB: both ends may be pinned, by two registrations, and what lies between not. Stops at
    the first page that is not.
    """
def rows_are_pinned(address: int, stride: int, nbytes: int, rows: int) -> bytearray:
    """`range_is_pinned` of each of the `rows` ranges that begin `stride` bytes apart, as bytes of 0 or 1."""

def memory_type(address: int) -> tuple[int, int]:
    """``(type, device)`` of an address: 0 unregistered, 1 pinned host, 2 device, 3 managed."""
def pinned_alloc(nbytes: int) -> int:
    """Address of `nbytes` of new pinned memory."""
def pinned_free(address: int) -> None:
    """Free what `pinned_alloc` gave. Silent in a forked child."""
def host_register(address: int, nbytes: int) -> None:
    """Pin existing host memory in place."""
def host_unregister(address: int) -> None:
    """Undo `host_register`."""
def malloc(nbytes: int) -> int:
    """Address of `nbytes` of new device memory."""
def free(address: int) -> None:
    """Free device memory."""
def create_stream() -> int:
    """A new non-blocking stream, as an int."""
def destroy_stream(stream: int) -> None:
    """Destroy a stream; its pending work still runs."""
def synchronize_stream(stream: int) -> None:
    """Block until everything queued on the stream is done."""
def stream_device(stream: int, name: str = "stream") -> int:
    """The device that a stream belongs to; `ValueError`, with the argument's name, for what is no stream."""
def create_event(blocking_sync: bool = True) -> int:
    """A new event, as an int."""
def destroy_event(event: int) -> None:
    """Destroy an event."""
def record_event(event: int, stream: int) -> None:
    """Record an event on a stream."""
def wait_event(stream: int, event: int) -> None:
    """Make a stream wait for the event's latest record."""
def query_event(event: int) -> bool:
    """Whether the work before the event's latest record is done."""
def synchronize_event(event: int) -> None:
    """Block until the work before the event's latest record is done."""
def memcpy_h2d_async(dst: int, src: int, nbytes: int, stream: int) -> None:
    """Queue a host-to-device copy."""
def memcpy_d2h_async(dst: int, src: int, nbytes: int, stream: int) -> None:
    """Queue a device-to-host copy."""
def memset_async(dst: int, value: int, nbytes: int, stream: int) -> None:
    """Queue a fill of device memory."""
def pending_host_functions() -> int:
    """How many Python functions of strata's are queued on streams or run."""
def last_error() -> int:
    """HIP's last error of the calling thread, which stays as it is."""
def refuse_pinned(buffers: Sequence[int] = ()) -> None:
    """Have some of the next allocations of pinned memory refused, as if no more could be pinned: for the self-test.

    Parameters
    ----------
    buffers : sequence of int
        Counted from 0, the next one; 0 to 63. What an earlier call asked for is forgotten.

    Notes
    -----
    On the engine's thread, which allocates the host ring's buffers. The library is not called, so that this goes on
    every runtime.
    """
def set_announcements(write: int, read: int, release: int, acquire: int, label: int) -> None:
    """Give the addresses of the checker's functions, or five zeros to switch announcements off.

    Only while no streamer of the process has a request.
    """
