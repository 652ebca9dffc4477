"""The embedding example of the README: stream experts through a ring, layer by layer. Runs without a GPU."""

import numpy as np

import strata

LAYERS, EXPERTS, NBYTES = 4, 32, 64 * 1024

# Experts: some in pinned memory (read by the DMA engine where they lie), the rest pageable, as an mmap would be.
pinned = strata.pinned_empty((LAYERS, EXPERTS // 2, NBYTES), np.uint8)
pinned[:] = np.arange(pinned.size, dtype=np.uint64).reshape(pinned.shape) % 251
pageable = np.full((LAYERS, EXPERTS // 2, NBYTES), 7, np.uint8)

with strata.ExpertStreamer(NBYTES, gpu_ring=16, settings=strata.BatchSettings(8, 16, 16)) as streamer:
    with streamer.begin() as request:
        for layer in range(LAYERS):
            request.extend(strata.ExpertCopies.from_buffers([*pinned[layer], *pageable[layer]]))
            for expert, slot in enumerate(request):
                # Queue this expert's kernels on streamer.compute_stream here; they read slot.address. Leaving the
                # loop's body releases the slot. There is no kernel here: on the software runtime, whose device
                # memory the host can read, the example waits for the bytes and looks at them.
                if strata.runtime.current() == "software":
                    slot.synchronize()
                    half = pinned if expert < EXPERTS // 2 else pageable
                    assert (slot.array() == half[layer, expert % (EXPERTS // 2)]).all()
    print(request.counters)
