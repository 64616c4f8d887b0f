"""A node whose kernel has neither FUSE passthrough nor EROFS images in files: slower, and otherwise the same."""
import pytest
from hosts import FarNode
from test_mirror_fresh import (  # noqa: F401
    test_an_edit_outside_the_project_is_seen_too,
    test_the_next_command_sees_every_edit,
    test_what_a_command_wrote_is_there_when_it_returns,
)
from test_mirror_work import (  # noqa: F401
    test_a_project_is_copied_packed_and_moved,
    test_git_agrees_on_both_sides,
    test_make_builds_and_knows_what_is_up_to_date,
    test_what_is_written_outside_the_project_is_dropped,
    test_what_only_the_laptop_has_is_found,
)
from virga import LONG

pytestmark = pytest.mark.skipif(not LONG, reason="a long form: VIRGA_TEST_LONG=1")

if LONG:
    from test_mirror_work import test_tools_say_the_same  # noqa: F401


class OldNode(FarNode):
    shared = ["--no-passthrough", "--no-erofs"]


KIND = OldNode


def test_it_was_really_switched_off(far):
    far.laptop.vrun("true", check=0)
    for pid in far.nodes[0].daemons():
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            words = f.read().split(b"\0")
        assert b"--no-passthrough" in words and b"--no-erofs" in words
    assert far.nodes[0].counters()["passthrough"] == 0
