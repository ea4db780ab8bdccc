"""Loading: how finished batches get from where they are made to the training loop."""
