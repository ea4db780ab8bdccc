"""The ring, for the transports; it stands on a rung of its own, since the plain DataLoader has it as well."""

from streamio.handover.ring import Handed, RingCounts, SlotRing

__all__ = ["Handed", "RingCounts", "SlotRing"]
