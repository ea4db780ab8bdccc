"""How fast streamio and its peers feed a training loop with the same data, beside the limits of the machine."""
