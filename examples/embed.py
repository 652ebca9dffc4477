"""Embedding without torch: stream experts through a ring, layer by layer, in spans. Runs without a GPU."""

import numpy as np

import strata

LAYERS, EXPERTS, NBYTES = 4, 32, 64 * 1024

# Experts: some in pinned memory (read by the DMA engine where they lie), the rest pageable, as an mmap would be.
pinned = strata.pinned_empty((LAYERS, EXPERTS // 2, NBYTES), np.uint8)
pinned[:] = np.arange(pinned.size, dtype=np.uint64).reshape(pinned.shape) % 251
pageable = np.full((LAYERS, EXPERTS // 2, NBYTES), 7, np.uint8)

with strata.ExpertStreamer(NBYTES, gpu_ring=16) as streamer:
    with streamer.begin() as request:
        for layer in range(LAYERS):
            experts = [*pinned[layer], *pageable[layer]]
            request.extend(strata.ExpertCopies.from_buffers(experts))
            for span in request.spans(8):
                # Queue one grouped kernel on request.compute_stream here: it reads len(span) experts from span.address
                # on, span.stride bytes apart. Leaving the loop's body releases the span. There is no kernel here: on
                # the software runtime, whose device memory the host can read, the example looks at the bytes.
                if strata.runtime.current() == "software":
                    for k in range(len(span)):
                        span[k].synchronize()
                        assert (span[k].array() == experts[span.begin - layer * EXPERTS + k]).all()
    print(request.counters)
