"""Batching: columns of stored values -> decoded values -> one array for each field -> tensors."""
