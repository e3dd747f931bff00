"""Ways of combining a parameter across ranks; a file dropped in here is found by itself."""

from pycaffe_dist.exchange.base import (
    AUTO,
    Exchange,
    candidates,
    exchange_class,
    exchange_names,
    register,
)

__all__ = ["AUTO", "Exchange", "candidates", "exchange_class", "exchange_names", "register"]
