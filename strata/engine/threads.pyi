def refuse_after(starts: int | None) -> None:
    """For tests: let so many threads start, and no further one; None takes that back."""
def rename(name: str | None) -> None:
    """For tests that tell streamers apart: what threads are called that start from now on; None takes that back."""
