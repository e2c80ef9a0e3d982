"""The programs on the engine, a file for each: what it prepares, and what it tells at the end; and what they share."""
