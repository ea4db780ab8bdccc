"""One script for each peer, run in the peer's environment: it calls the peer's own code and records the order."""
