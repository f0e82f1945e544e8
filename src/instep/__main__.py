"""`python -m instep`: the command line."""

import sys

from instep.app.cli import main

if __name__ == "__main__":
    sys.exit(main())
