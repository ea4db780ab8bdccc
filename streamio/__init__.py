"""streamio: pack folders of small files into a few shards, and stream them into PyTorch as ready-made batches."""
