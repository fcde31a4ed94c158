"""Measuring on a device elsewhere, however it is reached: the same worker processes answer the same messages there.

``device`` is the device's side: worker processes by key, and a folder for what they read. ``transfer`` is what must
travel to it, ``held`` the run's side of a device, and ``worker`` a worker that forwards its messages to it.
"""

__all__ = ["device", "held", "transfer", "worker"]
