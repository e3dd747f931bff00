"""The train and test nets that a SolverParameter asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pycaffe_dist.comm.cluster import Cluster
from pycaffe_dist.data.partition import Shard, share
from pycaffe_dist.errors import UsageError
from pycaffe_dist.layers import Layer, LayerContext, layer_class, layer_types
from pycaffe_dist.log import logger
from pycaffe_dist.net import Net
from pycaffe_dist.net.rules import kept_layers
from pycaffe_dist.net.summary import log_layers
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.schema.places import Places
from pycaffe_dist.snapshot.caffemodel import require_weights
from pycaffe_dist.solvers.detections import check_outputs

_TRAIN_FIELDS = ("net", "net_param", "train_net", "train_net_param")


class NetDefinition(NamedTuple):
    """A net to be built: its definition with the state set, where it came from, its places."""

    param: caffe_pb2.NetParameter
    origin: str
    places: Places | None


def _from_file(path: str, origin: str) -> NetDefinition:
    if not path:
        raise UsageError(f"the name of the solver's {origin} is empty")
    param, places = text.read_net_with_places(path)
    return NetDefinition(param, f"{origin}: {path}", places)


def _inline(param: caffe_pb2.NetParameter, origin: str) -> NetDefinition:
    return NetDefinition(param, origin, None)


def _with_state(
    spec: NetDefinition, phase: caffe_pb2.Phase, *overrides: caffe_pb2.NetState
) -> NetDefinition:
    """Merge the states: the phase first, then the net's own, then the solver's."""
    state = caffe_pb2.NetState()
    state.phase = phase
    state.MergeFrom(spec.param.state)
    for override in overrides:
        state.MergeFrom(override)
    param = caffe_pb2.NetParameter()
    param.CopyFrom(spec.param)
    param.state.CopyFrom(state)
    return spec._replace(param=param)


def check_files(
    solver: caffe_pb2.SolverParameter, specs: Iterable[NetDefinition], cluster: Cluster
) -> None:
    """Raise an error when weights, or a file that a net's data layer reads, are missing.

    Only rank 0 reads weights.
    """
    for path in split_paths(solver.weights) if cluster.rank == 0 else ():
        require_weights(path)
    known = layer_types()
    for spec in specs:
        shard = Shard(cluster.rank, cluster.size)
        for number in kept_layers(spec.param, log=False):
            param = spec.param.layer[number]
            kind = layer_class(param.type) if param.type in known else Layer
            if kind.require_files is not Layer.require_files:
                where = spec.places.layer(number) if spec.places else ""
                context = LayerContext(spec.param.state.phase, shard=shard, where=where)
                kind(param, context).require_files()


def split_paths(weights: Iterable[str]) -> list[str]:
    """Return the paths in a solver's ``weights``, which may hold several, with commas between."""
    return [path.strip() for paths in weights for path in paths.split(",")]


def make_train_net(
    spec: NetDefinition,
    cluster: Cluster,
    divide: bool,
    keep_diffs: bool,
    output_folder: str,
    **options: Any,
) -> Net:
    """Return the train net of this rank; ``options`` are for `Net`.

    With ``divide`` the batch sizes count for all ranks together.  Layers write their files to an
    ``output_folder``, if there is one.
    """
    logger.info("Creating training net from %s", spec.origin)
    together = divide_batches(spec.param, cluster.rank, cluster.size) if divide else 0
    redirect_outputs(spec.param, output_folder)
    shard = Shard(cluster.rank, cluster.size, "record", together=together)
    net = Net(spec.param, shard=shard, places=spec.places, keep_diffs=keep_diffs, **options)
    log_layers(net)
    return net


def make_test_nets(
    param: caffe_pb2.SolverParameter,
    specs: Iterable[NetDefinition],
    cluster: Cluster,
    train_net: Net,
    output_folder: str,
    **options: Any,
) -> list[Net]:
    """Return the test nets of this rank; the arguments are those of `make_train_net`."""
    made = []
    # Tests are spread over ranks batch by batch, so the batches stay the prototxt's.
    shard = Shard(cluster.rank, cluster.size, "batch")
    for number, spec in enumerate(specs):
        logger.info("Creating test net (#%d) specified by %s", number, spec.origin)
        redirect_outputs(spec.param, output_folder)
        net = Net(spec.param, shard=shard, places=spec.places, **options)
        log_layers(net, train_net)
        net.debug_info = param.debug_info
        if param.eval_type == "detection":
            check_outputs(net, number)
        made.append(net)
    return made


