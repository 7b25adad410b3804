"""One module per thing a user wants; joins rooms."""
