from collections.abc import Callable

def launch_host(stream: int, function: Callable[[], object]) -> None:
    """Queue a Python callable on a stream; see `strata.runtime.launch_host`."""
