"""What several tests of the metrics are given."""

import pytest

from tests._make import scaled_rows
from tm_bandit import ReferenceStatistics


@pytest.fixture
def reference():
    """A reference of five features, from the rows that ``scaled_rows`` makes."""
    return ReferenceStatistics.from_features(scaled_rows(1, 30, dim=5))
