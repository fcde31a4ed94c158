"""Where models are made: PyTorch modules as models, and Inlay as a step of other tools.

``packages`` imports a tool where it is installed. ``torch`` exports modules with their samples, ``folders`` quantizes
what text models are saved in, ``olive`` has passes for its workflows, and ``mcp`` serves commands to agents. A wing:
what the core is given of these joins through the entry points ``inlay.models``, by the package that defines an object's
type.
"""

__all__ = ["folders", "mcp", "olive", "packages", "torch"]
