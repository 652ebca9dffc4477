"""Command line of the prefill engine: ``verify``, ``run`` and ``arm``.

Exit status: 0; 1 where results differ, or strata failed; 2 for bad input.
"""

from __future__ import annotations

import os

# Before NumPy loads. A product of this size gains nothing from threads, and those would compete with the threads
# that copy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import strata
from examples.prefill_engine import verify as verification
from examples.prefill_engine.arm import OutputsDiffer, arm_name, bench_arm
from examples.prefill_engine.checkpoint import Checkpoint, open_checkpoint
from examples.prefill_engine.config import SHAPES, ModelConfig, RunConfig, config_from
from examples.prefill_engine.errors import InputError
from examples.prefill_engine.host_experts import HostExperts
from examples.prefill_engine.streamers import STREAMERS
from examples.prefill_engine.walks import CHOICES, WALKS
from strata.tools.cli.arguments import seed, settings
from strata.tools.command import BAD_INPUT, FAILED, OK, OutputError, complain, put, run_command
from strata.tools.files import unwritable
from strata.tools.progress import Progress
from strata.tools.report import Report
from strata.tools.tables import Table

_NAME = "python -m examples.prefill_engine"

#: Those of the software runtime that move bytes.
SCHEDULES = ("eager", "lazy", "random", "copies-first", "compute-first")


def main(arguments: list[str] | None = None) -> int:
    """Run a command; `arguments` default to those of the process. Returns the exit status."""
    return run_command(_NAME, lambda: _main(arguments))


def _main(arguments: list[str] | None) -> int:
    options = _parser().parse_args(arguments)
    progress = Progress(sys.stderr)
    try:
        if (refused := unwritable("--json", getattr(options, "json", None))) is not None:
            raise InputError(refused)
        _choose_runtime(options)
        return int(options.command(options, progress))
    except (InputError, strata.RuntimeNotFound, strata.SettingsError) as problem:
        return complain(_NAME, progress, problem, BAD_INPUT)
    except (OutputsDiffer, strata.StrataError) as problem:
        if isinstance(problem, OutputError):
            raise
        return complain(_NAME, progress, problem, FAILED)
    except MemoryError as problem:
        return complain(_NAME, progress, MemoryError(f"these sizes do not fit the memory. {problem}"), FAILED)
    finally:
        progress.clear()


def _verify(options: argparse.Namespace, progress: Progress) -> int:
    walks = WALKS if options.walk == "both" else (options.walk,)
    model, run = config_from(options.shape, **_sizes(options))
    checkpoint = open_checkpoint(model, options.checkpoint, say=progress)
    against = checkpoint
    if options.against is not None:
        against = Checkpoint(options.against)
        verification.check_models(model, against.model)
    progress("loading the experts")
    sources = HostExperts(checkpoint, run.pinned_share)
    progress("control arm")
    control = verification.run_arm(checkpoint, run, strata.BatchSettings(), walks, sources=sources)
    if against is not checkpoint:
        sources = HostExperts(against, run.pinned_share)
    progress("optimized arm")
    optimized = verification.run_arm(against, run, options.settings, walks, streamer=options.streamer, sources=sources)
    progress("comparing")
    lines = verification.compare(control, optimized)
    saved = {"control": verification.dependencies(control), "optimized": verification.dependencies(optimized)}
    arms = {name: arm_name(arm.streamer, arm.settings)
            for name, arm in (("control", control), ("optimized", optimized))}
    report = verification.VerifyReport(
        f"control {_shown(arms['control'])} against optimized {_shown(arms['optimized'])}, "
        f"{strata.runtime.current()} runtime, {verification.REQUESTS} identical requests an arm and walk, "
        f"{run.tokens} tokens each", lines, saved,
        {"arms": arms, "model": model.as_dict(), "run": run.as_dict(), "runtime": strata.runtime.describe(),
         "schedule": options.schedule})
    return report.hand_over(_NAME, progress, json=options.json)


def _run(options: argparse.Namespace, progress: Progress) -> int:
    return RunReport(_measure(options, options.warmups, 1, progress)).hand_over(_NAME, progress, json=options.json)


