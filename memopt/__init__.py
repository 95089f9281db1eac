"""memopt: compile a tensor graph into a checked memory plan, and run it."""
