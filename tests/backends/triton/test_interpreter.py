"""What the tests patch in Triton's interpreter, and a check that notices when a version no longer needs it."""

from tests.support.triton_interpreter import needs_triton, rounding_bfloat16, truncates_bfloat16

pytestmark = needs_triton


def test_interpreter_truncates_bfloat16_until_it_is_patched():
    assert truncates_bfloat16(), "this Triton rounds bfloat16 by itself: delete rounding_bfloat16"
    with rounding_bfloat16():
        assert not truncates_bfloat16()
