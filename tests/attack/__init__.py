"""Attacks on the whole program: hostile inputs (``fuzz``), kills (``kills``) and faulty runtimes (``faults``).

``python -m tests.attack COMMAND --help`` runs one for as long as it is told. Short versions are tests beside it.
"""
