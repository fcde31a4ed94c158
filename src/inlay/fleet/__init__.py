"""Many models on many targets under one budget: a run of its own for each pair, and time where it gains most.

``plan`` reads what is asked for, ``allocate`` says which run gets time next and how much, ``drive`` gives it, each time
by one resumed :func:`inlay.tune`, and keeps what became of it; ``result`` is the table, ``page`` the same for a
browser. ``policy`` holds the constants. Nothing but the command imports the room.
"""

from inlay.fleet.drive import fleet

__all__ = ["fleet"]
