"""A target that measures with any program that prints JSON.

``protocol`` is what is asked and answered (``docs/targets.md`` describes it for people), ``table`` the rules in a YAML
file, ``layers`` the program's profile as kernels of the model.
"""

__all__ = ["protocol", "table", "target"]