class RunReport(Report):
    """One prefill: how fast, and where the time went."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result

    def parts(self) -> list[str | Table]:
        """Return the speed, the split of the stalls, the fingerprint."""
        result = self.result
        sample = result["samples"][0]
        return [
            f"{result['run']['tokens']} tokens at {_shown(result['arm'])}, walk {result['walk']}, "
            f"{result['runtime']['runtime']} runtime: {sample['pp_tok_s']:.1f} tokens/s, run wall "
            f"{sample['run_wall_ms']:.1f} ms, first token after {sample['ttft_ms']:.1f} ms", "",
            Table(["where the time went", "seconds"], [[k, f"{v:.4f}"] for k, v in sample["stall"].items()]), "",
            f"fingerprint {result['fingerprint']}",
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return what `bench_arm` returned."""
        return self.result


def _arm_command(options: argparse.Namespace, progress: Progress) -> int:
    result = _measure(options, options.warmups, options.samples, progress)
    progress.clear()
    put(json.dumps(result))
    return OK


def _measure(options: argparse.Namespace, warmups: int, samples: int, progress: Progress) -> dict[str, Any]:
    s = options.settings
    return bench_arm((s.copy_batch, s.stage_batch, s.stage_copy_batch), warmups, samples, walk=options.walk,
                     streamer=options.streamer, shape=options.shape, checkpoint=options.checkpoint, say=progress,
                     **_sizes(options))


def _choose_runtime(options: argparse.Namespace) -> None:
    wanted = options.runtime or os.environ.get("STRATA_HIP_RUNTIME", "").strip() or None
    if options.schedule is None:
        strata.runtime.use(options.runtime) if options.runtime else strata.runtime.ensure()
        return
    if wanted not in (None, "auto", "software"):
        raise InputError(f"schedule is {options.schedule}, and the runtime {wanted}: only the software runtime has "
                         "schedules")
    strata.runtime.use("software")
    from strata.runtime.software import control

    control.configure(schedule=options.schedule, seed=options.schedule_seed)


def _sizes(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in _size_types()}


def _size_types() -> dict[str, type]:
    return {field.name: float if field.name == "pinned_share" else int
            for field in (*fields(ModelConfig), *fields(RunConfig))}


def _shown(arm: list[int] | str) -> str:
    return arm if isinstance(arm, str) else "/".join(map(str, arm))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_NAME, description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--shape", choices=sorted(SHAPES), default="default", help="sizes to start from")
    common.add_argument("--checkpoint", type=Path, metavar="DIR",
                        help="written there where there is none (default: in the user's cache)")
    common.add_argument("--settings", type=settings, default=strata.BatchSettings(8, 16, 16), metavar="C,S,SC",
                        help="copy, stage and stage copy batch (default 8,16,16)")
    common.add_argument("--streamer", choices=STREAMERS, default="strata",
                        help="what copies the experts: strata, or a ring in torch alone, which has no settings; of "
                        "verify's optimized arm (default strata)")
    common.add_argument("--runtime", choices=strata.runtime.NAMES, help="default: STRATA_HIP_RUNTIME, else auto")
    common.add_argument("--schedule", choices=SCHEDULES, help="of the software runtime")
    common.add_argument("--schedule-seed", type=seed, default=0, metavar="N", help="of the random schedule")
    sizes = common.add_argument_group("sizes (default: the shape's)")
    for name, kind in _size_types().items():
        sizes.add_argument("--" + name.replace("_", "-"), type=kind, metavar="N")

    verify = commands.add_parser("verify", parents=[common], help="compare control 1/1/1 with --settings, bit by bit")
    verify.add_argument("--walk", choices=(*WALKS, "both"), default="both")
    verify.add_argument("--against", type=Path, metavar="DIR", help="another checkpoint for the optimized arm")
    verify.add_argument("--json", metavar="FILE")
    verify.set_defaults(command=_verify)

    run = commands.add_parser("run", parents=[common], help="prefill one prompt and say how fast")
    run.add_argument("--walk", choices=CHOICES, default="auto")
    run.add_argument("--warmups", type=int, default=1, metavar="N", help="requests before the one that counts")
    run.add_argument("--json", metavar="FILE")
    run.set_defaults(command=_run)

    arm = commands.add_parser("arm", parents=[common], help="measure one setting; prints one JSON object")
    arm.add_argument("--walk", choices=CHOICES, default="auto")
    arm.add_argument("--warmups", type=int, default=2, metavar="N")
    arm.add_argument("--samples", type=int, default=3, metavar="N")
    arm.set_defaults(command=_arm_command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
