"""The table of weights has every file of the product."""

from __future__ import annotations

from tests.rooms import files, room_of


def test_each_file_of_the_product_is_in_a_room() -> None:
    """A folder that the table does not name would grow unseen."""
    code = [name for name in files(None) if name.startswith(("steadyworker/", "adapters/")) and name.endswith(".py")]
    assert [name for name in code if room_of(name) is None] == []
