"""Whether a machine is fit for edgeguardd: gather reads facts, checks turns them into findings with remedies."""
