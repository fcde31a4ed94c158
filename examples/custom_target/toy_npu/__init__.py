"""A simulated accelerator: an example of a target of Inlay that lives in a package of its own."""
