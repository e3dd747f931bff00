// BatchNorm's work on the statistics of its channels, which are doubles.

template <typename P>
__global__ void add_to_running_sums(const double* mean, const double* variance, double keep,
                                    double share, double unbiased, P* means, P* variances,
                                    P* weight, int channels) {
  for EACH(c, channels) {
    store(means, c, Wide<P>(load(means, c) * keep + mean[c] * share));
    store(variances, c, Wide<P>(load(variances, c) * keep + variance[c] * unbiased * share));
    if (weight && c == 0) store(weight, 0, Wide<P>(load(weight, 0) * keep + share));
  }
}

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
                                P* scale, int channels) {
  for EACH(c, channels) {
    store(shift, c, Wide<P>(mean[c]));
    store(scale, c, Wide<P>(1 / sqrt(variance[c] + eps)));
  }
}

template <typename P>
__global__ void gradient_terms(const double* sum_dy, const double* sum_dyx, double count,
                               const P* scale, bool spread, P* offset, P* slope, int channels) {
  for EACH(c, channels) {
    const double factor = load(scale, c);
    store(offset, c, Wide<P>(sum_dy[c] / count));
    store(slope, c, Wide<P>(spread ? sum_dyx[c] / count * factor * factor : 0));
  }
}

// All except the sums may be null.  Gradients are set, or the sums are added to them.
template <typename P>
__global__ void add_affine_gradients(const double* sum_dy, const double* sum_dyx, const P* factor,
                                     P* bias, P* scale, bool add_bias, bool add_scale,
                                     int channels) {
  for EACH(c, channels) {
    if (bias) store(bias, c, Wide<P>((add_bias ? load(bias, c) : Wide<P>(0)) + sum_dy[c]));
    if (!scale) continue;
    const double own = factor ? sum_dyx[c] * load(factor, c) : sum_dyx[c];
    store(scale, c, Wide<P>((add_scale ? load(scale, c) : Wide<P>(0)) + own));
  }
}
