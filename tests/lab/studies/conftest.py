"""What the tests of disturbed comparisons share."""

import pytest

from tests.support.lab_comparison import Command, rows


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory) -> list[dict]:
    """The rows of the small comparison without an outage or a kill."""
    folder = tmp_path_factory.mktemp("undisturbed")
    command = Command(folder, None)
    assert command.end() == 0, command.text
    return rows(folder)
