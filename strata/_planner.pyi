from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from strata.settings import BatchSettings

class CopyPlan:
    def __init__(
        self,
        jobs: Sequence[int] | npt.NDArray[Any],
        *,
        gpu_ring: int,
        host_ring: int,
        settings: BatchSettings,
        host_pinned: Sequence[bool] | npt.NDArray[Any] | None = None,
        merged: bool = False,
    ) -> None: ...
    @property
    def ends(self) -> npt.NDArray[np.int64]: ...
    @property
    def ownership_ends(self) -> npt.NDArray[np.int64]: ...
    @property
    def settings(self) -> BatchSettings: ...
    @property
    def gpu_ring(self) -> int: ...
    @property
    def host_ring(self) -> int: ...
    def __len__(self) -> int: ...
    def group(self, i: int) -> tuple[int, int]: ...
    def counts(self) -> dict[str, int]: ...
