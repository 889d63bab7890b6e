"""The pure half: values in, values out. Nothing here reads a clock, opens a file or touches a socket."""
