"""The layers' contract, checked for every configuration in ``cases/`` and every registered type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from layer_cases import Case, collect
from passes import give_top_diffs, run

from pycaffe_dist.layers import Arity, Need, layer_class, layer_types
from pycaffe_dist.schema import caffe_pb2

CASES = collect()
GOLDEN = Path(__file__).parents[1] / "golden" / "layers"


def has_gradient(case):
    return layer_class(case.type).has_backward


def over(cases):
    return pytest.mark.parametrize("case", list(cases), ids=lambda case: case.name)


every_case = over(CASES)
every_differentiable_case = over(filter(has_gradient, CASES))


def forget_states(harness):
    """Make a recurrent layer start from zero again."""
    if hasattr(harness.layer, "reset"):
        harness.layer.reset()


def value(harness):
    """Return the sum of tops times their diffs, the function whose gradient is checked."""
    forget_states(harness)
    diffs = [blob.diff.copy() for blob in harness.top]
    tops = harness.forward()
    for blob, diff in zip(harness.top, diffs):
        blob.diff[...] = diff
    return sum(float((top * diff).sum()) for top, diff in zip(tops, diffs))


def slope(harness, array, direction, step=1e-5):
    saved = array.copy()
    array[...] = saved + step * direction
    above = value(harness)
    array[...] = saved - step * direction
    below = value(harness)
    array[...] = saved
    return (above - below) / (2 * step)


def frozen(layer):
    """Return the parameters that a layer itself exempts from learning, as running statistics."""
    return {index for index, spec in enumerate(layer.param.param) if spec.lr_mult == 0}


@every_differentiable_case
def test_the_gradient_fits_the_function(case):
    harness = case.build()
    harness.forward()
    give_top_diffs(harness, 3)
    for blob in harness.bottom:
        blob.diff.fill(1e9)
    propagated = harness.backward()
    checked = [
        (f"bottom {i}", b.data, b.diff.copy())
        for i, b in enumerate(harness.bottom)
        if propagated[i] and not case.no_bottom_derivatives
    ]
    checked += [
        (f"parameter {i}", b.data, b.diff.copy())
        for i, b in enumerate(harness.layer.blobs)
        if i not in frozen(harness.layer) and i not in case.no_derivatives
    ]
    rng = np.random.default_rng(19)
    for what, array, gradient in checked:
        for _ in range(3):
            direction = rng.standard_normal(array.shape)
            expected = slope(harness, array, direction)
            found = float((gradient * direction).sum())
            scale = max(1.0, float(np.abs(gradient * direction).sum()) ** 0.5)
            assert found == pytest.approx(expected, abs=case.tolerance * scale), what


@every_differentiable_case
def test_parameter_diffs_add_up_and_bottom_diffs_do_not(case):
    harness = case.build()
    _, first_bottom, first_parameters = run(harness)
    give_top_diffs(harness, 3)
    propagated = harness.backward()
    again = [blob.diff for blob, done in zip(harness.bottom, propagated) if done]
    for found, expected in zip(again, first_bottom):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    for blob, expected in zip(harness.layer.blobs, first_parameters):
        np.testing.assert_allclose(blob.diff, 2 * expected, rtol=1e-9, atol=1e-12)


@every_differentiable_case
def test_gradients_that_are_not_asked_for_are_left_alone(case):
    harness = case.build()
    harness.forward()
    give_top_diffs(harness, 3)
    for blob in (*harness.bottom, *harness.layer.blobs):
        # A blob that shares memory with a top has the top's diff.
        if not any(
            blob.diff is top.diff or np.shares_memory(blob.diff, top.diff) for top in harness.top
        ):
            blob.diff.fill(123)
    before = [blob.diff.copy() for blob in (*harness.bottom, *harness.layer.blobs)]
    harness.layer.param_propagate_down = [False] * len(harness.layer.blobs)
    harness.backward([False] * len(harness.bottom))
    for blob, expected in zip((*harness.bottom, *harness.layer.blobs), before):
        np.testing.assert_array_equal(blob.diff, expected)


@every_case
def test_forward_repeats_itself(case):
    first, second = case.build(), case.build()
    for one, other in zip(first.forward(), second.forward()):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("case", "axis"),
    [(case, axis) for case in CASES for axis in case.grows if case.bottoms],
    ids=lambda value: getattr(value, "name", value),
)
def test_bottoms_may_change_their_shape_and_back(case, axis):
    """A layer that has grown equals a layer made for the larger bottoms, and can shrink."""
    small = case.build()
    passes = run if has_gradient(case) else lambda harness: [harness.forward()]
    expected = passes(case.build())
    passes(small)
    for values, wanted in ((case.grown(axis), None), (case.values(), expected)):
        small.fill(values)
        for blob in small.layer.blobs:
            blob.diff.fill(0)
        forget_states(small)
        fresh = case.build(values)
        if case.statistics:
            for blob, source in zip(small.layer.blobs, fresh.layer.blobs):
                blob.data[...] = source.data
        wanted = wanted or passes(fresh)
        for found_list, wanted_list in zip(passes(small), wanted):
            for found, value in zip(found_list, wanted_list):
                assert found.shape == value.shape
                np.testing.assert_allclose(found, value, rtol=1e-9, atol=1e-9)


@over(filter(Case.can_be_in_place, CASES))
def test_in_place_is_the_same_as_out_of_place(case):
    apart, within = case.build(), case.build(in_place=True)
    expected = apart.forward()
    found = within.forward(case.values())
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
    if not has_gradient(case):
        return
    give_top_diffs(apart, 5)
    give_top_diffs(within, 5)
    if not within.layer.need_of_top(0):
        within.top[0].data.fill(np.nan)
    apart.backward()
    within.backward()
    for blob, other in zip(within.bottom, apart.bottom):
        np.testing.assert_allclose(blob.diff, other.diff, rtol=1e-9)
    for blob, other in zip(within.layer.blobs, apart.layer.blobs):
        np.testing.assert_allclose(blob.diff, other.diff, rtol=1e-9)


@every_differentiable_case
def test_backward_reads_no_more_than_it_declares(case):
    """Change the blobs that backward does not declare: the gradients stay the same.

    Blobs of which backward declares only the signs are scaled, the others are overwritten.
    """
    expected = case.build()
    _, bottom_diffs, parameter_diffs = run(expected)
    harness = case.build()
    harness.forward()
    give_top_diffs(harness, 3)
    layer, shared = harness.layer, {id(blob._data) for blob in harness.bottom}
    for index, blob in enumerate(harness.top):
        if id(blob._data) not in shared:
            blob.data[...] = overwritten(blob.data, layer.need_of_top(index))
    for blob in harness.bottom:
        blob.data[...] = overwritten(blob.data, layer.backward_needs_bottom)
    propagated = harness.backward()
    found = [blob.diff for blob, done in zip(harness.bottom, propagated) if done]
    for one, other in zip(found, bottom_diffs):
        np.testing.assert_array_equal(one, other)
    for blob, other in zip(layer.blobs, parameter_diffs):
        np.testing.assert_array_equal(blob.diff, other)


@over([case for case in CASES if layer_class(case.type).backward_needs_top == Need.PRODUCT])
def test_products_with_the_diff_need_no_values_where_the_diff_is_zero(case):
    harness = case.build()
    harness.forward()
    give_top_diffs(harness, 3)
    top = harness.top[0]
    top.diff[top.data < 0] = 0
    harness.backward()
    expected = harness.bottom[0].diff.copy()
    assert expected.any()
    top.data[top.data < 0] = 0
    harness.backward()
    np.testing.assert_array_equal(harness.bottom[0].diff, expected)


def overwritten(array, need):
    return (np.full_like(array, np.nan), array * 3, array, array)[need]


@every_case
def test_single_precision_agrees_with_double(case):
    if "STOCHASTIC" in case.options:
        pytest.skip("the random numbers depend on the precision")
    passes = run if has_gradient(case) else lambda harness: [harness.forward()]
    single, double = case.build(dtype=np.float32), case.build()
    for blob, source in zip(double.layer.blobs, single.layer.blobs):
        blob.data[...] = source.data
    double.fill({name: blob.data for name, blob in single.blobs.items() if blob in single.bottom})
    for found_list, wanted_list in zip(passes(single), passes(double)):
        for found, wanted in zip(found_list, wanted_list):
            assert found.dtype == np.float32
            scale = max(1.0, float(np.abs(wanted).max(initial=0)))
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=2e-5 * scale)


def is_source_or_sink(name):
    """Tell whether a layer only reads or writes data: these have no gradient to check."""
    chosen = layer_class(name)
    ends = [chosen.bottoms, chosen.tops]
    return not chosen.has_backward and Arity(0, 0) in ends


def test_every_layer_type_has_a_case():
    golden = set()
    for path in GOLDEN.glob("*.npz"):
        with np.load(path) as archive:
            net = text_format.Parse(str(archive["prototxt"]), caffe_pb2.NetParameter())
        golden.update(layer.type for layer in net.layer)
    # test_python_layer.py tests users' classes.
    known = golden | {case.type for case in CASES} | {"Python"}
    missing = {name for name in layer_types() if not is_source_or_sink(name)} - known
    assert not missing, f"add a case to tests/layers/cases for {', '.join(sorted(missing))}"
