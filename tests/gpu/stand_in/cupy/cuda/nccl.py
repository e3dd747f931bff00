"""NCCL as the emulation has it."""

from pycaffe_dist.gpu.emulated_nccl import *  # noqa: F403
