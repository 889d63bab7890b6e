"""`make bench`: what edgeguardd takes and how fast it is, beside others; docs/explanation/performance.md."""
