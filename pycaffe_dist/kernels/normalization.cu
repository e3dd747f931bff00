// BatchNorm's work on the statistics of its channels, which are doubles, without a batch.

template <typename P>
__global__ void running_statistics(const P* means, const P* variances, const P* weight,
                                   double* mean, double* variance, int channels) {
  for EACH(c, channels) {
    const double sum = weight ? load(weight, 0) : 1, factor = sum == 0 ? 0 : 1 / sum;
    mean[c] = load(means, c) * factor;
    variance[c] = load(variances, c) * factor;
  }
}

template <typename P>
__global__ void shift_and_scale(const double* mean, const double* variance, double eps, P* shift,
                                P* scale, const P* factor, P* product, int channels) {
  for EACH(c, channels) {
    const Wide<P> inverse = Wide<P>(1 / sqrt(variance[c] + eps));
    store(shift, c, Wide<P>(mean[c]));
    store(scale, c, inverse);
    if (product) store(product, c, inverse * load(factor, c));
  }
}
