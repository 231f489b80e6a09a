"""Values become the same bytes on every back end: the tests of the other files on a cluster and on a Connect server."""

from __future__ import annotations

import pytest

from tests.exports.spark.test_spark_backends import on_cluster, on_connect, warm  # noqa: F401 - fixtures
from tests.exports.spark.test_spark_decimals import (  # noqa: F401 - as those below
    test_numbers_of_json_are_read_as_they_are_written_and_those_inside_of_others_as_text,
)
from tests.exports.spark.test_spark_export import (  # noqa: F401 - collected here a second time, with this `warm`
    test_an_empty_result_is_a_header_with_a_manifest,
    test_csv_is_text_unless_a_schema_gives_it_types,
    test_one_column_distinguishes_null_from_nothing_and_groups_count_both,
)
from tests.exports.spark.test_spark_formats import (  # noqa: F401 - as those above
    source,
    test_nasty_values_become_the_same_bytes,
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("spark servers"),
]
