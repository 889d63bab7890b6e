"""What the documents tell a reader: pages and their blocks, where each command is run, and a place to run it in."""
