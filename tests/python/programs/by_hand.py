"""A training loop by hand on every rank: forward, backward and update."""

import sys

import caffe

solver = caffe.SGDSolver(sys.argv[1])
for _ in range(solver.param.max_iter):
    solver.net.clear_param_diffs()
    for _ in range(2):  # the gradients of two batches add up
        solver.net.forward()
        solver.net.backward()
    solver.apply_update()
solver.net.save(f"by_hand_{caffe.solver_rank()}_of_{caffe.solver_count()}.caffemodel")
