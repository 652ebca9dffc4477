"""Faults to put into the Python around the core: what is read, chosen, counted, written, reported, refused."""

from __future__ import annotations

from tests.mutants.mutants import Edit, Mutant

__all__ = ["AROUND"]

_STREAMER, _SETTINGS, _COPIES, _PINNED = "streamer.py", "settings.py", "copies.py", "pinned.py"
_FILES, _COMMAND, _AB = "tools/files.py", "tools/command.py", "benchmarks/ab/"
_CACHE = "benchmarks/native/cache.py"


def line(name: str, file: str, rule: str, old: str, new: str) -> Mutant:
    return Mutant(name, file, rule, (Edit(old + "\n", new + "\n"),))


AROUND: tuple[Mutant, ...] = (
    # What is read from the environment, and where it counts.
    line(
        "batch variables are never read", _STREAMER,
        "settings: on HIP/Windows the three batch variables are honoured",
        "        self._from_env = BatchSettings.from_env(runtime=name) if settings is None else None",
        "        self._from_env = BatchSettings() if settings is None else None",
    ),
    line(
        "batch variables count on every platform", _STREAMER,
        "settings: elsewhere the batch variables are ignored",
        "        self._from_env = BatchSettings.from_env(runtime=name) if settings is None else None",
        '        self._from_env = BatchSettings.from_env(platform="win32") if settings is None else None',
    ),
    line(
        "batch variables count on every runtime", _SETTINGS,
        "settings: on Windows they count with HIP alone",
        '        if platform != "win32" or runtime not in (None, "rocm"):',
        '        if platform != "win32":',
    ),
    line(
        "copy batch beyond its limit", _SETTINGS,
        "settings: the copy batch is at most 32",
        "            copy_batch=max(1, min(self.copy_batch, gpu_ring, gpu_ring if merged else MAX_COPY_BATCH)),",
        "            copy_batch=max(1, min(self.copy_batch, gpu_ring)),",
    ),
    line(
        "stage copy batch beyond the host ring", _SETTINGS,
        "settings: the stage copy batch is at most either ring",
        "            stage_copy_batch=max(1, min(self.stage_copy_batch, gpu_ring, host_ring)),",
        "            stage_copy_batch=max(1, min(self.stage_copy_batch, gpu_ring)),",
    ),
    line(
        "a host ring of one from the variable", _SETTINGS,
        "settings: `STRATA_STAGER_RING` is clamped to 2 and more",
        "MIN_HOST_RING = 2",
        "MIN_HOST_RING = 1",
    ),
    line(
        "the GPU ring takes half of the memory", _SETTINGS,
        "settings: a GPU ring that nobody asked for takes a quarter of the free memory at most",
        "GPU_RING_MEMORY_SHARE = 4",
        "GPU_RING_MEMORY_SHARE = 2",
    ),
    line(
        "deep rings from a share of 0.8", _SETTINGS,
        "settings: 384 slots are recommended from a pinned share of 0.9",
        "PINNED_GPU_RING_SHARE = 0.9",
        "PINNED_GPU_RING_SHARE = 0.8",
    ),
    # The face.
    line(
        "one slot too many may be held", _STREAMER,
        "acquire: the longest group must find room beside what is held",
        "        return self._run_ahead - max(self._settings.copy_batch, self._settings.stage_copy_batch) + 1",
        "        return self._run_ahead - max(self._settings.copy_batch, self._settings.stage_copy_batch) + 2",
    ),
    line(
        "slots as large as the smallest list's", _STREAMER,
        "for_copies: a slot holds every entry of every list",
        "        slot_bytes = max((each.slot_bytes for each in lists), default=0)",
        "        slot_bytes = min((each.slot_bytes for each in lists), default=0)",
    ),
    line(
        "lent slots without a compute stream", _STREAMER,
        "lent slots: the stream of the kernels that read them is wanted",
        "        if slots is not None and compute_stream is None:",
        "        if False:",
    ),
    line(
        "a runtime that was asked for is another", "runtime/__init__.py",
        "runtime: one process, one runtime; another choice is an error",
        '            if name in (loaded, "auto"):',
        "            if name:",
    ),
    line(
        "the runtime's variable is not read", "runtime/__init__.py",
        "runtime: `STRATA_HIP_RUNTIME` chooses",
        '    name = os.environ.get("STRATA_HIP_RUNTIME", "").strip() or "auto"',
        '    name = "auto"',
    ),
    line(
        "strided arrays are pinned", _PINNED,
        "register: an array is pinned as one range",
        "        if not array.flags.c_contiguous:",
        "        if False:",
    ),
    line(
        "a pass over the list without its last part", _COPIES,
        "concatenate: parts follow one another",
        "        lists = list(iterated(\"parts\", parts, \"ExpertCopies\"))",
        "        lists = list(iterated(\"parts\", parts, \"ExpertCopies\"))[:-1]",
    ),
    # The evidence harness.
    line(
        "the watchdog's floor at 1 GiB", _AB + "protocol.py",
        "bench: a run ends when less than 2 GiB are available",
        "    min_available: int = 2 * 2**30",
        "    min_available: int = 2**30",
    ),
    line(
        "memory is looked at every 5 s", _AB + "protocol.py",
        "bench: memory is looked at every 0.5 s",
        "    interval_s: float = 0.5",
        "    interval_s: float = 5.0",
    ),
    line(
        "no look at memory before the first request", _AB + "processes.py",
        "bench: nothing is started where memory is short",
        "    watch.sample()",
        "    pass",
    ),
    line(
        "the working set without the children", _AB + "memory.py",
        "bench: the working set is the process's and its children's",
        "        family = [process, *process.children(recursive=True)]",
        "        family = [process]",
    ),
    line(
        "warm-ups of the replay are samples", _AB + "replay_arm.py",
        "bench: requests that warm up are not reported",
        "        for _ in range(warmups):",
        "        for _ in range(0):",
    ),
    line(
        "a warm-up of the engine is a sample", "examples/prefill_engine/arm.py",
        "bench: requests that warm up are not reported",
        "            if number >= warmups:",
        "            if number < samples:",
    ),
    line(
        "arms in blocks instead of in turn", _AB + "protocol.py",
        "bench: the arms take turns",
        "            name = f\"process {turn + 1} of arm {runs.name}\"",
        "            runs = all_runs[min(len(done) // protocol.processes, len(all_runs) - 1)]\n"
        "            name = f\"process {turn + 1} of arm {runs.name}\"",
    ),
    line(
        "other seeds are compared", _AB + "agreement.py",
        "bench: arms of different seeds are refused",
        '            ("seeds", first.seed, outcome.seed),',
        '            ("seeds", first.seed, first.seed),',
    ),
    line(
        "other outputs are compared", _AB + "agreement.py",
        "bench: arms with different outputs are refused",
        '            ("outputs (fingerprints)", first.fingerprint, outcome.fingerprint),',
        '            ("outputs (fingerprints)", first.fingerprint, first.fingerprint),',
    ),
    line(
        "means instead of medians", _AB + "report.py",
        "bench: the table has medians",
        "    return Spread(statistics.median(known), min(known), max(known))",
        "    return Spread(statistics.fmean(known), min(known), max(known))",
    ),
    line(
        "changes where samples overlap", _AB + "report.py",
        "bench: no change is printed where samples overlap",
        '                    row.append("no change" if name in self.overlapping(arm) else signed(self.change(arm, name)))',
        "                    row.append(signed(self.change(arm, name)))",
    ),
    line(
        "settings that were not asked for", _AB + "arms.py",
        "bench: a process that ran at other settings is refused",
        "                or any(not 1 <= batch <= most for batch, most in zip(reported, asked, strict=True))):",
        "                or any(not 1 <= batch for batch, most in zip(reported, asked, strict=True))):",
    ),
    # Replay and self-test.
    line(
        "counters of timed passes are not compared", "tools/replay/run.py",
        "replay: every counter of every pass is compared",
        "                arm.note_counters(counters)",
        "                pass",
    ),
    line(
        "unchecked bytes pass", "tools/replay/report.py",
        "replay: every byte is checked",
        "        return not self.mismatches and self.bytes_wrong == 0 and self.bytes_checked == self.nbytes",
        "        return not self.mismatches and self.bytes_wrong == 0",
    ),
    line(
        "jobs of 64 instead of 65", "tools/selftest/ownership.py",
        "self-test: one job more than turns of either host ring",
        "JOBS = (1, 15, 16, 17, 31, 32, 33, 65)",
        "JOBS = (1, 15, 16, 17, 31, 32, 33, 64)",
    ),
    line(
        "a GPU ring of 16 instead of 17", "tools/selftest/copy_groups.py",
        "self-test: a ring that no batch divides",
        "GPU_RINGS = (8, 17, 32)",
        "GPU_RINGS = (8, 16, 32)",
    ),
    line(
        "a GPU ring of 16 in transitions", "tools/selftest/transitions.py",
        "self-test: a ring that no batch divides",
        "    for gpu_ring in (8,) if quick else (8, 17):",
        "    for gpu_ring in (8,) if quick else (8, 16):",
    ),
    line(
        "a fixture that tried nothing is well", "tools/selftest/outcome.py",
        "self-test: nothing tried is nothing shown",
        "        return self.failures == 0 and self.cases > 0",
        "        return self.failures == 0",
    ),
    line(
        "buffers are not forced pageable on a device", "tools/selftest/bench.py",
        "self-test: host buffers are forced pageable on devices, too",
        "            _hip.refuse_pinned(buffers)",
        "            _hip.refuse_pinned()",
    ),
    # Files and ends of commands.
    line(
        "a device node is replaced", _FILES,
        "files: what is no regular file is written to in place",
        "    if stat.S_ISREG(found.st_mode):",
        "    if not stat.S_ISDIR(found.st_mode):",
    ),
    line(
        "links are replaced", _FILES,
        "files: links are followed",
        "        target = os.path.realpath(path)",
        "        target = os.path.abspath(path)",
    ),
    line(
        "a private file becomes public", _FILES,
        "files: a file keeps its mode",
        "            os.chmod(temporary, stat.S_IMODE(old.st_mode))",
        "            os.chmod(temporary, 0o644)",
    ),
    line(
        "a cache of somebody else's", _CACHE,
        "files: the cache's owner is checked",
        "        if found.st_uid != os.geteuid():",
        "        if found.st_uid < 0:",
    ),
    line(
        "a cache that others write to", _CACHE,
        "files: nobody else may write to the cache",
        "        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):",
        "        if found.st_mode & 0:",
    ),
    line(
        "a full output is success", _COMMAND,
        "commands: a full standard output is a failure",
        "                _flush()",
        "                pass",
    ),
    line(
        "SIGTERM does not unwind", _COMMAND,
        "commands: SIGTERM leaves nothing half-done behind",
        "        signal.signal(number, end)",
        "        pass",
    ),
)
