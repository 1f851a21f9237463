"""`python -m lightning_nli`."""

import sys

from lightning_nli.cli.main import main

sys.exit(main())
