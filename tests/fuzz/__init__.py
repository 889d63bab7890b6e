"""Mutated lines against everything that reads them: the parser, a daemon's socket, and each client.

`make fuzz` runs the full count; tests/component/test_fuzz.py a small one. A seed makes the lines the same again.
"""
