"""What the package says while it reads data."""

import logging

import pytest


@pytest.fixture(autouse=True)
def messages_are_caught(caplog):
    """As the command line shows them: from INFO on."""
    caplog.set_level(logging.INFO, "egc")
