"""Plays the daemon against any client, one transcript after another, and says which rule it broke.

The transcripts (cases) are data: docs/reference/protocol.md prints them, and play() sends those very bytes.
Must not: know a client, or import more of the daemon than the protocol. Upstream: core.wire. Downstream: cli.
"""
