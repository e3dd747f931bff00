"""A training run: the ranks, the exchange, the solver, signals and progress put together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from pycaffe_dist import log
from pycaffe_dist.comm import cluster as clusters
from pycaffe_dist.comm.cluster import Cluster
from pycaffe_dist.config import Action, ExchangeSettings, TrainOptions
from pycaffe_dist.device import HOST, Device
from pycaffe_dist.errors import UsageError
from pycaffe_dist.exchange.server.serving import serve
from pycaffe_dist.gpu.choice import choose_device
from pycaffe_dist.launch.resizing import Request, RequestFile
from pycaffe_dist.log import fmt, logger
from pycaffe_dist.results import show
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers import Solver
from pycaffe_dist.solvers.callbacks import Callback
from pycaffe_dist.solvers.fields import check_file
from pycaffe_dist.solvers.layer_metrics import LayerMetrics
from pycaffe_dist.solvers.snapshots import holding_prefix, resolve
from pycaffe_dist.threads import set_threads, thread_count
from pycaffe_dist.training import elastic, trial
from pycaffe_dist.training.consistency import WeightCheck, check_nets, check_options, check_solvers
from pycaffe_dist.training.elastic import Attempt, KeptActions
from pycaffe_dist.training.engine import make_engine
from pycaffe_dist.training.metrics_file import MetricsFile
from pycaffe_dist.training.tensorboard import TensorBoard
from pycaffe_dist.training.timeline import Timeline
from pycaffe_dist.training.tuning import Tuning

ActionSource = Callable[[], Action]


def train(
    options: TrainOptions,
    action_source: ActionSource,
    callbacks: Sequence[Callback] = (),
    prepare: Callable[[], None] | None = None,
) -> int:
    """Run the training that ``options`` describe, on this rank; return the exit status 0.

    ``action_source`` is called between iterations for the next action; a rank that serves
    parameters does not call it.  ``callbacks`` run after every iteration and must not read
    parameters.  ``prepare`` runs on rank 0 before any rank reads a file.  Raises PcaffeError; an
    exception ends the run on all ranks.
    """
    with clusters.detect(options.cluster) as cluster:
        if cluster.serves:
            set_threads(options.threads or cluster.threads)
            serve(cluster)
        else:
            if prepare is not None:
                if cluster.rank == 0:
                    prepare()
                cluster.max(0)  # the others wait
            actions, file = KeptActions(action_source), RequestFile()
            if options.cluster.elastic:
                cluster.has_request = file.has_new

            def run(attempt: Attempt, ranks: Cluster) -> None:
                # A rank that has joined does not know which requests are done.
                file.done = Request(int(ranks.max(file.done.number)))
                ending = [*callbacks, lambda solver: attempt.resize(solver, file)]
                try:
                    _train(options, ranks, actions, ending, attempt)
                finally:
                    attempt.end()

            elastic.train(cluster, run)
    return 0


def _train(
    options: TrainOptions,
    cluster: Cluster,
    actions: KeptActions,
    callbacks: Sequence[Callback],
    attempt: Attempt,
) -> None:
    """Make the solver and run it."""
    set_threads(options.threads or cluster.threads)
    check_options(cluster, options)
    param = _solver_param(options)
    prefix = param.snapshot_prefix
    goes_on = bool(cluster.max(int(attempt.checkpoint is not None)))
    with _place(options, param, cluster) as folder:
        snapshot = "" if goes_on else _find_snapshot(options, param, cluster)
        with log.silent() if goes_on else nullcontext():
            chosen = choose_device(
                options.gpu,
                param.solver_mode == caffe_pb2.SolverParameter.GPU,
                device_id=param.device_id if cluster.size == 1 else 0,
                local_rank=cluster.local_rank,
                local_size=cluster.local_size,
            )
            solver = _solver_for(options, param, cluster, chosen, snapshot, folder)
        try:
            if options.cluster.elastic:
                attempt.begin(solver, goes_on, options.cluster.elastic)
            if options.check:
                show(trial.run(solver, snapshot, prefix), options.json)
            else:
                _run(solver, options, attempt, snapshot, actions, callbacks)
        finally:
            solver.close()


def _place(
    options: TrainOptions, param: caffe_pb2.SolverParameter, cluster: Cluster
) -> AbstractContextManager[str]:
    """Return a context that gives the folder for all files if it is not the user's, else none."""
    if options.check:
        return trial.elsewhere(param, cluster.rank)
    return holding_prefix(param) if cluster.rank == 0 else nullcontext("")


