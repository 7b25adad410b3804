"""How the tables came to be, one step per file. What is released is not changed again."""
