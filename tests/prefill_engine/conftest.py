from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import strata
from examples.prefill_engine.checkpoint import Checkpoint, open_checkpoint
from examples.prefill_engine.config import config_from
from examples.prefill_engine.engine import Engine

ROOT = Path(__file__).resolve().parents[2]

SCHEDULES = ("eager", "lazy", "random", "copies-first", "compute-first")


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A written checkpoint of the tiny shape. Not to be changed: see `copied`."""
    path = tmp_path_factory.mktemp("checkpoints") / "tiny"
    open_checkpoint(config_from("tiny")[0], path)
    return path


@pytest.fixture
def copied(tiny_path: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be spoiled."""
    return Path(shutil.copytree(tiny_path, tmp_path / "copied"))


@pytest.fixture
def checkpoint(tiny_path: Path) -> Checkpoint:
    return Checkpoint(tiny_path)


@pytest.fixture
def make_engine(checkpoint: Checkpoint, _nothing_left_alive: None) -> Iterator[Callable[..., Engine]]:
    """Return a function that makes an engine of the tiny shape; sizes and `settings` may be changed."""
    made: list[Engine] = []

    def make(settings: tuple[int, int, int] = (8, 16, 16), *, tap=None, **sizes) -> Engine:
        _, run = config_from("tiny", **sizes)
        made.append(Engine(checkpoint, run, strata.BatchSettings(*settings), tap=tap))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
    made.clear()


@pytest.fixture(params=SCHEDULES)
def schedule(request: pytest.FixtureRequest, software) -> str:
    """Runs the test under each schedule of the software runtime that moves bytes."""
    software.configure(schedule=request.param, seed=11)
    return request.param
