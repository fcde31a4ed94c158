"""Measuring on devices of a Ray cluster: an actor for each device, which the run's workers forward their messages to.

A wing, which joins as the executor of ``--ray``. In the order of its flow: ``cluster`` starts Ray or joins a cluster,
``remote`` holds a device of it, whose actor is a :class:`~inlay.measure.remote.device.Device`. ``ahead`` builds models
before the device is asked for them, ``helper`` answers what is not measured, and ``pool`` is the run's side of that;
``lab`` puts them together. ``policy`` holds the constants. Ray is imported only when it is asked for.
"""

__all__ = ["ahead", "announce", "cluster", "helper", "lab", "policy", "pool", "remote"]
