"""A finished run on one page: ``report.html``, a single file that needs no network.

``folder`` reads what a run left, ``kernels`` says what ran where and for how long, ``points`` and
``drawing`` compute positions, ``page`` fills the template. Names in a model are text from a stranger: the template
escapes all of them, and the page's script writes text, never markup. A wing: ``tune`` leaves the page through an entry
point; ``api``, ``gate`` and ``command`` are ``inlay report``, ``inlay export``, ``inlay card`` and
``inlay check``, which holds what was delivered against limits on this machine.
"""

__all__ = ["api", "card", "command", "exports", "folder", "gate", "kernels", "page", "points"]
