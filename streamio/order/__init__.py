"""Order: which rows a batch holds. Pure arithmetic on integers: no files, no torch, nothing that is kept.

position --shuffle--> row          one epoch's order, a bijection of [0, N)
step, rank --plan--> positions     who gets which slice of it
"""
