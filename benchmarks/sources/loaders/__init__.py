"""Who takes part: each file runs in one environment and has `loop(job)`."""
