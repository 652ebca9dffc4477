import numpy as np
import numpy.typing as npt

from strata.copies import ExpertCopies
from strata.engine.core import StreamerCore
from strata.engine.request import Request
from strata.settings import BatchSettings

def begin_request(
    core: StreamerCore,
    limits: BatchSettings,
    copies: ExpertCopies | None,
    lent_slots: npt.NDArray[np.uintp] | None,
    compute_stream: int,
    settings: BatchSettings,
    run_ahead: int,
) -> Request:
    """Begin a request; see `strata.ExpertStreamer.begin`."""
