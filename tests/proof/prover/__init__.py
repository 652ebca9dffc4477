"""Shows that each dependency call is needed, or says why it is not, on the software runtime.

``configuration`` and ``suite`` say what is run, ``contract`` plays the contract through without strata's code,
``order`` and ``predict`` say what leaving a call out must come to, ``run`` does it for real, ``trials`` drops one call
after the other, and ``table`` and ``necessity`` report.
"""
