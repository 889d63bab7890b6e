"""`make torture`: faults against a running daemon on a real kernel, and an oracle that knows what really happened."""
