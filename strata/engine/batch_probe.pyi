def probe() -> str:
    """Try a small batch in memory of the probe's own, and let requests use what works.

    Returns
    -------
    str
        Why batches are not used, or are used without attributes; empty where nothing is to be said.
    """
