"""`python -m bertjax`."""

import sys

from bertjax.cli import main

if __name__ == "__main__":  # processes that we start import this module, too
    sys.exit(main())
