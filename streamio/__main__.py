"""`python -m streamio` is the `streamio` command."""

import sys

from streamio.cli import main

if __name__ == "__main__":
    sys.exit(main())
