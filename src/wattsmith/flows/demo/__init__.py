"""The demo: the main job end to end on this machine, one file a stage, and a page of all that came of it."""