def train_net(solver: caffe_pb2.SolverParameter) -> NetDefinition:
    """Return the train net; raises UsageError unless exactly one field gives one."""
    given = [field for field in _TRAIN_FIELDS if solver.HasField(field)]
    if len(given) != 1:
        found = ", ".join(given) or "none"
        raise UsageError(
            f"the solver must specify one train net, by one of {', '.join(_TRAIN_FIELDS)}; "
            f"found {found}"
        )
    field = given[0]
    if field in ("net", "train_net"):
        spec = _from_file(getattr(solver, field), f"{field} file")
    else:
        spec = _inline(getattr(solver, field), field)
    return _with_state(spec, caffe_pb2.TRAIN, solver.train_state)


def test_nets(solver: caffe_pb2.SolverParameter) -> list[NetDefinition]:
    """Return the test nets, one per ``test_iter``; raises UsageError when the counts disagree."""
    specs = [_inline(param, "test_net_param") for param in solver.test_net_param]
    specs += [_from_file(path, "test_net file") for path in solver.test_net]
    specs += _generic(solver, len(solver.test_iter) - len(specs))
    if len(specs) != len(solver.test_iter):
        raise UsageError(
            f"test_iter must be given once per test net: {len(solver.test_iter)} test_iter "
            f"for {len(specs)} test net(s)"
        )
    if solver.test_state and len(solver.test_state) != len(specs):
        raise UsageError(
            f"test_state must be given once per test net or not at all: "
            f"{len(solver.test_state)} test_state for {len(specs)} test net(s)"
        )
    if specs and solver.test_interval <= 0:
        raise UsageError(f"test nets need a test_interval above 0, found {solver.test_interval}")
    states = solver.test_state or [caffe_pb2.NetState()] * len(specs)
    return [_with_state(spec, caffe_pb2.TEST, state) for spec, state in zip(specs, states)]


def _generic(solver: caffe_pb2.SolverParameter, count: int) -> Iterator[NetDefinition]:
    """Yield ``net`` or ``net_param`` for every test_iter that no explicit test net takes."""
    for _ in range(count):
        if solver.HasField("net_param"):
            yield _inline(solver.net_param, "net_param")
        elif solver.HasField("net"):
            yield _from_file(solver.net, "net file")


def divide_batches(param: caffe_pb2.NetParameter, rank: int, ranks: int) -> int:
    """Set the batch size of every data layer that the net's state keeps to a rank's share of it.

    Returns 0 if all ranks have the same shares, else the batch size that they have together.
    Raises UsageError for a batch size with fewer samples than ranks, and for different ones that
    are not divided evenly.
    """
    divided = [
        (layer.name, value)
        for layer in [param.layer[number] for number in kept_layers(param, log=False)]
        for field, value in layer.ListFields()
        if field.name.endswith("data_param") and "batch_size" in value.DESCRIPTOR.fields_by_name
    ]
    sizes = {value.batch_size for _, value in divided}
    is_uneven = any(size % ranks for size in sizes)
    for name, value in divided:
        if value.batch_size < ranks and is_uneven:
            raise UsageError(
                f"layer '{name}': a global batch of {value.batch_size} leaves some of {ranks} "
                "ranks without a sample"
            )
        if is_uneven and len(sizes) > 1:
            raise UsageError(
                f"layer '{name}': global batches of {' and '.join(map(str, sorted(sizes)))} cannot "
                f"be divided by {ranks} ranks: take one size for all layers, or multiples of "
                f"{ranks}"
            )
        value.batch_size = share(value.batch_size, rank, ranks)
    return sizes.pop() if is_uneven else 0


def redirect_outputs(param: caffe_pb2.NetParameter, folder: str) -> None:
    """Let the layers that write files write them to ``folder``, unless that is empty, in place."""
    for layer in param.layer if folder else ():
        if layer.hdf5_output_param.file_name:
            layer.hdf5_output_param.file_name = f"{folder}/{layer.name.replace('/', '_')}.h5"
        save = layer.detection_output_param.save_output_param
        if save.output_directory:
            save.output_directory = folder
