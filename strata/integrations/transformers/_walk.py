"""Which of two walks a forward takes: everything ahead, or only what is routed."""

from __future__ import annotations

__all__ = ["AHEAD_FROM", "expected_share", "lists_ahead"]

#: From this expected share of routed experts on, a forward lists every layer's experts ahead.
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


def lists_ahead(tokens: int, choices: int, experts: int) -> bool:
    """Whether a forward of so many tokens lists all experts before their routing is known.

    Ahead, the copies run while the layers before compute, and what is not routed is dropped where that is still
    in time. Otherwise only what is routed is copied, but a layer's copies begin with its routing.
    """
    return expected_share(tokens, choices, experts) >= AHEAD_FROM
