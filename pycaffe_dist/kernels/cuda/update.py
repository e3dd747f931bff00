"""Solver updates on a GPU."""

from __future__ import annotations

from pycaffe_dist.kernels.cuda import kernels

_cu = kernels("update")


def sgd_update(w, diff, history, regularization, rate, momentum) -> None:
    """See `pycaffe_dist.kernels.update.sgd_update`."""
    _cu.sgd_update(w.size, w, diff, history, *regularization, rate, momentum, w.size)


def nesterov_update(w, diff, history, regularization, rate, momentum) -> None:
    """See `pycaffe_dist.kernels.update.nesterov_update`."""
    _cu.nesterov_update(w.size, w, diff, history, *regularization, rate, momentum, w.size)


def adagrad_update(w, diff, history, regularization, rate, delta) -> None:
    """See `pycaffe_dist.kernels.update.adagrad_update`."""
    _cu.adagrad_update(w.size, w, diff, history, *regularization, rate, delta, w.size)


def rmsprop_update(w, diff, history, regularization, rate, rms_decay, delta) -> None:
    """See `pycaffe_dist.kernels.update.rmsprop_update`."""
    _cu.rmsprop_update(w.size, w, diff, history, *regularization, rate, rms_decay, delta, w.size)


def adadelta_update(w, diff, gradients, updates, regularization, rate, momentum, delta) -> None:
    """See `pycaffe_dist.kernels.update.adadelta_update`."""
    scalars = *regularization, rate, momentum, delta
    _cu.adadelta_update(w.size, w, diff, gradients, updates, *scalars, w.size)


def adam_update(w, diff, mean, variance, regularization, rate, beta1, beta2, delta) -> None:
    """See `pycaffe_dist.kernels.update.adam_update`."""
    scalars = *regularization, rate, beta1, beta2, delta
    _cu.adam_update(w.size, w, diff, mean, variance, *scalars, w.size)
