"""Flags of how ranks combine gradients, for the command that trains."""

from __future__ import annotations

import argparse
import math
from typing import Any

from pycaffe_dist.cli.flags import FlagParser, add_flag, require_not_negative
from pycaffe_dist.config import Overlap, TrainOptions, UpdatePriority, Wire
from pycaffe_dist.errors import UsageError

_NOT_NEGATIVE = (
    "staleness",
    "server_ranks",
    "bandwidth_limit",
    "check_interval",
    "stall_timeout",
    "stall_shutdown",
)
_PARAMETER_SERVER = "parameter_server"
# Flags that only this exchange reads, with their defaults.
_FOR_SERVERS = {
    "staleness": TrainOptions.staleness,
    "server_ranks": TrainOptions.server_ranks,
    "update_priority": TrainOptions.update_priority.value,
}


def add_exchange_flags(parser: FlagParser) -> None:
    """Give ``parser`` the flags of exchanges."""
    add_flag(
        parser,
        "exchange",
        default=TrainOptions.exchange,
        metavar="NAME",
        help="how gradients are combined over ranks: auto takes the cheapest for each parameter "
        "(of allreduce, sufficient_factor, where several hosts have several ranks hierarchical, "
        "and on GPUs nccl and cuda_mpi, which leave gradients in their memory); naive "
        "does it after backward; one_sided puts into other ranks' memory; with "
        "parameter_server, owners of shards update them and send weights back",
    )
    add_flag(
        parser,
        "overlap",
        default=TrainOptions.overlap.value,
        choices=[overlap.value for overlap in Overlap],
        help="until when gradients may travel: the end of backward, or the next forward of the "
        "layer that needs them, the first layers' first",
    )
    add_flag(
        parser,
        "timeline",
        metavar="FILE",
        help="write what every rank does when, in Chrome's trace format (for ui.perfetto.dev)",
    )
    add_flag(
        parser,
        "bandwidth_limit",
        float,
        default=0.0,
        metavar="MBPS",
        help="megabytes (10^6 bytes) of gradients and weights that a rank sends per second; 0 is "
        "as many as it can",
    )
    add_flag(
        parser,
        "wire",
        default=TrainOptions.wire.value,
        choices=[wire.value for wire in Wire],
        help="the form in which gradients travel; of 16 bits, they take half the time, and what "
        "rounding loses of a gradient is added to the next one",
    )
    _add_checking_flags(parser)
    _add_server_flags(parser)


def _add_checking_flags(parser: FlagParser) -> None:
    add_flag(
        parser,
        "check_interval",
        int,
        default=TrainOptions.check_interval,
        metavar="N",
        help="compare the weights of all ranks every N iterations, and end the run when they "
        "differ; 0 never does, nor does a run with --staleness",
    )
    add_flag(
        parser,
        "stall_timeout",
        float,
        default=TrainOptions.stall_seconds,
        metavar="SECONDS",
        help="when a rank has waited this long, it says for which others; 0 never does",
    )
    add_flag(
        parser,
        "stall_shutdown",
        float,
        default=0.0,
        metavar="SECONDS",
        help="when a rank has waited this long for others, it ends the run, which pcaffe launch "
        "--restarts then starts again; take more than the longest snapshot or test; 0 never does",
    )


def _add_server_flags(parser: FlagParser) -> None:
    add_flag(
        parser,
        "staleness",
        int,
        default=TrainOptions.staleness,
        metavar="S",
        help="with --exchange=parameter_server: how many iterations a rank may be ahead of the "
        "slowest; 0 trains synchronously",
    )
    add_flag(
        parser,
        "server_ranks",
        int,
        default=TrainOptions.server_ranks,
        metavar="N",
        help="with --exchange=parameter_server: the last N ranks serve parameters and do not "
        "train; 0 lets all ranks do both",
    )
    add_flag(
        parser,
        "update_priority",
        default=TrainOptions.update_priority.value,
        choices=[priority.value for priority in UpdatePriority],
        help="with --exchange=parameter_server: what goes first when the link or "
        "--bandwidth_limit holds gradients up",
    )


def check_exchange_flags(options: argparse.Namespace) -> None:
    """Raise UsageError when the flags mean nothing, alone or together."""
    require_not_negative(options, _NOT_NEGATIVE)
    if options.exchange == _PARAMETER_SERVER:
        return
    for name, default in _FOR_SERVERS.items():
        if getattr(options, name) != default:
            raise UsageError(f"flag --{name} is for --exchange={_PARAMETER_SERVER}")


def exchange_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of TrainOptions that the flags stand for."""
    return {
        "exchange": options.exchange,
        "overlap": Overlap(options.overlap),
        "timeline": options.timeline,
        "staleness": options.staleness,
        "server_ranks": options.server_ranks,
        "update_priority": UpdatePriority(options.update_priority),
        "bandwidth_limit": options.bandwidth_limit * 1e6 or TrainOptions.bandwidth_limit,
        "wire": Wire(options.wire),
        "check_interval": options.check_interval,
        "stall_seconds": options.stall_timeout or math.inf,
        "shutdown_seconds": options.stall_shutdown or math.inf,
    }
