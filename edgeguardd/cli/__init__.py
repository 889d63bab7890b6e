"""The command lines: edgeguardd, the daemon, and edgeguardctl, its operator's."""
