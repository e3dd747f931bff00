"""Write docs/solvers.md, the catalogue of solvers, from their docstrings and the schema.

Run it after a change to either (``make catalogue``).  Needs grpcio-tools.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from generate_layers import comments, table

from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.solvers.lr_policy import POLICIES
from pycaffe_dist.solvers.method import Method, method_class, method_types
from pycaffe_dist.solvers.moments import Moments

OUTPUT = Path(__file__).resolve().parent.parent / "docs" / "solvers.md"
# Numbers from here on, and some of forks, are not Caffe's.
_FIRST_OWN = 241
_PARAM = caffe_pb2.SolverParameter.DESCRIPTOR

_HEAD = """# Solvers

The types of solvers, the policies of their learning rates, and all fields of a solver's prototxt.
[solver_fields.md](solver_fields.md) explains the fields that Caffe lacks. `make catalogue`
writes this page from the sources.

## Types

`type: "SGD"` is the default. The memory is what a type keeps for each weight, besides the weight
and its gradient.
"""
_POLICIES = """## Learning rates

`lr_policy` has no default. In the first `warmup_iter` iterations the rate rises to the policy's;
after them it is never below `min_lr`. Iterations count from 0.

| `lr_policy` | rate |
| --- | --- |"""


def _plain(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").replace("``", "`").split())


def _types() -> Iterator[str]:
    for name in sorted(method_types(), key=lambda name: (name != "SGD", name)):
        kind = method_class(name)
        own = [base for base in kind.__mro__ if issubclass(base, Method) and base is not Method]
        source = "\n".join(inspect.getsource(base) for base in own)
        read = set(re.findall(r"\bparam\.(\w+)", source)) & set(_PARAM.fields_by_name)
        fields = ", ".join(f"`{field}`" for field in sorted(read))
        yield f"### {name}\n\n{inspect.cleandoc(kind.__doc__ or '').replace('``', '`')}\n"
        facts = [f"Values of memory: {kind.slots}", f"fields of its own: {fields or 'none'}"]
        if issubclass(kind, Moments):
            first, second = kind.usual
            facts.append(
                f"`momentum` is {first:g} and `momentum2` {second:g} if they are not given"
            )
        if not kind.takes_momentum:
            facts.append("`momentum` is refused")
        yield "; ".join(facts) + ".\n"


def _policies() -> Iterator[str]:
    yield _POLICIES
    for name, rate in POLICIES.items():
        text = _plain(rate.__doc__).removeprefix("Return ")
        yield f"| `{name}` | {text[:1].upper()}{text[1:]} |"
    yield ""


def catalogue() -> str:
    """Return the page."""
    texts = comments()
    ours = [field.name for field in _PARAM.fields if field.number >= _FIRST_OWN]
    caffes = [field.name for field in _PARAM.fields if field.number < _FIRST_OWN]
    lines = [_HEAD, *_types(), *_policies(), "## Fields of Caffe\n"]
    lines += table(_PARAM, "field", texts, caffes)
    lines += ["## Fields that Caffe does not have\n", *table(_PARAM, "field", texts, ours)]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(catalogue())
