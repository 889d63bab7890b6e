"""`edgeguardctl size`: from RAM, model file and other services to limits and flags, with the arithmetic shown."""
