"""The constants of measuring through Ray, each with its unit and its reason."""

from __future__ import annotations

# --- losses -----------------------------------------------------------------------------------------------------------

LOSSES_OF_A_CALL = 3
"""Times that a device may be lost in one call, each on a new actor; then it fails as if the runtime had died in it."""
LOSSES_IN_A_ROW = 6
"""Losses with no answer between them, over all calls, after which a device is taken out: two calls' worth of tries."""

# --- waiting (seconds) ------------------------------------------------------------------------------------------------

DEVICE_WAIT_S = 120.0  # for an actor: a node that comes back, another run that ends, Python that loads its libraries
UNSEEN_S = 5.0  # of it that nothing is said of: an actor takes as long to start where its node is idle
EQUAL_WAIT_S = 20.0  # for the actor of an equal device that was free a moment ago: one does without it
RETURN_LIMITS = 2.0  # limits of a message, for one that was lost: a machine starts again; at most what is left
ANSWER_GRACE_S = 30.0  # beyond a message's own limit, which the device enforces: then its actor is ended
END_LIMIT_S = 5.0  # for an orderly end; then the actor is killed, and its workers with it

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

# --- what travels -----------------------------------------------------------------------------------------------------

CHUNK = 1 << 25  # bytes of a file in one message: a few of them fit into a small object store

# --- a cluster on this machine ----------------------------------------------------------------------------------------

STORE_BYTES = 200_000_000  # of its object store: several chunks, and outputs on their way back
MOST_SOCKET_FOLDER = (
    40  # characters of the folder for its sockets: paths have 107 at most (unix(7)), of which Ray adds 61
)
