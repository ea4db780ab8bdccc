"""Values that cost much to make, kept for the epochs to come: in shared memory or in files; see docs/caching.md."""
