"""The command line and a scratch tree, as the tests of its verbs have them."""

from tests.cli.conftest import bare_fleet, fleet

__all__ = ["bare_fleet", "fleet"]
