"""Which texts can be a name: the checks by themselves."""

import pytest

from edgeguardd.core.confignames import check_group


@pytest.mark.parametrize("group", ["root", "0", "edgeguard", "_x.y-z", "4294967294"])
def test_a_group_by_name_or_number_is_taken(group: str) -> None:
    """As chown(1) takes it."""
    check_group(group)


@pytest.mark.parametrize("group", ["", "a b", "-x", "4294967295", "99999999999", "9" * 32])
def test_what_no_group_can_be_called_is_refused(group: str) -> None:
    """A number that the kernel has no room for is found by the check, not by the start."""
    with pytest.raises(ValueError, match="no name or number of a group"):
        check_group(group)
