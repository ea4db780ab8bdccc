"""KafkaDataset: client.py has the connections, offsets.py where partitions begin and end, reading.py reads them."""
