// Counts of predicted classes by label: a thread for each prediction.

template <typename T, typename P>
__global__ void add_to_confusion(const T* scores, const P* labels, const long long* ignored,
                                 int ignored_count, unsigned long long* counts,
                                 unsigned long long* wrong, unsigned int factor, int bits,
                                 int classes, int inner, int n) {
  for EACH(i, n) {
    const Wide<P> value = load(labels, i);
    // NaNs and values that are too large are no classes.
    const bool fits = value > -2147483520.0f && value < 2147483520.0f;
    const int label = fits ? int(value) : -1;
    bool counted = true;
    for (int k = 0; k < ignored_count; k++) counted &= !fits || label != ignored[k];
    if (!counted) continue;
    if (!fits || label < 0 || label >= classes) {
      atomicMin(wrong, wrong_code(i, float(value)));
      continue;
    }
    const int row = divide(i, factor, bits);
    const long long start = (long long)row * classes * inner + (i - row * inner);
    Wide<T> best = load(scores, start);
    int chosen = 0;
    for (int c = 1; c < classes; c++) {
      const Wide<T> score = load(scores, start + (long long)c * inner);
      if (score >= best) best = score, chosen = c;
    }
    atomicAdd(counts + (long long)label * classes + chosen, 1ULL);
  }
}
