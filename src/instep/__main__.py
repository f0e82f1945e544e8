"""`python -m instep`: the command line."""

import sys

from instep.app.cli import main

sys.exit(main())
