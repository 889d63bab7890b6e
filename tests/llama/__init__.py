"""`make demo-llama`: a real llama-server with a real small model under real limits, bare and guarded."""
