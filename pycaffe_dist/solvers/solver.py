"""The solver: iterations of forward, backward and update, with tests, display and snapshots."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pycaffe_dist import device as devices
from pycaffe_dist.comm.cluster import Cluster, LocalCluster
from pycaffe_dist.config import Action
from pycaffe_dist.errors import UsageError
from pycaffe_dist.log import DETAIL, fmt, logger
from pycaffe_dist.net import Net, debug
from pycaffe_dist.net.graphed import Passes
from pycaffe_dist.net.precompile import compile_kernels
from pycaffe_dist.profiling import Follower, Kind, Profiler
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers import gradients, nets, resuming, sharing, snapshots
from pycaffe_dist.solvers.averaging import WeightAverage
from pycaffe_dist.solvers.best import Best
from pycaffe_dist.solvers.callbacks import Callback, Callbacks
from pycaffe_dist.solvers.checkpoint import Checkpoint
from pycaffe_dist.solvers.display import Display
from pycaffe_dist.solvers.engine import Engine
from pycaffe_dist.solvers.fields import check_fields
from pycaffe_dist.solvers.local_engine import LocalEngine
from pycaffe_dist.solvers.loss_scale import LossScale, data_type
from pycaffe_dist.solvers.losses import Losses
from pycaffe_dist.solvers.lr_policy import LearningRate
from pycaffe_dist.solvers.method import Method, method_class
from pycaffe_dist.solvers.metrics import Recorder
from pycaffe_dist.solvers.run_snapshots import RunSnapshots
from pycaffe_dist.solvers.state import TrainState
from pycaffe_dist.solvers.testing import Testing
from pycaffe_dist.solvers.update.updater import Updater, Watch
from pycaffe_dist.solvers.update.updates import Updates

# Spans are handed over together, which takes less time.
MANY_SPANS = 1000


class Solver:
    """Trains the net of a SolverParameter, on this rank of ``cluster``.

    ``engine`` combines gradients across ranks; ``dtype`` is the nets' type of data; nets and
    updates run on ``device``, by default the current one.  With ``divide_batches`` the prototxt's
    batch sizes count for all ranks together.  With ``scale_rate`` learning rates are multiplied by
    the number of ranks, from that iteration on, and before it by less.  The newest ``keep``
    snapshots stay (0: all).
    A loss that is NaN or infinite ends the run, unless ``stop_at_nan`` is False.  ``keep_diffs``
    lets the train net's diffs be read after backward, at the price of memory (see `Net`).  Layers
    write their files to ``output_folder``, if that is not empty.
    ``action_source`` says in every iteration whether to stop or snapshot; ``callbacks`` are
    called at their moments.  On one rank with a GPU, ``cuda_graph`` repeats an iteration's work as
    CUDA graphs (see docs/gpu.md).  ``by_hand`` is true in loops that call `apply_update`.  Raises
    PcaffeError of the kind that fits when a net, field or weight file is unusable.
    """

    def __init__(
        self,
        param: caffe_pb2.SolverParameter,
        *,
        cluster: Cluster | None = None,
        engine: Engine | None = None,
        dtype: Any = np.float32,
        divide_batches: bool = False,
        scale_rate: int = 0,
        keep: int = 0,
        stop_at_nan: bool = True,
        keep_diffs: bool = False,
        output_folder: str = "",
        device: devices.Device | None = None,
        cuda_graph: bool = True,
    ):
        shown = text.to_text(param).rstrip()
        logger.log(DETAIL, "Initializing solver from parameters: \n%s", shown)
        self.param = param
        self.cluster = cluster or LocalCluster()
        self.engine = engine or LocalEngine()
        self.device = device or devices.current()
        check_fields(param)
        factor = self.cluster.size if scale_rate else 1
        learning_rate, _ = LearningRate(param, factor, scale_rate), method_class(param.type)
        train, tests = nets.train_net(param), nets.test_nets(param)
        nets.check_files(param, [train, *tests], self.cluster)
        if (param.snapshot or param.best_output) and self.cluster.rank == 0:
            snapshots.check_prefix(param)
        if param.data_type != "float32":
            dtype = data_type(param, self.device)
        began = time.monotonic()
        self.action_source: Callable[[], Action] = lambda: Action.NONE
        self.callbacks = Callbacks()
        self.stopping = False
        self._display = Display(param.display)
        self._started = False
        self.by_hand = False
        self.profiler = Profiler()
        self.recorder = Recorder(self)
        seed = sharing.agree_on_seed(param, self.cluster)
        options = {"dtype": dtype, "seed": seed, "device": self.device}
        options["output_folder"] = output_folder
        self.net = nets.make_train_net(train, self.cluster, divide_batches, keep_diffs, **options)
        self.test_nets = nets.make_test_nets(param, tests, self.cluster, self.net, **options)
        self.state = self._new_state(learning_rate, stop_at_nan, began)
        self._has_restored = False
        memory = self._graph_memory(cuda_graph)
        self._passes = Passes(self.net, memory)
        self._updates = Updates(param, self.net, self.device, self.profiler, keep_diffs, memory)
        self.testing = Testing(param, self.test_nets, self.state, self.cluster)
        all_nets, updater = [self.net, *self.test_nets], self._updates.updater
        self._snapshots = RunSnapshots(
            param, self.cluster, all_nets, self.state, updater, keep, seed
        )
        for net in all_nets:
            net.open_files()
        compile_kernels(all_nets, also=self._dry_update, also_is=param.type)
        self.load_weights(nets.split_paths(param.weights))
        logger.info("Solver scaffolding done.")

    def _new_state(
        self, learning_rate: LearningRate, stop_at_nan: bool, began: float
    ) -> TrainState:
        """Return the state of a run that has not begun."""
        param = self.param
        return TrainState(
            learning_rate,
            Losses(param.average_loss, stop_at_nan),
            LossScale(param.loss_scale) if param.data_type == "float16" else None,
            [0] * len(self.test_nets),
            began,
            WeightAverage(param, self.net) if param.averaging else None,
            Best(param, self.test_nets) if param.best_output else None,
        )

    def _graph_memory(self, wanted: bool) -> Any:
        """Return memory for CUDA graphs, or None where there are none."""
        gpu: Any = self.device
        if not (wanted and gpu.is_gpu):
            return None
        if self.cluster.size > 1:
            logger.log(DETAIL, "No CUDA graphs: exchanges begin between the layers of backward")
            return None
        return gpu.graph_memory()

    def _dry_update(self, net: Net) -> None:
        Updater(self.param, net.parameters).update(0, rate=0.0, iteration=0)

    @property
    def iteration(self) -> int:
        """The number of iterations that have been made."""
        return self.state.iteration

    @property
    def method(self) -> Method:
        """The method of the updates, with its history."""
        return self._updates.updater.method

    @property
    def batch_size(self) -> int:
        """This rank's samples per forward pass: the first dimension of the first data blob."""
        first = self.net.nodes[0].top if self.net.nodes else []
        return first[0].shape[0] if first and first[0].shape else 0

    @property
    def effective_batch(self) -> int:
        """The samples of one iteration on all ranks together."""
        return self.net.shard.total(self.batch_size) * self.param.iter_size

    def _rank_mean(self) -> Callable[[float], float] | None:
        """Return what gives losses their divisor: times the weight that the loss will have."""
        mean, weight = self.engine.mean, self.net.shard.weight
        return mean if mean is None or weight == 1 else lambda value: weight * mean(value)

    def load_weights(self, paths: Iterable[str]) -> None:
        """Copy weights from one or more files into the train and test nets, as for fine-tuning.

        Only rank 0 reads; the others get its weights when training starts.
        """
        for path in paths:
            logger.info("Finetuning from %s", path)
            if self.cluster.rank == 0:
                self.net.load_weights(path)
            trained = set(self.net.layer_names)
            for net in self.test_nets:
                # The rest of a test net's weights are the train net's.
                if any(node.layer.blobs and node.name not in trained for node in net.nodes):
                    net.load_weights(path)

    def solve(self, resume: str = "") -> None:
        """Train up to ``max_iter`` iterations, from a solver state if one is given."""
        logger.info("Solving %s", self.net.name)
        logger.info("Learning Rate Policy: %s", self.param.lr_policy)
        self.stopping = False
        wants_last = self.param.snapshot_after_train
        if wants_last and self.param.snapshot_prefix and self.cluster.rank == 0:
            snapshots.check_prefix(self.param)  # now rather than after days of training
        if resume:
            logger.info("Restoring previous solver status from %s", resume)
            self.restore(resume)
        self.step(self.param.max_iter - self.iteration)
        if (wants_last or self._snapshots.is_wanted()) and not self._snapshots.has_current():
            self.snapshot()
        self._snapshots.close()
        if self.stopping:
            logger.info("Optimization stopped early.")
            return
        if self._display.is_due(self.iteration):
            loss = self._display.show_last(self.state, self.net, self.cluster)
            self.recorder.send_last(loss)
        if self.param.test_interval and self.iteration % self.param.test_interval == 0:
            self.test_all()
        logger.info("Optimization Done.")

    def step(self, iterations: int) -> None:
        """Run ``iterations`` iterations, or fewer if asked to stop; raises NumericError on NaN."""
        self._start(by_hand=False)
        calls = self.callbacks
        if calls.after_gradients and self.engine.updates_some:
            raise UsageError(
                "functions that are to see the mean gradients (add_callback's second one) need "
                "an exchange that brings them; parameter_server brings weights"
            )
        self.recorder.begin()
        stop_at = self.iteration + iterations
        self.state.losses.begin()
        self.state.before_test = None
        self._display.begin(self.iteration)
        while self.iteration < stop_at:
            number, began = str(self.iteration), time.perf_counter()
            if self.testing.is_due():
                self.test_all()
                if self.stopping:
                    break
            self._call(calls.before_gradients)
            display = self._display.is_due(self.iteration)
            self.net.debug_info = display and self.param.debug_info
            self._forward_backward()
            if display:
                means = self._display.show(self.state, self.net, self.cluster, self.engine)
                self.recorder.show(means)
            if calls.after_gradients:
                for parameter in reversed(self.net.parameters):
                    self.engine.wait(parameter)
                self._call(calls.after_gradients)
            self._apply_update(display)
            self.recorder.send_shown()
            action = self.engine.agree(self.wanted_action())
            if action is Action.SNAPSHOT_AND_STOP:
                self.snapshot()
            elif self._snapshots.is_due() or action is Action.SNAPSHOT:
                self.snapshot(wait=False)
            self.stopping = action in (Action.STOP, Action.SNAPSHOT_AND_STOP)
            self._call(calls.after_iteration)
            self._mark(Kind.ITERATION, number, began)
            self._call(calls.end_of_iteration, updated=False)
            if self.stopping:
                break
        self.finish_updates()

    def _mark(self, kind: str, name: str, began: float) -> None:
        if record := self.profiler.record:
            record((kind, name, began, time.perf_counter(), 0))
            self.profiler.hand_over(MANY_SPANS)

    def _call(self, callbacks: list[Callback], updated: bool = True) -> None:
        """Call functions, with all parameters ``updated`` or not."""
        if callbacks and updated:
            self.finish_updates()
        for callback in callbacks:
            callback(self)

    def profile(self, follower: Follower, wanted: bool = True) -> None:
        """Call ``follower`` with spans from now on, many at a time, or stop doing so."""
        if wanted:
            self.profiler.add(follower)
        else:
            self.profiler.remove(follower)
        self.net.record = self.profiler.record
        self.engine.profile(self.profiler.record)

    def watch_updates(self, watch: Watch | None) -> None:
        """Call ``watch`` before and after each update from now on, or nothing."""
        self._updates.updater.watch = watch

    def finish_updates(self) -> None:
        """Make the updates that were left to the next forward; the weights may then be used."""
        self._updates.finish()

    def wanted_action(self) -> Action:
        """Return what this rank is asked to do now; at the end of ``max_time``, to stop."""
        if self.param.max_time and time.monotonic() - self.state.began > self.param.max_time:
            logger.info("The run has taken its max_time of %s seconds", fmt(self.param.max_time))
            return Action.SNAPSHOT_AND_STOP
        return self.action_source()

    def _start(self, by_hand: bool | None = None) -> None:
        """Give all ranks rank 0's weights, and the engine the parameters to exchange.

        In a loop ``by_hand`` a gradient may be the sum of several backward passes, whose factors
        are not known; None changes nothing.
        """
        was_by_hand, self.by_hand = self.by_hand, self.by_hand if by_hand is None else by_hand
        changed = self.by_hand != was_by_hand
        if changed and (self.engine.factored or was_by_hand):
            self._started = False
        if changed or not self._started:
            self._call(self.callbacks.before_start, updated=False)
        if self._started:
            return
        if self.cluster.size > 1:
            self.engine.synchronize()
            sharing.share_weights(self.net, self.cluster)
            statistics, self.state.resumed_statistics = self.state.resumed_statistics, []
            if self.state.average:
                self.state.average.share(self.cluster)
            resuming.restore_statistics(self.state, self.net, self.cluster, statistics)
        updater, parameters = self._updates.updater, self.net.parameters
        self.engine.start(parameters, by_hand=self.by_hand, updater=updater)
        if self._has_restored and self.cluster.size > 1:
            sharing.share_history(self.method, parameters, self.engine, self.cluster)
        self._has_restored = False
        self._updates.start(self.engine)
        self._started = True
        self._call(self.callbacks.after_start, updated=False)

    def _forward_backward(self) -> None:
        """Accumulate the gradient of iter_size batches; keep this rank's mean loss."""
        passes = self.param.iter_size
        loss = 0.0
        scale = self.state.loss_scale
        self.net.loss_scale = (scale.value if scale else 1.0) * self.net.shard.weight
        # A GPU is given all of backward to do before the host waits for the loss.
        wait_first = not self.device.is_gpu or self.engine.updates_some
        for number in range(passes):
            last = number == passes - 1
            with self.net.rank_mean.over(self._rank_mean()):
                pending = self._passes.start_forward(number > 0, self._updates.before_layer)
            if wait_first:
                loss = self._take_loss(loss + pending.value(), passes if last else 0)
            self._passes.backward(
                on_gradient_ready=self.engine.gradient_ready if last else None,
                factored=self.engine.factored if last else (),
            )
            if not wait_first:
                loss = self._take_loss(loss + pending.value(), passes if last else 0)

    def _take_loss(self, loss: float, passes: int) -> float:
        """Check and return a loss; keep it if it is the sum over all ``passes``."""
        self.state.losses.check(loss, self.iteration, self.net)
        if passes:
            self.state.losses.recent.append(loss / passes * self.net.shard.weight)
            self._begin_updates()
        return loss

    def _begin_updates(self) -> None:
        """Tell exchanges that update parameters the iteration and its rate."""
        if self.engine.updates_some:
            self.engine.begin(self.iteration, self.state.rate(self.cluster))

    def apply_update(self) -> None:
        """Update the parameters by the diffs that backward, called by hand, has left.

        On several ranks by their mean; all ranks must call it.  Counts as an iteration.
        """
        self._start(by_hand=True)
        self._begin_updates()
        for parameter in reversed(self.net.parameters):
            if parameter.receives_gradient:
                self.engine.gradient_ready(parameter)
        self._apply_update(self._display.is_due(self.iteration))
        self.finish_updates()

    def _apply_update(self, display: bool) -> None:
        rate = self.state.rate(self.cluster)
        if display:
            logger.info("Iteration %d, lr = %s", self.iteration, fmt(rate))
        clipping = gradients.factor(self.param, self.state, self.net, self.engine)
        # What is displayed is known to this rank alone, which may be lost.
        self.engine.commit(together=display)
        if clipping is None:
            self._end_update()
            return
        self._updates.run(rate, self.iteration, clipping)
        if self.net.debug_info:
            self.finish_updates()
            known = [p for p in self.net.parameters if not self.engine.updates(p)]
            debug.log_update(known)
        self._end_update()

    def _end_update(self) -> None:
        self.state.iteration += 1
        average = self.state.average
        if average and average.is_due(self.iteration):
            self.finish_updates()
            average.add()
        self._call(self.callbacks.after_update, updated=False)

    def test_all(self) -> None:
        """Run every test net for its test_iter batches and log the mean outputs."""
        self._start()
        self.finish_updates()
        self.engine.synchronize()
        self.mean_statistics()
        began = time.perf_counter()
        if not self.testing.run(self.net, self._is_interrupted):
            return
        self._mark(Kind.TEST, "all", began)
        self._call(self.callbacks.after_tests, updated=False)
        for number in range(len(self.test_nets)):
            self.recorder.send_test(number)
        if self.state.best:
            self._judge(self.state.best)

    def mean_statistics(self) -> None:
        """Replace running statistics, and those of averaged weights, by their means over ranks."""
        self.engine.mean_statistics()
        if self.state.average:
            self.state.average.mean_statistics(self.cluster)

    def _judge(self, best: Best) -> None:
        """Keep the weights of the best test so far; stop when there is none for too long."""
        # All ranks must do the same.
        value = self.cluster.broadcast(np.array([best.read(self.testing.values[best.net])]))
        if best.judge(float(value[0]), self.iteration):
            self._snapshots.write_best()
        elif best.ends():
            self.stopping = True

    def _is_interrupted(self) -> bool:
        """Do, during a test, what this rank is asked to; tell whether to stop."""
        action = self.wanted_action()
        if action in (Action.SNAPSHOT, Action.SNAPSHOT_AND_STOP):
            self.snapshot()
        if action in (Action.STOP, Action.SNAPSHOT_AND_STOP):
            self.stopping = True
        return self.stopping

    def snapshot(self, wait: bool = True) -> str:
        """Write weights and solver state at this iteration; return the weights' file name.

        Rank 0 writes, in a thread.  Raises SnapshotError when it cannot, unless ``wait`` is False:
        then training may go on at once, and a failure is logged.
        """
        began = time.perf_counter()
        self.finish_updates()
        self._call(self.callbacks.before_snapshot, updated=False)
        path = self._snapshots.write(self.engine, self.effective_batch, wait)
        self._mark(Kind.SNAPSHOT, str(self.iteration), began)
        self.recorder.send_snapshot(path, time.perf_counter() - began)
        return path

    def restore(self, path: str) -> None:
        """Continue from a solver state (``.solverstate`` or ``.solverstate.h5``) of rank 0.

        With the companion file that pcaffe writes beside it, the run goes on exactly as if it had
        never stopped; without, as Caffe's would: data from their beginning, random states anew.
        """
        self._snapshots.restore(path, self.engine, self.effective_batch)
        self.engine.finish()
        self.recorder.restart()
        self._has_restored = True
        self._started = False  # weights and history must reach the other ranks

    def take_over(self, checkpoint: Checkpoint | None) -> None:
        """Continue from the newest of the checkpoints in the ranks' memory; new ranks have None."""
        self._snapshots.take_over(checkpoint, self.effective_batch, self.engine)
        self._has_restored = True

    def close(self) -> None:
        """Wait for the last snapshot; stop the nets' threads and the engine."""
        self._snapshots.close()
        self.engine.finish()
        for net in (self.net, *self.test_nets):
            net.close()
