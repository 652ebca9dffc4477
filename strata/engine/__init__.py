"""The native machinery: rings, threads, the engine's side of a request. Private; `strata` is the face."""
