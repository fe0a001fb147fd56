"""Training: the corpus, the settings, one update, the loop around it, and its saves."""
