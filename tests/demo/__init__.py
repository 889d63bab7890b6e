"""The demonstration: one inference server under memory pressure, bare, with a naive reaction, and guarded."""
