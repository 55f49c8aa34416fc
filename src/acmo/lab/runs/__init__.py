"""One run: one optimizer, one setting, one seed, in a folder."""
