"""Inlay as passes of Olive: ``InlayTune`` and ``InlayQuantize``, known by a package configuration.

Olive imports ``passes`` by the name that ``package`` writes for it. ``python -m inlay.integrations.olive.package FILE``
writes the file for ``olive run --package-config``.
"""

__all__ = ["package", "passes"]
