"""The constants of measuring through Ray, each with its unit and its reason."""

from __future__ import annotations

# --- waiting (seconds) ------------------------------------------------------------------------------------------------

EQUAL_WAIT_S = 20.0  # for the actor of an equal device that was free a moment ago: one does without it
END_LIMIT_S = 5.0  # for an orderly end of helpers and builders; then they are killed

# --- helpers ----------------------------------------------------------------------------------------------------------

MOST_HELPERS = 16
"""Of one run: each gets a copy of the model, and the run adds up what all of them found."""
HELPER_WAIT_S = 60.0  # for their start, with the model's way to them; those that are later are done without
KEPT_MODELS = 4
"""Models whose own files stay in the object store for calls to come; the weights that they share all do."""
PATIENCE_S = 300.0
"""Seconds after which a call that a helper was to answer is answered here: none of a run's takes a minute."""
HELPER_LOSSES = 3  # of a helper, after which it does not come back

# --- builders ---------------------------------------------------------------------------------------------------------

MOST_BUILDERS = 8
"""Of one run: what a search will ask for next is a guess, and the eighth one is seldom right."""

# --- a cluster on this machine ----------------------------------------------------------------------------------------

STORE_BYTES = 200_000_000  # of its object store: several chunks, and outputs on their way back
MOST_SOCKET_FOLDER = (
    40  # characters of the folder for its sockets: paths have 107 at most (unix(7)), of which Ray adds 61
)
