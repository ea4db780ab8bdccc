"""One script for each peer, run in the peer's environment: it calls the peer's own code and gives batches.

A script has `write(job)`, which converts the source into the peer's format with the peer's own writer, and
`loop(job)`, which says how an epoch of batches is had. See `benchmarks.speed.job`.
"""
