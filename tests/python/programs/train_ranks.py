"""A training script for several GPUs, changed for MPI: mpirun starts the ranks, not the script."""

import argparse

import caffe


def log_times(solver):
    """Log the time of each layer, and of a whole iteration."""
    names = list(solver.net._layer_names)
    timers = {way: [caffe.Timer() for _ in names] for way in ("forw", "back")}
    total = caffe.Timer()

    def show():
        total.stop()
        if solver.iter % solver.param.display == 0:
            for way in ("forw", "back"):
                for name, timer in zip(names, timers[way]):
                    caffe.log(f"{way} {name}: {timer.ms:.2f}")
            caffe.log(f"solver total: {total.ms:.2f}")

    solver.net.before_forward(lambda layer: timers["forw"][layer].start())
    solver.net.after_forward(lambda layer: timers["forw"][layer].stop())
    solver.net.before_backward(lambda layer: timers["back"][layer].start())
    solver.net.after_backward(lambda layer: timers["back"][layer].stop())
    solver.add_callback(lambda: total.start(), show)


def solve(options, rank):
    caffe.set_device(rank)
    caffe.set_mode_gpu()
    caffe.set_solver_count(options.ranks)
    caffe.set_solver_rank(rank)
    caffe.set_multiprocess(True)
    solver = caffe.SGDSolver(options.solver)
    nccl = caffe.NCCL(solver, caffe.NCCL.new_uid())
    nccl.bcast()
    solver.add_callback(nccl)
    if options.timing and rank == 0:
        log_times(solver)
    if solver.param.layer_wise_reduce:
        solver.net.after_backward(nccl)
    solver.step(solver.param.max_iter)
    solver.net.save(f"rank_{rank}_of_{options.ranks}.caffemodel")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--solver", required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--timing", action="store_true")
    options = parser.parse_args()
    caffe.init_log()
    caffe.log(f"Using {options.ranks} ranks")
    solve(options, caffe.solver_rank())