def _solver_for(
    options: TrainOptions,
    param: caffe_pb2.SolverParameter,
    cluster: Cluster,
    chosen: Device,
    snapshot: str,
    folder: str,
) -> Solver:
    """Return the solver that ``options`` describe; it will resume from ``snapshot``.

    All its files go to ``folder``, if there is one.
    """
    if folder:
        param.snapshot_prefix = f"{folder}/check"
    if snapshot or options.weights:
        # As in Caffe, these replace the solver's own.
        param.ClearField("weights")
    if not snapshot:
        param.weights.extend(options.weights)
    return make_solver(
        param,
        cluster,
        exchange=options.exchange,
        settings=options.gradients,
        divide_batches=options.global_batch,
        scale_rate=options.scale_lr,
        keep=options.keep,
        stop_at_nan=options.stop_at_nan,
        cuda_graph=options.cuda_graph,
        output_folder=folder,
        device=chosen,
    )


def _run(
    solver: Solver,
    options: TrainOptions,
    attempt: Attempt,
    snapshot: str,
    actions: KeptActions,
    callbacks: Sequence[Callback],
) -> None:
    """Resume if there is a ``snapshot``, and train to the end."""
    cluster = solver.cluster
    _log_ranks(cluster, solver, options)
    if snapshot:
        logger.info("Resuming from %s", snapshot)
        solver.restore(snapshot)
    if options.check_interval and cluster.size > 1 and not options.gradients.staleness:
        solver.callbacks.end_of_iteration.append(WeightCheck(options.check_interval))
    solver.callbacks.end_of_iteration.extend(callbacks)
    actions.follow(solver)
    _follow(solver, options)
    timeline = Timeline(options.timeline, cluster, attempt.spans) if options.timeline else None
    if timeline is not None:
        solver.profile(timeline)
    logger.info("Starting Optimization")
    try:
        solver.solve()
        cluster.commit()  # a rank that ended before the others could not help them go on
    finally:
        if timeline is not None:
            solver.profile(timeline, wanted=False)
    # Caffe's command logs this even if its solver has.
    logger.info("Optimization Done.")
    solver.device.warn_of_fallbacks()
    if timeline is not None:
        timeline.write()


def _follow(solver: Solver, options: TrainOptions) -> None:
    """Let files get the records of the run."""
    files = options.metrics or options.tensorboard
    solver.recorder.flags = options.flags
    if options.layer_metrics:
        if not files:
            raise UsageError(
                "--layer_metrics needs a place for the records: --metrics=FILE or "
                "--tensorboard=FOLDER"
            )
        solver.recorder.layers = LayerMetrics()
    if files and not solver.param.display:
        logger.warning("display is 0 in the solver, so that records of metrics are of tests alone")
    if options.metrics and solver.cluster.rank == 0:
        solver.callbacks.on_record.append(MetricsFile(options.metrics))
    if options.tensorboard:
        TensorBoard(options.tensorboard, solver)


def _find_snapshot(
    options: TrainOptions, param: caffe_pb2.SolverParameter, cluster: Cluster
) -> str:
    """Return the path of the solver state to resume from; rank 0 decides for all."""
    found = resolve(param, options.snapshot) if cluster.rank == 0 else ""
    return cluster.broadcast_bytes(found.encode()).decode()


