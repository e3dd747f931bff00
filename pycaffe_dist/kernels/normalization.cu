// BatchNorm's statistics of its channels from running sums; mean and variance are doubles.

template <typename P>
__global__ void recall(const P* means, const P* variances, const P* weight, double* mean,
                       double* variance, double eps, P* shift, P* scale, const P* factor,
                       P* product, int channels) {
  for EACH(c, channels) {
    const double sum = weight ? load(weight, 0) : 1, share = sum == 0 ? 0 : 1 / sum;
    mean[c] = load(means, c) * share;
    variance[c] = load(variances, c) * share;
    const Wide<P> inverse = Wide<P>(1 / sqrt(variance[c] + eps));
    store(shift, c, Wide<P>(mean[c]));
    store(scale, c, inverse);
    store(product, c, factor ? inverse * load(factor, c) : inverse);
  }
}
