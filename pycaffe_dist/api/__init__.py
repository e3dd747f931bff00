"""The parts of the Python API; programs reach them as pycaffe_dist and under pycaffe's names."""
