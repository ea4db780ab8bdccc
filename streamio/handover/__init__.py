"""Handing batches from the process that made them to the one that uses them, in memory that both see.

structure: a batch -> bytes and the memory of its arrays, and back. segment: memory in slots, as its maker sees it.
leases: the same as its user sees it, and who still uses what. ring: the two together.

One batch's way: `SlotRing.make` gives the maker of the batch memory of a free slot; the `Handed` that comes out
pickles as a recipe of some hundred bytes; unpickled elsewhere it is the batch, whose arrays view the slot. When the
last of them dies there, a byte in the segment says so, and the slot is used again.
"""
