"""A real Linux kernel as an ordinary process, for tests on machines whose own kernel cannot be used."""
