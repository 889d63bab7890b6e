"""`python -m edgeguardd` is the daemon's command."""

import sys

from edgeguardd.cli.edgeguardd import main

sys.exit(main())
