"""Ways of combining a parameter across ranks; a file dropped in here is found by itself."""

from pycaffe_dist.exchange.base import Exchange, exchange_class, exchange_names, register

__all__ = ["Exchange", "exchange_class", "exchange_names", "register"]
