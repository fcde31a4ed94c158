"""Inlay for agents: a server of the Model Context Protocol; its tools are commands on files in given folders.

``folders`` says which paths a client may name, ``server`` runs commands as processes of their own, ``command`` is
``inlay mcp``.
"""

__all__ = ["command", "folders", "server"]
