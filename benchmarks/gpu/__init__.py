"""A race on a real GPU: strata beside what people use today, in one run, on the same sources.

``python -m benchmarks.gpu.race --out results`` measures every case and writes ``results/race.json`` and
``results/race.md`` after each. One peer a file in `benchmarks.gpu.peers`. Cases are measured in a worker process,
so that a peer that crashes or hangs loses its own case and no other. Needs torch with CUDA, and the peers'
packages for their cases; a peer that cannot be run is listed with the reason.
"""
