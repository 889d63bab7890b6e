"""How many examples a property is tried on, and that none fails for the machine being busy.

EDGEGUARDD_PROPERTY_EXAMPLES (60) is the number for each property that does not set its own.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "edgeguardd",
    max_examples=int(os.environ.get("EDGEGUARDD_PROPERTY_EXAMPLES", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("edgeguardd")
