"""Setting up, checking and explaining isolation, offline: what edgeguardctl does without a daemon."""
