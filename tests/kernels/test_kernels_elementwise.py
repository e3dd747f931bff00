import numpy as np
import pytest

from pycaffe_dist.kernels import elementwise
from pycaffe_dist.threads import set_threads, thread_count


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (7, elementwise.CLEARED)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_an_array_is_cleared_on_all_threads(shape, dtype):
    before, memory = thread_count(), np.ones(int(np.prod(shape)) + 2, dtype)
    set_threads(3)
    elementwise.clear(memory[1:-1].reshape(shape))
    set_threads(before)
    np.testing.assert_array_equal(memory[1:-1], 0)
    assert memory[0] == memory[-1] == 1
