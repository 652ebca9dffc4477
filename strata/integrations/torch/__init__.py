"""strata for torch: streams, slots as tensors, sources as torch's users have them.

Needs torch: ``pip install 'strata-moe[torch]'``. With a torch for the CPU it works over the software runtime.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _missing:
    if _missing.name != "torch":
        raise
    raise ModuleNotFoundError("strata.integrations.torch needs torch: pip install 'strata-moe[torch]'",
                              name="torch") from None

from strata.integrations.torch.pinning import Pinned, pin
from strata.integrations.torch.streamer import TorchStreamer

__all__ = ["Pinned", "TorchStreamer", "pin"]
