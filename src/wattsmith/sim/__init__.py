"""A machine that is not there: simulated drivers that name themselves as simulated."""
