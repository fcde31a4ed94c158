"""Arm Ethos-U NPUs: compiled and estimated through Vela, computed exactly by the TOSA reference model."""
