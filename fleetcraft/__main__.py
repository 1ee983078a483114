"""Makes ``python -m fleetcraft`` the same as the command ``fleetcraft``.

Nothing else is here.
"""

import sys

from fleetcraft.cli.main import main

sys.exit(main())
