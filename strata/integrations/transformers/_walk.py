"""Which of two walks a forward takes: everything ahead, or only what is routed."""

from __future__ import annotations

__all__ = ["AHEAD_FROM", "expected_share", "lists_ahead"]

#: From this share of routed experts on, a forward lists every layer's experts ahead.
AHEAD_FROM = 0.85


def expected_share(tokens: int, choices: int, experts: int) -> float:
    """Expected share of a layer's experts that some token is routed to.

    Parameters
    ----------
    tokens, choices, experts : int
        Tokens of the forward (padding included), experts a token, experts a layer.

    Returns
    -------
    float
        ``1 - (1 - choices / experts) ** tokens``: each token leaves an expert out with the probability
        ``1 - choices / experts`` where the router is even. A router that is not leaves more out.
    """
    return 1.0 - (1.0 - min(1.0, choices / experts)) ** tokens


def lists_ahead(tokens: int, choices: int, experts: int, evenness: float = 1.0) -> bool:
    """Whether a forward of so many tokens lists all experts before their routing is known.

    Parameters
    ----------
    tokens, choices, experts : int
        As `expected_share`.
    evenness : float, optional
        What the router makes of that: the share that was routed in the last forward of about as many tokens, over the
        expected one.

    Returns
    -------
    bool

    Notes
    -----
    Ahead, the copies run while the layers before compute. What is not routed is dropped, but what was submitted by then
    is copied all the same: up to the slots (pinned) or the host ring (staged) of each layer. Otherwise only what is
    routed is copied, but a layer's copies begin with its routing, and its attention is not overlapped.
    """
    return evenness * expected_share(tokens, choices, experts) >= AHEAD_FROM