def make_solver(
    param: caffe_pb2.SolverParameter,
    cluster: Cluster | None = None,
    *,
    exchange: str = TrainOptions.exchange,
    settings: ExchangeSettings = ExchangeSettings(),  # noqa: B008 (frozen)
    divide_batches: bool = False,
    scale_rate: int = 0,
    keep: int = 0,
    stop_at_nan: bool = True,
    keep_diffs: bool = False,
    cuda_graph: bool = True,
    output_folder: str = "",
    device: Device = HOST,
) -> Solver:
    """Return a solver of a SolverParameter on this rank; see Solver for the options.

    ``param`` replaces the parts of ``settings`` that the solver determines.  Without a ``cluster``,
    under a launcher such as mpirun, the launcher's cluster is used.
    """
    if cluster is None:
        cluster = launched_cluster()
    if settings.staleness and param.lr_policy == "plateau":
        raise UsageError("lr_policy 'plateau' needs the loss of all ranks, so staleness must be 0")
    if settings.staleness and param.averaging:
        raise UsageError("averaging needs equal weights on all ranks, so staleness must be 0")
    settings = replace(
        settings, passes=max(1, param.iter_size), needs_gradients=_needs_gradients(param)
    )
    check_solvers(cluster, param)
    engine = make_engine(cluster, exchange, settings)
    solver = Solver(
        param,
        cluster=cluster,
        engine=engine,
        divide_batches=divide_batches,
        scale_rate=scale_rate,
        keep=keep,
        stop_at_nan=stop_at_nan,
        keep_diffs=keep_diffs,
        cuda_graph=cuda_graph,
        output_folder=output_folder,
        device=device,
    )
    check_nets(cluster, solver)
    Tuning().follow(solver)
    return solver


def _needs_gradients(param: caffe_pb2.SolverParameter) -> str:
    """Return why a solver needs all mean gradients itself; empty if it does not."""
    if param.clip_gradients >= 0:
        return "clip_gradients needs the norm of all mean gradients, which no rank has"
    if param.data_type == "float16":
        return "data_type float16 needs all mean gradients, to see whether one overflowed"
    if param.larc_policy:
        return "larc_policy needs the norms of whole mean gradients, which no rank has"
    return ""


@functools.cache
def launched_cluster() -> Cluster:
    """Return the cluster that a launcher started this process in, the same one at every call.

    This rank then computes on its share of the host's cores.
    """
    cluster = clusters.detect()
    if cluster.size > 1:
        set_threads(cluster.threads)
    return cluster


def _solver_param(options: TrainOptions) -> caffe_pb2.SolverParameter:
    """Read the solver; the flags for level, stages, seed and time override it."""
    param = text.read_solver(options.solver)
    param.train_state.level = options.level
    param.train_state.stage.extend(options.stages)
    if options.seed is not None:
        param.random_seed = options.seed
    if options.max_time is not None:
        param.max_time = options.max_time
    if options.keep_best:
        param.best_output = options.keep_best
    check_file(param, options.solver)
    if not param.HasField("max_iter"):
        raise UsageError(f"{options.solver}: has no max_iter, the number of iterations to train")
    return param


def _log_ranks(cluster: Cluster, solver: Solver, options: TrainOptions) -> None:
    """Log the number of ranks and of samples per iteration, and what may surprise about them."""
    if cluster.size == 1:
        return
    logger.info(
        "%d ranks on %d host(s), %d thread(s) each",
        cluster.size,
        len(set(cluster.hosts)),
        thread_count(),
    )
    if cluster.owners != tuple(range(cluster.size)):
        logger.info("%d more rank(s) serve parameters", len(cluster.owners))
    if cluster.local_rank == 0 and cluster.local_size > cluster.local_cores:
        logger.warning(
            "%d ranks share the %d core(s) of %s and wait for each other: start at most one per "
            "core; a rank computes on several cores by itself",
            *(cluster.local_size, cluster.local_cores, cluster.host),
        )
    batch = solver.batch_size
    if solver.net.shard.together:
        logger.info(
            "Effective batch size: %d, which %d ranks share: a gradient counts by its rank's share",
            solver.effective_batch,
            cluster.size,
        )
    elif batch:
        logger.info(
            "Effective batch size: %d = %d per rank x %d ranks x iter_size %d",
            batch * cluster.size * solver.param.iter_size,
            batch,
            cluster.size,
            solver.param.iter_size,
        )
        if options.scale_lr:
            logger.info(
                "Learning rates are %d times the solver's, as the batch is, from iteration %d on",
                *(cluster.size, options.scale_lr),
            )
        elif not options.global_batch:
            logger.info(
                "This is %d times the solver's batch, and base_lr is still %s: raise that, up to "
                "as many times (--scale_lr), or keep the batch with --global_batch",
                *(cluster.size, fmt(solver.param.base_lr)),
            )
