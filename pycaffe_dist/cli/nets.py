"""Opens the net that a command's flags name."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pycaffe_dist.cli.flags import split_list

if TYPE_CHECKING:
    from pycaffe_dist.data.partition import Shard
    from pycaffe_dist.device import Device
    from pycaffe_dist.net import Net


def open_net(
    options: argparse.Namespace,
    phase: int,
    shard: Shard | None = None,
    device: Device | None = None,
    keep_blobs: bool = True,
    precision: str = "float32",
) -> Net:
    """Build the net of ``--model`` in ``phase``, at ``--level`` and in the ``--stage`` stages."""
    from pycaffe_dist.data.partition import Shard
    from pycaffe_dist.net import Net
    from pycaffe_dist.net.rules import with_state
    from pycaffe_dist.net.summary import log_layers
    from pycaffe_dist.schema import text

    param, places = text.read_net_with_places(options.model)
    param = with_state(param, phase, options.level, split_list(options.stage))
    net = Net(
        param,
        shard=shard or Shard(),
        places=places,
        device=device,
        keep_blobs=keep_blobs,
        precision=precision,
    )
    log_layers(net)
    return net
