"""What others connect to: the subscriber socket and HTTP. Sockets in, events out; effects in, lines out.

Must not: judge memory, or import the kernel shell or the client. Upstream: core. Downstream: daemon.
"""
