"""`edgeguardctl provision`: the isolation that the configuration asks for, set up, read back, and taken back.

    wanted ─┐
            ├─▶ refusals ─▶ changes ─▶ run: apply, read back, else roll back ─▶ record ─▶ undo
    found ──┘

`wanted`, `refusals` and the planning halves of the two back ends (`tree` for a cgroup tree, `drop_ins` for systemd)
look at nothing; `treeio` and `systemd` read and write.
"""
