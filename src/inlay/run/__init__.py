"""One run: the loop and everything that one command needs around it."""
